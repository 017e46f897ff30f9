"""A ticket of a study as a worker holds it and as it is stored, and counts of tickets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ticket:
    """A claimed ticket.

    Attributes
    ----------
    k
        Number of the ticket in its study, from 0.
    token
        Name of the holder; its writes are refused after another worker has taken the ticket.
    params
        Parameters that the trial must take, ``None`` to sample them.
    last_trial_number
        Trial of the previous holder, which must be settled first.
    is_deadly
        Whether `MOST_DEATHS` workers died on it in turn: it may only be settled, not tried again.
    rest_s
        Seconds of rest before the ticket is tried again.
    losses
        Number of workers that were lost on it.
    is_witnessed
        Whether this worker was alive when the lost worker took the ticket.
    """

    k: int
    token: str
    params: Mapping[str, Any] | None
    last_trial_number: int | None
    is_deadly: bool = False
    rest_s: float = 0.0
    losses: int = 0
    is_witnessed: bool = False


@dataclass(frozen=True)
class StoredTicket:
    """The row of a ticket, without its worker.

    Attributes
    ----------
    k
        Number of the ticket in its study, from 0.
    state
        ``"open"``, ``"held"``, ``"done"`` or ``"failed"``.
    attempts
        Number of workers that were lost on it.
    trial_number
        Number of its trial, if it has one.
    params
        Parameters that the trial must take, ``None`` to sample them.
    reason
        Reason of a failed ticket.
    """

    k: int
    state: str
    attempts: int
    trial_number: int | None
    params: Mapping[str, Any] | None
    reason: str | None


@dataclass(frozen=True)
class TicketCounts:
    """Number of tickets of a study in each state.

    Attributes
    ----------
    expired
        Number of held tickets whose lease is over or whose worker is known to be gone.
    """

    open: int
    held: int
    done: int
    failed: int
    expired: int = 0

    @property
    def left(self) -> int:
        """Number of tickets that are neither done nor failed."""
        return self.open + self.held

    @property
    def running(self) -> int:
        """Number of tickets that a living worker holds."""
        return self.held - self.expired
