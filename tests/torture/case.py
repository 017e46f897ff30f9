"""What all cases have in common: a name, and tries that follow from a seed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

LONGEST_TRY_S = 10.0
LONGEST_WAIT_S = 60.0
"""A command that takes more processor time counts as hung, or that has not ended after a wait."""

LARGEST_BYTES = 2**30
"""Memory that no try may take."""

_SHOWN = 20
"""Failures of a case that are kept in words."""


@dataclass(frozen=True)
class Setting:
    """What a case runs in.

    Attributes
    ----------
    name
        Of the case.
    seed
        Of the whole run: a try follows from it, the name and the try's number.
    first
        Number of the first try, where an interrupted run goes on.
    folder
        Empty, for files.
    """

    name: str
    seed: int
    first: int
    folder: Path

    def numbers(self) -> Iterator[int]:
        """Count the tries."""
        return itertools.count(self.first)

    def random(self, number: int) -> Random:
        """Return what decides one try."""
        return Random(f"{self.seed}/{self.name}/{number}")


Outcome = str | None
"""A sentence about a failed try; ``None`` where all was well."""


@dataclass(frozen=True)
class Several:
    """Some tries with one outcome, as the kills of one storm have."""

    tries: int
    outcome: Outcome


@dataclass(frozen=True)
class Case:
    """One kind of mishap.

    Attributes
    ----------
    name, title
        As an option has it, and as the table does.
    tries, short
        Of a whole run, and of the short form within ``make test``.
    share
        Of the time of a whole run, relative to the shares of the other cases.
    run
        Yields outcomes of one try after the other; closed, it removes what it leaves behind.
    """

    name: str
    title: str
    tries: int
    short: int
    share: float
    run: Callable[[Setting], Iterator[Outcome | Several]]


@dataclass
class Tally:
    """What came of the tries of a case.

    Attributes
    ----------
    failures
        The first ones in words, each with the number of its try.
    """

    tries: int = 0
    failed: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, found: Outcome | Several) -> None:
        """Count tries."""
        one = found if isinstance(found, Several) else Several(1, found)
        if one.outcome is not None:
            self.failed += 1
            if len(self.failures) < _SHOWN:
                self.failures.append(f"try {self.tries}: {one.outcome}")
        self.tries += one.tries


def run_case(
    case: Case,
    tally: Tally,
    seed: int,
    folder: Path,
    most: int,
    seconds: float,
    told: Callable[[], None] = lambda: None,
) -> None:
    """Try a case until it has so many tries, or its time is over; go on where a tally ends.

    ``told`` is called after every try.
    """
    started_s = time.monotonic()
    setting = Setting(case.name, seed, tally.tries, folder)
    if tally.tries >= most:
        return
    before_s = tally.seconds
    with closing(_generator(case.run(setting))) as outcomes:
        for outcome in outcomes:
            tally.add(outcome)
            tally.seconds = before_s + time.monotonic() - started_s
            told()
            if tally.tries >= most or time.monotonic() - started_s > seconds:
                break


def _generator(
    outcomes: Iterator[Outcome | Several],
) -> Generator[Outcome | Several, None, None]:
    """Yield outcomes; an exception of a case is a failure, and its last."""
    try:
        yield from outcomes
    except Exception as error:
        yield f"the case itself failed: {error!r}"
