"""A study as one file, which can be mailed, published beside a paper and opened anywhere.

Members of the file (`phaze_opt.search.bundle_file` holds its form): ``spec.json`` (the frozen
study), ``workloads/HASH.json``, ``study.json`` (target and attributes, with the notes), and one
JSON document a line in ``trials.jsonl``, ``tickets.jsonl``, ``evaluations.jsonl`` and
``schedules.jsonl``; where there is one, ``certificate.json``.

All of it is plain data of known types, and all of it is read and checked before any is stored.
The name of the study is that of its spec, whatever it is called in its database.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.codec import from_json, to_builtins, to_json
from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluation_from_json_dict
from phaze_opt.search.bundle_file import pack, unpack
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.snapshot import Snapshot
from phaze_opt.search.store.damage import DAMAGES, check_trial
from phaze_opt.search.store.stored_results import StoredEvaluation
from phaze_opt.search.store.tickets import StoredTicket
from phaze_opt.search.trials import read_trial
from phaze_opt.workload.workload_file import parse_workload

_SPEC, _STUDY = "spec.json", "study.json"
_TRIALS, _TICKETS = "trials.jsonl", "tickets.jsonl"
_EVALUATIONS, _SCHEDULES = "evaluations.jsonl", "schedules.jsonl"
_CERTIFICATE = "certificate.json"
_REQUIRED = (_SPEC, _STUDY, _TRIALS, _TICKETS, _EVALUATIONS, _SCHEDULES)
_WORKLOAD = re.compile(r"workloads/([0-9a-f]{64})\.json")
_EVALUATION_KEY = re.compile(r"[0-9a-f]{64}")
_LONGEST_KEY = 200
_MOST = 2**31
"""Numbers are below this one in a database."""


@dataclass(frozen=True)
class _StudyDocument:
    """What a study has beside its spec and its trials."""

    target: int | None
    user_attributes: Mapping[str, Any]
    system_attributes: Mapping[str, Any]


@dataclass(frozen=True)
class _TrialDocument:
    """A finished trial of Optuna's.

    Attributes
    ----------
    params, axes
        Values, and from what each was chosen, by parameter.
    started, ended
        ISO 8601, UTC.
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


@dataclass(frozen=True)
class _EvaluationDocument:
    """An evaluation with its key and those of the schedules that it needed."""

    key: str
    evaluation: Mapping[str, Any]
    schedules: tuple[str, ...]


@dataclass(frozen=True)
class _ScheduleDocument:
    """A schedule with its key."""

    key: str
    schedule: Mapping[str, Any]


def write_bundle(snapshot: Snapshot) -> bytes:
    """Write a study as the bytes of a bundle; equal studies give equal bytes.

    Raises
    ------
    InputError
        If the study is too large.
    """
    resolved = snapshot.resolved
    study = _StudyDocument(snapshot.target, snapshot.user_attributes, snapshot.system_attributes)
    members = {
        _SPEC: to_json(resolved),
        _STUDY: _line(study),
        _TRIALS: b"".join(_line(_trial_document(trial)) for trial in snapshot.trials),
        _TICKETS: b"".join(map(_line, snapshot.tickets)),
        _EVALUATIONS: b"".join(_evaluation_lines(snapshot.evaluations)),
        _SCHEDULES: b"".join(_schedule_lines(snapshot.schedules)),
    }
    for digest, document in snapshot.workloads.items():
        members[f"workloads/{digest}.json"] = document
    if snapshot.certificate is not None:
        members[_CERTIFICATE] = snapshot.certificate
    return pack(members, spec_hash=resolved.hash, cost_model_version=resolved.cost_model_version)


