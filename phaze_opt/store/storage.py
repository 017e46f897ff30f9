"""An open database, its transactions, and helpers of statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from phaze_opt.on_demand import cached_property
from phaze_opt.store.failures import database_errors
from phaze_opt.store.tables import TableBase

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

Row = TypeVar("Row")

READ_ONLY: Mapping[str, Any] = {"phaze_read_only": True}
"""Execution option of a transaction that only reads, and therefore takes no write lock on SQLite.
"""


@dataclass(frozen=True)
class Storage:
    """An open database.

    Attributes
    ----------
    url
        SQLAlchemy URL.
    shown
        URL for messages, without the password.
    optuna
        Storage of studies and trials. Never call it inside an open transaction of `engine`: on
        SQLite it would wait for the lock that the caller holds.
    engine
        Engine of the tables of this program.
    """

    url: URL = field(repr=False)
    shown: str
    optuna: RDBStorage = field(repr=False)
    engine: Engine = field(repr=False)

    # An engine with options takes longer to make than a short transaction.

    @cached_property
    def _reader(self) -> Engine:
        return self.engine.execution_options(**READ_ONLY)

    @cached_property
    def _consistent_reader(self) -> Engine:
        if self.engine.dialect.name != "postgresql":
            return self._reader
        return self._reader.execution_options(isolation_level="REPEATABLE READ")

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a transaction that may write: it commits at the end, and rolls back on an error."""
        with database_errors(self.shown), Session(self.engine) as session, session.begin():
            yield session

    @contextmanager
    def reading(self, *, consistent: bool = False) -> Iterator[Session]:
        """Open a transaction that only reads, and therefore waits for no lock.

        Parameters
        ----------
        consistent
            Whether all its statements see the database as it was at the first, as they always do in
            SQLite.
        """
        engine = self._consistent_reader if consistent else self._reader
        with database_errors(self.shown), Session(engine) as session:
            yield session

    def close(self) -> None:
        """Close all connections."""
        self.optuna.remove_session()
        self.optuna.engine.dispose()
        self.engine.dispose()


def write_shared(session: Session, row: TableBase) -> None:
    """Write a row that another process may write too; rows of equal keys have equal content."""
    with suppress(IntegrityError), session.begin_nested():
        session.merge(row)


def inserting(session: Session, table: Any) -> Any:
    """Return an INSERT with an ON CONFLICT clause for existing rows."""
    # Imported here: each module imports all drivers of its database, and a process needs one.
    if session.get_bind().dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)


def in_parts(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Divide rows, or keys of rows, into parts of one statement each."""
    left = iter(rows)
    while part := list(islice(left, size)):
        yield part
