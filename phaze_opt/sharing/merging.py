"""Two studies of one frozen spec joined into one: every point once, with where it comes from."""

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
"""Attribute of a study that says which ones it was joined from, with the trials of each."""


@dataclass(frozen=True)
class MergedStudy:
    """A study that was joined from two.

    Attributes
    ----------
    study
        The new one.
    taken
        Trials from the first and from the second study.
    twice
        Complete trials that were left out because their point is there already.
    unlike
        Those among them that have other values than the trial that was kept.
    """

    study: Study
    taken: tuple[int, int]
    twice: int
    unlike: int


def merge_studies(first: Study, second: Study, name: str, storage: Storage) -> MergedStudy:
    """Join two studies of the same frozen spec.

    Complete trials are taken in their order, those of the first study before those of the second; a
    point that is there already is left out, and so is what failed or still runs.

    Parameters
    ----------
    first, second
        May be in different databases.
    name, storage
        Of the new study.

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
    joined = _joined(parts, tuple(chosen.values()))
    sources = [
        {"study": study.name, "trials": number}
        for study, number in zip((first, second), taken, strict=True)
    ]
    joined = replace(joined, user_attributes={**joined.user_attributes, SOURCES_KEY: sources})
    made = study_of(restore_snapshot(joined, storage, name))
    made.evaluator = first.evaluator
    return MergedStudy(made, (taken[0], taken[1]), twice, unlike)


def _renumbered(trial: FrozenTrial, number: int, study: str) -> FrozenTrial:
    """Return a trial under its new number, with the study and number that it had before."""
    origin = trial.user_attrs.get(ORIGIN_KEY)
    before = origin if isinstance(origin, list) else []
    renumbered = copy.copy(trial)
    renumbered.number = number
    renumbered.user_attrs = {
        **trial.user_attrs,
        ORIGIN_KEY: [*before, {"study": study, "number": trial.number}],
    }
    return renumbered


def _joined(parts: tuple[Snapshot, Snapshot], trials: tuple[FrozenTrial, ...]) -> Snapshot:
    """Join what two studies have, with these trials and a closed ticket for each."""
    first, second = parts
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
        answers=tuple(
            {(one.asked, one.bounds): one for one in (*second.answers, *first.answers)}.values()
        ),
        certificate=_certificate(parts),
        files={**second.files, **first.files},
    )


def _certificate(parts: tuple[Snapshot, Snapshot]) -> Certificate | None:
    """Return a certificate that holds the frozen study of the first; the name may be another."""
    certificates = [part.certificate for part in parts if part.certificate is not None]
    fitting = [each for each in certificates if each.study == parts[0].resolved]
    return max(fitting, key=lambda each: each.asked, default=None)


def _without_trials(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a study that name no trial: their numbers are others now."""
    return {
        key: value
        for key, value in attributes.items()
        if PARENTS_KEY not in key and not key.startswith("dashboard:")
    }
