"""The file of an SQLite database, which may be one that cannot be written, or may vanish in use.

By itself SQLite makes a file that is missing, goes on writing into one that was deleted, and cannot
read one with a write-ahead log in a folder where it may not write.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from phaze_opt.errors import InputError, PhazeError
from phaze_opt.store.failures import LOCK_TIMEOUT_S, DatabaseError

_QUICK_LOOK_S, _QUICK_LOOKS = 2e-4, 40


@dataclass(frozen=True)
class SqliteFile:
    """A database file that is there.

    Attributes
    ----------
    path
        Absolute.
    shown
        URL of the storage, for sentences.
    identity
        Device and number of the file.
    is_writable
        Whether it, and its folder, may be written; else it is only read.
    """

    path: Path
    shown: str
    identity: tuple[int, int]
    is_writable: bool

    def connect(self) -> sqlite3.Connection:
        """Open a connection; a missing file is not made."""
        mode = "rw" if self.is_writable else "ro"
        if not self.is_writable and not self._has_log():
            # Nobody can write it: SQLite needs neither locks nor a log, which it could not make.
            mode = "ro&immutable=1"
        uri = f"file:{quote(str(self.path))}?mode={mode}"
        return sqlite3.connect(uri, LOCK_TIMEOUT_S, uri=True, check_same_thread=False)

    def begins_soon(self, connection: Any) -> bool:
        """Begin to write if that is possible within some milliseconds.

        SQLite looks again only after 1, 2, 5, 10 ms and more, but most transactions of a worker
        take less than one: two workers would wait for nothing for a seventh of their time.
        """
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            for _ in range(_QUICK_LOOKS):
                # Whatever else is wrong is said by the transaction that begins after this.
                with suppress(sqlite3.OperationalError):
                    connection.execute("BEGIN IMMEDIATE")
                    return True
                time.sleep(_QUICK_LOOK_S)
        finally:
            connection.execute(f"PRAGMA busy_timeout = {1000 * LOCK_TIMEOUT_S}")
        return False

    def check(self) -> None:
        """Make sure that the file is still there.

        Raises
        ------
        DatabaseError
            If it was deleted, moved or replaced: what is written now would be lost.
        """
        try:
            is_same = _identity(self.path) == self.identity
        except OSError:
            is_same = False
        if not is_same:
            raise DatabaseError(
                f"The storage {self.shown} is gone: its file was deleted, moved or replaced while "
                "it was used."
            )

    def _has_log(self) -> bool:
        """Whether changes stand in the write-ahead log only."""
        log = Path(f"{self.path}-wal")
        return log.exists() and log.stat().st_size > 0


def sqlite_file(path: Path, shown: str, *, create: bool) -> SqliteFile:
    """Return the file of a database.

    Parameters
    ----------
    path, shown
        Of the database, and the URL for sentences.
    create
        Whether a file that does not exist is made, empty.

    Raises
    ------
    PhazeError
        If it cannot be made.
    """
    path = path.absolute()
    if create and not path.exists():
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            if not path.exists():
                raise InputError(f"The storage {shown} is a link to a missing file.") from None
        except OSError as error:
            raise PhazeError(f"The storage {shown} cannot be made: {error.strerror}.") from None
    is_writable = all(os.access(each, os.W_OK) for each in (path, path.parent))
    try:
        return SqliteFile(path, shown, _identity(path), is_writable)
    except OSError as error:
        raise DatabaseError(f"The storage {shown} cannot be read: {error.strerror}.") from None


def _identity(path: Path) -> tuple[int, int]:
    """Return what stays the same while a file is written."""
    found = path.stat()
    return found.st_dev, found.st_ino
