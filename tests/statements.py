"""SQL statements, which SQLAlchemy compiles for every connected database anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ClauseElement


class _OfAllDatabases:
    """What SQLAlchemy keeps of compiled statements, with one key for databases of a kind.

    Their statements are the same: tests connect with the options of the program alone.
    """

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def get(self, key: tuple[Any, ...]) -> Any:
        """Return the compiled statement of a key, if there is one."""
        return self._compiled.get(_of_kind(*key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._compiled[_of_kind(*key)] = compiled


def _of_kind(dialect: Dialect, *others: Any) -> tuple[Any, ...]:
    return type(dialect), dialect.server_version_info, *others


@contextmanager
def statements_compiled_once() -> Iterator[None]:
    """Let SQLAlchemy compile a statement once, not for each new database: a tenth of the work."""
    compile_for = ClauseElement._compile_w_cache
    shared = _OfAllDatabases()

    def compile_once(statement: Any, dialect: Dialect, **options: Any) -> Any:
        if options["compiled_cache"] is not None:
            options["compiled_cache"] = shared
        return compile_for(statement, dialect, **options)

    with patch.object(ClauseElement, "_compile_w_cache", compile_once):
        yield
