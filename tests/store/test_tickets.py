"""Tickets and their leases."""

from __future__ import annotations

import dataclasses
import time

import pytest
from sqlalchemy import update

from phaze_opt.store.leases import expire, expire_dead_workers, new_token
from phaze_opt.store.storage import Storage
from phaze_opt.store.tables import EvaluationRow, StudyRow, TicketRow
from phaze_opt.store.ticket import Ticket, TicketCounts
from phaze_opt.store.tickets import MOST_DEATHS, TicketOffice, point_key
from tests.study.fakes import quick_study, toy_study


@pytest.fixture
def office(any_url: str) -> TicketOffice:
    """Return the tickets of a new study, as a worker that has been there for a while sees them."""
    office = toy_study(any_url).office(lease_s=30.0)
    assert office.claim("me", 0) is None
    time.sleep(0.002)
    return office


def lose(office: TicketOffice, k: int | None = None) -> None:
    """Let the lease of a ticket run out, or its rest; those of all without a number."""
    which = TicketRow.k >= 0 if k is None else TicketRow.k == k
    with office._storage.writing() as session:
        session.execute(update(TicketRow).where(which).values(until_s=0.0))


def shift_clock(storage: Storage, seconds: float) -> None:
    """Put the database's clock forward: all times that are stored lie so much earlier."""
    with storage.writing() as session:
        for column in (TicketRow.since_s, TicketRow.until_s, EvaluationRow.until_s):
            session.execute(update(column.class_).values({column.key: column - seconds}))


def claim(office: TicketOffice, total: int) -> Ticket:
    """Claim a ticket that must be there."""
    ticket = office.claim("me", total)
    assert ticket is not None
    return ticket


def another(office: TicketOffice) -> TicketOffice:
    """Return the tickets as a worker that begins now sees them."""
    time.sleep(0.002)
    return TicketOffice(office._storage, office.study_uid, office.lease_s)


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
    """It killed three workers in turn, each time while another one was alive: it may be closed."""
    office.issue(1)
    for _ in range(MOST_DEATHS):
        assert not claim(office, 1).is_deadly
        lose(office)
    ticket = claim(office, 1)
    assert ticket.is_deadly
    assert office.fail(ticket, "it kills")
    assert office.reasons() == ["it kills"]
    office.issue(1)
    assert office.counts() == TicketCounts(open=1, held=0, done=0, failed=1)


def test_a_lone_worker_tries_as_often_as_needed(office: TicketOffice) -> None:
    """Nobody saw what killed it, so that its point is not blamed."""
    office.issue(2)
    for losses in range(5 * MOST_DEATHS):
        ticket = claim(another(office), 2)
        assert (ticket.k, ticket.losses) == (0, losses)
        assert not (ticket.is_deadly or ticket.is_witnessed)
        lose(office)


@pytest.mark.parametrize("ending", ["lost", "completed"])
def test_deaths_for_a_general_reason_blame_no_ticket(office: TicketOffice, ending: str) -> None:
    """Where a fresh ticket is lost, or a lost one is completed, the others are counted anew."""
    office.issue(2)
    suspect, other = claim(office, 2), claim(office, 2)
    for _ in range(MOST_DEATHS - 1):
        lose(office, 0)
        suspect = claim(office, 2)
    assert suspect.k == 0 and not suspect.is_deadly
    if ending == "completed":
        other = dataclasses.replace(other, losses=1)
        assert office.finish(other)
    else:
        # The suspect is not claimed first, since its lease still runs.
        office.renew_lease("me")
        lose(office, 1)
        assert claim(office, 2).k == 1
    lose(office, 0)
    assert not claim(office, 2).is_deadly


def test_several_deadly_tickets_all_end(office: TicketOffice) -> None:
    """They do not save each other."""
    office.issue(3)
    claimed = 0
    while office.counts().failed < 3:
        ticket = claim(office, 3)
        claimed += 1
        assert claimed < 40
        if ticket.is_deadly:
            assert office.fail(ticket, "it kills")
        else:
            lose(office, ticket.k)


def test_a_lost_ticket_rests_longer_each_time(office: TicketOffice) -> None:
    """Meanwhile others are served; a clock that is put back does not prolong the rest."""
    office.issue(2)
    claim(office, 2)
    rests = []
    for _ in range(2):
        lose(office)
        rests.append(claim(office, 2).rest_s)
    assert rests[1] == 2 * rests[0] > 0
    resting = Ticket(0, "me", None, None)
    assert office.give_back(resting, rests[1])
    assert claim(office, 2).k == 1
    assert office.claim("me", 2) is None
    shift_clock(office._storage, -3600.0)
    assert claim(office, 2).k == 0


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_costs_no_trial(office: TicketOffice, jump_s: float) -> None:
    """Whoever held a ticket before is refused where another one took it, and only there."""
    office.issue(2)
    mine, renewed = claim(office, 2), claim(office, 2)
    shift_clock(office._storage, jump_s)
    yours = another(office).claim("you", 2)
    assert yours is not None and yours.k == 0
    office.renew_lease("me")
    assert another(office).claim("third", 2) is None
    assert not office.finish(mine)
    assert office.finish(renewed) and office.finish(yours)
    assert office.counts() == TicketCounts(open=0, held=0, done=2, failed=0)


def test_giving_back_does_not_count_as_lost(office: TicketOffice) -> None:
    """A ticket may be given back any number of times."""
    office.issue(1)
    for _ in range(2 * MOST_DEATHS):
        ticket = office.claim("me", 1)
        assert ticket is not None and not (ticket.is_deadly or ticket.losses)
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
    proven, other = toy_study(any_url), quick_study(any_url, name="other")
    assert not proven.office().is_proven()
    proven.office().mark_proven()
    assert proven.office().is_proven() and not other.office().is_proven()
