"""A study as one file, which can be mailed, published beside a paper and opened anywhere.

Members of the file (`phaze_opt.sharing.bundle_file` defines its format): ``spec.json`` (the frozen
study), ``workloads/HASH.json``, ``study.json`` (target and attributes, with the notes), and one
JSON document per line in ``trials.jsonl``, ``tickets.jsonl``, ``evaluations.jsonl`` and
``schedules.jsonl``. Optional members are ``answers.jsonl`` (answers about the whole space),
``certificate.json`` (the certificate of an enumeration, as 'study verify' reads it) and
``files/HASH`` (files that attributes of the study and its trials name).

All members are plain data of known types, and all are read and checked before any is stored. The
name of the study is that of its spec, not its name in the database.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from phaze_opt.codec import from_builtins, from_json, to_builtins, to_json
from phaze_opt.errors import InputError
from phaze_opt.evaluation_json import evaluation_from_json_dict
from phaze_opt.sharing.attached_files import check_files
from phaze_opt.sharing.bundle_documents import line, lines, refused
from phaze_opt.sharing.bundle_file import pack, unpack
from phaze_opt.sharing.bundle_trials import read_trials, write_trials
from phaze_opt.sharing.snapshot import Snapshot
from phaze_opt.spec.frozen import ResolvedStudy, hash_as_written
from phaze_opt.spec.objectives import ObjectiveName
from phaze_opt.store.stored_results import StoredEvaluation
from phaze_opt.store.ticket import StoredTicket
from phaze_opt.whole_space.answers import Front, SpaceAnswer, certifies
from phaze_opt.whole_space.certificate import Certificate, certificate_document, parse_certificate
from phaze_opt.whole_space.exhaustive import Enumeration
from phaze_opt.workload.workload_file import parse_workload

_SPEC, _STUDY = "spec.json", "study.json"
_TRIALS, _TICKETS = "trials.jsonl", "tickets.jsonl"
_EVALUATIONS, _SCHEDULES = "evaluations.jsonl", "schedules.jsonl"
_ANSWERS, _CERTIFICATE = "answers.jsonl", "certificate.json"
_REQUIRED = (_SPEC, _STUDY, _TRIALS, _TICKETS, _EVALUATIONS, _SCHEDULES)
_WORKLOAD = re.compile(r"workloads/([0-9a-f]{64})\.json")
_FILE = re.compile(r"files/([0-9a-f]{64})")
_EVALUATION_KEY = re.compile(r"[0-9a-f]{64}")
_LONGEST_KEY = 200
_MOST = 2**31
"""Integers of a database are below this limit."""


@dataclass(frozen=True)
class _StudyDocument:
    """The target and the attributes of a study."""

    target: int | None
    user_attributes: Mapping[str, Any]
    system_attributes: Mapping[str, Any]


@dataclass(frozen=True)
class _EvaluationDocument:
    """An evaluation with its key and the keys of its schedules."""

    key: str
    evaluation: Mapping[str, Any]
    schedules: tuple[str, ...]


@dataclass(frozen=True)
class _ScheduleDocument:
    """A schedule with its key."""

    key: str
    schedule: Mapping[str, Any]


@dataclass(frozen=True)
class _AnswerDocument:
    """An answer about the whole space: an enumeration (``top``), or a front (``objectives``)."""

    bounds: bool
    answer: Mapping[str, Any]
    top: int | None = None
    objectives: tuple[ObjectiveName, ...] = ()


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
        _STUDY: line(study),
        _TRIALS: write_trials(snapshot.trials),
        _TICKETS: b"".join(map(line, snapshot.tickets)),
        _EVALUATIONS: b"".join(_evaluation_lines(snapshot.evaluations)),
        _SCHEDULES: b"".join(_schedule_lines(snapshot.schedules)),
    }
    for digest, document in snapshot.workloads.items():
        members[f"workloads/{digest}.json"] = document
    if snapshot.answers:
        members[_ANSWERS] = b"".join(line(_answer_document(answer)) for answer in snapshot.answers)
    if snapshot.certificate is not None:
        members[_CERTIFICATE] = certificate_document(snapshot.certificate)
    for name, content in snapshot.files.items():
        members[f"files/{name}"] = content
    return pack(members, spec_hash=resolved.hash, cost_model_version=resolved.cost_model_version)


def read_bundle(data: bytes, what: str) -> Snapshot:
    """Read and check the bytes of a bundle.

    Parameters
    ----------
    data
        The whole file.
    what
        Name of the file in the error's sentence (``"bundle a.zip"``).

    Raises
    ------
    InputError
        If the file is not a whole, unaltered and consistent bundle.
    """
    manifest, members = unpack(data, what, _is_allowed)
    for name in _REQUIRED:
        if name not in members:
            raise InputError(f"The {what} has no member {name}.")
    resolved = from_json(members[_SPEC], ResolvedStudy, f"{_SPEC} of the {what}")
    written = from_json(members[_SPEC], dict[str, Any], f"{_SPEC} of the {what}")
    if (manifest.spec_hash, manifest.cost_model_version) != (
        hash_as_written(written),
        resolved.cost_model_version,
    ):
        raise InputError(f"The spec in the {what} is not the one that it declares.")
    study = from_json(members[_STUDY], _StudyDocument, f"{_STUDY} of the {what}")
    if study.target is not None and not 0 < study.target < _MOST:
        raise InputError(f"target is {study.target} in the {what}, but it must be positive.")
    trials = tuple(read_trials(members[_TRIALS], resolved, f"{_TRIALS} of the {what}"))
    answers = tuple(
        _read_answers(members.get(_ANSWERS, b""), resolved, f"{_ANSWERS} of the {what}")
    )
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
        answers=answers,
        certificate=_read_certificate(members.get(_CERTIFICATE), resolved, answers, what),
        files=_read_files(members, study, trials, what),
    )


def _is_allowed(name: str) -> bool:
    """Whether a bundle may have a member of this name."""
    known = (*_REQUIRED, _ANSWERS, _CERTIFICATE)
    return name in known or any(kind.fullmatch(name) for kind in (_WORKLOAD, _FILE))


def _body(plain: Mapping[str, Any]) -> str:
    """Write an evaluation as the JSON of its row."""
    return json.dumps(plain, allow_nan=False, separators=(",", ":"))


def _results(bodies: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read stored results by key; a damaged result counts as absent."""
    for key, body in sorted(bodies.items()):
        try:
            yield key, from_json(body, dict[str, Any], "stored result")
        except InputError:
            continue


