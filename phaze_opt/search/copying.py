"""A study under another name, in another database, or started anew with another cost model."""

from __future__ import annotations

import uuid
from dataclasses import replace

import optuna
from optuna.exceptions import DuplicatedStudyError
from sqlalchemy import select

from phaze_opt.errors import ConflictError
from phaze_opt.search.baselines import baseline_trainings
from phaze_opt.search.failures import database_errors
from phaze_opt.search.frozen import ResolvedStudy, resolve
from phaze_opt.search.ordering import Rank
from phaze_opt.search.registry import UID_KEY, delete_rows, store_frozen
from phaze_opt.search.space import DesignPoint, params_of
from phaze_opt.search.spec import check_study_name
from phaze_opt.search.storage import Storage
from phaze_opt.search.study import Study, current_version
from phaze_opt.search.tables import EvaluationRow, TicketRow

BEST_POINTS = 10
"""How many of the old best points a study that is started anew begins with."""


def copy_study(study: Study, name: str, storage: Storage) -> Study:
    """Copy a study with its trials, tickets and evaluations.

    Parameters
    ----------
    name
        Of the copy.
    storage
        Where it goes; may be where the study is.

    Raises
    ------
    ConflictError
        If the name is taken.
    """
    check_study_name(name)
    uid = str(uuid.uuid4())
    with database_errors(storage.shown):
        store_frozen(storage, uid, study.resolved, study.workload(), name)
        _copy_tickets(study, storage, uid)
        _copy_evaluations(study, storage)
        try:
            optuna.copy_study(
                from_study_name=study.name,
                from_storage=study.storage.optuna,
                to_storage=storage.optuna,
                to_study_name=name,
            )
        except DuplicatedStudyError:
            delete_rows(storage, uid)
            raise ConflictError(f"The study {name!r} exists already in {storage.shown}.") from None
        copied = optuna.load_study(study_name=name, storage=storage.optuna)
        copied.set_user_attr(UID_KEY, uid)
    return Study(storage, name, uid, study.resolved, study.evaluator)


def restart_study(study: Study, name: str, storage: Storage) -> Study:
    """Start a study anew with this program's cost model; the old best points come first.

    Raises
    ------
    ConflictError
        If the name is taken.
    """
    check_study_name(name)
    workload = study.workload()
    resolved = resolve(study.resolved.spec, workload, current_version())
    spec = replace(resolved.spec, name=name)
    started = Study.create(
        spec, storage, workload=workload, cost_model_version=resolved.cost_model_version
    )
    points = [params_of(spec.space, point) for point in best_points(study)]
    started.office().issue(len(points), points)
    started.evaluator = study.evaluator
    return started


def best_points(study: Study, number: int = BEST_POINTS) -> list[DesignPoint]:
    """Return the best different feasible points, the best first."""
    ranked: dict[DesignPoint, Rank] = {}
    for trial in study.trials():
        if trial.kind == "feasible" and trial.metrics is not None and trial.point is not None:
            ranked.setdefault(trial.point, trial.metrics.rank(trial.point))
    return sorted(ranked, key=lambda point: ranked[point].key)[:number]


def _copy_tickets(study: Study, storage: Storage, uid: str) -> None:
    """Copy the tickets; one that somebody holds is open in the copy."""
    with study.storage.reading() as session:
        query = select(TicketRow).where(TicketRow.study_uid == study.uid)
        rows = [
            TicketRow(
                study_uid=uid,
                k=row.k,
                state="open" if row.state == "held" else row.state,
                attempts=row.attempts,
                trial_number=None if row.state == "held" else row.trial_number,
                params=row.params,
                reason=row.reason,
            )
            for row in session.scalars(query)
        ]
    with storage.writing() as session:
        session.add_all(rows)


def _copy_evaluations(study: Study, storage: Storage) -> None:
    """Copy the evaluations of a study's trials and baselines into another database."""
    if storage.url == study.storage.url:
        return
    keys = _evaluation_keys(study.resolved) | {
        trial.metrics.evaluation_key
        for trial in study.trials()
        if trial.metrics is not None and trial.metrics.evaluation_key is not None
    }
    for key in sorted(keys):
        with study.storage.reading() as session:
            row = session.get(EvaluationRow, key)
            body = None if row is None else row.body
        if body is not None:
            with storage.writing() as session:
                session.merge(EvaluationRow(key=key, token=None, until_s=None, body=body))


def _evaluation_keys(resolved: ResolvedStudy) -> set[str]:
    """Return the keys of all baselines under all training options."""
    return {
        key for baseline in resolved.baselines for key in baseline_trainings(resolved, baseline)
    }
