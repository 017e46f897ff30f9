"""Runs cases side by side, each in a process of its own, and hears of every try.

What a case tries follows from the seed and the number of the try alone: neither the number of
processes nor what runs beside it matters. A process is forked for every case, so that nothing of
one case is left in another, and none has to import the program again.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.torture.case import Case, Tally, run_case

_TOLD_EVERY_S = 0.5
_STOPPING_S = 20.0
"""How long an interrupted case may take to end its servers and workers."""


class StoppedError(BaseException):
    """Raised in the process of a case when the whole run is interrupted."""


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Attributes
    ----------
    seed
        Of the whole run.
    folder
        Empty, for files.
    end_s
        When it ends, by the monotonic clock.
    processes
        Cases that run at the same time.
    tries
        At most, of every case.
    """

    seed: int
    folder: Path
    end_s: float
    processes: int
    tries: int | None


@dataclass
class _Running:
    """A case that runs, and when it ends at the latest."""

    case: Case
    process: BaseProcess
    news: Connection
    until_s: float


def run_cases(
    cases: Sequence[Case], tallies: Mapping[str, Tally], plan: Plan, told: Callable[[], None]
) -> None:
    """Run all cases; the ones that take longest begin first.

    Parameters
    ----------
    cases, tallies
        Each with what came of it before, which is kept up to date.
    plan
        When, where and how many at once.
    told
        Called whenever a tally has changed.
    """
    waiting = sorted(cases, key=lambda case: -case.share)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < plan.processes:
                running.append(_start(waiting, running, tallies, plan))
            wait([one.news for one in running], timeout=1.0)
            for one in [one for one in running if not _hear(one, tallies[one.case.name])]:
                running.remove(one)
            told()
    finally:
        _stop(running)


def _start(
    waiting: list[Case], running: list[_Running], tallies: Mapping[str, Tally], plan: Plan
) -> _Running:
    """Start the next case with its share of the time that is left on all processes."""
    now_s = time.monotonic()
    taken_s = sum(max(0.0, one.until_s - now_s) for one in running)
    left_s = (plan.end_s - now_s) * plan.processes - taken_s
    own_s = left_s * waiting[0].share / sum(case.share for case in waiting)
    case = waiting.pop(0)
    most_s = max(0.0, min(own_s, plan.end_s - now_s))
    most = case.tries if plan.tries is None else min(case.tries, plan.tries)
    place = plan.folder / case.name
    place.mkdir()
    context = multiprocessing.get_context("fork")
    news, teller = context.Pipe(duplex=False)
    target = (case, tallies[case.name], plan.seed, place, most, most_s, teller)
    sys.stdout.flush()
    process = context.Process(target=_be_a_case, args=target, name=case.name)
    process.start()
    teller.close()
    return _Running(case, process, news, now_s + most_s)


def _be_a_case(
    case: Case, tally: Tally, seed: int, place: Path, most: int, most_s: float, teller: Connection
) -> None:
    """Run a case, and tell how it goes."""
    # Ctrl-C reaches every process of the terminal; this one ends when the run asks it to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _raise_stopped)
    last_s = 0.0

    def tell() -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _TOLD_EVERY_S:
            teller.send(tally)
            last_s = time.monotonic()

    with suppress(StoppedError):
        run_case(case, tally, seed, place, most, most_s, tell)
    teller.send(tally)


def _raise_stopped(number: int, frame: object) -> None:
    """End a case in an orderly way."""
    raise StoppedError


def _hear(one: _Running, tally: Tally) -> bool:
    """Take over what a case tells; return whether it still runs."""
    try:
        while one.news.poll():
            vars(tally).update(vars(one.news.recv()))
    except EOFError:
        one.process.join()
        if one.process.exitcode:
            tally.add(f"the process of the case ended with {one.process.exitcode}")
        for failure in tally.failures:
            print(f"{one.case.name}, {failure}", file=sys.stderr)
        return False
    return True


def _stop(running: Sequence[_Running]) -> None:
    """Interrupt what still runs."""
    for one in running:
        one.process.terminate()
    for one in running:
        one.process.join(_STOPPING_S)
        if one.process.is_alive():
            one.process.kill()
            one.process.join()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a run be ended by SIGTERM as by Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
