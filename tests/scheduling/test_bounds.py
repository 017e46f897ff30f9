import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phaze_opt.scheduling.bounds import drop_hopeless_modes, mixed_bound, root_bounds, tails
from phaze_opt.scheduling.branch_and_bound import improve
from phaze_opt.scheduling.canonical import canonical_form
from phaze_opt.scheduling.instance import Instance, proving_bound
from phaze_opt.scheduling.list_scheduler import best_list_schedule
from phaze_opt.scheduling.reduction import build_instance, contracted_ancestors, is_instant
from phaze_opt.scheduling.schedule_problem import ScheduleProblem, check_problem
from tests.scheduling.strategies import layer_like, problems


def to_instance(problem: ScheduleProblem) -> Instance:
    """Write the whole problem as one instance, not split."""
    _, attributes, edges = canonical_form(problem, check_problem(problem), bandwidth=True)
    instant = [is_instant(entry) for entry in attributes]
    kept = [index for index, skip in enumerate(instant) if not skip]
    return build_instance(
        kept,
        attributes,
        contracted_ancestors(instant, edges),
        (problem.num_tc, problem.num_vc),
        problem.intra_operator,
    )


@settings(max_examples=80, deadline=None)
@given(problem=problems(most=8))
def test_bounds_optimum_and_list_schedule_in_order(problem: ScheduleProblem) -> None:
    """Every lower bound <= the optimum <= the list schedule."""
    assume(sum(min(x.latency_s, x.intra_op_latency_s) for x in problem.operators) > 0.0)
    instance = to_instance(problem)
    assume(instance.capacity)  # else everything starts as early as its predecessors let it
    bounds = root_bounds(instance)
    listed = best_list_schedule(instance, bounds)
    best, proven = improve(instance, bounds, listed, effort=100_000)
    assert proving_bound(best.makespan) <= proven
    assert bounds.makespan <= best.makespan <= listed.makespan
    assert mixed_bound(instance)[0] <= best.makespan


@pytest.mark.parametrize("seed", range(6))
def test_hopeless_modes_are_never_needed(seed: int) -> None:
    """Dropping modes on paths of at least a makespan keeps every schedule shorter than it."""
    instance = to_instance(layer_like(seed, 30, 3))
    bounds = root_bounds(instance)
    listed = best_list_schedule(instance, bounds)
    optimum, _ = improve(instance, bounds, listed, effort=500_000)
    fewer = drop_hopeless_modes(instance, optimum.makespan + 1)
    pairs = zip(fewer.modes, instance.modes, strict=True)
    assert all(set(kept) <= set(modes) for kept, modes in pairs)
    again, proven = improve(fewer, root_bounds(fewer), listed, effort=500_000)
    assert proving_bound(again.makespan) <= proven
    assert again.makespan == pytest.approx(optimum.makespan, rel=1e-9)


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
def test_mixture_is_at_least_its_parts(rule: str) -> None:
    """On a wide layer the mixed bound is at least 0.99 of the best bound of one resource."""
    instance = to_instance(layer_like(5, 60, 6, intra_operator=rule))
    assert mixed_bound(instance)[0] >= 0.99 * root_bounds(instance).makespan


@given(duration=st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_tails_of_a_chain(duration: list[int]) -> None:
    """In a chain, an operator's tail is the sum of the durations from it to the end."""
    chain = Instance(
        duration=tuple((p, p) for p in duration),
        modes=((0,),) * 3,
        demand=(((), ()),) * 3,
        capacity=(),
        ancestors=(0, 1, 3),
        descendants=(6, 4, 0),
        seconds_per_unit=1.0,
    )
    assert tails(chain, duration) == [sum(duration[i:]) for i in range(3)]
