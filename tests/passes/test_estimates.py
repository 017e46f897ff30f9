"""Passes that are estimated together are those that each would be by itself."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from phaze_opt.choices import Overlap, Recompute
from phaze_opt.estimator.estimate import estimate_on_cores
from phaze_opt.estimator.single import attention_graph
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.estimates import Chip, EstimatedLayers, estimate_layers, with_lane_rate
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.scheduled import run_layers
from phaze_opt.training import Training
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload

MODEL = "gpt:layers=2,hidden=256,heads=4,sequence=128,vocab=512"


@cache
def workload() -> Workload:
    """Capture a small model."""
    return load_workload(MODEL, tensor_parallel=(1, 2), microbatch=(1,))


def estimated(names: list[str], training: Training, rate: float = 1.0) -> list[EstimatedLayers]:
    """Estimate all tensor degrees on some chips at once."""
    chips = [
        Chip(chip, load_cluster("flat-4GiB", 8), default_fusion(chip), rate)
        for chip in map(load_accelerator, names)
    ]
    return [
        each
        for of_chip in estimate_layers(workload().variants, chips, training)
        for each in of_chip
    ]


@pytest.mark.parametrize("name", ["tpuv4-phaze", "a100-80"])
@pytest.mark.parametrize("rate", [1.0, 2.0])
@pytest.mark.parametrize("residency", [False, True])
@pytest.mark.parametrize(("overlap", "recompute"), [("none", "selective"), ("all", "full")])
def test_the_least_is_that_of_each_pass(
    name: str, rate: float, residency: bool, overlap: Overlap, recompute: Recompute
) -> None:
    """To the bit, whether it is read from the joint table or found; no schedule takes less."""
    training = Training(8, 1, recompute, residency=residency, overlap=overlap)
    for layers in estimated([name], training, rate):
        least = layers.least()
        scheduled = run_layers(layers, training, {})
        for of_layer, own, runs in zip(layers.passes, least, scheduled, strict=True):
            assert [*own] == [estimated_pass.direction for estimated_pass in of_layer]
            for estimated_pass in of_layer:
                assert own[estimated_pass.direction] == (
                    estimated_pass.least_s,
                    estimated_pass.link_s,
                )
            assert own["forward"].seconds <= runs.forward.schedule.makespan_s * (1 + 1e-9)
            assert own["backward"].seconds <= runs.backward.schedule.makespan_s * (1 + 1e-9)


def test_chips_together_are_chips_alone() -> None:
    """The problems and bounds of a chip do not depend on those estimated with it."""
    names, training = ["tpuv4-phaze", "tpuv4-lanes"], Training(8, 1, residency=False)
    together = estimated(names, training)
    alone = [each for name in names for each in estimated([name], training)]
    assert len(together) == len(alone) == 4
    for in_group, other in zip(together, alone, strict=True):
        assert in_group.least() == other.least()
        assert [each.problem for own in in_group.passes for each in own] == [
            each.problem for own in other.passes for each in own
        ]


def test_runs_that_share_their_passes_are_estimated_once() -> None:
    """The stage of ZeRO changes no pass; what runs and what may stay on the chip does."""
    training = Training(8, 1)
    shared = [estimated(["tpuv4-phaze"], replace(training, zero=zero)) for zero in (0, 1, 3)]
    for others in shared:
        assert all(each is other for each, other in zip(others, shared[0], strict=True))
    for changed in (replace(training, residency=False), replace(training, recompute="selective")):
        assert estimated(["tpuv4-phaze"], changed)[0] is not shared[0][0]


@pytest.mark.parametrize("rate", [0.5, 1.25, 4.0])
def test_faster_lanes_shorten_their_time_and_what_waits_for_it(rate: float) -> None:
    """Arrays take as long as before; so does fused attention without what its arrays wait for."""
    chip = load_accelerator("h100")
    shape = AttentionShape(1, 512, 512, 8, 8, 64, causal=True)
    before = estimate_on_cores(attention_graph(shape), chip, chip.num_tc)
    after = with_lane_rate(before, rate)
    assert before.exposed_lanes_s[0] > 0.0
    np.testing.assert_allclose(after.vc_s * rate, before.vc_s)
    np.testing.assert_allclose(after.exposed_lanes_s * rate, before.exposed_lanes_s)
    arrays_s = before.tc_s - before.exposed_lanes_s
    np.testing.assert_allclose(after.tc_s - after.exposed_lanes_s, arrays_s)
    np.testing.assert_allclose(after.overhead_s, before.overhead_s)
