"""The file of an SQLite database, which may be read-only, or may vanish while it is used.

SQLite itself creates a missing file, continues to write into a deleted file, and cannot read a file
with a write-ahead log in a read-only folder.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from phaze_opt.errors import InputError, PhazeError
from phaze_opt.store.failures import LOCK_TIMEOUT_S, DatabaseError

HEAD = b"SQLite format 3\x00"
"""How a database file begins."""

_QUICK_LOOK_S, _QUICK_LOOKS = 2e-4, 40
_opened: set[tuple[int, int]] = set()
"""Files that connections of this process may have open."""
_opening = threading.Lock()


@dataclass(frozen=True)
class SqliteFile:
    """An existing database file.

    Attributes
    ----------
    path
        Absolute path.
    shown
        URL of the storage, for messages.
    identity
        Device and inode of the file.
    is_writable
        Whether the file and its folder may be written; else the file is only read.
    """

    path: Path
    shown: str
    identity: tuple[int, int]
    is_writable: bool

    def connect(self) -> sqlite3.Connection:
        """Open a connection; never create a missing file."""
        mode = "rw" if self.is_writable else "ro"
        if not self.is_writable and not self._has_log():
            # Nobody can write the file: SQLite needs neither locks nor a log, and can make none.
            mode = "ro&immutable=1"
        uri = f"file:{quote(str(self.path))}?mode={mode}"
        return sqlite3.connect(uri, LOCK_TIMEOUT_S, uri=True, check_same_thread=False)

    def begins_soon(self, connection: Any) -> bool:
        """Take the write lock if it is free within some milliseconds, and return whether it was.

        SQLite itself tries again only after 1, 2, 5, 10 ms and more, but most transactions of a
        worker take less than 1 ms: two workers would waste a seventh of their time.
        """
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            for _ in range(_QUICK_LOOKS):
                # The transaction that begins after this reports all other errors.
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
            If it was deleted, moved or replaced: new data would be lost.
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
        """Whether the write-ahead log holds changes that are not in the file."""
        log = Path(f"{self.path}-wal")
        return log.exists() and log.stat().st_size > 0


def sqlite_file(path: Path, shown: str, *, create: bool) -> SqliteFile:
    """Return the file of a database.

    Parameters
    ----------
    path, shown
        Path of the file, and the URL for messages.
    create
        Whether to create an empty file if there is none.

    Raises
    ------
    InputError
        If the path is a link to a missing file.
    PhazeError
        If the file cannot be created or read.
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
    is_writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    try:
        identity = _identity(path)
        with _opening:
            _opened.add(identity)
        return SqliteFile(path, shown, identity, is_writable)
    except OSError as error:
        raise DatabaseError(f"The storage {shown} cannot be read: {error.strerror}.") from None


def head_of(path: Path) -> bytes:
    """Return how a file begins, `HEAD` if this process has opened it as a database.

    To read it would close it afterwards, and so take away the locks of all connections that this
    process has on it (as POSIX says): another process could then delete the log that they use.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with _opening:
        if _identity(path) in _opened:
            return HEAD
        with path.open("rb") as stream:
            return stream.read(len(HEAD))


def _identity(path: Path) -> tuple[int, int]:
    """Return the device and inode of a file, which do not change while it is written."""
    status = path.stat()
    return status.st_dev, status.st_ino
