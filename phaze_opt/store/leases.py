"""Leases of tickets and evaluations: the names of workers, renewal, and expiry.

A worker holds a ticket or an evaluation under its token until ``until_s`` on the database's clock.
A thread renews the lease while the worker lives. After the end of a lease
(`phaze_opt.store.tables.lease_is_over`), any other worker may take over.
"""

from __future__ import annotations

import functools
import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from sqlalchemy import delete, select, update

from phaze_opt.errors import PhazeError
from phaze_opt.store.storage import Storage
from phaze_opt.store.tables import EvaluationRow, TicketRow, lease_is_over

DEFAULT_LEASE_S = 30.0
"""Lease of a worker, in seconds; without a renewal, others take over its work after it."""

_RENEWALS_PER_LEASE = 4


def new_token() -> str:
    """Return a name for a worker: its machine, its process number, and a unique part."""
    return f"{_machine()}.{os.getpid()}.{uuid.uuid4().hex}"


class Renewable(Protocol):
    """An object whose lease ends unless it is renewed."""

    def renew_lease(self, token: str) -> None:
        """Extend the leases that this token holds."""


class LeaseKeeper:
    """A thread that renews the leases of a worker while the context is entered."""

    def __init__(self, holders: Sequence[Renewable], token: str, lease_s: float) -> None:
        self._holders = holders
        self._token = token
        self._pause_s = lease_s / _RENEWALS_PER_LEASE
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _renew(self) -> None:
        """Renew until the end; an error of the database does not stop the renewals."""
        while not self._end.wait(self._pause_s):
            for holder in self._holders:
                try:
                    holder.renew_lease(self._token)
                except PhazeError:
                    continue


def expire(storage: Storage, tokens: Sequence[str]) -> None:
    """End the leases of workers that are known to be dead, so that others need not wait."""
    with storage.writing() as session:
        for table in (TicketRow, EvaluationRow):
            session.execute(update(table).where(table.token.in_(tokens)).values(until_s=0.0))


def expire_dead_workers(storage: Storage) -> None:
    """End the leases of this machine's workers whose process is gone, and sweep their claims."""
    with storage.reading() as session:
        held = {
            token
            for column in (TicketRow.token, EvaluationRow.token)
            for token in session.scalars(select(column).where(column.is_not(None)).distinct())
            if isinstance(token, str)
        }
    dead = sorted(token for token in held if is_dead(token))
    if dead:
        expire(storage, dead)
    sweep_claims(storage)


def sweep_claims(storage: Storage) -> None:
    """Delete claims on evaluations whose lease is over: their points may never be needed again."""
    empty = (EvaluationRow.token.is_not(None), EvaluationRow.body.is_(None))
    with storage.reading() as session:
        keys = (
            select(EvaluationRow.key).where(*empty, lease_is_over(EvaluationRow.until_s)).limit(1)
        )
        if session.scalar(keys) is None:
            return
    with storage.writing() as session:
        session.execute(delete(EvaluationRow).where(*empty, lease_is_over(EvaluationRow.until_s)))


def process_of(token: str) -> int | None:
    """Return the process number of a token, on its machine; ``None`` if it has none."""
    parts = token.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None


def is_dead(token: str) -> bool:
    """Whether a token's process ran on this machine and has ended; False if it is unknown."""
    process, machine = process_of(token), _machine()
    if process is None or not machine or token.split(".")[0] != machine:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


@functools.cache
def _machine() -> str:
    """Return a name for this boot of this machine and its process numbers; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return ""
    return f"{boot}-{''.join(letter for letter in namespace if letter.isdigit())}"
