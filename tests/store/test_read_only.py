"""Databases that cannot be written are read; those that vanish are named and not made anew."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from phaze_opt.cli.main import run_with

from phaze_opt.store.failures import DatabaseError
from phaze_opt.store.opening import open_storage
from tests.databases import Drive
from tests.study.fakes import quick_study, toy_study
from tests.study.test_processes import ended, wait_for

NOBODY = 65534
READING = ["ls", "show toy --json", "best toy --json", "trials toy --json", "workers"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that every user reaches; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory(prefix="phaze-", ignore_cleanup_errors=True) as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


def as_a_user(action: Callable[[], str]) -> str:
    """Return what an action returns to a user who is not root, and may write what the mode says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(writing, action().encode())
        except BaseException as error:
            os.write(writing, f"{error!r}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer


def answers(url: str, commands: list[str]) -> str:
    """Run commands; return exit code, output and errors of each as JSON."""
    results = []
    for command in commands:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run_with(["study", *command.split(), "--storage", url])
        results.append((code, out.getvalue(), err.getvalue()))
    return json.dumps(results)


def hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a folder."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.mark.parametrize("has_log", [False, True])
def test_a_file_that_cannot_be_written_is_read(folder: Path, tmp_path: Path, has_log: bool) -> None:
    """Also with a write-ahead log that a killed worker left; what would write is refused."""
    source = tmp_path / "study.db"
    study = quick_study(f"sqlite:///{source}")
    study.run()
    # Also imports what the commands need, which another user may not be able to read.
    expected = json.loads(answers(f"sqlite:///{source}", READING))
    if has_log:
        for end in ("-wal", "-shm"):
            shutil.copy(f"{source}{end}", folder)
    else:
        with closing(sqlite3.connect(source)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(source, folder)
    output = tempfile.mkdtemp(dir="/tmp")
    Path(output).chmod(0o777)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    before = hashes(folder)
    url = f"sqlite:///{folder / 'study.db'}"
    commands = [*READING, f"export toy --format csv --output {output}/toy.csv", "stop toy"]
    try:
        *read, stop = json.loads(as_a_user(lambda: answers(url, commands)))
        assert [code for code, _, _ in read] == [0] * len(read), read
        assert [out for _, out, _ in read[:-1]] == [out for _, out, _ in expected]
        assert json.loads(read[1][1])["trials"]["complete"] == 3
        assert len(Path(f"{output}/toy.csv").read_text().splitlines()) == 4
        assert stop[0] == 1 and "cannot be written" in stop[2], stop
        assert hashes(folder) == before
    finally:
        shutil.rmtree(output)


def test_older_tables_that_cannot_be_written(folder: Path) -> None:
    """They are not brought up to date, which is said."""
    path = folder / "study.db"
    storage = open_storage(f"sqlite:///{path}", create=True)
    with storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE phaze_schema SET version = 0")
    storage.close()
    path.chmod(0o444)
    folder.chmod(0o555)
    ((code, _, err),) = json.loads(as_a_user(lambda: answers(f"sqlite:///{path}", ["ls"])))
    assert code == 4 and "cannot be written, and its tables are of another version" in err


def test_a_file_that_vanishes_is_not_made_anew(tmp_path: Path) -> None:
    """Neither by a connection that is open, nor by a new one; a new file is not taken for it."""
    path = tmp_path / "study.db"
    storage = toy_study(f"sqlite:///{path}").storage
    path.rename(tmp_path / "moved.db")
    for _ in range(2):
        with pytest.raises(DatabaseError, match="is gone: its file was deleted"), storage.reading():
            storage.optuna.get_all_studies()
        with pytest.raises(DatabaseError, match="is gone"), storage.writing() as session:
            session.connection()
    storage.close()
    assert not path.exists()
    toy_study(f"sqlite:///{path}").storage.close()
    with pytest.raises(DatabaseError, match="is gone"), storage.reading() as session:
        session.connection()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_whose_file_vanishes_says_so(
    sqlite_url: str, tmp_path: Path, drive: Drive, workers: str
) -> None:
    """Every worker ends, and no file is left."""
    study = toy_study(sqlite_url)
    process = drive(sqlite_url, "--workers", workers, "--evaluator", "slow_evaluator")
    wait_for(study, 2)
    study.storage.close()
    for path in tmp_path.glob("study.db*"):
        path.unlink()
    assert ended(process) == 1
    _, err = process.communicate()
    assert "is gone: its file was deleted" in err and "disk image" not in err
    assert not list(tmp_path.glob("study.db*"))


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    """A database is not made somewhere else than it is named."""
    (tmp_path / "study.db").symlink_to(tmp_path / "else.db")
    with pytest.raises(ValueError, match="a link to a missing file"):
        open_storage(f"sqlite:///{tmp_path / 'study.db'}", create=True)
    assert not (tmp_path / "else.db").exists()
