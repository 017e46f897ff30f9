"""Workers that seem to be gone: stopped for longer than their lease, or by a clock that jumps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from tests.store.test_tickets import shift_clock
from tests.torture.case import Case, Outcome, Setting
from tests.torture.runs import (
    await_trials,
    driving,
    ends,
    sqlite_urls,
    toy_run,
    what_is_wrong,
)

TRIALS = 14
ARGUMENTS = ("--evaluator", "slow_evaluator", "--lease", "1")


def run_stalls(setting: Setting) -> Iterator[Outcome]:
    """Stop one of two workers, and let it go on."""
    return _run(setting, parents=False)


def run_parents(setting: Setting) -> Iterator[Outcome]:
    """Start two parents with two workers each on one study, one of them stopped for a while."""
    return _run(setting, parents=True)


def _run(setting: Setting, *, parents: bool) -> Iterator[Outcome]:
    """Run a study per try."""
    more = ("--workers", "2") if parents else ()
    with driving(setting.folder) as drive, sqlite_urls(setting.folder) as new_url:
        for number in setting.numbers():
            toy = toy_run(setting, number, TRIALS, new_url)
            processes = [drive(toy.url, *ARGUMENTS, *more) for _ in range(2)]
            await_trials(toy.study, toy.random.randrange(1, TRIALS // 2), processes)
            toy.study.storage.close()
            stalled = toy.random.choice(processes)
            if stalled.poll() is None:
                os.kill(stalled.pid, signal.SIGSTOP)
                time.sleep(toy.random.uniform(1.2, 2.5))
                os.kill(stalled.pid, signal.SIGCONT)
            yield ends(processes) or what_is_wrong(toy.url, toy.expected)


def run_clocks(setting: Setting) -> Iterator[Outcome]:
    """Put the clock of the database an hour forward or back, while two workers run."""
    with driving(setting.folder) as drive, sqlite_urls(setting.folder) as new_url:
        for number in setting.numbers():
            toy = toy_run(setting, number, TRIALS, new_url)
            clocks = [str(toy.random.choice((-1, 0, 1))) for _ in range(2)]
            processes = [drive(toy.url, *ARGUMENTS, "--clock", clock) for clock in clocks]
            for done in sorted(toy.random.sample(range(1, TRIALS - 2), 3)):
                await_trials(toy.study, done, processes)
                shift_clock(toy.study.storage, toy.random.choice((-3600.0, 3600.0)))
            toy.study.storage.close()
            yield ends(processes) or what_is_wrong(toy.url, toy.expected)


STALLS = Case("stalls", "SIGSTOP for longer than the lease", 30, 0, 0.06, run_stalls)
CLOCKS = Case("clocks", "clocks an hour forward and back", 20, 0, 0.04, run_clocks)
PARENTS = Case("parents", "two parents, one of them stopped", 12, 0, 0.06, run_parents)
