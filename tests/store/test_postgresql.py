"""What only a server does: it goes away and comes back, and it asks for a password."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.study.study import Study
from tests.databases import Drive, postgresql_server
from tests.study.fakes import toy_study
from tests.study.test_processes import PATIENCE_S, assert_exactly, wait_for

PASSWORD = "hunter2-do-not-print"


@pytest.fixture
def server() -> Iterator[Any]:
    """Start a server of this test's own."""
    with postgresql_server() as own:
        yield own


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_restarted_server_does_not_end_a_run(server: Any, drive: Drive, workers: str) -> None:
    """While the server is away a run waits, and then goes on to exactly N."""
    url = server.get_uri()
    study = toy_study(url, search=SearchSpec(sampler="random", trials=20, seed=4))
    running = drive(url, "--workers", workers, "--evaluator", "slow_evaluator", "--lease", "3")
    wait_for(study, 4)
    study.storage.close()
    server.stop()
    time.sleep(1.0)
    server.ensure_postgres_running()
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, err) == (0, ""), out + err
    assert_exactly(study, 20)


def test_the_password_is_nowhere(
    postgresql: str, drive: Drive, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither output, nor a command line, nor any table holds the password."""
    url = make_url(postgresql).set(password=PASSWORD).render_as_string(hide_password=False)
    study = toy_study(url)
    running = drive(url, "--total", "12", "--workers", "2", "--evaluator", "slow_evaluator")
    wait_for(study, 2)
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(PASSWORD.encode() in line for line in lines)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, out + err
    printed = capfd.readouterr()
    for shown in (out, err, printed.out, printed.err, repr(study), study.storage.shown):
        assert PASSWORD not in shown
    assert PASSWORD not in dump(study)


def dump(study: Study) -> str:
    """Return every value of every table of a study's database as text."""
    with study.storage.reading() as session:
        names = session.execute(
            text("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        )
        rows = [
            str(tuple(row))
            for (name,) in names.all()
            for row in session.execute(text(f'SELECT * FROM "{name}"'))
        ]
    assert rows
    return "\n".join(rows)
