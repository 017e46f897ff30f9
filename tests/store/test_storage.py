"""Opening databases, and what happens when that does not work."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import func, inspect, select, text, update

from phaze_opt.errors import ConflictError, InputError, NotFoundError, PhazeError
from phaze_opt.store.failures import LOCK_TIMEOUT_S, DatabaseError
from phaze_opt.store.opening import DEFAULT_URL, open_storage, resolve_url, shown_url
from phaze_opt.store.sqlite_file import sqlite_file
from phaze_opt.store.tables import (
    SCHEMA_VERSION,
    ClaimRow,
    EnumerationRow,
    SchemaRow,
    TicketRow,
    database_now_s,
)


def test_url_comes_from_option_environment_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option wins over the environment, which wins over the default."""
    monkeypatch.delenv("PHAZE_STORAGE", raising=False)
    assert resolve_url(None) == DEFAULT_URL
    monkeypatch.setenv("PHAZE_STORAGE", "sqlite:///b.db")
    assert resolve_url(None) == "sqlite:///b.db"
    assert resolve_url("sqlite:///a.db") == "sqlite:///a.db"


def test_password_is_not_shown() -> None:
    """What is printed holds no password, whatever the password."""
    assert "hunter2" not in shown_url("postgresql://me:hunter2@host/db")


@pytest.mark.parametrize(
    "url",
    ["mango:///x", "phaze.db", "", "://", "sqlite://", "sqlite+x:///a", "mysql://me@host/db"],
)
def test_odd_urls_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a URL of a supported database is refused, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        shown_url(url)
    if url:
        with pytest.raises(InputError):
            open_storage(url, create=True)
    assert list(tmp_path.iterdir()) == []


def test_opening_twice_changes_nothing(empty_url: str) -> None:
    """The tables are made once; whoever comes later finds them."""
    open_storage(empty_url, create=True).close()
    storage = open_storage(empty_url)
    with storage.reading() as session:
        assert session.scalar(select(func.count()).select_from(SchemaRow)) == 1
    storage.close()


def test_opening_again_keeps_the_locks_of_a_process(sqlite_url: str, tmp_path: Path) -> None:
    """Else another process takes itself for the last one, and deletes the log that is in use."""
    first = open_storage(sqlite_url, create=True)
    with first.engine.connect() as held:
        held.execute(text("SELECT 1"))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            second = open_storage("sqlite:///study.db")
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA user_version')"
        subprocess.run([sys.executable, "-c", code, tmp_path / "study.db"], check=True)
        assert (tmp_path / "study.db-wal").exists()
    for storage in (first, second):
        with storage.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS kept (id INTEGER)"))


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    """Reading from a database that does not exist says so, and makes none."""
    with pytest.raises(NotFoundError, match="no study database"):
        open_storage(f"sqlite:///{tmp_path / 'none.db'}")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_left_empty_by_reading(tmp_path: Path) -> None:
    """Only what makes a study makes tables in it."""
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(NotFoundError, match="is empty"):
        open_storage(f"sqlite:///{path}")
    assert path.read_bytes() == b""
    open_storage(f"sqlite:///{path}", create=True).close()
    assert path.read_bytes()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A database cannot be made in a folder that does not exist."""
    with pytest.raises(PhazeError, match="folder does not exist"):
        open_storage(f"sqlite:///{tmp_path / 'none' / 'a.db'}", create=True)


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    """A file that is not a database is refused and not touched."""
    path = tmp_path / "notes.txt"
    path.write_text("These are my only notes of the last ten years.\n")
    before = path.read_bytes()
    with pytest.raises(InputError, match="not an SQLite database"):
        open_storage(f"sqlite:///{path}", create=True)
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="is a folder"):
        open_storage(f"sqlite:///{tmp_path}", create=True)


def test_a_damaged_database_is_one_sentence(sqlite_url: str, tmp_path: Path) -> None:
    """A database whose pages are overwritten gives one sentence."""
    open_storage(sqlite_url, create=True).close()
    path = tmp_path / "study.db"
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 20_000)
    with pytest.raises(PhazeError) as caught:
        open_storage(sqlite_url)
    assert "\n" not in str(caught.value)


def test_tables_of_another_version_are_refused(any_url: str) -> None:
    """Tables that another version made are not written into."""
    storage = open_storage(any_url, create=True)
    with storage.writing() as session:
        session.execute(update(SchemaRow).values(version=99))
    storage.close()
    with pytest.raises(ConflictError, match="version 99"):
        open_storage(any_url)


def test_an_unreachable_server_is_one_sentence() -> None:
    """A server that does not answer is named without its password."""
    with pytest.raises(PhazeError) as caught:
        open_storage("postgresql://me:hunter2@127.0.0.1:9/db")
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_sentence(sqlite_url: str) -> None:
    """When the disk is full the transaction is undone and the reason told."""
    storage = open_storage(sqlite_url, create=True)
    with storage.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DatabaseError, match="full"), storage.writing() as session:
        for k in range(1000):
            row = TicketRow(study_uid="x" * 36, k=k, state="open", params="y" * 5000)
            session.add(row)
    with storage.reading() as session:
        assert session.scalar(select(func.count()).select_from(TicketRow)) == 0


def test_sqlite_runs_in_the_safe_mode(sqlite_url: str) -> None:
    """Both engines use the write-ahead log and take the write lock at the start."""
    storage = open_storage(sqlite_url, create=True)
    for engine in (storage.engine, storage.optuna.engine):
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            other = sqlite3.connect(str(storage.url.database), timeout=0)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.close()
    with storage.reading():
        other = sqlite3.connect(str(storage.url.database), timeout=0)
        other.execute("BEGIN IMMEDIATE")
        other.close()


def test_writing_begins_soon_or_waits_as_sqlite_does(sqlite_url: str) -> None:
    """While another connection writes no transaction begins, and the long timeout stays."""
    path = Path(str(open_storage(sqlite_url, create=True).url.database))
    file = sqlite_file(path, "here", create=False)
    mine, yours = file.connect(), file.connect()
    for connection in (mine, yours):
        connection.isolation_level = None
    assert file.begins_soon(mine) and mine.in_transaction
    assert not file.begins_soon(yours) and not yours.in_transaction
    mine.execute("COMMIT")
    assert file.begins_soon(yours) and yours.in_transaction
    for connection in (mine, yours):
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (1000 * LOCK_TIMEOUT_S,)


def test_the_clock_is_the_database_s(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times come from the database: a worker whose clock is wrong reads the same."""
    storage = open_storage(any_url, create=True)
    monkeypatch.setattr("time.time", lambda: 0.0)
    with storage.reading() as session:
        first = session.scalar(select(database_now_s()))
        second = session.scalar(select(database_now_s()))
    assert first is not None and second is not None
    assert 1.6e9 < first <= second < first + 60


