"""The enumeration of a stored study: with the caches of its database, stored, and as JSON."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.codec import to_builtins
from phaze_opt.limits import MOST_WORKERS, check_size
from phaze_opt.spec.frozen import ResolvedStudy, documents_of
from phaze_opt.spec.objectives import ObjectiveName
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.variations import variation_of
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.store.failures import patiently
from phaze_opt.store.leases import DEFAULT_LEASE_S, expire_dead_workers, new_token
from phaze_opt.store.opening import open_storage
from phaze_opt.store.stored_study import new_study
from phaze_opt.study.best_design import BestDesign, best_to_json_dict, design_of, named_params
from phaze_opt.study.objective import Evaluator, evaluator_of
from phaze_opt.study.processes import StopNow, StopSignals
from phaze_opt.study.running import StudyRun, evaluate_baselines
from phaze_opt.study.study import Study
from phaze_opt.whole_space.answers import (
    SpaceAnswer,
    certifies,
    find_answer,
    find_certificate,
    keep_answer,
    keep_certificate,
)
from phaze_opt.whole_space.certificate import Certificate, certify
from phaze_opt.whole_space.engine import Engine, EngineJob
from phaze_opt.whole_space.exhaustive import (
    TOP,
    Enumeration,
    EnumerationProgress,
    RankedDesign,
    enumerate_space,
)
from phaze_opt.whole_space.pools import Pool, dask_cluster, processes
from phaze_opt.whole_space.verification import enumerated_by
from phaze_opt.whole_space.verifying import Check, captured_again, check_origin, verify
from phaze_opt.workload.graph import Workload

Result = TypeVar("Result")

FEW_POINTS = 2_000_000
"""A space with fewer points, each under all solved options and workloads, is enumerated in one
process: about half a minute of work, in which others would start too late."""


class StoppedError(Exception):
    """A signal stopped an enumeration; its bounds and evaluations are stored."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def enumerate_study(
    study: Study,
    *,
    top: int = TOP,
    distinct: bool = False,
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
        The study; its cached evaluations are used, but not its trials.
    top, distinct, bounds, time_limit_s, on_progress
        See `phaze_opt.whole_space.exhaustive.enumerate_space`. A distinct top is not stored: it is
        found again by stored bounds and evaluations.
    workers
        Number of processes on this machine; ``None`` for one per core, or one for `FEW_POINTS`.
    dask
        Address of a dask scheduler, whose workers replace the processes on this machine.

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
    stored = None if distinct else stored_enumeration(study, top, bounds)
    if stored is not None:
        return stored

    def search(
        engine: Engine, pool: Pool | None, stopped: Callable[[], bool]
    ) -> Enumeration | None:
        return enumerate_space(
            engine,
            BoundStore(study.storage),
            top=top,
            distinct=distinct,
            bounds=bounds,
            time_limit_s=time_limit_s,
            on_progress=on_progress,
            stopped=stopped,
            pool=pool,
        )

    enumeration = search_space(study, search, workers, dask)
    if enumeration.status == "certified" and not distinct:
        enumeration = replace(enumeration, finished_s=time.time())
        keep_answer(study.storage, study.resolved, SpaceAnswer(top, bounds, enumeration))
        if bounds and study.resolved.nominal is study.resolved:
            kept_certificate(study, enumeration, top)
    return enumeration