def _evaluation_lines(evaluations: Mapping[str, StoredEvaluation]) -> Iterator[bytes]:
    """Write evaluations, one per line; a row has the keys in this order."""
    bodies = {key: stored.body for key, stored in evaluations.items()}
    for key, plain in _results(bodies):
        document = {"key": key, "schedules": evaluations[key].schedules, "evaluation": plain}
        yield _body(document).encode() + b"\n"


def _schedule_lines(schedules: Mapping[str, str]) -> Iterator[bytes]:
    """Write schedules, one per line."""
    for key, plain in _results(schedules):
        yield to_json({"key": key, "schedule": plain}) + b"\n"


def _read_evaluations(data: bytes, what: str) -> dict[str, StoredEvaluation]:
    """Read and check evaluations, by key."""
    evaluations = {}
    for document in lines(data, _EvaluationDocument, what):
        if not _EVALUATION_KEY.fullmatch(document.key):
            raise InputError(f"The key {document.key!r} in {what} is no SHA-256.")
        evaluation_from_json_dict(document.evaluation)
        body = _body(document.evaluation)
        evaluations[document.key] = StoredEvaluation(body, document.schedules)
    return evaluations


def _read_schedules(data: bytes, what: str) -> dict[str, str]:
    """Read schedules, by key; the cache checks a schedule when it reads it."""
    schedules = {}
    for document in lines(data, _ScheduleDocument, what):
        if not 0 < len(document.key) <= _LONGEST_KEY:
            raise InputError(f"The key {document.key!r} in {what} is too long or empty.")
        schedules[document.key] = to_json(document.schedule).decode()
    return schedules


def _read_workloads(
    members: Mapping[str, bytes], resolved: ResolvedStudy, what: str
) -> dict[str, bytes]:
    """Read the workloads that the spec names, by the hashes of their content."""
    workloads = {
        name[1]: data for member, data in members.items() if (name := _WORKLOAD.fullmatch(member))
    }
    if workloads.keys() != set(resolved.workload_hashes):
        raise InputError(f"The workloads in the {what} are not those of its spec.")
    for digest, document in workloads.items():
        if hashlib.sha256(document).hexdigest() != digest:
            raise InputError(f"A workload in the {what} is not the one that it is named for.")
        parse_workload(document, f"workload in the {what}")
    return workloads


def _read_tickets(data: bytes, trials: int, what: str) -> tuple[StoredTicket, ...]:
    """Read the tickets; none may be held."""
    tickets = tuple(lines(data, StoredTicket, what))
    for k, ticket in enumerate(tickets):
        known = ticket.trial_number is None or 0 <= ticket.trial_number < trials
        known = known and ticket.state in ("open", "done", "failed")
        if ticket.k != k or not known or not 0 <= ticket.attempts < _MOST:
            raise InputError(f"Ticket {k} in {what} is not possible.")
    return tickets


def _answer_document(answer: SpaceAnswer) -> _AnswerDocument:
    """Return the document of an answer."""
    plain: Mapping[str, Any] = to_builtins(answer.result)
    if isinstance(answer.asked, int):
        return _AnswerDocument(answer.bounds, plain, top=answer.asked)
    return _AnswerDocument(answer.bounds, plain, objectives=answer.asked)


def _read_answers(data: bytes, resolved: ResolvedStudy, what: str) -> Iterator[SpaceAnswer]:
    """Read the answers, which must be possible for the study."""
    for number, document in enumerate(lines(data, _AnswerDocument, what), start=1):
        place = f"line {number} of {what}"
        kind: type[Enumeration | Front] = Front if document.top is None else Enumeration
        result = from_builtins(document.answer, kind, place)
        asked = document.objectives if document.top is None else document.top
        with refused(f"Line {number} in {what}"):
            answer = SpaceAnswer(asked, document.bounds, result)
            answer.check(resolved)
        yield answer


def _read_certificate(
    document: bytes | None, resolved: ResolvedStudy, answers: Sequence[SpaceAnswer], what: str
) -> Certificate | None:
    """Read the certificate, which must belong to an answer of the study."""
    if document is None:
        return None
    certificate = parse_certificate(document, f"{_CERTIFICATE} of the {what}")
    is_of_answer = any(certifies(certificate, answer) for answer in answers)
    if certificate.study != resolved or not is_of_answer:
        raise InputError(f"The {_CERTIFICATE} of the {what} is of no answer of its study.")
    return certificate


def _read_files(
    members: Mapping[str, bytes], study: _StudyDocument, trials: Sequence[FrozenTrial], what: str
) -> dict[str, bytes]:
    """Read the files; attributes must name all of them."""
    files = {name[1]: data for member, data in members.items() if (name := _FILE.fullmatch(member))}
    owners = (study.system_attributes, *(trial.system_attrs for trial in trials))
    named = {name for attributes in owners for name in check_files(attributes, files)}
    if named != files.keys():
        raise InputError(f"The {what} has a file that no attribute names.")
    return files
