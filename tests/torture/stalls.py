"""Workers that seem to be gone: stopped for longer than their lease, or by a clock that jumps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from tests.search.fakes import toy_study
from tests.search.test_tickets import shift_clock
from tests.torture.case import Case, Outcome, Setting
from tests.torture.runs import (
    await_trials,
    driving,
    ends,
    random_search,
    sqlite_urls,
    undisturbed,
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
            random = setting.random(number)
            search = random_search(TRIALS, random.randrange(10**6))
            expected = undisturbed(setting.folder, search)
            url = new_url()
            study = toy_study(url, search=search)
            processes = [drive(url, *ARGUMENTS, *more) for _ in range(2)]
            await_trials(study, random.randrange(1, TRIALS // 2), processes)
            study.storage.close()
            stalled = random.choice(processes)
            if stalled.poll() is None:
                os.kill(stalled.pid, signal.SIGSTOP)
                time.sleep(random.uniform(1.2, 2.5))
                os.kill(stalled.pid, signal.SIGCONT)
            yield ends(processes) or what_is_wrong(url, expected)


def run_clocks(setting: Setting) -> Iterator[Outcome]:
    """Put the clock of the database an hour forward or back, while two workers run."""
    with driving(setting.folder) as drive, sqlite_urls(setting.folder) as new_url:
        for number in setting.numbers():
            random = setting.random(number)
            search = random_search(TRIALS, random.randrange(10**6))
            expected = undisturbed(setting.folder, search)
            url = new_url()
            study = toy_study(url, search=search)
            processes = [
                drive(url, *ARGUMENTS, "--clock", str(random.choice((-1, 0, 1)))) for _ in range(2)
            ]
            for done in sorted(random.sample(range(1, TRIALS - 2), 3)):
                await_trials(study, done, processes)
                shift_clock(study.storage, random.choice((-3600.0, 3600.0)))
            study.storage.close()
            yield ends(processes) or what_is_wrong(url, expected)


STALLS = Case("stalls", "SIGSTOP for longer than the lease", 30, 0, 0.05, run_stalls)
CLOCKS = Case("clocks", "clocks an hour forward and back", 20, 0, 0.03, run_clocks)
PARENTS = Case("parents", "two parents, one of them stopped", 12, 0, 0.05, run_parents)
