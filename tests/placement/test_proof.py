"""What is said to be optimal is: no split of any degrees is faster when it is replayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement import best, proof
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training
from tests.placement import all_splits
from tests.placement.test_least import training_problems

SAME = 1e-9


@settings(max_examples=60, deadline=None)
@given(training_problems())
def test_equals_brute_force(problem: PlacementProblem) -> None:
    """Of small chains every split is tried; the search finds the same time, and says optimal.

    But for schedules that split the backward, which try even stages and the best ones of 1F1B.
    """
    if problem.training.splits_backward:
        training = replace(problem.training, pipeline_schedule="1f1b")
        problem = replace(problem, training=training)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best, "_FEW_SPLITS", 0)
        patch.setattr(all_splits, "MOST_STAGES", 99)
        tried_s = all_splits.try_all(problem).time_s
        try:
            placement = solve_placement(problem)
        except InfeasibleError:
            assert tried_s == np.inf
            return
    assert placement.status == "optimal"
    assert placement.time_per_batch_s == pytest.approx(tried_s, rel=SAME)
    assert (placement.bound_s, placement.gap) == (placement.time_per_batch_s, 0.0)


@settings(max_examples=30, deadline=None)
@given(training_problems())
def test_without_effort_the_bound_still_holds(problem: PlacementProblem) -> None:
    """No split is below it, and what it does not reach is called feasible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best, "_FEW_SPLITS", 0)
        patch.setattr(proof, "MOST_STEPS", 0)
        patch.setattr(proof, "_LEAST_STEPS", 0)
        try:
            placement = solve_placement(problem)
        except InfeasibleError:
            return
    least_s = solve_placement(problem).time_per_batch_s
    assert placement.bound_s is not None
    assert placement.bound_s <= least_s * (1.0 + SAME)
    assert placement.gap is not None
    assert placement.gap == pytest.approx(
        1.0 - placement.bound_s / placement.time_per_batch_s, abs=1e-15
    )
    assert placement.status == ("feasible" if placement.gap > SAME else "optimal")


@pytest.mark.parametrize("seed", range(3))
def test_no_split_of_random_settings_is_faster(seed: int) -> None:
    """Short pipelines with few microbatches, uneven layers and heavy heads, and memory that binds.

    ``python -m tests.placement.all_splits`` draws more of them from captured models.
    """
    optimal = 0
    for problem in all_splits.settings(seed, 40, all_splits.plain_layers):
        placement = solve_placement(problem)
        tried = all_splits.try_all(problem)
        assert placement.bound_s is not None
        assert placement.bound_s <= tried.time_s * (1.0 + SAME)
        if placement.status == "optimal":
            optimal += 1
            assert tried.time_s >= placement.time_per_batch_s * (1.0 - SAME), tried.what
    assert optimal >= 0.98 * 40


def heavy_head(microbatches: int, devices: int = 2) -> PlacementProblem:
    """Return ten equal layers and a heavy head, which do not fit on one device."""
    layers = [LayerCost(f"block.{i}", LayerPasses.of(1.0, 2.0), 9, 0, 1, 1, 8) for i in range(10)]
    layers.append(LayerCost("head", LayerPasses.of(2.0, 6.0), 90, 0, 1, 1, 0))
    return PlacementProblem(
        layers={1: tuple(layers)},
        edges=tuple((i, i + 1) for i in range(10)),
        cluster=Cluster("flat", (NetworkLevel(1e6, 0.0, "switch"),), devices),
        training=Training(microbatches, overlap="none"),
        hbm_usable_bytes=500.0,
        hbm_bytes_per_s=1e6,
    )


@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
def test_tied_splits_give_one_answer(microbatches: int) -> None:
    """Where splits take equally long, the answer is the same however the layers are named."""
    problem = heavy_head(microbatches)
    named = [layer.with_fields(name=f"x{index}") for index, layer in enumerate(problem.layers[1])]
    renamed = solve_placement(replace(problem, layers={1: tuple(named)}))
    assert sizes(renamed) == sizes(solve_placement(problem))


def sizes(placement: Placement) -> list[int]:
    """Return how many layers each stage holds."""
    return [len(stage.layers) for stage in placement.stages]


def test_a_given_placement_is_not_searched() -> None:
    """Nothing is said about degrees that were given."""
    problem = replace(heavy_head(8), hbm_usable_bytes=1e9)
    given_one = solve_placement(problem, Degrees(2, 1, 1))
    assert (given_one.status, given_one.bound_s, given_one.gap) == (None, None, None)


def test_interleaved_pipelines_are_proven_among_even_parts() -> None:
    """All degrees are tried, or bounded."""
    problem = heavy_head(8)
    training = Training(8, pipeline_schedule="interleaved", interleave=2)
    problem = replace(problem, training=training, hbm_usable_bytes=1e9)
    placement = solve_placement(problem)
    assert placement.status == "optimal"
    assert placement.time_per_batch_s == pytest.approx(all_splits.try_all(problem).time_s)


@pytest.mark.parametrize(("devices", "split"), [(2, [8, 3]), (3, [5, 5, 1])])
def test_few_microbatches_move_layers_away_from_the_head(devices: int, split: list[int]) -> None:
    """The closed form has [7, 4] and [4, 4, 3], which take 1.9 % and 8.3 % longer."""
    problem = heavy_head(2, devices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best, "_FEW_SPLITS", 0)
        patch.setattr(best, "_FEW_CANDIDATES", 0)
        placement = solve_placement(problem)
        patch.setattr(best, "faster_splits", lambda tensor_degrees, known_s, time: 0.0)
        by_closed_form_s = solve_placement(problem).time_per_batch_s
    assert sizes(placement) == split
    assert placement.status == "optimal"
    assert by_closed_form_s > 1.018 * placement.time_per_batch_s
