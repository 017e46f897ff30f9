"""A study under another name, in another database, or started anew with another cost model."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.trial import TrialState
from sqlalchemy import select

from phaze_opt.errors import ConflictError
from phaze_opt.search.baselines import baseline_trainings
from phaze_opt.search.frozen import ResolvedStudy, resolve
from phaze_opt.search.ordering import Rank
from phaze_opt.search.space import DesignPoint, params_of
from phaze_opt.search.spec import check_study_name
from phaze_opt.search.store.damage import damages
from phaze_opt.search.store.failures import database_errors
from phaze_opt.search.store.storage import Storage, write_shared
from phaze_opt.search.store.studies import UID_KEY, store_frozen, undone_on_error
from phaze_opt.search.store.tables import EvaluationRow, TicketRow
from phaze_opt.search.study import Study, capture, current_version
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import names_a_shape

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
    DamagedError
        If rows of the study cannot be read; nothing is made then.
    """
    check_study_name(name)
    study.check()
    uid = str(uuid.uuid4())
    with database_errors(storage.shown), damages(f"The study {study.name!r}"):
        try:
            made = optuna.create_study(
                storage=storage.optuna, study_name=name, direction="maximize"
            )
        except DuplicatedStudyError:
            raise ConflictError(f"The study {name!r} exists already in {storage.shown}.") from None
        with undone_on_error(storage, name, uid):
            store_frozen(storage, uid, study.resolved, study.workload(), name)
            _copy_tickets(study, storage, uid)
            _copy_evaluations(study, storage)
            _copy_trials(study, made, storage)
            # Last: until now nobody takes it for a whole study, nor its rows for orphans.
            made.set_user_attr(UID_KEY, uid)
    return Study(storage, name, uid, study.resolved, study.evaluator)


def restart_study(study: Study, name: str, storage: Storage) -> Study:
    """Start a study anew with this program's cost model; the old best points come first.

    Raises
    ------
    ConflictError
        If the name is taken.
    """
    check_study_name(name)
    points = [params_of(study.resolved.spec.space, point) for point in best_points(study)]
    workload = _workload_anew(study)
    resolved = resolve(study.resolved.spec, workload, current_version())
    spec = replace(resolved.spec, name=name)
    started = Study.create(
        spec, storage, workload=workload, cost_model_version=resolved.cost_model_version
    )
    started.office().issue(len(points), points)
    started.evaluator = study.evaluator
    return started


def _workload_anew(study: Study) -> Workload:
    """Capture the model with this program; what came from a file, or lacks torch, is kept."""
    spec = study.resolved.spec
    if names_a_shape(spec.model):
        with suppress(ImportError):
            return capture(spec)
    return study.workload()


def best_points(study: Study, number: int = BEST_POINTS) -> list[DesignPoint]:
    """Return the best different feasible points, the best first."""
    ranked: dict[DesignPoint, Rank] = {}
    for trial in study.trials():
        if trial.kind == "feasible" and trial.metrics is not None and trial.point is not None:
            ranked.setdefault(trial.point, trial.metrics.rank(trial.point))
    return sorted(ranked, key=lambda point: ranked[point].key)[:number]


def _copy_trials(study: Study, made: optuna.Study, storage: Storage) -> None:
    """Copy the trials, and what the study itself carries (the dashboard keeps its notes there)."""
    target = storage.optuna.get_study_id_from_name(made.study_name)
    source = study.storage.optuna
    for key, value in source.get_study_system_attrs(study.optuna_id).items():
        storage.optuna.set_study_system_attr(target, key, value)
    for key, value in source.get_study_user_attrs(study.optuna_id).items():
        if key != UID_KEY:
            made.set_user_attr(key, value)
    for trial in study.optuna_study.get_trials():
        if not trial.state.is_finished():
            # Its worker works on the original.
            trial.state = TrialState.FAIL
            trial.datetime_start = trial.datetime_start or datetime.now()
            trial.datetime_complete = trial.datetime_start
        made.add_trial(trial)


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
                write_shared(session, EvaluationRow(key=key, body=body))


def _evaluation_keys(resolved: ResolvedStudy) -> set[str]:
    """Return the keys of all baselines under all training options."""
    return {
        key for baseline in resolved.baselines for key in baseline_trainings(resolved, baseline)
    }