def search_space(
    study: Study,
    search: Callable[[Engine, Pool | None, Callable[[], bool]], Result | None],
    workers: int | None,
    dask: str | None = None,
    bounded: ObjectiveName | None = None,
) -> Result:
    """Search the whole space of a study, after its baselines, until a signal stops it.

    Parameters
    ----------
    study
        The study.
    search
        Called with the engine of this process, the pool (``None`` for this process), and a function
        that returns whether to stop; returns ``None`` if it was stopped.
    workers, dask
        See `enumerate_study`.
    bounded
        See `phaze_opt.whole_space.engine.Engine`.

    Returns
    -------
    result
        Result of ``search``.

    Raises
    ------
    StoppedError
        If a signal stopped it.
    """
    if workers is not None:
        check_size("workers", workers, MOST_WORKERS)
    result: Result | None = None
    with StopSignals() as stop, suppress(StopNow):
        run = StudyRun(study, study.evaluator, 0, DEFAULT_LEASE_S, stop)
        expire_dead_workers(study.storage)
        if study.resolved.nominal is study.resolved:
            patiently(partial(evaluate_baselines, run, new_token()))
        if not stop.requested:
            engine = Engine(study, study.evaluator, bounded)
            if workers is None:
                workers = len(os.sched_getaffinity(0)) if _is_long(engine.grid) else 1
            with _pool(study, workers, dask, bounded) as pool:
                result = search(engine, pool, lambda: stop.requested)
    if result is None:
        raise StoppedError(stop.exit_code or 1)
    return result


def _is_long(grid: PointGrid) -> bool:
    """Whether several processes find an answer sooner than one."""
    spec = grid.study.spec
    return grid.points * len(spec.runs) * len(spec.space.solved_options()) >= FEW_POINTS


def stored_enumeration(study: Study, top: int = TOP, bounds: bool = True) -> Enumeration | None:
    """Return the stored answer of `enumerate_study`; ``None`` if there is none."""
    what = f"stored enumeration of the study {study.name!r}"
    stored = find_answer(study.storage, study.resolved, top, bounds, what)
    return stored if isinstance(stored, Enumeration) else None


def kept_certificate(study: Study, enumeration: Enumeration, top: int) -> Certificate:
    """Return the stored certificate of a study's enumeration, or make and store it.

    Raises
    ------
    InputError
        See `certificate_of`.
    """
    stored = find_certificate(study.storage, study.resolved, top)
    answer = SpaceAnswer(top, bool(enumeration.levels), enumeration)
    if stored is not None and certifies(stored, answer):
        return stored
    made = certificate_of(study, enumeration, top)
    keep_certificate(study.storage, made)
    return made


def certificate_of(study: Study, enumeration: Enumeration, top: int) -> Certificate:
    """Return the certificate of a study's enumeration.

    Raises
    ------
    InputError
        If the enumeration was not finished, or used no bounds.
    """
    engine = Engine(study, study.evaluator)
    return certify(BestFirst(engine.grid, engine.rule, BoundStore(study.storage)), enumeration, top)


