"""Parts of the cases that run studies: databases, processes, and what must have come out."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

import tests.study.drive as drive_module
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.opening import open_storage
from phaze_opt.study.study import Study, load_study
from tests.databases import ROOT, Drive, DrivenProcess, postgresql_server
from tests.study.fakes import toy_study
from tests.torture.case import Outcome, Setting

PATIENCE_S = 180.0
"""For how long a run may stand still on a busy machine before it counts as hung."""


def random_search(trials: int, seed: int) -> SearchSpec:
    """Return a search whose points follow from the tickets alone, whoever serves them."""
    return SearchSpec(sampler="random", trials=trials, seed=seed)


@contextmanager
def driving(folder: Path) -> Iterator[Drive]:
    """Give what starts `tests.study.drive` in a process; whatever still runs is killed."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([drive_module.__name__])
    started: list[DrivenProcess] = []

    def start(url: str, *arguments: str) -> DrivenProcess:
        place = folder / f"driven-{len(started)}"
        place.mkdir(parents=True)
        environment = {**os.environ, "PHAZE_STORAGE": url, "PYTHONPATH": str(ROOT)}
        started.append(DrivenProcess(forks, place, environment, arguments))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()


NewUrl = Callable[[], str]
"""Makes room for one more database, and returns its URL."""

Urls = Callable[[Path], AbstractContextManager[NewUrl]]
"""Opens a place for databases, with files in a folder: `sqlite_urls` or `postgresql_urls`."""


@contextmanager
def sqlite_urls(folder: Path) -> Iterator[NewUrl]:
    """Give what returns the URL of a new database file; the file before is deleted."""
    numbers = itertools.count()

    def new() -> str:
        for path in folder.glob("study-*.db*"):
            path.unlink()
        return f"sqlite:///{folder / f'study-{next(numbers)}.db'}"

    yield new


@contextmanager
def postgresql_urls(folder: Path) -> Iterator[NewUrl]:
    """Give what returns the URL of a new database of a server of its own."""
    numbers = itertools.count()
    with postgresql_server() as server:

        def new() -> str:
            return new_database(server.get_uri(), f"study_{next(numbers)}")

        yield new


def new_database(server: str, name: str) -> str:
    """Make a database on a server, and return its URL."""
    url = make_url(server).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.set(database=name).render_as_string(hide_password=False)


@dataclass(frozen=True)
class ToyRun:
    """A study that one try disturbs.

    Attributes
    ----------
    random
        What decides the rest of the try.
    url, study
        Of the study, which has no trials yet.
    expected
        What one undisturbed worker finds.
    """

    random: Random
    url: str
    study: Study
    expected: list[str]


def toy_run(setting: Setting, number: int, trials: int, new_url: NewUrl) -> ToyRun:
    """Make the study of one try."""
    random = setting.random(number)
    search = random_search(trials, random.randrange(10**6))
    expected = undisturbed(setting.folder, search)
    url = new_url()
    return ToyRun(random, url, toy_study(url, search=search), expected)


def undisturbed(folder: Path, search: SearchSpec) -> list[str]:
    """Return the trials that one worker finds where nothing disturbs it."""
    path = folder / "undisturbed.db"
    for old in folder.glob("undisturbed.db*"):
        old.unlink()
    study = toy_study(f"sqlite:///{path}", search=search)
    study.run()
    found = results(study)
    study.storage.close()
    return found


def results(study: Study) -> list[str]:
    """Return points and values of the complete trials, in an order of their own."""
    done = [one for one in study.trials() if one.kind in ("feasible", "infeasible")]
    return sorted(f"{one.point!r} {one.metrics and one.metrics.values}" for one in done)


def await_trials(study: Study, done: int, processes: list[DrivenProcess]) -> None:
    """Wait until so many trials are done, or no process runs any more."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s and any(one.poll() is None for one in processes):
        if study.office().counts().done >= done:
            return
        time.sleep(0.02)


def ends(processes: list[DrivenProcess], codes: tuple[int, ...] = (0,)) -> Outcome:
    """Wait for processes, and say which does not end as it should."""
    end_s = time.monotonic() + PATIENCE_S
    for process in processes:
        while process.poll() is None and time.monotonic() < end_s:
            time.sleep(0.05)
        if process.poll() is None:
            return f"a process does not end in {PATIENCE_S:g} s"
        _, err = process.communicate()
        if process.returncode not in codes:
            return f"a process ended with {process.returncode}: {err[-300:]!r}"
        if "Unexpected" in err or "Traceback" in err:
            return f"not a sentence: {err[-300:]!r}"
    return None


def what_is_wrong(url: str, expected: list[str]) -> Outcome:
    """Say what a finished study lacks, has twice, or has otherwise than it should."""
    storage = open_storage(url)
    try:
        return _wrong(load_study("toy", storage), expected)
    finally:
        storage.close()


def _wrong(study: Study, expected: list[str]) -> Outcome:
    counts, found = study.office().counts(), results(study)
    kinds = [one.kind for one in study.trials()]
    if counts.failed:
        return f"gave up: {study.office().reasons()}"
    if (counts.done, counts.left) != (len(expected), 0):
        return f"{counts} of {len(expected)}"
    if len(found) != len(expected):
        return f"{len(found)} complete trials of {len(expected)}"
    if found != expected:
        return f"other results: {sorted(set(found) ^ set(expected))[:2]}"
    if "running" in kinds or "waiting" in kinds:
        return "a trial is left running"
    return None
