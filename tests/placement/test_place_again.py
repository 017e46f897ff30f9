"""A placement can be timed again with other costs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InfeasibleError
from phaze_opt.network.cluster import NetworkLevel
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import place_again, solve_placement
from tests.placement.strategies import problems


def with_two_levels(problem: PlacementProblem) -> PlacementProblem:
    """Return the problem on nodes of two devices, where the order of ranks matters."""
    fast = NetworkLevel(1e6, 0.0, "switch", group_size=2)
    cluster = replace(problem.cluster, levels=(fast, problem.cluster.levels[0]))
    return replace(problem, cluster=cluster)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), interleaved=st.booleans())
def test_a_placement_gives_itself_again(problem: PlacementProblem, interleaved: bool) -> None:
    """With the same costs, layers placed as they were give the same placement to the bit.

    Of a placement that nobody has searched for nothing is proven.
    """
    problem = with_two_levels(problem)
    if interleaved:
        training = replace(problem.training, pipeline_schedule="interleaved", interleave=2)
        problem = replace(problem, training=training)
    try:
        placement = solve_placement(problem)
    except InfeasibleError:
        return
    again = place_again(problem, placement)
    assert (again.status, again.bound_s, again.gap) == (None, None, None)
    assert again == replace(placement, status=None, bound_s=None, gap=None)


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_the_same_split_is_no_faster_than_the_best(problem: PlacementProblem) -> None:
    """On another machine the old split takes at least as long as the placement found for it."""
    try:
        placement = solve_placement(problem)
    except InfeasibleError:
        return
    slower = replace(problem, hbm_bytes_per_s=problem.hbm_bytes_per_s / 7)
    same = place_again(slower, placement)
    assert [stage.layers for stage in same.stages] == [stage.layers for stage in placement.stages]
    assert same.time_per_batch_s >= placement.time_per_batch_s
    assert solve_placement(slower).time_per_batch_s <= same.time_per_batch_s * (1 + 1e-9)