def test_older_tables_are_brought_up_to_date(sqlite_url: str) -> None:
    """Columns that an older version did not have are added, and the version is written."""
    storage = open_storage(sqlite_url, create=True)
    with storage.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE phaze_ticket DROP COLUMN reason")
        connection.exec_driver_sql("ALTER TABLE phaze_study DROP COLUMN target")
        connection.exec_driver_sql("ALTER TABLE phaze_enumeration DROP COLUMN question")
        connection.exec_driver_sql("DROP TABLE phaze_claim")
        connection.exec_driver_sql("DROP INDEX ix_phaze_ticket_of_state")
        connection.exec_driver_sql("CREATE INDEX ix_phaze_old ON phaze_ticket (state)")
        connection.exec_driver_sql("UPDATE phaze_schema SET version = 0")
    storage.close()
    with open_storage(sqlite_url).reading() as session:
        assert session.scalar(select(SchemaRow.version)) == SCHEMA_VERSION
        assert session.scalars(select(TicketRow.reason)).all() == []
        assert session.scalars(select(EnumerationRow.question)).all() == []
        assert session.scalars(select(ClaimRow.point)).all() == []
        indexes = inspect(session.connection()).get_indexes("phaze_ticket")
        assert {index["name"] for index in indexes} == {"ix_phaze_ticket_of_state"}


def test_passwords_among_the_options_are_hidden() -> None:
    """A password in the query of a URL is not shown, and one with an unescaped @ is refused."""
    assert "hunter2" not in shown_url("postgresql://host/db?password=hunter2")
    with pytest.raises(InputError, match="%40") as caught:
        shown_url("postgresql://me:hun@ter2@host/db")
    assert "ter2" not in str(caught.value)


def test_optunas_tables_of_another_version_are_refused(any_url: str) -> None:
    """Older tables of Optuna are not read, though the newest version is known by then."""
    storage = open_storage(any_url, create=True)
    with storage.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v3.0.0.a'"))
    storage.close()
    with pytest.raises(ConflictError, match="Optuna's tables of another version"):
        open_storage(any_url)
