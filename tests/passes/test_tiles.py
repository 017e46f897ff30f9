"""Operators of a pass that run tile by tile on a managed buffer."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from phaze_opt.choices import ResidencyChoice
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.least_energy import least_energies_j
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.estimates import Chip, EstimatedLayers, estimate_layers
from phaze_opt.passes.least_seconds import least_layers
from phaze_opt.passes.scheduled import ScheduledLayer, run_layers
from phaze_opt.training import Training
from phaze_opt.whole_space.scalar_passes import Passes
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload
from tests.scheduling.exhaustive_tiles import replayed_s

NETWORK = load_cluster("tpuv4-ici-flat", 1)
CHIPS = (
    load_accelerator("tpuv4-lanes", glb_mib=4),
    load_accelerator("tpuv4-lanes", glb_mib=16, num_tc=4, pe_x=256, pe_y=256, num_vc=16),
    load_accelerator("tpuv4-phaze", glb_mib=2),
)


@functools.cache
def workload(model: str, attention: Literal["eager", "flash"]) -> Workload:
    """Return a model at both microbatches."""
    return load_workload(model, microbatch=(1, 4), attention=attention)


def run(
    chip: Accelerator,
    residency: ResidencyChoice,
    attention: Literal["eager", "flash"] = "eager",
    model: str = "bert-large",
    **options: Any,
) -> Evaluation:
    """Evaluate a device by itself."""
    training = Training(64, 1, residency=residency)
    roomy = replace(chip, hbm_bytes=2**42)
    return evaluate(workload(model, attention), roomy, NETWORK, training, **options)


def estimated(chip: Accelerator, microbatch: int, residency: ResidencyChoice) -> EstimatedLayers:
    """Estimate the passes of BERT with an eager attention."""
    (variant,) = workload("bert-large", "eager").variants_for(microbatch)
    training = Training(64, microbatch, residency=residency)
    ((layers,),) = estimate_layers([variant], [Chip(chip, NETWORK, "epilogue")], training)
    return layers


def scheduled(chip: Accelerator, microbatch: int) -> tuple[ScheduledLayer, ...]:
    """Schedule them with tiles."""
    return run_layers(estimated(chip, microbatch, "tiles"), Training(64, microbatch), {})


def test_eager_attention_gains_most_of_what_fused_attention_gains() -> None:
    """A block of BERT with 4 MiB: scores stay on the chip head by head, as in a fused kernel."""
    whole, tiled, fused = (
        run(CHIPS[0], *options).throughput_samples_per_s
        for options in ((True,), ("tiles",), (True, "flash"))
    )
    assert fused > 1.15 * whole
    assert tiled > whole + 0.7 * (fused - whole)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("microbatch", [1, 4])
def test_no_pass_is_slower_and_every_bound_holds(chip: Accelerator, microbatch: int) -> None:
    """Of one chip, of many chips, of their peak rates, and of the checker, which is apart."""
    (variant,) = workload("bert-large", "eager").variants_for(microbatch)
    training = Training(64, microbatch, residency="tiles")
    chips = Chips([chip])
    bounds = [
        least_layers(variant, chips, NETWORK, training, rooflines=rooflines)
        for rooflines in (False, True)
    ]
    checked = Passes(variant, NETWORK, training, "epilogue").seconds(chip, "chip")
    whole = run_layers(estimated(chip, microbatch, True), Training(64, microbatch), {})
    own = estimated(chip, microbatch, "tiles")
    groups = 0
    for at, (layer, other) in enumerate(zip(scheduled(chip, microbatch), whole, strict=True)):
        for place, name in enumerate(("forward", "backward")):
            found, without = layer.passes[name].schedule, other.passes[name].schedule
            assert found.makespan_s <= without.makespan_s
            least_s = [
                *(getattr(each, f"{name}_s")[at, 0] for each in bounds),
                checked[variant.kinds.index(at)][place],
                own.passes[at][place].least_s,
                found.bound_s,
            ]
            assert max(least_s) <= found.makespan_s * (1.0 + 1e-9)
            groups += 0 if found.residency is None else len(found.residency.groups)
    assert groups > 0


@pytest.mark.parametrize("chip", CHIPS)
def test_schedules_keep_the_rules_and_their_seconds_and_joules_add_up(chip: Accelerator) -> None:
    """Room, order and seconds, as counted apart; tiles take no less than whole operators."""
    tiled = [
        each
        for layer in scheduled(chip, 1)
        for each in layer.all()
        if each.schedule.residency is not None and each.schedule.residency.groups
    ]
    assert tiled
    for own in tiled:
        problem = own.problem.residency
        assert problem is not None and problem.tiling is not None
        assert own.schedule.residency is not None
        taken_s = replayed_s(problem, problem.tiling, own.schedule)
        assert taken_s == pytest.approx(own.schedule.makespan_s, rel=1e-9)
        chosen, whole = own.chosen, own.estimates.all_cores
        for group in own.schedule.residency.groups:
            for one in group.operators:
                entry = own.schedule.operators[one]
                taken = float(chosen.latency_s[one])
                # Vector work may run on a part of the cores, which takes longer.
                assert entry.end_s - entry.start_s >= taken * (1.0 - 1e-9)
                assert chosen.tc_s[one] >= whole.tc_s[one]
                assert chosen.glb_s[one] >= whole.glb_s[one]
        least_j = least_energies_j([own.graph], Chips([chip]), NETWORK, residency="tiles")
        assert least_j[0, 0, 0] <= float(chosen.energy_j.sum()) * (1.0 + 1e-9)
        flow = float(chosen.hbm_s.sum()) * chip.sustained_hbm_bytes_per_s
        assert flow == pytest.approx(sum(own.schedule.residency.hbm_bytes))


@pytest.mark.parametrize("name", ["a100-80", "h100"])
def test_a_cache_knows_no_tiles(name: str) -> None:
    """On GPUs the option means whole tensors, to the bit."""
    chip = load_accelerator(name)
    whole, tiled = (run(chip, residency) for residency in (True, "tiles"))
    assert tiled.throughput_samples_per_s == whole.throughput_samples_per_s
    assert tiled.energy_by_level_j == whole.energy_by_level_j
    assert tiled.layers == whole.layers


def test_whole_tensors_are_as_without_the_option() -> None:
    """Where nothing can be handed on by tiles, and where tiles are not asked for."""
    chip = CHIPS[0]
    for layer in estimated(chip, 1, True).passes:
        assert all(each.residency is None or each.residency.tiling is None for each in layer)
    whole, tiled = (estimated(chip, 1, residency) for residency in (True, "tiles"))
    for one, other in zip(whole.passes, tiled.passes, strict=True):
        for without, with_tiles in zip(one, other, strict=True):
            if without.residency is None:
                continue
            assert with_tiles.residency is not None
            for name in ("working_bytes", "hbm_bytes", "other_s", "saved_bytes"):
                kept, own = getattr(without.residency, name), getattr(with_tiles.residency, name)
                np.testing.assert_array_equal(kept, own)


def test_a_proof_with_tiles_is_never_longer() -> None:
    """With ``prove``, all orders and groups are searched where they are few enough."""
    fast, proven = (run(CHIPS[0], "tiles", prove=prove) for prove in (False, True))
    for layer, other in zip(proven.layers, fast.layers, strict=True):
        assert layer.forward_s <= other.forward_s
        assert layer.forward_schedule.gap <= other.forward_schedule.gap
        assert layer.forward_schedule.status == "optimal"
