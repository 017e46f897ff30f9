"""A database that goes away at any statement or commit changes nothing about what is found."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError, OperationalError, PendingRollbackError

import phaze_opt.spec.frozen as frozen_module
import phaze_opt.store.failures as failures_module
import phaze_opt.study.study as study_module
from phaze_opt.store.caches import EvaluationCache
from phaze_opt.store.failures import (
    DatabaseError,
    LostConnectionError,
    database_errors,
    patiently,
)
from phaze_opt.store.opening import open_storage
from phaze_opt.store.storage import Storage
from phaze_opt.store.tables import EvaluationRow
from phaze_opt.store.ticket import Ticket
from phaze_opt.store.tickets import TicketOffice
from phaze_opt.study.study import Study
from phaze_opt.study.worker import TrialCallback, Worker
from tests.store.saboteur import LAST, Saboteur
from tests.study.fakes import quick_study
from tests.study.test_processes import assert_exactly, points

TRIALS = 2


def make(storage: Storage, number: int) -> Study:
    """Create a study that shares no evaluation with those of other numbers."""
    return quick_study(storage, TRIALS, f"n{number}", 64 + number)


# Tried by hand with every number: nothing differs between them but the place in the code.
@pytest.mark.parametrize(
    ("moment", "numbers"), [("statement", range(2, 137, 27)), ("commit", range(1, 29, 9))]
)
def test_lost_anywhere_nothing_is_lost(
    any_url: str,
    moment: str,
    numbers: range,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Wherever the connection breaks, a run ends with the same N trials, in silence."""
    monkeypatch.setattr(failures_module, "_RECONNECT_WAITS_S", (0.01,))
    for module in (study_module, frozen_module):
        monkeypatch.setattr(module, "current_version", lambda: "1")
    storage = open_storage(any_url, create=True)
    undisturbed = make(storage, 0)
    undisturbed.run()
    saboteur = Saboteur(storage, moment)
    struck = 0
    for number in numbers:
        study = make(storage, number)
        saboteur.strike_at(number)
        outcome = study.run()
        struck += saboteur.has_struck
        saboteur.strike_at(LAST)
        assert (outcome.exit_code, outcome.failures) == (None, ())
        assert_exactly(study, TRIALS)
        assert points(study) == points(undisturbed)
    assert struck >= len(numbers) - 2
    assert capfd.readouterr().err == ""


class Gone(Exception):
    """A driver's error, with PostgreSQL's code."""

    def __init__(self, state: str | None) -> None:
        super().__init__("it said so.")
        self.sqlstate = state


@pytest.mark.parametrize("state", [None, "08006", "57P01", "57P03"])
def test_what_follows_a_lost_connection_is_a_lost_connection(state: str | None) -> None:
    """An error about the session, after one that broke it, tells of the broken connection."""

    def fall_back() -> None:
        raise PendingRollbackError("roll back first")

    with (
        pytest.raises(LostConnectionError, match="cannot be reached: it said so") as caught,
        database_errors("x"),
    ):
        try:
            raise OperationalError("SELECT secret", {}, Gone(state))
        except OperationalError:
            fall_back()
    assert "secret" not in str(caught.value)


def test_a_refusal_is_not_a_lost_connection() -> None:
    """What the server refuses is not tried again."""
    for error in (OperationalError("", {}, Gone("53100")), IntegrityError("", {}, Gone(None))):
        with pytest.raises(DatabaseError) as caught, database_errors("x"):
            raise error
        assert not isinstance(caught.value, LostConnectionError)


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays away is reported, after each further attempt was prepared."""
    monkeypatch.setattr(failures_module, "_RECONNECT_WAITS_S", (0.0, 0.0, 0.0))
    done: list[str] = []

    def act() -> None:
        done.append("act")
        raise LostConnectionError("It is away.")

    with pytest.raises(LostConnectionError, match="away"):
        patiently(act, lambda: done.append("recover"))
    assert done == ["act", *["recover", "act"] * 3]


def test_a_lost_result_blocks_nobody(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could not store a result gives up its claim before its ticket, for others may get it."""
    study = quick_study(any_url, trials=6)
    serve, store, give_back = Worker._serve, EvaluationCache._store, TicketOffice.give_back
    serving: list[Ticket] = []
    lost: list[str] = []
    claims: list[int] = []

    def note_and_serve(self: Worker, ticket: Ticket, on_trial: TrialCallback) -> None:
        serving.append(ticket)
        serve(self, ticket, on_trial)

    def lose_once(self: EvaluationCache, key: str, body: str, needed: Any) -> None:
        if serving and not lost:
            lost.append(key)
            raise LostConnectionError("The storage cannot be reached.")
        store(self, key, body, needed)

    def count_and_give_back(self: TicketOffice, ticket: Ticket) -> bool:
        query = select(func.count()).where(EvaluationRow.token.is_not(None))
        with study.storage.reading() as session:
            claims.append(session.scalar(query) or 0)
        return give_back(self, ticket)

    monkeypatch.setattr(failures_module, "_RECONNECT_WAITS_S", (0.01,))
    monkeypatch.setattr(Worker, "_serve", note_and_serve)
    monkeypatch.setattr(EvaluationCache, "_store", lose_once)
    monkeypatch.setattr(TicketOffice, "give_back", count_and_give_back)
    assert study.run().counts.done == 6
    assert len(lost) == 1
    assert claims == [0]
