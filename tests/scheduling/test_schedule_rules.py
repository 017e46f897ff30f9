from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.scheduling.schedule_problem import (
    Schedule,
    ScheduledOperator,
    ScheduleOperator,
    ScheduleProblem,
)
from tests.scheduling.schedule_rules import broken_rules

PROBLEM = ScheduleProblem(
    name="four",
    num_tc=2,
    num_vc=1,
    operators=(
        ScheduleOperator("a", "TC", 2.0, 1.0, hbm_fraction=0.5),
        ScheduleOperator("b", "TC", 2.0, 1.0, hbm_fraction=0.5),
        ScheduleOperator("c", "VC", 1.0, 1.0, hbm_fraction=0.5),
        ScheduleOperator("d", "none", 1.0, 1.0, link_fraction=1.0),
    ),
    edges=((0, 2), (1, 3)),
)
GOOD = Schedule(
    operators=(
        ScheduledOperator("a", 0.0, 2.0, False),
        ScheduledOperator("b", 0.0, 2.0, False),
        ScheduledOperator("c", 2.0, 3.0, False),
        ScheduledOperator("d", 2.0, 3.0, False),
    ),
    makespan_s=3.0,
    status="optimal",
    bound_s=3.0,
    method="list",
    solve_s=0.0,
)


def move(index: int, **changes: Any) -> Schedule:
    """Give the good schedule with one operator elsewhere."""
    entries = list(GOOD.operators)
    entries[index] = replace(entries[index], **changes)
    return replace(GOOD, operators=tuple(entries))


def test_a_valid_schedule_passes() -> None:
    """A valid schedule breaks no rule."""
    assert broken_rules(PROBLEM, GOOD) == []


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (move(2, start_s=1.0, end_s=2.0), "'c' starts at 1.0"),  # before a ends
        (move(0, end_s=1.5), "takes 2.0 s"),
        (move(0, start_s=-1.0, end_s=1.0), "starts at -1.0"),
        (move(3, intra_operator=True), "needs no core"),
        (move(0, intra_operator=True, end_s=1.0), "must run alone"),
        (replace(GOOD, makespan_s=4.0), "makespan is 4.0"),
        (replace(GOOD, bound_s=3.1), "above the makespan"),
        (replace(GOOD, bound_s=2.0), "optimal with a gap"),
        (replace(GOOD, operators=GOOD.operators[:3]), "has the operators"),
    ],
)
def test_every_broken_rule_is_named(schedule: Schedule, words: str) -> None:
    """A broken rule is named."""
    assert words in " ".join(broken_rules(PROBLEM, schedule))


def test_resources_are_counted() -> None:
    """Too few cores or too little bandwidth is found; without bandwidth only cores count."""
    one_core = replace(PROBLEM, num_tc=1)
    assert "take 2 of 1 TC" in " ".join(broken_rules(one_core, GOOD))
    greedy = replace(PROBLEM.operators[0], hbm_fraction=0.6)
    hungry = replace(PROBLEM, operators=(greedy, *PROBLEM.operators[1:]))
    assert "HBM" in " ".join(broken_rules(hungry, GOOD))
    assert broken_rules(hungry, GOOD, bandwidth=False) == []


def test_serial_runs_one_at_a_time() -> None:
    """On a serial chip no two operators may overlap."""
    assert "must run alone" in " ".join(broken_rules(replace(PROBLEM, serial=True), GOOD))
