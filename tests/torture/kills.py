"""Kill storms: workers and parents, at any moment, until the study is done all the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.databases import Drive, DrivenProcess
from tests.torture.case import Case, Outcome, Setting, Several
from tests.torture.runs import (
    PATIENCE_S,
    Urls,
    driving,
    ends,
    postgresql_urls,
    sqlite_urls,
    toy_run,
    what_is_wrong,
)

TRIALS = 40
LONE = 3
"""Workers of their own, beside one parent with two more."""

ARGUMENTS = ("--evaluator", "slow_evaluator", "--lease", "2")


def run(setting: Setting, urls: Urls) -> Iterator[Several]:
    """Storm a study until it is done, and then the next one; a try is a kill."""
    number = setting.first
    with driving(setting.folder) as drive, urls(setting.folder) as new_url:
        while True:
            toy = toy_run(setting, number, TRIALS, new_url)
            toy.study.storage.close()
            storm = _Storm(drive, toy.url, toy.random)
            kills = storm.rage()
            outcome = storm.outcome or what_is_wrong(toy.url, toy.expected)
            number += kills
            yield Several(kills, outcome)


class _Storm:
    """One storm over one study.

    Attributes
    ----------
    outcome
        What is wrong with how its processes ended.
    """

    def __init__(self, drive: Drive, url: str, random: Random) -> None:
        self._drive, self._url, self._random = drive, url, random
        self.outcome: Outcome = None

    def rage(self) -> int:
        """Kill until the study is done; return how often."""
        processes = [self._lone() for _ in range(LONE)] + [self._parent()]
        kills, end_s = 0, time.monotonic() + PATIENCE_S
        while all(one.poll() is None for one in processes):
            time.sleep(self._random.uniform(0.02, 0.3))
            if time.monotonic() > end_s:
                break
            index = self._random.randrange(len(processes))
            victim = processes[index]
            if index == LONE and self._random.random() < 0.7:
                kills += _kill_child(victim, self._random)
                continue
            victim.kill()
            victim.communicate()
            kills += 1
            processes[index] = self._parent() if index == LONE else self._lone()
        self.outcome = ends(processes)
        return kills

    def _lone(self) -> DrivenProcess:
        return self._drive(self._url, *ARGUMENTS)

    def _parent(self) -> DrivenProcess:
        return self._drive(self._url, *ARGUMENTS, "--workers", "2")


def _kill_child(parent: DrivenProcess, random: Random) -> int:
    """Kill a worker of a parent, if it has one."""
    with suppress(OSError):
        path = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        children = [
            int(child)
            for child in path.read_text().split()
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        if children:
            os.kill(random.choice(children), signal.SIGKILL)
            return 1
    return 0


SQLITE = Case(
    "kills-sqlite",
    "kill -9 of workers and parents, SQLite",
    500,
    0,
    0.06,
    lambda setting: run(setting, sqlite_urls),
)
POSTGRESQL = Case(
    "kills-postgresql",
    "kill -9 of workers and parents, PostgreSQL",
    500,
    0,
    0.06,
    lambda setting: run(setting, postgresql_urls),
)
