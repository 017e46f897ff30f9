from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phaze_opt.scheduling.bounds import drop_hopeless_modes, mixed_bound, tails
from phaze_opt.scheduling.branch_and_bound import improve
from phaze_opt.scheduling.instance import proving_bound
from phaze_opt.scheduling.schedule_problem import ScheduleProblem
from tests.scheduling.strategies import bounds_and_list, layer_like, problems, to_instance


@settings(max_examples=80, deadline=None)
@given(problem=problems(most=8))
def test_bounds_optimum_and_list_schedule_in_order(problem: ScheduleProblem) -> None:
    """Every lower bound <= the optimum <= the list schedule."""
    assume(sum(min(x.latency_s, x.intra_op_latency_s) for x in problem.operators) > 0.0)
    instance = to_instance(problem)
    assume(len(instance.capacity))  # else everything starts as early as its predecessors let it
    bounds, listed = bounds_and_list(instance)
    best, proven = improve(instance, bounds, listed, effort=100_000)
    assert proving_bound(best.makespan) <= proven
    assert bounds.makespan <= best.makespan <= listed.makespan
    assert mixed_bound(instance)[0] <= best.makespan


@pytest.mark.parametrize("seed", range(6))
def test_hopeless_modes_are_never_needed(seed: int) -> None:
    """Dropping modes on paths of at least a makespan keeps every schedule shorter than it."""
    instance = to_instance(layer_like(seed, 30, 3))
    bounds, listed = bounds_and_list(instance)
    optimum, _ = improve(instance, bounds, listed, effort=500_000)
    fewer = replace(instance, allowed=instance.allowed.copy())
    upper = optimum.makespan + 1
    drop_hopeless_modes(fewer.duration, fewer.allowed, fewer.ancestors, bounds.tail, upper)
    assert not (fewer.allowed & ~instance.allowed).any()
    again, proven = improve(fewer, bounds_and_list(fewer)[0], listed, effort=500_000)
    assert proving_bound(again.makespan) <= proven
    assert again.makespan == pytest.approx(optimum.makespan, rel=1e-9)


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
def test_mixture_is_at_least_its_parts(rule: str) -> None:
    """On a wide layer the mixed bound is at least 0.99 of the best bound of one resource."""
    instance = to_instance(layer_like(5, 60, 6, intra_operator=rule))
    assert mixed_bound(instance)[0] >= 0.99 * bounds_and_list(instance)[0].makespan


@given(duration=st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_tails_of_a_chain(duration: list[int]) -> None:
    """In a chain, an operator's tail is the sum of the durations from it to the end."""
    after = np.array([[6], [4], [0]])
    assert tails(after, np.array(duration)).tolist() == [sum(duration[i:]) for i in range(3)]
