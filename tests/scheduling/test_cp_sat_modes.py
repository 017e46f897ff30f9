from dataclasses import replace

import pytest

from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.schedule_rules import broken_rules
from tests.scheduling.strategies import layer_like

SLACK = 1 + 1e-9


def test_near_the_exact_search() -> None:
    """CP-SAT alone reaches the optimum of small layers, but for the rounding of its time units."""
    reached = 0
    for seed in range(12):
        problem = layer_like(seed, 8, 3)
        schedule = solve_schedule(problem, method="cp-sat", effort=500_000)
        optimum_s = solve_schedule(problem).makespan_s
        assert schedule.bound_s <= optimum_s * SLACK
        assert optimum_s <= schedule.makespan_s * SLACK
        assert broken_rules(problem, schedule) == []
        reached += schedule.makespan_s <= optimum_s * (1 + 1e-4)
    assert reached >= 11


@pytest.mark.parametrize("seed", range(3))
def test_layers(seed: int) -> None:
    """Bounds and makespans of both methods on layers of 20 operators contradict nothing."""
    problem = layer_like(seed, 20, 3)
    optimum_s = solve_schedule(problem).makespan_s
    schedule = solve_schedule(problem, method="cp-sat", effort=300_000)
    assert schedule.bound_s <= optimum_s * SLACK
    assert optimum_s <= schedule.makespan_s * SLACK
    assert broken_rules(problem, schedule) == []


@pytest.mark.parametrize("seed", range(1))
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
