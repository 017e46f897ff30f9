"""Breaks the connection to a database at a chosen statement or commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import event

from phaze_opt.store.storage import Storage

LAST = 10_000
"""Later than anything that a run sends."""


class Saboteur:
    """Counts what is sent to a database, and once breaks the connection.

    A server's backend is ended from another connection; SQLite answers that it is locked.

    Parameters
    ----------
    moment
        ``"statement"``: before it is sent; ``"commit"``: after it is obeyed, so that only the
        answer is lost.
    """

    def __init__(self, storage: Storage, moment: str) -> None:
        self._url = storage.url
        self._left = LAST
        for engine in (storage.engine, storage.optuna.engine):
            if moment == "statement":
                event.listen(engine, "do_execute", self._on_statement)
                event.listen(engine, "do_executemany", self._on_statement)
            else:
                self._watch_commits(engine.dialect)

    def strike_at(self, number: int) -> None:
        """Break the connection at so many statements, or commits, from now."""
        self._left = number

    @property
    def has_struck(self) -> bool:
        """Whether the number was reached."""
        return self._left <= 0

    def _watch_commits(self, dialect: Any) -> None:
        commit: Callable[[Any], None] = dialect.do_commit

        def commit_and_break(connection: Any) -> None:
            commit(connection)
            if self._is_due():
                self._break(connection.dbapi_connection)
                connection.cursor().execute("SELECT 1")

        dialect.do_commit = commit_and_break

    def _on_statement(self, cursor: Any, *rest: Any) -> None:
        if self._is_due():
            self._break(cursor.connection)

    def _is_due(self) -> bool:
        self._left -= 1
        return self._left == 0

    def _break(self, connection: Any) -> None:
        if self._url.get_backend_name() == "sqlite":
            raise sqlite3.OperationalError("database is locked")
        url = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
