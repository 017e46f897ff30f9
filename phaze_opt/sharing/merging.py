"""The merge of two studies of one frozen spec: every point once, with its origin."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from phaze_opt.errors import ConflictError
from phaze_opt.sharing.snapshot import Snapshot, restore_snapshot, take_snapshot
from phaze_opt.spec.sampler_options import PARENTS_KEY
from phaze_opt.spec.study_spec import check_study_name
from phaze_opt.store.storage import Storage
from phaze_opt.store.ticket import StoredTicket
from phaze_opt.study.study import Study, study_of
from phaze_opt.study.trials import ORIGIN_KEY, read_trial
from phaze_opt.whole_space.certificate import Certificate

SOURCES_KEY = "phaze:merged"
"""Attribute of a merged study: the names of its two sources, and their numbers of trials."""


@dataclass(frozen=True)
class MergedStudy:
    """A study that was merged from two studies.

    Attributes
    ----------
    study
        The new study.
    taken
        Number of trials from the first and from the second study.
    twice
        Number of complete trials that were dropped, because another trial has their point.
    unlike
        Number of dropped trials whose values differ from those of the kept trial.
    """

    study: Study
    taken: tuple[int, int]
    twice: int
    unlike: int


def merge_studies(first: Study, second: Study, name: str, storage: Storage) -> MergedStudy:
    """Merge two studies of equal frozen specs.

    The merged study has the complete trials in their order, those of the first study first, without
    duplicate points, failed and running trials.

    Parameters
    ----------
    first, second
        The studies, which may be in different databases.
    name, storage
        Name and database of the new study.

    Raises
    ------
    ConflictError
        If the specs, workloads or cost-model versions differ, or the name is taken.
    """
    check_study_name(name)
    if first.resolved.hash != second.resolved.hash:
        raise ConflictError(
            f"The studies {first.name!r} and {second.name!r} have different specs, workloads or "
            f"cost-model versions; 'phaze-opt study diff {first.name} {second.name}' shows in what."
        )
    parts = (take_snapshot(first), take_snapshot(second))
    chosen: dict[Any, FrozenTrial] = {}
    taken, twice, unlike = [0, 0], 0, 0
    for place, (study, part) in enumerate(zip((first, second), parts, strict=True)):
        for trial in part.trials:
            if trial.state != TrialState.COMPLETE:
                continue
            point = read_trial(part.resolved, trial).point
            key = tuple(sorted(trial.params.items())) if point is None else point
            if key in chosen:
                twice += 1
                unlike += chosen[key].values != trial.values
                continue
            taken[place] += 1
            chosen[key] = _renumbered(trial, len(chosen), study.name)
    merged = _merged(parts, tuple(chosen.values()))
    sources = [
        {"study": study.name, "trials": number}
        for study, number in zip((first, second), taken, strict=True)
    ]
    merged = replace(merged, user_attributes={**merged.user_attributes, SOURCES_KEY: sources})
    made = study_of(restore_snapshot(merged, storage, name))
    made.evaluator = first.evaluator
    return MergedStudy(made, (taken[0], taken[1]), twice, unlike)


def _renumbered(trial: FrozenTrial, number: int, study: str) -> FrozenTrial:
    """Return a trial under its new number, with its old study and number as its origin."""
    origin = trial.user_attrs.get(ORIGIN_KEY)
    before = origin if isinstance(origin, list) else []
    renumbered = copy.copy(trial)
    renumbered.number = number
    renumbered.user_attrs = {
        **trial.user_attrs,
        ORIGIN_KEY: [*before, {"study": study, "number": trial.number}],
    }
    return renumbered


def _merged(parts: tuple[Snapshot, Snapshot], trials: tuple[FrozenTrial, ...]) -> Snapshot:
    """Merge two snapshots, with these trials and a closed ticket for each trial."""
    first, second = parts
    answers = {(answer.asked, answer.bounds): answer for answer in second.answers + first.answers}
    return Snapshot(
        resolved=first.resolved,
        workloads=first.workloads,
        trials=trials,
        tickets=tuple(
            StoredTicket(number, "done", 1, number, None, None) for number in range(len(trials))
        ),
        target=len(trials) or None,
        user_attributes={**second.user_attributes, **first.user_attributes},
        system_attributes=_without_trials(first.system_attributes),
        evaluations={**second.evaluations, **first.evaluations},
        schedules={**second.schedules, **first.schedules},
        answers=tuple(answers.values()),
        certificate=_certificate(parts),
        files={**second.files, **first.files},
    )


def _certificate(parts: tuple[Snapshot, Snapshot]) -> Certificate | None:
    """Return the longest certificate whose frozen study equals that of the first snapshot."""
    fitting = [
        certificate
        for part in parts
        if (certificate := part.certificate) and certificate.study == parts[0].resolved
    ]
    return max(fitting, key=lambda certificate: certificate.asked, default=None)


def _without_trials(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a study that name no trial: the trials have new numbers."""
    return {
        key: value
        for key, value in attributes.items()
        if PARENTS_KEY not in key and not key.startswith("dashboard:")
    }
