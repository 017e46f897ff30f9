"""Opens a database, for Optuna and for the tables of this program.

In its default mode SQLite loses writes to a slow disk and gives a queued trial to two workers. It
therefore runs with a write-ahead log, and every transaction that may write takes the write lock
first (measured: 30 to 40 trials per second with one to four processes, none lost).
"""

from __future__ import annotations

import logging
import os
import stat
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Engine,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from phaze_opt.errors import ConflictError, InputError, NotFoundError, PhazeError
from phaze_opt.paths import look
from phaze_opt.store.failures import DatabaseError, database_errors
from phaze_opt.store.sqlite_file import HEAD, SqliteFile, head_of, sqlite_file
from phaze_opt.store.storage import READ_ONLY, Storage
from phaze_opt.store.tables import SCHEMA_VERSION, SchemaRow, TableBase

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

DEFAULT_URL = "sqlite:///phaze.db"
URL_VARIABLE = "PHAZE_STORAGE"
_SCHEMA_LOCK_ID = 7_403_921
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_RACE_WORDS = ("already exists", "duplicate key", "UNIQUE", "locked", "concurrently")
for _name in ("psycopg", "sqlalchemy"):
    # Without this handler, messages about a lost connection are printed.
    logging.getLogger(_name).addHandler(logging.NullHandler())


def reading_once(storage: Storage) -> Storage:
    """Return a storage for a program that runs trials, or reads the same trials again and again.

    See `phaze_opt.store.trial_storage.RunningTrials`.
    """
    from phaze_opt.store.trial_storage import RunningTrials

    if isinstance(storage.optuna, RunningTrials):
        return storage
    kept: Any = RunningTrials(storage)
    return replace(storage, optuna=kept)


def resolve_url(storage: str | None) -> str:
    """Return the given URL, else the URL of the environment, else the default URL."""
    return storage or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def shown_url(storage: str | URL) -> str:
    """Return the URL for messages, with a hidden password.

    Raises
    ------
    InputError
        If it is not a URL of a supported database.
    """
    url = _parse(storage) if isinstance(storage, str) else storage
    # The options of the URL of a server may hold passwords too.
    secret = {key: "***" for key in url.query if "pass" in key.lower() or "secret" in key.lower()}
    return url.update_query_dict(secret).render_as_string(hide_password=True)


def open_storage(storage: str | None = None, *, create: bool = False) -> Storage:
    """Open a database, and create or migrate its tables.

    Parameters
    ----------
    storage
        SQLAlchemy URL; see `resolve_url`.
    create
        Whether to create a missing SQLite file.

    Raises
    ------
    InputError
        If the URL is not supported or the file is not a database.
    NotFoundError
        If there is no such file.
    ConflictError
        If the tables have a newer version, or an older one that cannot be migrated.
    PhazeError
        If the database cannot be reached or written.
    """
    url = _parse(resolve_url(storage))
    shown = shown_url(url)
    file = None
    if url.get_backend_name() == "sqlite":
        _check_file(url, shown, create)
        file = sqlite_file(Path(url.database or ""), shown, create=create)
    last_try = 4
    for attempt in range(last_try + 1):
        try:
            with database_errors(shown):
                return _open(url, shown, file)
        except DatabaseError as error:
            # Two processes that create the tables at the same time conflict only for a moment.
            raced = any(word in str(error) for word in _RACE_WORDS)
            if attempt == last_try or not raced:
                raise
            time.sleep(0.2 * 2**attempt)
    raise AssertionError("the loop above returns or raises")


def _open(url: URL, shown: str, file: SqliteFile | None) -> Storage:
    """Open both engines, and migrate the tables to the present version."""
    options = _engine_options(file)
    optuna_storage = _open_optuna(url, options)
    engine = create_engine(url, **options)
    # Attached after Optuna has created its tables: it would lock itself out.
    for listened in (optuna_storage.engine, engine):
        if file is not None:
            event.listen(listened, "begin", partial(_begin_on_sqlite, file))
    _bring_up_to_date(engine, shown, file is None or file.is_writable)
    return Storage(url=url, shown=shown, optuna=optuna_storage, engine=engine)


def _open_optuna(url: URL, options: dict[str, Any]) -> RDBStorage:
    """Open Optuna's storage, which creates its own tables."""
    import optuna

    from phaze_opt.store.trial_storage import TrialStorage

    # Optuna's warnings quote SQL; this program reports failures in its own words.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        # Optuna's check reads all migrations each time; the check below does so once per process.
        storage = TrialStorage(
            url.render_as_string(hide_password=False),
            engine_kwargs=options,
            skip_compatibility_check=True,
        )
    except ImportError as error:
        raise InputError(
            f"The driver of {url.get_backend_name()} is not installed: {error.__cause__ or error}; "
            "for PostgreSQL install phaze-opt[postgresql]."
        ) from None
    newest = _newest_schemas.get(optuna.__version__)
    if newest is None:
        newest = _newest_schemas[optuna.__version__] = storage.get_head_version()
    if storage.get_current_version() != newest:
        raise ConflictError(
            f"The storage {shown_url(url)} holds Optuna's tables of another version than "
            f"{optuna.__version__} reads; older ones are brought up to date by 'optuna storage "
            "upgrade --storage URL', newer ones need a newer Optuna."
        )
    return storage


_newest_schemas: dict[str, str] = {}
"""Version of Optuna's tables by the version of Optuna."""


