"""The enumeration of a stored study: with its caches, its answer kept, and as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError
from phaze_opt.search.engine import Engine, EngineJob
from phaze_opt.search.exhaustive import (
    TOP,
    Enumeration,
    EnumerationProgress,
    RankedDesign,
    enumerate_space,
)
from phaze_opt.search.frozen import content_hash
from phaze_opt.search.pools import Pool, dask_cluster, processes
from phaze_opt.search.processes import StopNow, StopSignals
from phaze_opt.search.results import BestDesign, best_to_json_dict, design_of
from phaze_opt.search.running import StudyRun, evaluate_baselines
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.store.enumerations import BoundStore, find_enumeration, keep_enumeration
from phaze_opt.search.store.failures import patiently
from phaze_opt.search.store.leases import DEFAULT_LEASE_S, expire_dead_workers, new_token
from phaze_opt.search.study import Study

FEW_POINTS = 20_000
"""Spaces with fewer points are enumerated before other processes would have started."""


class StoppedError(Exception):
    """A signal stopped an enumeration; what is bounded and evaluated is kept."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def enumerate_study(
    study: Study,
    *,
    top: int = TOP,
    bounds: bool = True,
    time_limit_s: float | None = None,
    workers: int | None = None,
    dask: str | None = None,
    on_progress: Callable[[EnumerationProgress], None] = lambda progress: None,
) -> Enumeration:
    """Find the best designs of a study's whole space, or return the stored answer.

    Parameters
    ----------
    study
        Its trials play no part; cached evaluations are used.
    top, bounds, time_limit_s, on_progress
        See `phaze_opt.search.exhaustive.enumerate_space`.
    workers
        Processes on this machine; ``None`` for one on every core, or one for `FEW_POINTS`.
    dask
        Address of a dask scheduler, whose workers take the place of processes on this machine.

    Raises
    ------
    ConflictError
        If the study was created with another version of the cost model.
    InputError
        If no bound is known for the objective, or the space is too large.
    StoppedError
        If a signal stopped it.
    """
    study.check_version()
    # The answer is the same with and without bounds; what was counted on the way is not.
    key = content_hash([study.resolved.hash, top, bounds])
    stored = find_enumeration(study.storage, key)
    if stored is not None:
        return from_json(stored, Enumeration, f"stored enumeration of the study {study.name!r}")
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}, but it must be at least 1.")
    found: Enumeration | None = None
    with StopSignals() as stop, suppress(StopNow):
        run = StudyRun(study, study.evaluator, 0, DEFAULT_LEASE_S, stop)
        expire_dead_workers(study.storage)
        patiently(partial(evaluate_baselines, run, new_token()))
        if not stop.requested:
            engine = Engine(study, study.evaluator)
            if workers is None:
                workers = 1 if engine.grid.points < FEW_POINTS else len(os.sched_getaffinity(0))
            with _pool(study, workers, dask) as pool:
                found = enumerate_space(
                    engine,
                    BoundStore(study.storage),
                    top=top,
                    bounds=bounds,
                    time_limit_s=time_limit_s,
                    on_progress=on_progress,
                    stopped=lambda: stop.requested,
                    pool=pool,
                )
    if found is None:
        raise StoppedError(stop.exit_code or 1)
    if found.status == "certified":
        keep_enumeration(study.storage, key, to_json(found).decode())
    return found


@contextmanager
def _pool(study: Study, workers: int, dask: str | None) -> Iterator[Pool | None]:
    """Provide the processes that bound and evaluate; ``None`` for this one."""
    if dask is not None:
        url = study.storage.url.render_as_string(hide_password=False)
        with dask_cluster(EngineJob(url, study.name, study.evaluator), dask) as cluster:
            yield cluster
    elif workers > 1:
        job = EngineJob(None, study.name, study.evaluator)
        with processes(job, study.storage, workers) as local:
            yield local
    else:
        yield None


def best_of_enumeration(study: Study, found: Enumeration) -> BestDesign | None:
    """Return the best design with its evaluations; ``None`` where nothing is feasible."""
    if not found.top:
        return None
    best = found.top[0]
    return design_of(study, None, DesignPoint(best.point), best.metrics)


def enumeration_to_json_dict(study: Study, found: Enumeration) -> dict[str, Any]:
    """Return the answer as ``study enumerate --json`` prints it."""
    best = best_of_enumeration(study, found)
    return {
        "study": study.name,
        "points": found.points,
        "bounded": found.bounded,
        "evaluated": found.evaluated,
        "feasible": found.feasible,
        "infeasible_proven": found.infeasible_proven,
        "status": found.status,
        "gap": found.gap,
        "best": None if best is None else best_to_json_dict(study.name, best),
        "top": [_ranked_to_json_dict(one) for one in found.top],
        "wall_s": found.wall_s,
        "version": found.version,
    }


def _ranked_to_json_dict(one: RankedDesign) -> dict[str, Any]:
    """Return one design of the top."""
    return {
        "values": list(one.metrics.values),
        "params": dict(one.point),
        "area_mm2": one.metrics.area_mm2,
    }
