"""Errors of a database as one sentence each, and retries after a lost connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)

from phaze_opt.errors import InputError, PhazeError

LOCK_TIMEOUT_S = 60
"""Seconds for which an SQLite transaction waits for another transaction."""

_RECONNECT_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0)

Result = TypeVar("Result")


class DatabaseError(PhazeError):
    """The database refused an action: a full disk, a read-only file, a wrong password."""


class LostConnectionError(DatabaseError):
    """The connection to the database is lost; the interrupted action may be tried again."""


@contextmanager
def database_errors(shown: str) -> Iterator[None]:
    """Turn an error of a database into one sentence without statement and password.

    Raises
    ------
    LostConnectionError
        If the connection broke.
    DatabaseError
        For all other errors of the database.
    """
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        raise _database_error(shown, error) from error
    except UnicodeDecodeError as error:
        # The message of SQLite about a damaged file may quote bytes of the file that are no text.
        raise DatabaseError(f"The storage {shown} is damaged ({error}).") from error


def patiently(action: Callable[[], Result], recover: Callable[[], None] = lambda: None) -> Result:
    """Do an action, and retry it for about a minute while the database cannot be reached.

    Parameters
    ----------
    action
        An action that can be repeated wherever it was interrupted.
    recover
        Called before every retry.

    Raises
    ------
    LostConnectionError
        If the last retry fails too.
    """

    def again() -> Result:
        recover()
        return action()

    attempt = action
    for wait_s in _RECONNECT_WAITS_S:
        try:
            return attempt()
        except LostConnectionError:
            time.sleep(wait_s)
        attempt = again
    return attempt()


def _database_error(shown: str, error: BaseException) -> PhazeError:
    """Return the error of this program for an error of a database.

    The first error of the chain decides: Optuna continues with a session after its connection
    broke, and the later errors only say that the session is in the wrong state.
    """
    chain = _chain(error)
    first = next((cause for cause in chain if isinstance(cause, SQLAlchemyError)), error)
    if isinstance(first, NoSuchModuleError):
        return InputError(f"The storage {shown} has no installed driver.")
    refusals = (cause for cause in chain if isinstance(cause, DBAPIError))
    lost = next(filter(_is_lost, refusals), None)
    if lost is not None:
        return LostConnectionError(f"The storage {shown} cannot be reached: {_sentence(lost)}.")
    sentence = _sentence(first)
    if "readonly" in sentence or "unable to open database file" in sentence:
        return DatabaseError(
            f"The storage {shown} cannot be written ({sentence}); the file and its folder must be "
            "writable, for anything but reading."
        )
    if "disk I/O error" in sentence:
        return DatabaseError(f"The storage {shown} failed ({sentence}); is the disk full?")
    if "database is locked" in sentence:
        # A stalled process may hold SQLite's write lock for longer than the timeout.
        return LostConnectionError(f"The storage {shown} stayed locked for {LOCK_TIMEOUT_S} s.")
    return DatabaseError(f"The storage {shown} cannot be used: {sentence}.")


def is_wrong_value(error: BaseException) -> bool:
    """Whether a database refused a value: a number that is too large, or a text too long."""
    return any(isinstance(cause, DataError) for cause in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    """List an error and its causes, the earliest first."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.insert(0, following)
        hidden = following.__suppress_context__
        following = following.__cause__ or (None if hidden else following.__context__)
    return chain


def _sentence(error: BaseException) -> str:
    """Write an error as one line, without the statement and the full stop."""
    reason = error.orig if isinstance(error, StatementError) else error
    return " ".join(str(reason).split()).rstrip(".")


def _is_lost(error: DBAPIError) -> bool:
    """Whether an error means that the connection to a server was lost.

    PostgreSQL gives no state without a connection, class 08 for connection exceptions, and 57P01 to
    57P03 while it shuts down or starts.
    """
    if error.connection_invalidated:
        return True
    if not isinstance(error, (OperationalError, InterfaceError)):
        return False
    state = getattr(error.orig, "sqlstate", "")
    return state is None or state.startswith("08") or state in ("57P01", "57P02", "57P03")
