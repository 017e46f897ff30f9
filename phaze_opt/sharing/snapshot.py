"""The content of a study at one moment, from which copies, bundles and merges are made.

A snapshot has no names of a single database: it names a trial by its number, never by its row, and
a file by its content. A running trial is failed in a snapshot, and its ticket open, because its
worker continues with the original.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from phaze_opt.errors import InputError
from phaze_opt.sharing.attached_files import files_of, named_anew, named_by_content
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.spec.sampler_options import PARENTS_KEY
from phaze_opt.store.artifacts import read_artifacts, write_artifacts
from phaze_opt.store.damage import damages
from phaze_opt.store.storage import Storage
from phaze_opt.store.stored_results import (
    StoredEvaluation,
    read_evaluations,
    read_schedules,
    write_results,
)
from phaze_opt.store.stored_study import StoredStudy, new_study
from phaze_opt.store.studies import UID_KEY
from phaze_opt.store.ticket import StoredTicket
from phaze_opt.store.trial_rows import insert_trials, trial_ids
from phaze_opt.study.baselines import baseline_inputs
from phaze_opt.study.neighbourhood import keys_around
from phaze_opt.study.objective import evaluation_key
from phaze_opt.study.proving import with_further_keys
from phaze_opt.study.trials import best_trial, check_study, read_trial
from phaze_opt.whole_space.answers import (
    SpaceAnswer,
    longest_certificate,
    read_answers,
    restore_answers,
)
from phaze_opt.whole_space.certificate import Certificate

_LONG_AGO = datetime(2000, 1, 1)
"""Start time of a trial that never started."""

_NOTE_OF_TRIAL = re.compile(r"dashboard:(\d{1,18}):(.*)", re.DOTALL)
"""Attributes of a study in which the dashboard keeps the notes of a trial, by its row."""


@dataclass(frozen=True)
class Snapshot:
    """A study without its name and database.

    Attributes
    ----------
    resolved
        The frozen spec.
    workloads
        JSON of the captured workloads, by hash.
    trials
        All trials, finished, by number.
    tickets, target
        See `phaze_opt.store.tickets`.
    user_attributes, system_attributes
        Attributes of the study, with the notes.
    evaluations
        Evaluations of the trials, of the baselines and around the best design, by key, with all
        options that were tried for a point.
    schedules
        JSON of the schedules of these evaluations, by key.
    answers
        Answers about the whole space.
    certificate
        Certificate of the enumeration with the longest top.
    files
        Content of the files that attributes of the study and its trials name, by name.
    """

    resolved: ResolvedStudy
    workloads: Mapping[str, bytes]
    trials: tuple[FrozenTrial, ...]
    tickets: tuple[StoredTicket, ...]
    target: int | None
    user_attributes: Mapping[str, Any]
    system_attributes: Mapping[str, Any]
    evaluations: Mapping[str, StoredEvaluation] = field(default_factory=dict)
    schedules: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[SpaceAnswer, ...] = ()
    certificate: Certificate | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def take_snapshot(study: StoredStudy, *, results: bool = True) -> Snapshot:
    """Read a study.

    Parameters
    ----------
    study
        The study, which may be running.
    results
        Whether evaluations, schedules and answers are read too; a copy in the same database needs
        none, because both studies share them.

    Raises
    ------
    DamagedError
        If rows of the study cannot be read.
    """
    with damages(f"The study {study.name!r}"):
        tickets, target = study.office().read_all(), study.office().target()
        optuna_storage, number = study.storage.optuna, study.optuna_id
        system_attributes = optuna_storage.get_study_system_attrs(number)
        user_attributes = optuna_storage.get_study_user_attrs(number)
        # Read after the attributes and tickets, so that all trials that they name are there.
        trials = tuple(map(_settled, check_study(study)))
        numbers = {trial._trial_id: trial.number for trial in trials}
        complete = {trial.number for trial in trials if trial.state == TrialState.COMPLETE}
        answers = read_answers(study.storage, study.resolved) if results else ()
        keys = _evaluation_keys(study.resolved, trials) if results else set[str]()
        keys |= _optimum_keys(answers)
        evaluations = read_evaluations(study.storage, with_further_keys(keys))
        needed = {key for evaluation in evaluations.values() for key in evaluation.schedules}
        system_attributes = _renamed(system_attributes, numbers.get)
        trials, system_attributes, files = _with_files(study, trials, system_attributes)
        return Snapshot(
            resolved=study.resolved,
            workloads=study.workload_documents(),
            trials=trials,
            tickets=tuple(_freed(ticket, complete) for ticket in tickets),
            target=target,
            user_attributes={
                key: value for key, value in user_attributes.items() if key != UID_KEY
            },
            system_attributes=system_attributes,
            evaluations=evaluations,
            schedules=read_schedules(study.storage, needed),
            answers=answers,
            certificate=longest_certificate(study.storage, study.resolved, answers),
            files=files,
        )


def restore_snapshot(snapshot: Snapshot, storage: Storage, name: str) -> StoredStudy:
    """Make a study of a snapshot.

    Raises
    ------
    ConflictError
        If the name is taken.
    """
    with new_study(storage, name, snapshot.resolved, snapshot.workloads) as study:
        study.office().write_all(snapshot.tickets, snapshot.target)
        write_results(storage, snapshot.evaluations, snapshot.schedules)
        restore_answers(storage, snapshot.resolved, snapshot.answers, snapshot.certificate)
        _store_trials(snapshot, study)
    return study


def _store_trials(snapshot: Snapshot, study: StoredStudy) -> None:
    """Write the trials and the attributes of the study, with their files."""
    number = study.optuna_id
    trials = [
        _with_attributes(trial, _stored_files(snapshot, study, trial.system_attrs))
        for trial in snapshot.trials
    ]
    insert_trials(study.storage, number, trials)
    attributes = _stored_files(snapshot, study, snapshot.system_attributes)
    rows = trial_ids(study.storage, number)
    for key, value in snapshot.user_attributes.items():
        if key != UID_KEY:
            study.storage.optuna.set_study_user_attr(number, key, value)
    for key, value in _renamed(attributes, rows.get).items():
        study.storage.optuna.set_study_system_attr(number, key, value)


def _stored_files(
    snapshot: Snapshot, study: StoredStudy, attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the files that attributes name, and return the attributes with their new names."""
    renamed, contents = named_anew(attributes, snapshot.files)
    write_artifacts(study.storage, study.uid, contents)
    return renamed


