"""What is said where nothing fits: the least memory that would do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.errors import InfeasibleError
from phaze_opt.placement.infeasible import MisfitError, explain_tightest_split
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from tests.placement.strategies import problems
from tests.placement.test_solve_placement import chain


def fits(problem: PlacementProblem, usable_bytes: float) -> bool:
    """Whether a placement fits so much memory."""
    try:
        solve_placement(replace(problem, hbm_usable_bytes=usable_bytes))
    except InfeasibleError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(
    problem=problems(),
    zero=st.integers(0, 3),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
)
def test_the_tightest_split_needs_the_least_memory_that_fits(
    problem: PlacementProblem, zero: int, schedule: PipelineScheduleName
) -> None:
    """With what the tightest split needs a placement is found, with a byte less none is."""
    assume(min(problem.layers) <= problem.cluster.devices)
    training = replace(problem.training, zero=zero, pipeline_schedule=schedule)
    layers = {
        tensor_degree: tuple(replace(layer, stash_bytes=layer.stash_bytes + 1) for layer in chain)
        for tensor_degree, chain in problem.layers.items()
    }
    problem = replace(problem, training=training, layers=layers)
    needed = explain_tightest_split(problem).memory.total
    assume(needed > 1)
    assert fits(problem, needed)
    assert not fits(problem, needed - 1)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), zero=st.integers(0, 3))
def test_a_misfit_says_what_is_held_and_by_how_much_it_is_too_much(
    problem: PlacementProblem, zero: int
) -> None:
    """The error carries the memory of its sentence, which is more than what is usable."""
    problem = replace(
        problem, training=replace(problem.training, zero=zero), hbm_usable_bytes=100.0
    )
    assume(min(problem.layers) <= problem.cluster.devices)
    try:
        solve_placement(problem)
    except MisfitError as error:
        assert error.memory.total > error.usable_bytes == 100.0
        assert error.violation == pytest.approx(error.memory.total / 100.0 - 1.0)
        assert "more than the usable 100 B" in str(error)


def test_replicas_share_what_gpipe_holds() -> None:
    """All microbatches are in flight, so of a single stage four replicas hold a quarter each."""
    problem = chain()
    single = problem.layers[1][:1]
    training = replace(problem.training, global_batch=8, pipeline_schedule="gpipe")
    cluster = replace(problem.cluster, devices=4)
    problem = replace(problem, layers={1: single}, edges=(), training=training, cluster=cluster)
    needed = explain_tightest_split(problem).memory
    assert needed.stash == 2 * single[0].stash_bytes
    assert fits(problem, needed.total) and not fits(problem, needed.total - 1)
