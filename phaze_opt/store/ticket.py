"""A ticket of a study: as a worker holds it, as it is stored, and how many there are."""

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
        Names the holder; its writes are refused once another worker holds the ticket.
    params
        Parameters that the trial must take, ``None`` to sample them.
    last_trial_number
        Trial of the previous holder, which must be settled first.
    is_deadly
        Whether `MOST_DEATHS` workers died on it in turn: it may only be settled, not tried again.
    rest_s
        Seconds for which it shall rest before it is tried again.
    losses
        How many workers were lost on it.
    is_witnessed
        Whether this worker was alive when the lost one took it.
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
    """A ticket as its row has it, without the worker.

    Attributes
    ----------
    k
        Number of the ticket in its study, from 0.
    state
        ``"open"``, ``"held"``, ``"done"`` or ``"failed"``.
    attempts
        How many workers were lost on it.
    trial_number
        Of its trial, where it has one.
    params
        Parameters that the trial must take, ``None`` to sample them.
    reason
        Why it failed.
    """

    k: int
    state: str
    attempts: int
    trial_number: int | None
    params: Mapping[str, Any] | None
    reason: str | None


@dataclass(frozen=True)
class TicketCounts:
    """How many tickets of a study are in each state.

    Attributes
    ----------
    expired
        Those of the held tickets whose lease has run out or whose worker is known to be gone.
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
