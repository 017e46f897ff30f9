"""Tickets and their leases."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import update

from phaze_opt.search.store.leases import expire, expire_dead_workers, new_token
from phaze_opt.search.store.tables import StudyRow, TicketRow
from phaze_opt.search.store.tickets import MAX_ATTEMPTS, TicketCounts, TicketOffice, point_key
from tests.search.fakes import quick_study, toy_study


@pytest.fixture
def office(any_url: str) -> TicketOffice:
    """Return the tickets of a new study."""
    return toy_study(any_url).office(lease_s=30.0)


def lose(office: TicketOffice) -> None:
    """Let every lease run out."""
    with office._storage.writing() as session:
        session.execute(update(TicketRow).values(until_s=0.0))


def test_as_many_as_issued_and_no_more(office: TicketOffice) -> None:
    """Each ticket is claimed once, in order, and then there is none."""
    office.issue(3)
    office.issue(3)
    claimed = [office.claim("me", 3) for _ in range(4)]
    assert [ticket and ticket.k for ticket in claimed] == [0, 1, 2, None]


def test_a_smaller_total_limits_claims(office: TicketOffice) -> None:
    """Open tickets of a longer run stay open in a shorter one."""
    office.issue(5)
    assert office.claim("me", 2) is not None
    assert office.claim("me", 2) is not None
    assert office.claim("me", 2) is None
    assert office.counts() == TicketCounts(open=3, held=2, done=0, failed=0)


def test_first_tickets_carry_parameters(office: TicketOffice) -> None:
    """The parameters of the first trials travel with their tickets."""
    office.issue(2, [{"a": 1}])
    first, second = office.claim("me", 2), office.claim("me", 2)
    assert first is not None and second is not None
    assert (first.params, second.params) == ({"a": 1}, None)


def test_a_held_ticket_is_not_claimed_until_it_expires(office: TicketOffice) -> None:
    """A lease keeps others away; when it has run out, the next holder learns of the trial."""
    office.issue(1)
    mine = office.claim("me", 1)
    assert mine is not None and office.assign(mine, 17)
    assert office.claim("you", 1) is None
    lose(office)
    yours = office.claim("you", 1)
    assert yours is not None
    assert yours.last_trial_number == 17
    # The first holder has lost: nothing that it writes counts any more.
    assert not office.finish(mine)
    assert not office.assign(mine, 18)
    assert not office.give_back(mine)
    assert office.finish(yours)
    assert office.counts().done == 1


def test_renewal_keeps_a_ticket(office: TicketOffice) -> None:
    """A renewed lease does not run out; that of another worker does."""
    office.issue(2)
    assert office.claim("me", 2) is not None
    assert office.claim("you", 2) is not None
    lose(office)
    office.renew_lease("me")
    taken = office.claim("third", 2)
    assert taken is not None and taken.k == 1


def test_short_leases_run_out_by_themselves(any_url: str) -> None:
    """Without renewal a lease ends after its time."""
    office = toy_study(any_url).office(lease_s=0.2)
    office.issue(1)
    assert office.claim("me", 1) is not None
    assert office.claim("you", 1) is None
    time.sleep(0.4)
    assert office.claim("you", 1) is not None


@pytest.mark.parametrize("until_s", ["'tomorrow'", "'9999-12-31'", "1e300", "x'ff'"])
def test_an_odd_lease_keeps_nobody_waiting(sqlite_url: str, until_s: str) -> None:
    """A lease whose end is a text, or lies years ahead, counts as over."""
    study = toy_study(sqlite_url)
    office = study.office(lease_s=30.0)
    office.issue(1)
    assert office.claim("me", 1) is not None
    with study.storage.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE phaze_ticket SET until_s = {until_s}")
    assert office.counts().expired == 1
    assert office.claim("you", 1) is not None


def test_a_deadly_ticket_is_given_up(office: TicketOffice) -> None:
    """After three lost leases a ticket may only be closed."""
    office.issue(1)
    for _ in range(MAX_ATTEMPTS):
        ticket = office.claim("me", 1)
        assert ticket is not None and not ticket.last_attempt
        lose(office)
    ticket = office.claim("me", 1)
    assert ticket is not None and ticket.last_attempt
    assert office.fail(ticket, "it kills")
    assert office.reasons() == ["it kills"]
    office.issue(1)
    assert office.counts() == TicketCounts(open=1, held=0, done=0, failed=1)


def test_giving_back_does_not_count_as_lost(office: TicketOffice) -> None:
    """A ticket may be given back any number of times."""
    office.issue(1)
    for _ in range(2 * MAX_ATTEMPTS):
        ticket = office.claim("me", 1)
        assert ticket is not None and not ticket.last_attempt
        assert office.remember(ticket, {"a": 1})
        assert office.give_back(ticket)
    ticket = office.claim("me", 1)
    assert ticket is not None and ticket.params == {"a": 1}


def test_numbers_of_running_trials(office: TicketOffice) -> None:
    """Which trials run is known only when every holder has written its number."""
    office.issue(2)
    first, second = office.claim("me", 2), office.claim("you", 2)
    assert first is not None and second is not None
    office.assign(first, 4)
    assert office.running_trials() is None
    office.assign(second, 5)
    assert office.running_trials() == {4, 5}


def test_leases_of_dead_processes_end_at_once(office: TicketOffice) -> None:
    """On the same machine nobody waits for the lease of a process that is gone."""
    office.issue(2)
    alive = new_token()
    machine, _, unique = alive.split(".")
    dead = f"{machine}.{2**22 + 1}.{unique}"
    assert office.claim(dead, 2) is not None
    assert office.claim(alive, 2) is not None
    expire_dead_workers(office._storage)
    taken = office.claim("third", 2)
    assert taken is not None and taken.k == 0
    assert office.claim("third", 2) is None
    expire(office._storage, [alive])
    assert office.claim("third", 2) is not None


@pytest.mark.parametrize("params", ["[1]", "nonsense", '{"a": ', "[" * 10_000, '"x"', "null"])
def test_hostile_parameters_count_as_none(office: TicketOffice, params: str) -> None:
    """What is not an object of parameters is not used."""
    office.issue(1)
    with office._storage.writing() as session:
        session.execute(update(TicketRow).values(params=params))
    ticket = office.claim("me", 1)
    assert ticket is not None and ticket.params is None


def test_stop_is_seen_by_all(office: TicketOffice) -> None:
    """A request to stop is stored, and taken back by the next run."""
    assert not office.stop_requested()
    office.request_stop(True)
    assert office.stop_requested()
    office.request_stop(False)
    assert not office.stop_requested()
    with office._storage.writing() as session:
        assert session.query(StudyRow).count() == 1


def test_a_point_belongs_to_one_ticket(any_url: str) -> None:
    """Tickets take the first point that is free; one that was lost keeps its own."""
    study = toy_study(any_url)
    office = study.office()
    office.issue(5, [{"x": 9}])
    offers = [{"x": 9}, {"x": 1}, {"x": 2}, {"x": 3}]
    taken = [office.claim(worker, 5, offers) for worker in ("a", "b", "c")]
    assert [ticket and ticket.params for ticket in taken] == [{"x": 9}, {"x": 1}, {"x": 2}]
    assert office.claimed() == {point_key({"x": x}) for x in (9, 1, 2)}
    assert office.claim("d", 5, offers[:3]) is None
    assert office.claim("d", 5, []) is None
    lose(office)
    again, last = office.claim("d", 5, []), office.claim("e", 5, offers)
    assert again is not None and (again.k, again.params) == (0, {"x": 9})
    assert last is not None and (last.k, last.params) == (1, {"x": 1})
    study.delete()
    assert office.claimed() == set()


def test_a_proven_study_is_marked(any_url: str) -> None:
    """The mark is that of one study."""
    one, other = toy_study(any_url), quick_study(any_url, name="other")
    assert not one.office().is_proven()
    one.office().mark_proven()
    assert one.office().is_proven() and not other.office().is_proven()
