"""Copies of a study: under another name, in another database, or with another cost model."""

from __future__ import annotations

from contextlib import suppress

from phaze_opt.sharing.snapshot import restore_snapshot, take_snapshot
from phaze_opt.spec.freezing import capture_models
from phaze_opt.spec.ordering import Rank
from phaze_opt.spec.space import DesignPoint, params_of
from phaze_opt.spec.study_spec import check_study_name
from phaze_opt.store.storage import Storage
from phaze_opt.study.study import Study, create_study, study_of
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import names_a_shape

BEST_POINTS = 10
"""Number of best points that come first in a study that is started anew."""


def copy_study(study: Study, name: str, storage: Storage) -> Study:
    """Copy a study with its trials, tickets, notes, evaluations and schedules.

    Parameters
    ----------
    study
        The original.
    name
        Name of the copy.
    storage
        Database of the copy, which may be that of the original.

    Raises
    ------
    ConflictError
        If the name is taken.
    DamagedError
        If rows of the study cannot be read; no copy is made then.
    """
    check_study_name(name)
    shared = storage.url == study.storage.url
    made = study_of(restore_snapshot(take_snapshot(study, results=not shared), storage, name))
    made.evaluator = study.evaluator
    return made


def restart_study(study: Study, name: str, storage: Storage) -> Study:
    """Start a study anew with this program's cost model; the old best points come first.

    Raises
    ------
    ConflictError
        If the name is taken.
    """
    points = [params_of(study.resolved.spec.space, point) for point in best_points(study)]
    started = create_study(study.resolved.spec, storage, name=name, workload=_workloads_anew(study))
    started.office().set_target(study.resolved.spec.search.trials)
    started.office().issue(len(points), points)
    started.evaluator = study.evaluator
    return started


def best_points(study: Study, number: int = BEST_POINTS) -> list[DesignPoint]:
    """Return the best feasible points, without duplicates, the best first."""
    ranked: dict[DesignPoint, Rank] = {}
    for trial in study.trials():
        if trial.point is not None and trial.rank is not None:
            ranked.setdefault(trial.point, trial.rank)
    return sorted(ranked, key=lambda point: ranked[point].key)[:number]


def _workloads_anew(study: Study) -> tuple[Workload, ...]:
    """Capture the models again; without torch, or with a model from a file, keep all workloads."""
    spec = study.resolved.spec
    if all(names_a_shape(run.model) for run in spec.runs):
        with suppress(ImportError):
            return capture_models(spec)
    return study.workloads()