def _with_files(
    study: StoredStudy, trials: Iterable[FrozenTrial], system_attributes: Mapping[str, Any]
) -> tuple[tuple[FrozenTrial, ...], dict[str, Any], dict[str, bytes]]:
    """Return trials and attributes of a study with the content of their files, named by it."""
    trials = tuple(trials)
    owners = (system_attributes, *(trial.system_attrs for trial in trials))
    names = [facts.artifact_id for attributes in owners for facts in files_of(attributes)]
    contents = read_artifacts(study.storage, names)
    own, files = named_by_content(system_attributes, contents)
    renamed = []
    for trial in trials:
        attributes, own_files = named_by_content(trial.system_attrs, contents)
        renamed.append(_with_attributes(trial, attributes))
        files |= own_files
    return tuple(renamed), own, files


def _with_attributes(trial: FrozenTrial, system_attributes: dict[str, Any]) -> FrozenTrial:
    """Return a trial with other system attributes."""
    changed = copy.copy(trial)
    changed.system_attrs = system_attributes
    return changed


def _optimum_keys(answers: Iterable[SpaceAnswer]) -> set[str]:
    """Return the evaluation keys of the best design of every answer."""
    bests = [answer.designs[0] for answer in answers if answer.designs]
    return {run.evaluation_key for best in bests for run in best.metrics.runs}


def _settled(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial of a snapshot: with its times, and failed if it was not finished."""
    settled = copy.copy(trial)
    if not trial.state.is_finished():
        settled.state, settled.values = TrialState.FAIL, None
        settled.datetime_complete = trial.datetime_start
    settled.datetime_start = settled.datetime_start or settled.datetime_complete or _LONG_AGO
    settled.datetime_complete = settled.datetime_complete or settled.datetime_start
    return settled


def _freed(ticket: StoredTicket, complete: Container[int]) -> StoredTicket:
    """Return a ticket that no worker holds: done if its trial is complete, else open."""
    if ticket.state != "held":
        return ticket
    if ticket.trial_number in complete:
        return replace(ticket, state="done")
    return replace(ticket, state="open", trial_number=None)


def _evaluation_keys(resolved: ResolvedStudy, trials: Iterable[FrozenTrial]) -> set[str]:
    """Return the keys of all evaluations of trials and baselines, and around the best design."""
    keys = {key for baseline in resolved.baselines for key in baseline_inputs(resolved, baseline)}
    points = {}
    records = [read_trial(resolved, trial) for trial in trials]
    best = best_trial(records)
    if best is not None and best.point is not None:
        keys |= keys_around(resolved, best.point)
    for record in records:
        if record.metrics is not None and record.metrics.runs:
            keys |= {run.evaluation_key for run in record.metrics.runs}
            points[record.point] = len(record.metrics.runs)
    if not resolved.spec.space.solved:
        return keys
    for point, runs in points.items():
        if point is None:
            continue
        # Metrics name the best of the solved options; the others were evaluated too.
        with suppress(InputError):
            design = resolved.design(point)
            for run in range(runs):
                options = run_inputs(resolved, run, design)
                keys |= {evaluation_key(resolved, inputs) for inputs in options}
    return keys


def _renamed(attributes: Mapping[str, Any], name_of: Callable[[int], int | None]) -> dict[str, Any]:
    """Rename the trials in attributes of a study; drop attributes of unknown trials."""
    renamed: dict[str, Any] = {}
    for key, value in attributes.items():
        note = _NOTE_OF_TRIAL.fullmatch(key)
        if note is not None:
            name = name_of(int(note[1]))
            if name is not None:
                renamed[f"dashboard:{name}:{note[2]}"] = value
        elif PARENTS_KEY in key:
            numbers = value if isinstance(value, list) else [None]
            names = [name_of(number) if isinstance(number, int) else None for number in numbers]
            if None not in names:
                renamed[key] = names
        else:
            renamed[key] = value
    return renamed