def verify_certificate(
    certificate: Certificate,
    *,
    evaluator: Evaluator | None = None,
    workloads: Sequence[Workload] | None = None,
    on_check: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Check a certificate; only its content and this program are needed.

    Parameters
    ----------
    certificate
        A certificate; see `phaze_opt.whole_space.certificate.read_certificate`.
    evaluator, workloads
        Replaced in tests; ``None`` for those that the certificate names.
    on_check
        Called after every check.

    Raises
    ------
    ConflictError
        If the certificate belongs to another version of the cost model.
    RefusedError
        If a claim of the certificate is wrong; the sentence names it.
    """
    captured = check_origin(certificate) if workloads is None else tuple(workloads)
    evaluator = evaluator_of(certificate.study) if evaluator is None else evaluator
    with _empty(certificate.study, captured, evaluator) as (engine, store):
        return verify(certificate, engine, store, on_check)


def certify_again(
    study: Study, top: int = TOP, *, workloads: Sequence[Workload] | None = None
) -> tuple[Certificate, list[Check]]:
    """Enumerate a study with an empty database, and check the certificate of what was found.

    In contrast to `verify_certificate` it needs none, and enumerates once. Who has numbers of an
    earlier enumeration compares them with the certificate.

    Parameters
    ----------
    study
        Frozen; of its database nothing else is used, and its models are captured again.
    top
        Number of best designs.
    workloads
        Replaced in tests; ``None`` for those that the study names.

    Returns
    -------
    certificate, checks
        Of the enumeration; no check compares that with itself.

    Raises
    ------
    ConflictError
        If the study was created with another version of the cost model.
    InputError
        If no bound is known for the objective, or the space is too large.
    RefusedError
        If a claim of the certificate is wrong; the sentence names it.
    """
    study.check_version()
    captured = captured_again(study.resolved) if workloads is None else tuple(workloads)
    with _empty(study.resolved, captured, study.evaluator) as (engine, store):
        found = enumerated_by(engine, store, top)
        return found.certificate, verify(found.certificate, engine, store, found=found)


@contextmanager
def _empty(
    resolved: ResolvedStudy, workloads: Sequence[Workload], evaluator: Evaluator
) -> Iterator[tuple[Engine, BoundStore]]:
    """Provide the engine of a study in an empty database, with its baselines alone."""
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(f"sqlite:///{folder}/verify.db", create=True)
        try:
            with new_study(storage, "verify", resolved, documents_of(resolved, workloads)) as study:
                with StopSignals(raise_on_repeat=False) as stop:
                    run = StudyRun(study, evaluator, 0, DEFAULT_LEASE_S, stop)
                    evaluate_baselines(run, new_token())
                # Nothing that is written is asked for again.
                yield Engine(study, evaluator, keeps=False), BoundStore(storage)
        finally:
            storage.close()


@contextmanager
def _pool(
    study: Study, workers: int, dask: str | None, bounded: ObjectiveName | None
) -> Iterator[Pool | None]:
    """Provide the pool of a search; ``None`` for this process."""
    if dask is not None:
        url = study.storage.url.render_as_string(hide_password=False)
        job = EngineJob(url, study.name, study.evaluator, bounded, variation_of(study.resolved))
        with dask_cluster(job, dask) as cluster:
            yield cluster
    elif workers > 1:
        job = EngineJob(None, study.name, study.evaluator, bounded, variation_of(study.resolved))
        with processes(job, study.storage, workers) as local:
            yield local
    else:
        yield None


def best_of_enumeration(study: Study, enumeration: Enumeration) -> BestDesign | None:
    """Return the best design with its evaluations; ``None`` if no design is feasible."""
    if not enumeration.top:
        return None
    best = enumeration.top[0]
    return design_of(study, None, DesignPoint(best.point), best.metrics)


def enumeration_to_json_dict(study: Study, enumeration: Enumeration) -> dict[str, Any]:
    """Return the answer as ``study enumerate --json`` prints it."""
    best = best_of_enumeration(study, enumeration)
    return {
        "study": study.name,
        "points": enumeration.points,
        "bounded": enumeration.bounded,
        "evaluated": enumeration.evaluated,
        "feasible": enumeration.feasible,
        "infeasible_proven": enumeration.infeasible_proven,
        "status": enumeration.status,
        "gap": enumeration.gap,
        "best": None if best is None else best_to_json_dict(study.name, best),
        "top": [ranked_to_json_dict(study.resolved, design) for design in enumeration.top],
        "levels": to_builtins(enumeration.levels),
        "wall_s": enumeration.wall_s,
        "finished_s": enumeration.finished_s,
        "cost_model_version": enumeration.version,
        # Its key in 0.1.
        "version": enumeration.version,
    }


def certified_to_json_dict(study: Study) -> dict[str, Any] | None:
    """Return the certified optimum as ``study show --json`` prints it; ``None`` if there is none.

    ``ratio`` is the value of the best trial relative to the optimum.
    """
    enumeration = stored_enumeration(study)
    if enumeration is None or not enumeration.top:
        return None
    optimum, best = enumeration.top[0], study.best()
    ratio = None if best is None else best.metrics.value / optimum.metrics.value
    plain = ranked_to_json_dict(study.resolved, optimum)
    return {**plain, "points": enumeration.points, "ratio": ratio}


def ranked_to_json_dict(resolved: ResolvedStudy, design: RankedDesign) -> dict[str, Any]:
    """Return a design of the whole space, with the parameter names of `BestDesign.params`."""
    return {
        "values": list(design.metrics.values),
        "params": named_params(resolved, DesignPoint(design.point), design.metrics),
        "area_mm2": design.metrics.area_mm2,
        "area_model": resolved.spec.area.model,
    }
