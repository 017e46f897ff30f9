"""Answers about the whole space of a study, as a database keeps them: enumerations and fronts.

An answer is kept under the hash of its question, so that every study that asks the same finds it;
only the certificate of an enumeration, which holds the frozen study, is of one study. None depends
on the machine, and so all of them go along when a study is given away.
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
"""Designs of a top up to which an answer is found whatever it was asked for."""


@dataclass(frozen=True)
class Front:
    """The front of a study's whole space, proven for its cost model.

    Attributes
    ----------
    objectives
        What it is drawn over.
    wall_s
        Seconds that it took; of the last part, where it was stopped before.
    version
        Of the cost model.
    """

    objectives: tuple[ObjectiveName, ...]
    found: FoundFront
    wall_s: float
    version: str


@dataclass(frozen=True)
class Answer:
    """A finished answer, and what was asked for.

    Attributes
    ----------
    asked
        How many designs the top of an enumeration shall have; the objectives of a front.
    bounds
        Whether points were bounded; the designs are the same without, the counts are not.
    """

    asked: int | tuple[ObjectiveName, ...]
    bounds: bool
    found: Enumeration | Front

    @property
    def designs(self) -> tuple[RankedDesign, ...]:
        """The top, or the front."""
        if isinstance(self.found, Enumeration):
            return self.found.top
        return tuple(one.design for one in self.found.found.designs)

    def check(self, study: ResolvedStudy) -> None:
        """Refuse an answer that cannot be one of a study.

        Raises
        ------
        InputError
            Naming what contradicts the study.
        """
        if self.found.version != study.cost_model_version:
            raise InputError("An answer is of another cost-model version than its study.")
        asked, found = self.asked, self.found
        if isinstance(found, Enumeration):
            possible = isinstance(asked, int) and len(found.top) <= asked <= MOST_ASKED
            possible = possible and found.status == "certified"
        else:
            possible = asked == found.objectives
        if not possible:
            raise InputError("An answer is not one to what was asked for.")
        space = study.spec.space
        for one in self.designs:
            point = DesignPoint(one.point)
            if point_of(space, params_of(space, point)) != point:
                raise InputError(f"The space has no design {dict(one.point)}.")
            one.metrics.rank(study, point)


def find_answer(
    storage: Storage,
    study: ResolvedStudy,
    asked: int | tuple[ObjectiveName, ...],
    bounds: bool,
    what: str,
) -> Enumeration | Front | None:
    """Return a stored answer; ``None`` where there is none.

    Raises
    ------
    InputError
        If it is damaged; ``what`` names it.
    """
    body = find_enumeration(storage, _key(study, asked, bounds))
    if body is None:
        return None
    kind: type[Enumeration | Front] = Enumeration if isinstance(asked, int) else Front
    return from_json(body, kind, what)


def keep_answer(storage: Storage, study: ResolvedStudy, answer: Answer) -> None:
    """Store an answer."""
    question = study.question_hash if isinstance(answer.asked, int) else None
    key = _key(study, answer.asked, answer.bounds)
    keep_enumeration(storage, key, to_json(answer.found).decode(), question)


def read_answers(storage: Storage, study: ResolvedStudy) -> tuple[Answer, ...]:
    """Return all stored answers of a study, in order; one that is damaged counts as absent."""
    found = []
    question = study.question_hash
    for key, body in find_answers(storage, question).items():
        with suppress(InputError):
            enumeration = from_json(body, Enumeration, "stored enumeration")
            asked = _asked_for(question, key, enumeration)
            found += [] if asked is None else [Answer(asked, bool(enumeration.levels), enumeration)]
    found.sort(key=lambda answer: (answer.asked, answer.bounds))
    for energy in (False, True):
        names = front_objectives(study.spec, energy=energy)
        for bounds in (False, True):
            with suppress(InputError):
                front = find_answer(storage, study, names, bounds, "stored front")
                found += [] if front is None else [Answer(names, bounds, front)]
    return tuple(found)


def find_certificate(storage: Storage, study: ResolvedStudy, asked: int) -> Certificate | None:
    """Return the stored certificate of a study's enumeration; a damaged one counts as absent."""
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
    answers: Iterable[Answer],
    certificate: Certificate | None,
) -> None:
    """Store answers, and a certificate, that came from elsewhere; what is there already stays."""
    for answer in answers:
        if find_enumeration(storage, _key(study, answer.asked, answer.bounds)) is None:
            keep_answer(storage, study, answer)
    if certificate is not None:
        key = _certificate_key(certificate.study, certificate.asked)
        if find_enumeration(storage, key) is None:
            keep_certificate(storage, certificate)


def longest_certificate(
    storage: Storage, study: ResolvedStudy, answers: Iterable[Answer]
) -> Certificate | None:
    """Return the stored certificate with the longest top; ``None`` where there is none."""
    found: Certificate | None = None
    for answer in answers:
        if isinstance(answer.asked, int) and answer.bounds:
            stored = find_certificate(storage, study, answer.asked)
            longer = stored is not None and (found is None or stored.asked > found.asked)
            if stored is not None and longer and certifies(stored, answer):
                found = stored
    return found


def certifies(certificate: Certificate, answer: Answer) -> bool:
    """Whether a certificate is that of an answer: the same question, counts and designs."""
    found = answer.found
    if not isinstance(found, Enumeration) or not answer.bounds:
        return False
    designs = [(one.point, one.metrics.values) for one in found.top]
    return certificate.asked == answer.asked and (
        certificate.points,
        certificate.bounded,
        certificate.evaluated,
        certificate.feasible,
        [(one.point, one.values) for one in certificate.top],
    ) == (found.points, found.bounded, found.evaluated, found.feasible, designs)


def _key(study: ResolvedStudy, asked: int | tuple[ObjectiveName, ...], bounds: bool) -> str:
    """Return the key of an answer."""
    if isinstance(asked, int):
        return _enumeration_key(study.question_hash, asked, bounds)
    return content_hash([study.hash, "front", list(asked), bounds])


def _enumeration_key(question: str, asked: int, bounds: bool) -> str:
    """Return the key of an enumeration.

    The answer is the same with and without bounds; what was counted on the way is not.
    """
    return content_hash([question, asked, bounds])


def _certificate_key(study: ResolvedStudy, asked: int) -> str:
    """Return the key of a certificate, which holds the study with its name."""
    return content_hash([study, "certificate", asked])


def _asked_for(question: str, key: str, found: Enumeration) -> int | None:
    """Find what an enumeration was asked for: its row does not say so, but its key is the hash."""
    # Where the space has fewer feasible designs than that, the top is shorter.
    most = MOST_ASKED if len(found.top) == found.feasible else len(found.top)
    for asked in range(max(1, len(found.top)), most + 1):
        if _enumeration_key(question, asked, bool(found.levels)) == key:
            return asked
    return None
