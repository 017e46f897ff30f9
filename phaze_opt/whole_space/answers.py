"""Answers about the whole space of a study, as a database stores them: enumerations and fronts.

An answer is stored under the hash of its question, so that every study with that question finds it;
only the certificate of an enumeration, which holds the frozen study, belongs to one study. No
answer depends on the machine, so that copies and bundles of a study contain its answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError
from phaze_opt.spec.frozen import ResolvedStudy, content_hash
from phaze_opt.spec.objectives import ObjectiveName
from phaze_opt.spec.space import DesignPoint, params_of, point_of
from phaze_opt.store.enumerations import (
    find_answers,
    find_enumeration,
    keep_enumeration,
)
from phaze_opt.store.storage import Storage
from phaze_opt.whole_space.certificate import Certificate, parse_certificate
from phaze_opt.whole_space.exhaustive import Enumeration, RankedDesign
from phaze_opt.whole_space.front_bounds import front_objectives
from phaze_opt.whole_space.front_search import FoundFront

MOST_ASKED = 10_000
"""Largest size of a top at which `read_answers` finds a stored enumeration."""


@dataclass(frozen=True)
class Front:
    """The front of a study's whole space, proven for its cost model.

    Attributes
    ----------
    objectives
        Objectives of the front.
    wall_s
        Seconds of the search; of its last run, if it was stopped before.
    version
        Version of the cost model.
    """

    objectives: tuple[ObjectiveName, ...]
    found: FoundFront
    wall_s: float
    version: str


@dataclass(frozen=True)
class SpaceAnswer:
    """A finished answer with its question.

    Attributes
    ----------
    asked
        Size of the top of an enumeration; objectives of a front.
    bounds
        Whether points were bounded; without bounds the designs are equal, but not the counts.
    result
        The enumeration or the front.
    """

    asked: int | tuple[ObjectiveName, ...]
    bounds: bool
    result: Enumeration | Front

    @property
    def designs(self) -> tuple[RankedDesign, ...]:
        """Designs of the top, or of the front."""
        if isinstance(self.result, Enumeration):
            return self.result.top
        return tuple(member.design for member in self.result.found.designs)

    def check(self, study: ResolvedStudy) -> None:
        """Refuse an answer that is impossible for a study.

        Raises
        ------
        InputError
            If the answer contradicts the study.
        """
        if self.result.version != study.cost_model_version:
            raise InputError("An answer is of another cost-model version than its study.")
        asked, result = self.asked, self.result
        if isinstance(result, Enumeration):
            possible = isinstance(asked, int) and len(result.top) <= asked <= MOST_ASKED
            possible = possible and result.status == "certified"
        else:
            possible = asked == result.objectives
        if not possible:
            raise InputError("An answer is not one to what was asked for.")
        space = study.spec.space
        for design in self.designs:
            point = DesignPoint(design.point)
            if point_of(space, params_of(space, point)) != point:
                raise InputError(f"The space has no design {dict(design.point)}.")
            design.metrics.rank(study, point)


def find_answer(
    storage: Storage,
    study: ResolvedStudy,
    asked: int | tuple[ObjectiveName, ...],
    bounds: bool,
    what: str,
) -> Enumeration | Front | None:
    """Return a stored answer; ``None`` if there is none.

    Parameters
    ----------
    asked, bounds
        See `SpaceAnswer`.
    what
        Name of the answer in the error's sentence.

    Raises
    ------
    InputError
        If the answer is damaged.
    """
    body = find_enumeration(storage, _key(study, asked, bounds))
    if body is None:
        return None
    kind: type[Enumeration | Front] = Enumeration if isinstance(asked, int) else Front
    return from_json(body, kind, what)


def keep_answer(storage: Storage, study: ResolvedStudy, answer: SpaceAnswer) -> None:
    """Store an answer."""
    question = study.question_hash if isinstance(answer.asked, int) else None
    key = _key(study, answer.asked, answer.bounds)
    keep_enumeration(storage, key, to_json(answer.result).decode(), question)


def read_answers(storage: Storage, study: ResolvedStudy) -> tuple[SpaceAnswer, ...]:
    """Return all stored answers of a study, sorted; a damaged answer counts as absent."""
    answers = []
    question = study.question_hash
    for key, body in find_answers(storage, question).items():
        with suppress(InputError):
            enumeration = from_json(body, Enumeration, "stored enumeration")
            asked = _asked_for(question, key, enumeration)
            if asked is not None:
                answers.append(SpaceAnswer(asked, bool(enumeration.levels), enumeration))
    answers.sort(key=lambda answer: (answer.asked, answer.bounds))
    for energy in (False, True):
        names = front_objectives(study.spec, energy=energy)
        for bounds in (False, True):
            with suppress(InputError):
                front = find_answer(storage, study, names, bounds, "stored front")
                answers += [] if front is None else [SpaceAnswer(names, bounds, front)]
    return tuple(answers)


def find_certificate(storage: Storage, study: ResolvedStudy, asked: int) -> Certificate | None:
    """Return the stored certificate of a study's enumeration; ``None`` if absent or damaged."""
    body = find_enumeration(storage, _certificate_key(study, asked))
    with suppress(InputError):
        return None if body is None else parse_certificate(body, "stored certificate")
    return None


