"""Exactly N trials among many workers: one ticket per trial, held under a lease.

Optuna's own methods make too many trials (a callback on finished trials, a queue of waiting trials)
or lose the trials of workers that are killed at the wrong moment (its heartbeat). Here a worker
claims a ticket in one transaction and renews its lease from a thread. It writes the trial's number
into the ticket in the transaction that makes the trial, and closes the ticket in the transaction
that tells the trial. A worker that takes over an expired ticket first settles the trial of the
previous holder. All times are those of the database.

The loss of a worker (killed, preempted, out of memory) says nothing about its point: the ticket is
tried again as often as needed. Only a point on which `MOST_DEATHS` workers die in turn, while
others live on, is given up. A loss counts as a death if the worker that takes the ticket over was
alive when the lost worker took it. After each loss the ticket rests, twice as long each time; a
lone worker tries it at once, so that its trials come in the usual order. The deaths of all other
tickets are reset when workers die for a general reason: when a ticket is lost for the first time,
or completed after a loss. Each ticket resets them only once for each reason, so that several deadly
points are given up too.

A sampler that must not propose a point twice offers points when a worker claims a ticket: in the
transaction of the claim, the ticket takes a point that no other ticket of the study has taken.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, select, update
from sqlalchemy.orm import Session

from phaze_opt.code_hash import code_hash
from phaze_opt.spec.frozen import content_hash
from phaze_opt.store.damage import DamagedError, damages
from phaze_opt.store.leases import is_dead
from phaze_opt.store.storage import Storage
from phaze_opt.store.tables import (
    ClaimRow,
    StudyRow,
    TicketRow,
    database_now_s,
    lease_is_over,
)
from phaze_opt.store.ticket import StoredTicket, Ticket, TicketCounts

MOST_DEATHS = 3
"""Number of workers that die on a ticket in turn, while others live on, until it is given up."""

FIRST_REST_S = 0.5
LONGEST_REST_S = 60.0
"""Seconds of rest of a ticket after its first loss, and at most."""

_STATES = ("open", "held", "done", "failed")
_STATE = TicketRow.state
_EXPIRED = lease_is_over(TicketRow.until_s)
_LARGEST = 2**31 - 1
_LONGEST_REASON = 2000
_LONGEST_HOST = 255
_LONGEST_CODE = 64


class TicketOffice:
    """The tickets of one study.

    Every method without a session is a transaction of its own: never call it inside another
    transaction.
    """

    def __init__(self, storage: Storage, study_uid: str, lease_s: float) -> None:
        self._storage = storage
        self.study_uid = study_uid
        self.lease_s = lease_s
        self._born_s: float | None = None

    def issue(self, total: int, first: Sequence[Mapping[str, Any]] = ()) -> None:
        """Make tickets until ``total`` are open, held or done; new tickets replace failed ones.

        Parameters
        ----------
        total
            Number of trials of the study.
        first
            Parameters of the first tickets of the study.
        """
        with self._storage.writing() as session:
            self._lock_study(session)
            made, failed = self._made(session), self._count(session, "failed")
            rows = [
                {
                    "study_uid": self.study_uid,
                    "k": k,
                    "state": "open",
                    "attempts": 0,
                    "params": json.dumps(first[k]) if k < len(first) else None,
                }
                for k in range(made, total + failed)
            ]
            if rows:
                session.execute(insert(TicketRow), rows)

    def claim(
        self, token: str, total: int, offers: Sequence[Mapping[str, Any]] | None = None
    ) -> Ticket | None:
        """Take the lowest ticket that is open and does not rest, or whose lease is over.

        Parameters
        ----------
        token
            Token of the worker.
        total
            Number of trials of the study; if so many tickets are done or held, none is taken.
        offers
            Points for a ticket without parameters, which takes the first free point; if no point is
            free, only tickets with parameters can be taken. ``None`` if tickets take no points.

        Returns
        -------
        ticket
            ``None`` if no ticket can be taken.
        """
        with self._storage.writing() as session:
            self._lock_study(session)
            born_s = self._birth_s(session)
            row = self._free_row(session, total, has_points=offers is None or len(offers) > 0)
            if row is None or (offers is not None and not self._take_point(session, row, offers)):
                return None
            is_lost = row.state == "held"
            is_witnessed = is_lost and isinstance(row.since_s, float) and row.since_s > born_s
            rest_s = self._count_loss(session, row, is_witnessed) if is_lost else 0.0
            ticket = Ticket(
                k=row.k,
                token=token,
                params=_read_params(row.params),
                last_trial_number=row.trial_number if is_lost else None,
                is_deadly=(row.deaths or 0) >= MOST_DEATHS,
                rest_s=rest_s,
                losses=row.attempts,
                is_witnessed=is_witnessed,
            )
            self._hold(session, row, token)
            return ticket

    def claimed(self) -> set[str]:
        """Return the keys of all points that tickets have taken; see `point_key`."""
        query = select(ClaimRow.point).where(ClaimRow.study_uid == self.study_uid)
        with self._storage.reading() as session:
            return set(session.scalars(query))

    def held_by(self, token: str) -> list[Ticket]:
        """Return the tickets that a token holds."""
        query = select(TicketRow).where(self._mine, _STATE == "held", TicketRow.token == token)
        with self._storage.reading() as session:
            return [
                Ticket(
                    row.k, token, _read_params(row.params), row.trial_number, losses=row.attempts
                )
                for row in session.scalars(query)
            ]

    def renew_lease(self, token: str) -> None:
        """Extend the leases of the tickets that a token holds."""
        with self._storage.writing() as session:
            session.execute(
                update(TicketRow)
                .where(self._mine, _STATE == "held", TicketRow.token == token)
                .values(until_s=database_now_s() + self.lease_s)
            )

    def assign(self, ticket: Ticket, trial_number: int) -> bool:
        """Write the number of the trial into the ticket; False if the ticket was lost meanwhile."""
        with self._storage.writing() as session:
            return self.assign_in(session, ticket, trial_number)

    def assign_in(self, session: Session, ticket: Ticket, trial_number: int) -> bool:
        """Assign a trial within a transaction; see `assign`."""
        return self._change_in(session, ticket, trial_number=trial_number, code=code_hash())

    def remember(self, ticket: Ticket, params: Mapping[str, Any] | None) -> bool:
        """Drop an interrupted trial, but keep its parameters for the next trial."""
        text = None if params is None else json.dumps(dict(params))
        return self._change(ticket, params=text, trial_number=None)

    def finish(self, ticket: Ticket) -> bool:
        """Close a ticket whose trial is complete; False if it was lost meanwhile."""
        with self._storage.writing() as session:
            finished = self.finish_in(session, ticket)
        if finished:
            self.acquit_others(ticket)
        return finished

    def finish_in(self, session: Session, ticket: Ticket) -> bool:
        """Finish a ticket within a transaction; see `finish`. Call `acquit_others` after it."""
        return self._change_in(session, ticket, state="done", token=None)

    def acquit_others(self, ticket: Ticket) -> None:
        """Reset the deaths of all other tickets if this ticket is complete after a loss."""
        if ticket.losses:
            with self._storage.writing() as session:
                self._lock_study(session)
                self._reset_deaths(session, ticket.k)

    def fail(self, ticket: Ticket, reason: str) -> bool:
        """Close a ticket whose trial cannot be completed."""
        return self._change(ticket, state="failed", token=None, reason=reason[:_LONGEST_REASON])

    def give_back(self, ticket: Ticket, rest_s: float = 0.0) -> bool:
        """Open a ticket again; it can be claimed after ``rest_s`` seconds."""
        until_s = database_now_s() + rest_s if rest_s else None
        return self._change(ticket, state="open", token=None, trial_number=None, until_s=until_s)

    def lose(self, ticket: Ticket) -> bool:
        """End the lease of a ticket as if this worker had died on it."""
        return self._change(ticket, token=None, until_s=0.0)

    def stop_requested(self) -> bool:
        """Whether the study was asked to stop."""
        query = select(StudyRow.stop_requested).where(self._is_study)
        with self._storage.reading() as session:
            return bool(session.scalar(query))

    def is_proven(self) -> bool:
        """Whether no remaining point can be better than the best trial."""
        query = select(StudyRow.proven).where(self._is_study)
        with self._storage.reading() as session:
            return bool(session.scalar(query))

    def mark_proven(self) -> None:
        """Record that no remaining point can be better than the best trial."""
        with self._storage.writing() as session:
            session.execute(update(StudyRow).where(self._is_study).values(proven=True))

    def request_stop(self, wanted: bool) -> None:
        """Ask all workers of the study to begin no further trial, or withdraw the request."""
        with self._storage.writing() as session:
            session.execute(update(StudyRow).where(self._is_study).values(stop_requested=wanted))

    def counts(self) -> TicketCounts:
        """Count the tickets by state."""
        # Consistent, as the done ones are all but the others.
        with self._storage.reading(consistent=True) as session:
            made = self._made(session)
            opened, failed = (self._count(session, state) for state in ("open", "failed"))
            holders = session.execute(
                select(TicketRow.token, _EXPIRED).where(self._mine, _STATE == "held")
            ).all()
        expired = sum(bool(over) or is_dead(str(token)) for token, over in holders)
        done = made - opened - failed - len(holders)
        return TicketCounts(opened, len(holders), done, failed, expired)

    def codes(self) -> dict[str, int]:
        """Count the trials by the hash of the code that ran them, or runs them; most first.

        Trials of an older program and of a bundle have no hash, and are not counted.
        """
        query = (
            select(TicketRow.code, func.count())
            .where(self._mine, _STATE.in_(("held", "done")), TicketRow.code.is_not(None))
            .group_by(TicketRow.code)
        )
        with self._storage.reading() as session:
            rows = [
                (str(code)[:_LONGEST_CODE], int(count)) for code, count in session.execute(query)
            ]
        return dict(sorted(rows, key=lambda row: (-row[1], row[0])))

    def target(self) -> int | None:
        """Return how many complete trials the last run asked for; ``None`` before the first run."""
        query = select(StudyRow.target).where(self._is_study)
        with self._storage.reading() as session:
            target = session.scalar(query)
        return target if isinstance(target, int) and target > 0 else None

    def set_target(self, total: int) -> None:
        """Ask for ``total`` complete trials, unless workers still run for a larger number."""
        with self._storage.writing() as session:
            self._lock_study(session)
            before = session.scalar(select(StudyRow.target).where(self._is_study))
            query = select(func.count()).where(self._mine, _STATE == "held", ~_EXPIRED)
            if session.scalar(query) and isinstance(before, int):
                total = max(total, before)
            session.execute(update(StudyRow).where(self._is_study).values(target=total))

    def read_all(self) -> tuple[StoredTicket, ...]:
        """Return all tickets, sorted by number."""
        query = select(TicketRow).where(self._mine).order_by(TicketRow.k)
        with self._storage.reading() as session:
            return tuple(
                StoredTicket(
                    k=row.k,
                    state=row.state,
                    attempts=row.attempts,
                    trial_number=row.trial_number,
                    params=_read_params(row.params),
                    reason=row.reason,
                )
                for row in session.scalars(query)
            )

    def write_all(self, tickets: Sequence[StoredTicket], target: int | None) -> None:
        """Write the tickets of a new study, and its target."""
        with self._storage.writing() as session:
            for ticket in tickets:
                params = None if ticket.params is None else json.dumps(dict(ticket.params))
                row = {**vars(ticket), "params": params}
                session.add(TicketRow(study_uid=self.study_uid, **row))
            session.execute(update(StudyRow).where(self._is_study).values(target=target))

    def reasons(self) -> list[str]:
        """Return the different reasons of failed tickets."""
        # Sorted here: SQLite would look at all tickets, which are in this order, for a few of them.
        query = select(TicketRow.k, TicketRow.reason).where(self._mine, _STATE == "failed")
        with self._storage.reading() as session:
            by_ticket = {k: str(reason or "unknown") for k, reason in session.execute(query)}
        reasons = [by_ticket[k] for k in sorted(by_ticket)]
        return list(dict.fromkeys(reason[:_LONGEST_REASON] for reason in reasons))

    def check(self, what: str) -> None:
        """Refuse tickets that this program has not written.

        Parameters
        ----------
        what
            Name of the study in the error's sentence.

        Raises
        ------
        DamagedError
            If a number or a state of a ticket is impossible.
        """
        columns = (TicketRow.attempts, TicketRow.deaths, TicketRow.trial_number)
        # SQLite holds text in any column, and takes it for larger than every number.
        possible = and_(
            _STATE.in_(_STATES),
            *(func.coalesce(column, 0).between(0, _LARGEST) for column in columns),
        )
        query = select(func.count(), func.count().filter(possible), func.min(TicketRow.k))
        with self._storage.reading() as session:
            counts = session.execute(query.add_columns(func.max(TicketRow.k)).where(self._mine))
            number, sound, first, last = counts.one()
            if not number or (sound == number and (first, last) == (0, number - 1)):
                return
            places = select(TicketRow.k, possible).where(self._mine).order_by(TicketRow.k)
            for place, (k, is_sound) in enumerate(session.execute(places)):
                if k != place or not is_sound:
                    raise DamagedError(f"Ticket {place} of {what} is damaged.")

    def running_trials(self) -> set[int] | None:
        """Return the trial numbers of held tickets.

        ``None`` while a holder has not written its number yet: every running trial may be its own.
        """
        query = select(TicketRow.trial_number).where(self._mine, _STATE == "held")
        with self._storage.reading() as session:
            numbers = list(session.scalars(query))
        return None if None in numbers else {number for number in numbers if number is not None}

    @property
    def _mine(self) -> ColumnElement[bool]:
        """Whether a ticket belongs to this study, as a condition of SQL."""
        return TicketRow.study_uid == self.study_uid

    @property
    def _is_study(self) -> ColumnElement[bool]:
        """Whether a row is that of this study, as a condition of SQL."""
        return StudyRow.uid == self.study_uid

    def _lock_study(self, session: Session) -> None:
        """Lock the row of the study, for one claim at a time; SQLite has one writer in any case."""
        if session.get_bind().dialect.name != "sqlite":
            session.execute(select(StudyRow.uid).where(self._is_study).with_for_update())

    def _free_row(self, session: Session, total: int, has_points: bool) -> TicketRow | None:
        """Return the ticket that `claim` takes, if any; without points, it must have parameters."""
        free = _EXPIRED if has_points else and_(_EXPIRED, TicketRow.params.is_not(None))
        # By state, in whose order the index has them: it is not for both states together.
        rows = [
            session.scalar(
                select(TicketRow)
                .where(self._mine, TicketRow.state == state, free)
                .order_by(TicketRow.k)
                .limit(1)
            )
            for state in ("open", "held")
        ]
        row = min(filter(None, rows), key=lambda row: row.k, default=None)
        if row is None:
            return None
        # All tickets are taken but the failed, the open and the lost ones, of which there is one.
        taken = self._made(session) - self._count(session, "failed")
        if taken - 1 >= total:
            lost = select(func.count()).where(self._mine, _STATE == "held", _EXPIRED)
            taken -= self._count(session, "open") + (session.scalar(lost) or 0)
            return row if taken < total else None
        return row

    def _made(self, session: Session) -> int:
        """Return the number of tickets, which are numbered from 0."""
        last = session.scalar(select(func.max(TicketRow.k)).where(self._mine))
        # SQLite holds text in any column.
        with damages("The number of the study's last ticket"):
            return 0 if last is None else int(last) + 1

    def _count(self, session: Session, state: str) -> int:
        """Count the tickets of a state."""
        return session.scalar(select(func.count()).where(self._mine, TicketRow.state == state)) or 0

    def _hold(self, session: Session, row: TicketRow, token: str) -> None:
        """Give a ticket to a worker, under a new lease."""
        session.execute(
            update(TicketRow)
            .where(self._mine, TicketRow.k == row.k)
            .values(
                state="held",
                token=token,
                host=socket.gethostname()[:_LONGEST_HOST],
                since_s=database_now_s(),
                until_s=database_now_s() + self.lease_s,
            )
            .execution_options(synchronize_session=False)
        )

    def _take_point(
        self, session: Session, row: TicketRow, offers: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Take the point of the ticket itself, else the first free offer; False if none is free."""
        own = _read_params(row.params)
        for params in offers if own is None else (own,):
            claim = ClaimRow(study_uid=self.study_uid, point=point_key(params), k=row.k)
            if session.get(ClaimRow, (claim.study_uid, claim.point)) is None:
                session.add(claim)
            elif own is None:
                continue
            row.params = json.dumps(dict(params))
            return True
        return False

    def _count_loss(self, session: Session, row: TicketRow, is_witnessed: bool) -> float:
        """Count a lost worker; return the seconds for which the ticket rests."""
        row.attempts += 1
        if row.attempts == 1:
            self._reset_deaths(session, row.k)
        row.deaths = (row.deaths or 0) + is_witnessed
        return min(FIRST_REST_S * 2.0 ** min(row.attempts - 1, 30), LONGEST_REST_S)

    def _birth_s(self, session: Session) -> float:
        """Return when this worker first asked for a ticket, on the database's clock."""
        if self._born_s is None:
            self._born_s = float(session.scalar(select(database_now_s())) or 0.0)
        return self._born_s

    def _reset_deaths(self, session: Session, k: int) -> None:
        """Set the deaths of all other tickets to 0, because workers die for a general reason."""
        others = (self._mine, TicketRow.k != k, TicketRow.deaths > 0)
        session.execute(update(TicketRow).where(*others).values(deaths=0))

    def _change(self, ticket: Ticket, **values: Any) -> bool:
        """Update a ticket if its token still holds it."""
        with self._storage.writing() as session:
            return self._change_in(session, ticket, **values)

    def _change_in(self, session: Session, ticket: Ticket, **values: Any) -> bool:
        """Update a ticket within a transaction; see `_change`."""
        held = (TicketRow.k == ticket.k, _STATE == "held", TicketRow.token == ticket.token)
        changed: Any = session.execute(
            update(TicketRow)
            .where(self._mine, *held)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        return bool(changed.rowcount)


def point_key(params: Mapping[str, Any]) -> str:
    """Return the hash of the parameters of a point, whatever their order."""
    return content_hash(sorted(params.items()))


def _read_params(text: str | None) -> Mapping[str, Any] | None:
    """Read stored parameters; ``None`` for JSON of another form."""
    if text is None:
        return None
    try:
        params = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return params if isinstance(params, dict) else None