def _engine_options(file: SqliteFile | None) -> dict[str, Any]:
    """Return the options of SQLAlchemy's engine."""
    if file is not None:
        set_up = _set_up_sqlite if file.is_writable else _set_up_reading
        return {"creator": file.connect, "pool_events": [(set_up, "connect")]}
    # One pooled connection per engine and worker; a stale connection is replaced before its use.
    return {"pool_size": 1, "max_overflow": 2, "pool_pre_ping": True}


def _set_up_sqlite(connection: Any, record: Any) -> None:
    """Set up a new SQLite connection; `_begin_on_sqlite` begins its transactions."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _set_up_reading(connection: Any, record: Any) -> None:
    """Set up a new connection to a read-only SQLite file, whose mode stays."""
    connection.isolation_level = None


def _begin_on_sqlite(file: SqliteFile, connection: Connection) -> None:
    """Begin a transaction with the write lock: a lock that is upgraded later may deadlock."""
    file.check()
    asked = connection.get_execution_options().get("phaze_read_only", False)
    read_only = asked or not file.is_writable
    if read_only:
        connection.exec_driver_sql("BEGIN")
    elif not file.begins_soon(connection.connection.driver_connection):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _parse(storage: str) -> URL:
    """Parse a URL, and choose the driver."""
    if not storage.isascii() and any("\ud800" <= letter <= "\udfff" for letter in storage):
        raise InputError("The storage URL is not UTF-8 text; rename its file.")
    try:
        url = make_url(storage)
    except ArgumentError:
        raise InputError(
            "The storage is not a database URL; write for example sqlite:///phaze.db or "
            "postgresql://user:password@host/database."
        ) from None
    if url.drivername not in _DRIVERS:
        raise InputError(
            f"The storage scheme {url.drivername!r} is not supported; allowed are sqlite and "
            "postgresql (MySQL and MariaDB are not)."
        )
    if "@" in (url.host or ""):
        # The text after an unescaped @ would be read as the host, and printed.
        raise InputError("The password in the storage URL holds '@'; write it as %40.")
    if url.drivername == "sqlite" and not url.database:
        raise InputError("The storage names no file; write for example sqlite:///phaze.db.")
    return url.set(drivername=_DRIVERS[url.drivername])


def _check_file(url: URL, shown: str, create: bool) -> None:
    """Refuse a file that is not a database, before it is opened (and so changed)."""
    path = Path(url.database or "")
    status = look(path, f"The storage {shown}")
    if status is None:
        if not create:
            raise NotFoundError(f"There is no study database at {shown}.")
        if not path.absolute().parent.is_dir():
            raise PhazeError(f"The storage {shown} cannot be made: its folder does not exist.")
        return
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"The storage {shown} is a folder, but it must be a database file.")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"The storage {shown} is a pipe or a device, but it must be a file.")
    try:
        head = head_of(path)
    except OSError as error:
        raise PhazeError(f"The storage {shown} cannot be read: {error.strerror}.") from None
    if not head and not create:
        # A reader must not create tables in an empty file.
        raise NotFoundError(f"The file of the storage {shown} is empty.")
    if head not in (b"", HEAD):
        raise InputError(f"The file of the storage {shown} is not an SQLite database.")


def _bring_up_to_date(engine: Engine, shown: str, is_writable: bool) -> None:
    """Create the tables, or migrate them to the version that this program reads."""
    reading = engine.connect().execution_options(**READ_ONLY)
    with reading as connection:
        has_schema = inspect(connection).has_table(SchemaRow.__tablename__)
        stored = connection.scalar(select(SchemaRow.version)) if has_schema else None
    if stored == SCHEMA_VERSION:
        return
    if not is_writable:
        raise ConflictError(
            f"The storage {shown} cannot be written, and its tables are of another version than "
            f"{SCHEMA_VERSION}; a copy in a folder that can be written is brought up to date."
        )
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK_ID})"))
        TableBase.metadata.create_all(connection)
        stored = connection.scalar(select(SchemaRow.version))
        if stored is None:
            connection.execute(insert(SchemaRow).values(id=1, version=SCHEMA_VERSION))
        elif not isinstance(stored, int) or stored > SCHEMA_VERSION:
            raise ConflictError(
                f"The storage {shown} holds tables of version {stored}, but this program reads "
                f"version {SCHEMA_VERSION}: 'pip install --upgrade phaze-opt' gets a newer one."
            )
        elif stored < SCHEMA_VERSION:
            _add_columns(connection, shown)
            _renew_indexes(connection)
            connection.execute(update(SchemaRow).values(version=SCHEMA_VERSION))


def _renew_indexes(connection: Connection) -> None:
    """Make the indexes that an older version lacks, and drop those that it had instead."""
    for table in TableBase.metadata.sorted_tables:
        wanted = {index.name for index in table.indexes}
        present = {index["name"] for index in inspect(connection).get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in present:
                index.create(connection)
        for old in sorted(present - wanted, key=str):
            connection.exec_driver_sql(f"DROP INDEX {old}")


def _add_columns(connection: Connection, shown: str) -> None:
    """Add the columns that an older version lacks: a version adds tables and columns only.

    Raises
    ------
    ConflictError
        If a missing column needs a value in old rows.
    """
    preparer = connection.dialect.identifier_preparer
    for table in TableBase.metadata.sorted_tables:
        present = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name in present:
                continue
            if not column.nullable:
                raise ConflictError(
                    f"The storage {shown} is too old to be brought up to date ({table.name} lacks "
                    f"{column.name}); 'phaze-opt study create SPEC --storage NEW-URL' starts anew."
                )
            kind = column.type.compile(dialect=connection.dialect)
            name = preparer.format_column(column)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}")
