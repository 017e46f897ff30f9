from dataclasses import replace

import pytest
from hypothesis import given, settings

from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.schedule_rules import broken_rules
from tests.scheduling.strategies import layer_like, problems

SLACK = 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=8))
def test_equal_to_the_branch_and_bound(problem: ScheduleProblem) -> None:
    """CP-SAT alone finds the optimum of the exact search, and keeps all rules."""
    schedule = solve_schedule(problem, method="cp-sat")
    assert schedule.makespan_s == pytest.approx(solve_schedule(problem).makespan_s, rel=1e-7)
    assert schedule.gap <= 1e-6
    assert broken_rules(problem, schedule) == []


@pytest.mark.parametrize("seed", range(3))
def test_layers(seed: int) -> None:
    """Bounds and makespans of both methods on layers of 30 operators contradict nothing."""
    problem = layer_like(seed, 30, 3)
    optimum_s = solve_schedule(problem).makespan_s
    schedule = solve_schedule(problem, method="cp-sat", effort=1_000_000)
    assert schedule.bound_s <= optimum_s * SLACK
    assert optimum_s <= schedule.makespan_s * SLACK
    assert broken_rules(problem, schedule) == []


@pytest.mark.parametrize("seed", range(2))
def test_auto_is_never_worse_than_either(seed: int) -> None:
    """On wide graphs that stay open, both methods together have the better plan and bound."""
    problem = layer_like(seed, 100, 8)
    alone = [
        solve_schedule(problem, method=method, effort=300_000)
        for method in ("branch-and-bound", "cp-sat")
    ]
    both = solve_schedule(problem, method="auto", effort=300_000)
    assert both.makespan_s <= min(one.makespan_s for one in alone) * SLACK
    assert both.bound_s >= max(one.bound_s for one in alone) / SLACK
    assert both.bound_s <= both.makespan_s
    assert broken_rules(problem, both) == []
    assert replace(solve_schedule(problem, method="auto", effort=300_000), solve_s=0.0) == replace(
        both, solve_s=0.0
    )


@pytest.mark.parametrize("ratio", [1.0, 1e-6, 1e-12])
def test_durations_of_any_ratio(ratio: float) -> None:
    """Operators far shorter than the solver's time unit keep their order."""
    operators = tuple(
        ScheduleOperator(str(i), "TC", ratio if i % 2 else 1.0, 2.0, hbm_fraction=1 / 3)
        for i in range(12)
    )
    edges = tuple((i, i + 3) for i in range(9))
    problem = ScheduleProblem("", 2, 1, operators, edges)
    schedule = solve_schedule(problem, method="cp-sat")
    assert broken_rules(problem, schedule) == []
    assert schedule.bound_s <= solve_schedule(problem).makespan_s * SLACK
