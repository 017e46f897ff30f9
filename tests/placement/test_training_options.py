from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import OptimizerName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.memory import Shards, stage_memory
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training
from tests.placement.strategies import all_degrees, problems
from tests.placement.test_solve_placement import chain


def with_options(problem: PlacementProblem, **options: Any) -> PlacementProblem:
    """Return a problem with other training options."""
    return replace(problem, training=replace(problem.training, **options))


def attempt(problem: PlacementProblem, degrees: Degrees) -> Placement | None:
    """Return the even split of given degrees, or nothing where it does not fit."""
    try:
        return solve_placement(problem, degrees)
    except InfeasibleError:
        return None


@settings(max_examples=30, deadline=None)
@given(problems(most_layers=4, most_devices=8))
def test_memory_never_grows_with_the_zero_stage(problem: PlacementProblem) -> None:
    """Stages 0 to 3 hold less and less; what fits keeps fitting."""
    for degrees in all_degrees(problem):
        held: list[int] = []
        for zero in (0, 1, 2, 3):
            placement = attempt(with_options(problem, zero=zero), degrees)
            if placement is None:
                assert not held
                continue
            held.append(max(stage.memory_bytes.total for stage in placement.stages))
        assert held == sorted(held, reverse=True)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=6),
    st.integers(1, 64),
    st.integers(1, 4),
    st.sampled_from(["sgd", "adam"]),
)
def test_a_stage_never_grows_with_the_zero_stage(
    sizes: list[tuple[int, int]], data: int, in_flight: int, optimizer: OptimizerName
) -> None:
    """Stages 0 to 3 hold less and less, what stage 3 gathers included."""
    layers = [LayerCost("", LayerPasses(), held, 0, 1, transient, 0) for held, transient in sizes]
    held = [
        stage_memory(layers, in_flight, OPTIMIZERS[optimizer], Shards.of(zero, data))
        for zero in range(4)
    ]
    states = [memory.parameters + memory.gradients + memory.optimizer for memory in held]
    assert states == sorted(states, reverse=True)
    totals = [memory.total for memory in held]
    assert totals == sorted(totals, reverse=True)


def test_zero_3_gathers_twice_per_microbatch() -> None:
    """Weights are gathered in forward and backward of every microbatch, and the time says so."""
    problem = with_options(chain(), zero=3, overlap="none")
    placement = solve_placement(problem, Degrees(1, 8, 1))
    gather_s = placement.time_breakdown_s["parameter_gather"]
    weights = 6 * 100 * 2
    assert gather_s == pytest.approx(placement.microbatches * 2 * 7 / 8 * weights / 1e3)
    total = sum(placement.time_breakdown_s.values())
    assert total == pytest.approx(placement.time_per_batch_s, rel=1e-9)


def test_gpipe_holds_all_microbatches() -> None:
    """GPipe stashes every microbatch on every stage and takes as long for equal stages."""
    first = solve_placement(chain(), Degrees(3, 1, 1))
    gpipe = solve_placement(with_options(chain(), pipeline_schedule="gpipe"), Degrees(3, 1, 1))
    assert [stage.memory_bytes.stash for stage in gpipe.stages] == [2 * 10 * 16] * 3
    assert [stage.memory_bytes.stash for stage in first.stages] == [60, 40, 20]
    assert gpipe.time_per_batch_s == pytest.approx(first.time_per_batch_s, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(problems(most_layers=5, most_devices=8))
def test_gpipe_and_zero_are_solved_too(problem: PlacementProblem) -> None:
    """Under every option the answer is no worse than any given degrees."""
    for options in ({"pipeline_schedule": "gpipe"}, {"zero": 1}, {"zero": 3}):
        changed = with_options(problem, **options)
        times = [
            placement.time_per_batch_s
            for degrees in all_degrees(changed)
            if (placement := attempt(changed, degrees)) is not None
        ]
        if times:
            best = solve_placement(changed).time_per_batch_s
            assert best <= min(times) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 0}, "global_batch is 0"),
        ({"microbatch": 0}, "microbatch is 0"),
        ({"microbatch": 17}, "microbatch is 17"),
        ({"recompute": "some"}, "recompute is 'some'"),
        ({"optimizer": "lamb"}, "optimizer is 'lamb'"),
        ({"zero": 4}, "zero is 4"),
        ({"pipeline_schedule": "zigzag"}, "pipeline_schedule is 'zigzag'"),
        ({"overlap": "some"}, "overlap is 'some'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    """Each option is checked, and the sentence says which one is wrong."""
    with pytest.raises(InputError, match=message):
        replace(Training(global_batch=16), **options)


def test_shared_out_gradients_are_whole_one_layer_at_a_time() -> None:
    """ZeRO 2 adds the largest layer's gradients, ZeRO 3 its weights too, less the own share."""
    layers = chain().layers[1]
    largest = max(layer.parameters for layer in layers)
    adam = OPTIMIZERS["adam"]
    held = [stage_memory(layers, 1, adam, Shards.of(zero, 4)).transient for zero in range(4)]
    assert held[0] == held[1]
    assert held[2] - held[1] == largest * adam.gradient_bytes * 3 // 4
    assert held[3] - held[2] == largest * adam.weight_bytes * 3 // 4