def read_bundle(data: bytes, what: str) -> Snapshot:
    """Read and check the bytes of a bundle.

    Parameters
    ----------
    data
        The whole file.
    what
        What it is, for the error's sentence (``"bundle a.zip"``).

    Raises
    ------
    InputError
        If it is not a whole, unaltered and consistent bundle.
    """
    manifest, members = unpack(data, what, _is_allowed)
    for name in _REQUIRED:
        if name not in members:
            raise InputError(f"The {what} has no member {name}.")
    resolved = from_json(members[_SPEC], ResolvedStudy, f"{_SPEC} of the {what}")
    if (manifest.spec_hash, manifest.cost_model_version) != (
        resolved.hash,
        resolved.cost_model_version,
    ):
        raise InputError(f"The spec in the {what} is not the one that it declares.")
    study = from_json(members[_STUDY], _StudyDocument, f"{_STUDY} of the {what}")
    if study.target is not None and not 0 < study.target < _MOST:
        raise InputError(f"target is {study.target} in the {what}, but it must be positive.")
    trials = tuple(_read_trials(members[_TRIALS], resolved, f"{_TRIALS} of the {what}"))
    return Snapshot(
        resolved=resolved,
        workloads=_read_workloads(members, resolved, what),
        trials=trials,
        tickets=_read_tickets(members[_TICKETS], len(trials), f"{_TICKETS} of the {what}"),
        target=study.target,
        user_attributes=study.user_attributes,
        system_attributes=study.system_attributes,
        evaluations=_read_evaluations(members[_EVALUATIONS], f"{_EVALUATIONS} of the {what}"),
        schedules=_read_schedules(members[_SCHEDULES], f"{_SCHEDULES} of the {what}"),
        certificate=members.get(_CERTIFICATE),
    )


def _is_allowed(name: str) -> bool:
    """Whether a bundle may have a member of this name."""
    return name in (*_REQUIRED, _CERTIFICATE) or _WORKLOAD.fullmatch(name) is not None


