"""Connections that break at any statement or commit, and a server that is stopped and restarted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from unittest.mock import patch

import phaze_opt.spec.frozen as frozen_module
import phaze_opt.store.failures as failures_module
import phaze_opt.study.study as study_module
from phaze_opt.store.opening import open_storage
from tests.databases import postgresql_server
from tests.store.saboteur import LAST, Saboteur
from tests.study.fakes import quick_study
from tests.torture.case import Case, Outcome, Setting
from tests.torture.runs import (
    Urls,
    await_trials,
    driving,
    ends,
    new_database,
    postgresql_urls,
    results,
    sqlite_urls,
    toy_run,
    what_is_wrong,
)

CUT_TRIALS = 3
TRIALS = 20


def run_cuts(setting: Setting, urls: Urls) -> Iterator[Outcome]:
    """Break the connection once per try, before a statement or after a commit."""
    with (
        urls(setting.folder) as new_url,
        patch.object(failures_module, "_RECONNECT_WAITS_S", (0.01, 0.1)),
        patch.object(study_module, "current_version", lambda: "1"),
        patch.object(frozen_module, "current_version", lambda: "1"),
    ):
        for number in setting.numbers():
            random = setting.random(number)
            moment = random.choice(("statement", "commit"))
            strike = random.randrange(1, 250 if moment == "statement" else 70)
            yield _cut(new_url(), moment, strike)


def _cut(url: str, moment: str, strike: int) -> Outcome:
    """Compare a study whose connection broke with one whose did not."""
    storage, err = open_storage(url, create=True), StringIO()
    first = quick_study(storage, CUT_TRIALS, "first", 64)
    first.run()
    saboteur = Saboteur(storage, moment)
    second = quick_study(storage, CUT_TRIALS, "second", 65)
    saboteur.strike_at(strike)
    with redirect_stderr(err):
        outcome = second.run()
    saboteur.strike_at(LAST)
    points = [[line.split(" (")[0] for line in results(study)] for study in (first, second)]
    storage.close()
    where = f"{moment} {strike}"
    if outcome.failures or outcome.counts.done != CUT_TRIALS or outcome.counts.left:
        return f"{where}: {outcome}"
    if points[0] != points[1]:
        return f"{where}: other points"
    return f"{where}: said {err.getvalue()[:200]!r}" if err.getvalue() else None


def run_restarts(setting: Setting) -> Iterator[Outcome]:
    """Stop and start the server while two processes work."""
    with driving(setting.folder) as drive, postgresql_server() as server:
        for number in setting.numbers():
            new_url = partial(new_database, server.get_uri(), f"study_{number}")
            toy = toy_run(setting, number, TRIALS, new_url)
            options = ("--evaluator", "slow_evaluator", "--lease", "3")
            processes = [drive(toy.url, *options) for _ in range(2)]
            for done in sorted(toy.random.sample(range(1, TRIALS - 2), 2)):
                await_trials(toy.study, done, processes)
                toy.study.storage.close()
                server.stop()
                time.sleep(toy.random.uniform(0.0, 1.5))
                server.ensure_postgres_running()
            yield ends(processes) or what_is_wrong(toy.url, toy.expected)


CUTS_SQLITE = Case(
    "cuts-sqlite",
    "SQLite locked at any statement or commit",
    250,
    2,
    0.04,
    lambda setting: run_cuts(setting, sqlite_urls),
)
CUTS_POSTGRESQL = Case(
    "cuts-postgresql",
    "PostgreSQL cut off at any statement or commit",
    250,
    0,
    0.1,
    lambda setting: run_cuts(setting, postgresql_urls),
)
RESTARTS = Case(
    "restarts", "PostgreSQL stopped and restarted, twice a run", 12, 0, 0.06, run_restarts
)
