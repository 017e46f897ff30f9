"""Bounds of single passes, and what they leave out of an evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.evaluation import place_point
from phaze_opt.explanation.explain import explain
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.estimates import Chip
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.layer_cost import LayerPasses
from phaze_opt.passes.layers import estimate_degrees
from phaze_opt.passes.least_seconds import least_layers
from phaze_opt.point import Point, cost_point
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload

GPT = "gpt:layers=12,hidden=512,heads=8,sequence=256,vocab=32000"
CHIPS = [
    ("tpuv4-lanes", {}),
    ("tpuv4-phaze", {"num_tc": 4, "num_vc": 16, "pe_x": 256, "pe_y": 256, "pe_vc": 256}),
    ("tpuv4-phaze", {"num_tc": 64, "num_vc": 8, "pe_x": 16, "pe_y": 32, "pe_vc": 16}),
    ("a100-80", {}),
]
TRAININGS = [
    Training(256, 1, overlap="none", residency=False),
    Training(256, 1, "full", "adam", zero=1),
    Training(256, 1, "selective", "adam", overlap="all"),
]


@pytest.mark.parametrize(("name", "fields"), CHIPS)
@pytest.mark.parametrize("training", TRAININGS, ids=["plain", "full", "selective"])
def test_no_schedule_is_shorter_than_its_bound(
    name: str, fields: dict[str, int], training: Training
) -> None:
    """Nor is it that of another rule than the bound for many chips at once."""
    chip, cluster = load_accelerator(name, **fields), load_cluster("tpuv4-ici-flat", 64)
    cache: dict[str, Schedule] = {}
    for variant in load_workload(GPT, tensor_parallel=(1, 4)).variants:
        on = Chip(chip, cluster, default_fusion(chip))
        (estimated,) = estimate_degrees([variant], [on], training)[0].values()
        costed = estimated.cost(cache)
        least = least_layers(variant, [chip], cluster, training)
        for row, layer in enumerate(variant.layers):
            (at,) = {index for _, index in variant.nodes if index == row}
            node = next(i for i, (_, index) in enumerate(variant.nodes) if index == at)
            bound, placed_layer = estimated.least_chain()[node], costed.chain[node]
            assert replace(placed_layer, passes=bound.passes) == replace(
                bound, name=placed_layer.name
            )
            for name in LayerPasses._fields:
                (bound_s, link_s), (found_s, found_link_s) = (
                    getattr(cost.passes, name) for cost in (bound, placed_layer)
                )
                assert link_s == found_link_s
                # Nor is it tighter than necessary: the bound for many chips is at most this one.
                assert getattr(least, f"{name}_s")[row, 0] <= bound_s * (1.0 + 1e-12), layer.name
                assert bound_s <= found_s * (1.0 + 1e-12), layer.name


@pytest.mark.parametrize(("name", "fields"), CHIPS)
@pytest.mark.parametrize("training", TRAININGS, ids=["plain", "full", "selective"])
@pytest.mark.parametrize("hbm_gib", [80, 0.01])
def test_tensor_degrees_that_are_left_out_change_nothing(
    name: str, fields: dict[str, int], training: Training, hbm_gib: float
) -> None:
    """The evaluation equals that with all tensor degrees scheduled first, layers and reason too."""
    chip = load_accelerator(name, **fields, hbm_gib=hbm_gib)
    workload = load_workload(GPT, tensor_parallel=(1, 2, 4, 8))
    point = Point(workload, chip, load_cluster("tpuv4-ici-flat", 64), training)
    few: dict[str, Schedule] = {}
    costed = cost_point(point, few)
    answer = place_point(costed)
    needed = len(few)
    problem = costed.problem
    everything = replace(problem, layers=dict(problem.layers), least=None)
    assert place_point(replace(costed, problem=everything)) == answer
    assert needed <= len(few)
    assert answer.feasible == (hbm_gib > 1)
    # The bounds are close enough to leave tensor degrees out; where nothing fits, only one is
    # reported.
    assert needed < len(few)


def test_an_explanation_is_of_the_same_evaluation() -> None:
    """It asks for whatever it needs."""
    chip, cluster = load_accelerator("tpuv4-lanes"), load_cluster("tpuv4-ici-flat", 64)
    workload = load_workload(GPT, tensor_parallel=(1, 2))
    training = Training(256, 1)
    explained = explain(workload, chip, cluster, training)
    costed = cost_point(Point(workload, chip, cluster, training))
    everything = replace(costed.problem, layers=dict(costed.problem.layers), least=None)
    assert explained.evaluation == place_point(replace(costed, problem=everything))
    assert explained.searched_tensor == (1, 2)
