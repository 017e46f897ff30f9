from dataclasses import replace

import pytest

from phaze_opt.scheduling import cp_sat_modes
from phaze_opt.scheduling.cp_sat_exact import Overlaps, Ranks
from phaze_opt.scheduling.cp_sat_modes import improve_with_cp_sat
from phaze_opt.scheduling.instance import proving_bound
from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.closing import closes
from tests.scheduling.schedule_rules import broken_rules
from tests.scheduling.strategies import (
    bounds_and_list,
    improve,
    layer_like,
    random_problem,
    to_instance,
    with_like_operators,
)

SLACK = 1 + 1e-9


def test_small_problems_are_closed() -> None:
    """CP-SAT alone proves optima of up to 12 operators, with the makespan of the exact search."""
    for seed in range(30):
        closes(random_problem(seed))


def test_like_operators_are_closed() -> None:
    """Operators that nothing tells apart, or that run alone, leave no gap either."""
    for seed in range(6):
        closes(with_like_operators(seed, 10))


@pytest.mark.parametrize("seed", range(20))
def test_the_exact_models_agree_with_the_exact_search(seed: int) -> None:
    """Both find a plan as short as the shortest one, and none that is shorter."""
    instance = to_instance(random_problem(seed, 9))
    bounds, known = bounds_and_list(instance)
    best, bound = improve(instance, bounds, known, 10**6)
    assert bound >= proving_bound(best.makespan)
    found, claim = Overlaps(instance, bounds, known).solve(10**6)
    assert found is not None
    assert found.makespan == pytest.approx(best.makespan, rel=1e-9)
    assert claim == found.makespan
    within, denied = Ranks(instance, found.makespan).solve(10**6)
    assert within is not None
    assert not denied
    assert within.makespan == found.makespan
    assert Ranks(instance, found.makespan - 1).solve(10**6) == (None, True)


LIST_IS_LONGER = 6
"""Of `random_problem`: the list schedule is not optimal."""


@pytest.fixture
def liars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models that improve a plan claim that the list schedule is optimal."""
    monkeypatch.setattr(Overlaps, "solve", lambda self, effort: (None, self.horizon))
    monkeypatch.setattr(
        cp_sat_modes._ModesModel, "solve", lambda self, effort: (self.known, self.known.makespan)
    )


@pytest.mark.usefixtures("liars")
def test_a_wrong_bound_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    """A bound above the optimum is refuted by the second model, which is said."""
    warned = 0
    for seed in range(24):
        problem = random_problem(seed)
        optimum_s = solve_schedule(problem).makespan_s
        caplog.clear()
        schedule = solve_schedule(problem, method="cp-sat")
        assert broken_rules(problem, schedule) == []
        assert schedule.bound_s <= optimum_s * SLACK
        if schedule.makespan_s > optimum_s * SLACK:
            assert schedule.status == "feasible"
        warned += "is wrong" in caplog.text
    assert warned >= 5


@pytest.mark.usefixtures("liars")
def test_a_proof_that_no_second_model_confirms_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second model does not end, the schedule is feasible, with the simple bound."""
    monkeypatch.setattr(Ranks, "solve", lambda self, effort: (None, False))
    instance = to_instance(random_problem(LIST_IS_LONGER))
    bounds, known = bounds_and_list(instance)
    best, bound = improve_with_cp_sat(instance, bounds, known, known, bounds.makespan, 10**6)
    assert (best, bound) == (known, bounds.makespan)
    schedule = solve_schedule(random_problem(LIST_IS_LONGER), method="cp-sat")
    assert schedule.status == "feasible"
    assert schedule.gap > 0.0


def test_a_plan_that_exists_refutes_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim above the exact search's plan does not prove that plan."""
    monkeypatch.setattr(Overlaps, "solve", lambda self, effort: (None, self.horizon))
    monkeypatch.setattr(Ranks, "solve", lambda self, effort: (None, False))
    instance = to_instance(random_problem(LIST_IS_LONGER))
    bounds, known = bounds_and_list(instance)
    best, _ = improve(instance, bounds, known, 10**6)
    assert best.makespan < known.makespan
    _, bound = improve_with_cp_sat(instance, bounds, known, best, bounds.makespan, 100_000)
    assert bound < proving_bound(best.makespan)


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
