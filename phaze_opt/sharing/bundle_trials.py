"""The finished trials of a study in a bundle, one per line."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.sharing.bundle_documents import line, lines, refused
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.store.damage import check_trial
from phaze_opt.study.trials import read_trial


@dataclass(frozen=True)
class _TrialDocument:
    """A finished trial of Optuna.

    Attributes
    ----------
    params, axes
        Value and distribution of each parameter.
    started, ended
        Times in ISO 8601, UTC.
    """

    number: int
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    values: tuple[float, ...] | None
    params: Mapping[str, Any]
    axes: Mapping[str, Any]
    user_attributes: Mapping[str, Any]
    system_attributes: Mapping[str, Any]
    started: str
    ended: str


def write_trials(trials: Iterable[FrozenTrial]) -> bytes:
    """Write trials, one per line."""
    return b"".join(line(_trial_document(trial)) for trial in trials)


def read_trials(data: bytes, resolved: ResolvedStudy, what: str) -> Iterator[FrozenTrial]:
    """Read the trials, which the samplers must be able to use."""
    for number, document in enumerate(lines(data, _TrialDocument, what)):
        with refused(f"Trial {number} in {what}"):
            trial = _trial(document)
            if trial.number != number:
                raise ValueError(f"its number is {trial.number}")
            if trial.values is not None and len(trial.values) != len(resolved.spec.objectives):
                raise ValueError(f"it has {len(trial.values)} values")
            check_trial(trial, resolved.spec.space)
            read_trial(resolved, trial)
        yield trial


def _trial_document(trial: FrozenTrial) -> _TrialDocument:
    """Return the document of a trial."""
    return _TrialDocument(
        number=trial.number,
        state=_state(trial.state),
        values=None if trial.values is None else tuple(trial.values),
        params=trial.params,
        axes={
            name: json.loads(distribution_to_json(axis))
            for name, axis in trial.distributions.items()
        },
        user_attributes=trial.user_attrs,
        system_attributes=trial.system_attrs,
        started=_time_text(trial.datetime_start),
        ended=_time_text(trial.datetime_complete),
    )


def _trial(document: _TrialDocument) -> FrozenTrial:
    """Build a trial; Optuna checks it."""
    trial = FrozenTrial(
        number=document.number,
        state=TrialState[document.state],
        value=None,
        values=None if document.values is None else list(document.values),
        datetime_start=_time(document.started),
        datetime_complete=_time(document.ended),
        params=dict(document.params),
        distributions={name: _axis(json.dumps(axis)) for name, axis in document.axes.items()},
        user_attrs=dict(document.user_attributes),
        system_attrs=dict(document.system_attributes),
        intermediate_values={},
        trial_id=document.number,
    )
    trial._validate()
    return trial


def _state(state: TrialState) -> Literal["COMPLETE", "PRUNED", "FAIL"]:
    """Return the name of the state of a finished trial."""
    if state == TrialState.COMPLETE:
        return "COMPLETE"
    return "PRUNED" if state == TrialState.PRUNED else "FAIL"


@functools.lru_cache(maxsize=1024)
def _axis(document: str) -> BaseDistribution:
    """Build a distribution of Optuna from its JSON."""
    axis: BaseDistribution = json_to_distribution(document)
    return axis


def _time_text(time: datetime | None) -> str:
    """Write a local time, as Optuna has it, in UTC."""
    assert time is not None, "every trial of a snapshot has its times"
    return time.astimezone(UTC).isoformat()


def _time(text: str) -> datetime:
    """Reverse `_time_text`."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} is a time without a zone")
    return time.astimezone().replace(tzinfo=None)
