"""The memory beyond which nothing changes."""

import math
from dataclasses import replace

from hypothesis import given, settings

from phaze_opt.placement.most_held import most_held_bytes
from phaze_opt.placement.placement_problem import PlacementProblem
from tests.placement.strategies import problems
from tests.placement.test_least import solved_s, training_problems


def most_of_tensor_degrees(problem: PlacementProblem) -> float:
    """Return the bound over all tensor degrees."""
    return max(most_held_bytes(problem, tensor_degree) for tensor_degree in problem.layers)


@settings(max_examples=40, deadline=None)
@given(training_problems())
def test_more_memory_changes_nothing(problem: PlacementProblem) -> None:
    """With that much memory the best placement takes what it takes with any amount."""
    enough = replace(problem, hbm_usable_bytes=most_of_tensor_degrees(problem))
    endless = replace(problem, hbm_usable_bytes=1e15)
    assert solved_s(enough) == solved_s(endless)


@settings(max_examples=20, deadline=None)
@given(problems(most_layers=4, most_devices=4))
def test_one_stage_needs_no_less(problem: PlacementProblem) -> None:
    """One device that holds all layers, which is a placement, holds no more."""
    tensor_degree = min(problem.layers)
    layers = problem.layers[tensor_degree]
    held = sum(layer.stash_bytes for layer in layers)
    assert held <= most_held_bytes(problem, tensor_degree) < math.inf
