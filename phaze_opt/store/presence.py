"""The runs that work on a study, with or without a ticket.

Between two trials a run holds no ticket: while it evaluates baselines, bounds points, or publishes
notes. These rows only serve messages to people; a run continues if the database refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, select, update

from phaze_opt.store.failures import DatabaseError
from phaze_opt.store.leases import LeaseKeeper, is_dead
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.store.tables import WorkerRow, database_now_s, lease_is_over


@dataclass(frozen=True)
class Presence:
    """The row by which a run says that it works on a study, under a lease."""

    study: StoredStudy
    token: str
    lease_s: float

    def begin(self) -> None:
        """Write the row, and delete rows whose lease is over."""
        mine = {"study_uid": self.study.uid, "token": self.token}
        with self.study.storage.writing() as session:
            session.execute(delete(WorkerRow).where(lease_is_over(WorkerRow.until_s)))
            session.add(WorkerRow(**mine, until_s=database_now_s() + self.lease_s))

    def renew_lease(self, token: str) -> None:
        """Extend the lease."""
        with self.study.storage.writing() as session:
            until_s = database_now_s() + self.lease_s
            session.execute(update(WorkerRow).where(self._is_mine).values(until_s=until_s))

    def end(self) -> None:
        """Delete the row."""
        with self.study.storage.writing() as session:
            session.execute(delete(WorkerRow).where(self._is_mine))

    @property
    def _is_mine(self) -> ColumnElement[bool]:
        """Whether a row is that of this run, as a condition of SQL."""
        return and_(WorkerRow.study_uid == self.study.uid, WorkerRow.token == self.token)


@contextmanager
def present(study: StoredStudy, token: str, lease_s: float) -> Iterator[None]:
    """Record that a run works on a study while the context is entered."""
    presence = Presence(study, token, lease_s)
    with suppress(DatabaseError):
        presence.begin()
    try:
        with LeaseKeeper([presence], token, lease_s):
            yield
    finally:
        with suppress(DatabaseError):
            presence.end()


def is_worked_on(study: StoredStudy) -> bool:
    """Whether a living run works on a study."""
    query = select(WorkerRow.token).where(
        WorkerRow.study_uid == study.uid, ~lease_is_over(WorkerRow.until_s)
    )
    with study.storage.reading() as session:
        return any(not is_dead(str(token)) for token in session.scalars(query))
