"""A study under another name, in another database, or started anew with another cost model."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from optuna.trial import TrialState

from phaze_opt.search.baselines import baseline_inputs
from phaze_opt.search.frozen import capture_models
from phaze_opt.search.ordering import Rank
from phaze_opt.search.proving import with_further_keys
from phaze_opt.search.samplers.options import PARENTS_KEY
from phaze_opt.search.space import DesignPoint, params_of
from phaze_opt.search.spec import check_study_name
from phaze_opt.search.store.caches import copy_evaluations
from phaze_opt.search.store.damage import damages
from phaze_opt.search.store.storage import Storage
from phaze_opt.search.store.stored_study import StoredStudy, new_study
from phaze_opt.search.store.studies import UID_KEY
from phaze_opt.search.study import Study, create_study, study_of
from phaze_opt.search.trials import check_study, read_trials
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import names_a_shape

BEST_POINTS = 10
"""Number of the best points with which a study that is started anew begins."""


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
    check_study(study)
    with (
        damages(f"The study {study.name!r}"),
        new_study(storage, name, study.resolved, study.workloads()) as copy,
    ):
        _copy_tickets(study, copy)
        _copy_evaluations(study, copy)
        _copy_trials(study, copy)
    made = study_of(copy)
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
    """Return the best different feasible points, the best first."""
    ranked: dict[DesignPoint, Rank] = {}
    for trial in study.trials():
        if trial.point is not None and trial.rank is not None:
            ranked.setdefault(trial.point, trial.rank)
    return sorted(ranked, key=lambda point: ranked[point].key)[:number]


def _workloads_anew(study: Study) -> tuple[Workload, ...]:
    """Capture the models with this program; keep workloads from files, and all without torch."""
    spec = study.resolved.spec
    if all(names_a_shape(run.model) for run in spec.runs):
        with suppress(ImportError):
            return capture_models(spec)
    return study.workloads()


def _copy_tickets(study: StoredStudy, copy: StoredStudy) -> None:
    """Copy the tickets."""
    study.office().copy_to(copy.office())


def _copy_evaluations(study: StoredStudy, copy: StoredStudy) -> None:
    """Copy the evaluations of a study's trials and baselines into another database."""
    if copy.storage.url == study.storage.url:
        return
    keys = {
        key
        for baseline in study.resolved.baselines
        for key in baseline_inputs(study.resolved, baseline)
    }
    keys |= {
        run.evaluation_key
        for trial in read_trials(study)
        if trial.metrics is not None
        for run in trial.metrics.runs
    }
    copy_evaluations(study.storage, with_further_keys(keys), copy.storage)


def _copy_trials(study: StoredStudy, copy: StoredStudy) -> None:
    """Copy the trials and the attributes of the study (the dashboard keeps its notes there)."""
    source, target = study.storage.optuna, copy.storage.optuna
    attributes = source.get_study_system_attrs(study.optuna_id)
    # Read later than the attributes, so that all trials that those name are there.
    trials = study.optuna_study.get_trials()
    made = copy.optuna_study
    for key, value in source.get_study_user_attrs(study.optuna_id).items():
        if key != UID_KEY:
            made.set_user_attr(key, value)
    for trial in trials:
        if not trial.state.is_finished():
            # Its worker works on the original.
            trial.state = TrialState.FAIL
            trial.datetime_start = trial.datetime_start or datetime.now()
            trial.datetime_complete = trial.datetime_start
        made.add_trial(trial)
    copied = made.get_trials(deepcopy=False)
    ids = {old._trial_id: new._trial_id for old, new in zip(trials, copied, strict=True)}
    for key, value in attributes.items():
        kept = [ids[each] for each in value] if PARENTS_KEY in key else value
        target.set_study_system_attr(copy.optuna_id, key, kept)