def keep_certificate(storage: Storage, certificate: Certificate) -> None:
    """Store the certificate of a study's enumeration."""
    key = _certificate_key(certificate.study, certificate.asked)
    keep_enumeration(storage, key, to_json(certificate).decode())


def restore_answers(
    storage: Storage,
    study: ResolvedStudy,
    answers: Iterable[SpaceAnswer],
    certificate: Certificate | None,
) -> None:
    """Store the answers and the certificate of a snapshot; stored ones are not replaced."""
    for answer in answers:
        if find_enumeration(storage, _key(study, answer.asked, answer.bounds)) is None:
            keep_answer(storage, study, answer)
    if certificate is not None:
        key = _certificate_key(certificate.study, certificate.asked)
        if find_enumeration(storage, key) is None:
            keep_certificate(storage, certificate)


def longest_certificate(
    storage: Storage, study: ResolvedStudy, answers: Iterable[SpaceAnswer]
) -> Certificate | None:
    """Return the stored certificate with the longest top; ``None`` if there is none."""
    longest: Certificate | None = None
    for answer in answers:
        if isinstance(answer.asked, int) and answer.bounds:
            stored = find_certificate(storage, study, answer.asked)
            longer = stored is not None and (longest is None or stored.asked > longest.asked)
            if stored is not None and longer and certifies(stored, answer):
                longest = stored
    return longest


def certifies(certificate: Certificate, answer: SpaceAnswer) -> bool:
    """Whether a certificate belongs to an answer: equal question, counts and designs."""
    enumeration = answer.result
    if not isinstance(enumeration, Enumeration) or not answer.bounds:
        return False
    counts = ("points", "bounded", "evaluated", "feasible")
    return (
        certificate.asked == answer.asked
        and all(getattr(certificate, name) == getattr(enumeration, name) for name in counts)
        and [(design.point, design.values) for design in certificate.top]
        == [(design.point, design.metrics.values) for design in enumeration.top]
    )


def _key(study: ResolvedStudy, asked: int | tuple[ObjectiveName, ...], bounds: bool) -> str:
    """Return the key of an answer."""
    if isinstance(asked, int):
        return _enumeration_key(study.question_hash, asked, bounds)
    return content_hash([study.hash, "front", list(asked), bounds])


def _enumeration_key(question: str, asked: int, bounds: bool) -> str:
    """Return the key of an enumeration; its counts depend on ``bounds``, its designs do not."""
    return content_hash([question, asked, bounds])


def _certificate_key(study: ResolvedStudy, asked: int) -> str:
    """Return the key of a certificate, which holds the study with its name."""
    return content_hash([study, "certificate", asked])


def _asked_for(question: str, key: str, enumeration: Enumeration) -> int | None:
    """Find the asked size of a top by the key: the row of an enumeration does not hold the size."""
    # The top is shorter than asked if the space has fewer feasible designs.
    size = len(enumeration.top)
    most = MOST_ASKED if size == enumeration.feasible else size
    for asked in range(max(1, size), most + 1):
        if _enumeration_key(question, asked, bool(enumeration.levels)) == key:
            return asked
    return None