def _line(value: object) -> bytes:
    """Write a document as one line, its keys in order."""
    text = json.dumps(to_builtins(value), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _lines(data: bytes, kind: type[Any], what: str) -> Iterator[Any]:
    """Read documents of one kind, one a line."""
    for number, line in enumerate(data.splitlines(), start=1):
        yield from_json(line, kind, f"line {number} of {what}")


def _body(plain: Mapping[str, Any]) -> str:
    """Write an evaluation as its row has it."""
    return json.dumps(plain, allow_nan=False, separators=(",", ":"))


def _results(bodies: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read stored results by key; one that is damaged counts as absent, as everywhere."""
    for key, body in sorted(bodies.items()):
        try:
            yield key, from_json(body, dict[str, Any], "stored result")
        except InputError:
            continue


def _evaluation_lines(evaluations: Mapping[str, StoredEvaluation]) -> Iterator[bytes]:
    """Write evaluations, one a line; the order of their keys is part of their row."""
    bodies = {key: stored.body for key, stored in evaluations.items()}
    for key, plain in _results(bodies):
        document = {"key": key, "schedules": evaluations[key].schedules, "evaluation": plain}
        yield _body(document).encode() + b"\n"


def _schedule_lines(schedules: Mapping[str, str]) -> Iterator[bytes]:
    """Write schedules, one a line."""
    for key, plain in _results(schedules):
        yield to_json({"key": key, "schedule": plain}) + b"\n"


def _read_evaluations(data: bytes, what: str) -> dict[str, StoredEvaluation]:
    """Read evaluations, each of which must be one."""
    found = {}
    for document in _lines(data, _EvaluationDocument, what):
        if not _EVALUATION_KEY.fullmatch(document.key):
            raise InputError(f"The key {document.key!r} in {what} is no SHA-256.")
        evaluation_from_json_dict(document.evaluation)
        found[document.key] = StoredEvaluation(_body(document.evaluation), document.schedules)
    return found


def _read_schedules(data: bytes, what: str) -> dict[str, str]:
    """Read schedules; the cache checks each of them when it is asked for."""
    found = {}
    for document in _lines(data, _ScheduleDocument, what):
        if not 0 < len(document.key) <= _LONGEST_KEY:
            raise InputError(f"The key {document.key!r} in {what} is too long or empty.")
        found[document.key] = to_json(document.schedule).decode()
    return found


def _read_workloads(
    members: Mapping[str, bytes], resolved: ResolvedStudy, what: str
) -> dict[str, bytes]:
    """Read the workloads: those that the spec names, under the hashes of their content."""
    found = {
        name[1]: data for member, data in members.items() if (name := _WORKLOAD.fullmatch(member))
    }
    if found.keys() != set(resolved.workload_hashes):
        raise InputError(f"The workloads in the {what} are not those of its spec.")
    for digest, document in found.items():
        if hashlib.sha256(document).hexdigest() != digest:
            raise InputError(f"A workload in the {what} is not the one that it is named for.")
        parse_workload(document, f"workload in the {what}")
    return found


def _read_tickets(data: bytes, trials: int, what: str) -> tuple[StoredTicket, ...]:
    """Read the tickets, none of them held."""
    tickets = tuple(_lines(data, StoredTicket, what))
    for k, ticket in enumerate(tickets):
        known = ticket.trial_number is None or 0 <= ticket.trial_number < trials
        known = known and ticket.state in ("open", "done", "failed")
        if ticket.k != k or not known or not 0 <= ticket.attempts < _MOST:
            raise InputError(f"Ticket {k} in {what} is not possible.")
    return tickets


def _trial_document(trial: FrozenTrial) -> _TrialDocument:
    """Return a trial as its line has it."""
    return _TrialDocument(
        number=trial.number,
        state=_state(trial.state),
        values=None if trial.values is None else tuple(trial.values),
        params=trial.params,
        axes={name: _axis_document(axis) for name, axis in trial.distributions.items()},
        user_attributes=trial.user_attrs,
        system_attributes=trial.system_attrs,
        started=_time_text(trial.datetime_start),
        ended=_time_text(trial.datetime_complete),
    )


def _read_trials(data: bytes, resolved: ResolvedStudy, what: str) -> Iterator[FrozenTrial]:
    """Read the trials, which the samplers must be able to use."""
    for number, document in enumerate(_lines(data, _TrialDocument, what)):
        with _refused(f"Trial {number} in {what}"):
            trial = _trial(document)
            if trial.number != number:
                raise ValueError(f"its number is {trial.number}")
            if trial.values is not None and len(trial.values) != len(resolved.spec.objectives):
                raise ValueError(f"it has {len(trial.values)} values")
            check_trial(trial, resolved.spec.space)
            read_trial(resolved, trial)
        yield trial


def _trial(document: _TrialDocument) -> FrozenTrial:
    """Build a trial, which Optuna checks."""
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


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """Turn what reading a value of a wrong kind raises into one sentence."""
    try:
        yield
    except InputError:
        raise
    except DAMAGES as error:
        raise InputError(f"{what} is not valid: {error}.") from None


def _state(state: TrialState) -> Literal["COMPLETE", "PRUNED", "FAIL"]:
    """Name a state in which a trial is finished."""
    if state == TrialState.COMPLETE:
        return "COMPLETE"
    return "PRUNED" if state == TrialState.PRUNED else "FAIL"


def _axis_document(axis: BaseDistribution) -> Any:
    """Return a distribution as plain data."""
    return json.loads(distribution_to_json(axis))


@functools.lru_cache(maxsize=1024)
def _axis(document: str) -> BaseDistribution:
    """Build a distribution of Optuna's from its JSON."""
    axis: BaseDistribution = json_to_distribution(document)
    return axis


def _time_text(time: datetime | None) -> str:
    """Write a local time, as Optuna gives it, as UTC."""
    assert time is not None, "a snapshot has no trial without its times"
    return time.astimezone(UTC).isoformat()


def _time(text: str) -> datetime:
    """Reverse `_time_text`."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} is a time without a zone")
    return time.astimezone().replace(tzinfo=None)
