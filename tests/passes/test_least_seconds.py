"""Least seconds of layers: at most what an evaluation finds, under every option."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.estimates import Chip, schedule_problems
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.layer_cost import LeastLayers
from phaze_opt.passes.least_seconds import least_layers, links_s, longest_layers
from phaze_opt.point import CostedPoint, Point, cost_point, variants_within
from phaze_opt.precision import ATTENTION_PRECISIONS, RECIPES
from phaze_opt.scheduling.solve_schedule import solve_schedule
from phaze_opt.training import Training
from phaze_opt.workload.bf16_layers import with_bf16_layers
from phaze_opt.workload.fused_accumulation import with_fused_accumulation
from phaze_opt.workload.graph import Workload, WorkloadVariant
from phaze_opt.workload.zoo import load_workload
from tests.strategies import any_accelerators

CLUSTER = load_cluster("tpuv4-ici-flat", 64)
EXPERTS = (
    "moe:layers=2,hidden=512,heads=8,sequence=512,vocab=4096,experts=8,top_k=2,expert_ffn=384,"
    "shared=1,ffn=1024,dense_layers=1,q_rank=192,kv_rank=128,nope_dim=64,rope_dim=32,v_dim=64"
)
"""A dense layer, experts of which one is shared, and latent attention of wide heads."""
MODELS = (
    "bert-large",
    "gpt2-xl",
    "llama2-7b",
    "gpt:layers=2,hidden=512,heads=8,sequence=512,vocab=4096,attention=flash",
    "llama:layers=2,hidden=512,heads=8,kv_heads=2,ffn=1024,sequence=512,vocab=4096,attention=eager",
    EXPERTS,
)
SLACK = 1.0 + 1e-9
GPUS = ("v100", "a100-80", "h100")
TPUS = ("tpuv4-phaze", "tpuv4-lanes", "tpuv5e")

trainings = st.builds(
    Training,
    global_batch=st.just(64),
    microbatch=st.sampled_from([1, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    optimizer=st.sampled_from(["sgd", "adam", "adam-bf16", "adam-foreach"]),
    sequence_parallel=st.booleans(),
    zero=st.sampled_from([0, 1, 3]),
    overlap=st.sampled_from(["none", "partial", "data", "experts", "all"]),
    fused_optimizer=st.booleans(),
    recompute_early_stop=st.booleans(),
    gather_copies=st.booleans(),
    residency=st.booleans(),
    launch=st.sampled_from(["graphs", "compiled", "eager"]),
    gradient_dtype=st.sampled_from([None, "bf16"]),
    precision=st.sampled_from(["bf16", "bf16", *RECIPES]),
    attention_precision=st.sampled_from(["bf16", "bf16", *ATTENTION_PRECISIONS]),
    fused_accumulation=st.booleans(),
    bf16_layers_at_end=st.sampled_from([0, 0, 1]),
    fp8_transposes=st.booleans(),
)


def able(name: str, **fields: float) -> Accelerator:
    """Return a preset whose arrays multiply in every precision."""
    rates = {
        f"calibration.attention_{precision}_{direction}": rate
        for precision, rate in (("fp8", 1.6), ("mxfp8", 1.3))
        for direction in ("rate", "backward_rate")
    }
    chip = load_accelerator(name, fp8_ratio=2.0, fp4_ratio=3.0, int8_ratio=2.0, **rates, **fields)
    return replace(chip, fp8_column_copies=False)


@functools.cache
def workload(model: str, microbatch: int, sequence_parallel: bool) -> Workload:
    """Return a model at two tensor degrees."""
    # 25 heads, and 1,024 positions that do not divide by 5; 2 key-value heads.
    wide = 2
    if model == "gpt2-xl":
        wide = 1 if sequence_parallel else 5
    return load_workload(
        model,
        microbatch=(microbatch,),
        tensor_parallel=(wide,) if sequence_parallel else (1, wide),
        sequence_parallel=sequence_parallel,
    )


def accumulating(model: Workload, training: Training) -> list[WorkloadVariant]:
    """Return a model as it is trained, with products that add gradients up if they do."""
    fused = [with_fused_accumulation(variant, training) for variant in model.variants]
    return [with_bf16_layers(variant, training) for variant in fused]


def costed(model: Workload, chip: Accelerator, training: Training, **options: Any) -> CostedPoint:
    """Estimate and schedule the layers of a model on one chip."""
    return cost_point(Point(model, chip, CLUSTER, training, **options))


def check_bounds(
    variant: WorkloadVariant, least: LeastLayers, row: int, exact: CostedPoint
) -> None:
    """Compare every layer with one chip's evaluation."""
    chain = exact.problem.layers[variant.tensor_parallel]
    for (_, index), cost in zip(variant.nodes, chain, strict=True):
        for name, own in cost.passes._asdict().items():
            assert getattr(least, f"{name}_s")[index, row] <= own.seconds * SLACK


@pytest.mark.parametrize("model", MODELS)
@given(
    chips=st.lists(any_accelerators, min_size=1, max_size=2),
    tpu=st.sampled_from(TPUS),
    training=trainings,
)
@settings(max_examples=4, deadline=None)
def test_no_pass_is_shorter(
    model: str, chips: list[Accelerator], tpu: str, training: Training
) -> None:
    """On chips of any kind and under every option a schedule takes at least the bound.

    And at most what all operators take one after another.
    """
    chips = [able(tpu), *chips]
    captured = workload(model, training.microbatch, training.sequence_parallel)
    # What is no part of a schedule.
    training = replace(training, zero=min(training.zero, 1), gather_copies=False, launch="graphs")
    for variant in accumulating(captured, training):
        least = least_layers(variant, chips, CLUSTER, training)
        longest = longest_layers(variant, Chips(chips), CLUSTER, training)
        by_direction = [
            {
                "forward": bounds.forward_s,
                "backward": bounds.backward_s,
                "recompute": bounds.recompute_s,
            }
            for bounds in (least, longest)
        ]
        names = [layer.name for layer in variant.layers]
        for row, chip in enumerate(chips):
            on = Chip(chip, CLUSTER, default_fusion(chip))
            for problem in schedule_problems(variant, on, training):
                name, direction = problem.name.rsplit(" ", 1)
                bound_s, longest_s = (
                    of_direction[direction][names.index(name)] for of_direction in by_direction
                )
                makespan_s = solve_schedule(problem, effort=500).makespan_s
                assert bound_s[row] <= makespan_s * SLACK
                assert makespan_s <= longest_s[row] * SLACK


@pytest.mark.parametrize("model", MODELS)
@given(training=trainings)
@settings(max_examples=3, deadline=None)
def test_no_pass_is_shorter_on_gpus(model: str, training: Training) -> None:
    """Operators run one after another there, so that the bound is exact, cache included."""
    chips = [able(name) for name in GPUS]
    captured = workload(model, training.microbatch, training.sequence_parallel)
    for variant in accumulating(captured, training):
        least = least_layers(variant, chips, CLUSTER, training)
        for row, chip in enumerate(chips):
            exact = costed(captured, chip, training)
            check_bounds(variant, least, row, exact)
            sent_s = links_s(variant, CLUSTER, training, default_fusion(chip))
            assert sent_s is not None
            chain = exact.problem.layers[variant.tensor_parallel]
            for (_, index), cost in zip(variant.nodes, chain, strict=True):
                forward, backward, again = (each.link_s for each in cost.passes)
                assert sent_s[:, index].tolist() == [forward, backward + again]
                own_s = cost.passes.forward.seconds
                assert least.forward_s[index, row] == pytest.approx(own_s, rel=1e-9)


@pytest.mark.parametrize("dispatcher", ["nccl", "deepep", "ideal"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_tokens_use_the_network_as_long_as_in_the_passes(dispatcher: Any, recompute: Any) -> None:
    """Whatever brings them to experts on other devices."""
    chip, captured = load_accelerator("h100"), workload(EXPERTS, 1, False)
    training = Training(
        64, recompute=recompute, overlap="data", expert_parallel=4, dispatcher=dispatcher
    )
    exact = costed(captured, chip, training)
    for variant in variants_within(captured, CLUSTER, training):
        sent_s = links_s(variant, CLUSTER, training, default_fusion(chip))
        assert sent_s is not None and sent_s.any()
        chain = exact.problem.layers[variant.tensor_parallel]
        for (_, index), cost in zip(variant.nodes, chain, strict=True):
            forward, backward, again = (each.link_s for each in cost.passes)
            assert sent_s[:, index].tolist() == [forward, backward + again]


@pytest.mark.parametrize("residency", [False, True])
def test_proven_schedules_are_bounded_too(residency: bool) -> None:
    """CP-SAT finds nothing shorter than the bound either."""
    training = Training(64, residency=residency)
    captured = workload("bert-large", 1, False)
    chips = [able(name) for name in TPUS]
    least = least_layers(captured.variants[0], chips, CLUSTER, training)
    for row, chip in enumerate(chips):
        check_bounds(captured.variants[0], least, row, costed(captured, chip, training, prove=True))


@pytest.mark.parametrize("fusion", ["none", "elementwise", "epilogue"])
def test_every_fusion_is_bounded(fusion: Any) -> None:
    """Also those that are not the chip's own."""
    training = Training(64, recompute="selective")
    captured = workload("gpt2-xl", 1, False)
    chips = [able(name) for name in TPUS]
    least = least_layers(captured.variants[0], chips, CLUSTER, training, fusion)
    for row, chip in enumerate(chips):
        check_bounds(
            captured.variants[0], least, row, costed(captured, chip, training, fusion=fusion)
        )


def test_bounds_are_near() -> None:
    """Half the passes of a block take a twentieth longer at most, none a quarter."""
    training = Training(64, residency=False, overlap="none")
    captured = workload("bert-large", 1, False)
    chips = [able(name, glb_mib=size) for name in TPUS for size in (16, 64)]
    ratios = []
    for variant in accumulating(captured, training):
        least = least_layers(variant, chips, CLUSTER, training)
        block = [layer.name for layer in variant.layers].index("block")
        for row, chip in enumerate(chips):
            exact = costed(captured, chip, training).costs[variant.tensor_parallel].layers[block]
            ratios.append(exact.forward_s / least.forward_s[block, row])
            ratios.append(exact.backward_s / least.backward_s[block, row])
    assert np.median(ratios) < 1.05
    assert max(ratios) < 1.25


def test_chips_may_be_given_with_their_columns() -> None:
    """The numbers are those of a list, bit for bit, and each chip's own."""
    chips = [able(name, glb_mib=size) for name in TPUS for size in (8, 64)]
    variant, training = workload("bert-large", 1, False).variants[0], Training(64)
    together = least_layers(variant, Chips(chips), CLUSTER, training)
    for row, chip in enumerate(chips):
        alone = least_layers(variant, [chip], CLUSTER, training)
        assert np.array_equal(together.backward_s[:, row], alone.backward_s[:, 0])
        assert np.array_equal(together.forward_s[:, row], alone.forward_s[:, 0])


@pytest.mark.parametrize("rooflines", [False, True])
def test_runs_that_share_their_passes_are_bounded_once(
    rooflines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage of ZeRO changes no pass, but the copies around what its replicas exchange."""
    variant, chips = (
        workload("bert-large", 1, False).variants[0],
        Chips([load_accelerator("tpuv5e")]),
    )
    training = Training(64, gather_copies=True)
    first = least_layers(variant, chips, CLUSTER, training, rooflines=rooflines)
    for name in ("least_seconds", "roofline_seconds"):
        monkeypatch.delattr(f"phaze_opt.passes.least_seconds.{name}")
    other = replace(training, zero=3)
    again = least_layers(variant, chips, CLUSTER, other, rooflines=rooflines)
    assert np.array_equal(again.forward_s > first.forward_s, first.forward_s > 0.0)
    with pytest.raises(NameError):
        least_layers(variant, chips, CLUSTER, replace(other, residency=False), rooflines=rooflines)


@dataclass(frozen=True)
class WiderTraining(Training):
    """Training with an option that nobody told the bounds of."""

    gradient_compression: bool = False


@dataclass(frozen=True)
class WiderAccelerator(Accelerator):
    """A chip with a property that nobody told the bounds of."""

    sparsity: float = 1.0


@dataclass(frozen=True)
class WiderCalibration(Calibration):
    """A calibration with a property that nobody told the bounds of."""

    launch_overlap: float = 0.0


def refuse(chips: list[Accelerator], training: Training) -> str:
    """Return the sentence with which the bounds refuse."""
    variant = workload("bert-large", 1, False).variants[0]
    with pytest.raises(InputError) as refused:
        least_layers(variant, chips, CLUSTER, training)
    return str(refused.value)


def test_what_is_not_declared_is_refused() -> None:
    """A new field or a new value is never ignored."""
    chip, training = load_accelerator("tpuv4-phaze"), Training(64)
    assert "gradient_compression" in refuse([chip], WiderTraining(64))
    known = {name: getattr(chip, name) for name in Accelerator.__dataclass_fields__}
    assert "sparsity" in refuse([chip, WiderAccelerator(**known)], training)
    wider = replace(chip, calibration=WiderCalibration())
    assert "launch_overlap" in refuse([chip, wider], training)
    newer = Training(64)
    object.__setattr__(newer, "overlap", "everything")
    assert "overlap = everything" in refuse([chip], newer)


def test_chips_are_of_one_kind() -> None:
    """Chips that fuse and schedule in other ways are bounded apart; none is an error."""
    training = Training(64)
    both = [load_accelerator("tpuv4-phaze"), load_accelerator("h100")]
    assert "concurrent_operators" in refuse(both, training)
    assert "no accelerators" in refuse([], training)


@given(
    chip=any_accelerators,
    training=trainings,
    lane_rate=st.sampled_from([0.5, 1.25]),
    rooflines=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_no_layer_is_faster_with_other_lanes(
    chip: Accelerator, training: Training, lane_rate: float, rooflines: bool
) -> None:
    """Bounds know how fast the lanes are, as evaluations do in what-if questions."""
    chip = replace(chip, fp8_column_copies=False)
    captured = workload(MODELS[3], training.microbatch, training.sequence_parallel)
    exact = costed(captured, chip, training, lane_rate=lane_rate)
    for variant in accumulating(captured, training):
        least = least_layers(
            variant, [chip], CLUSTER, training, rooflines=rooflines, lane_rate=lane_rate
        )
        check_bounds(variant, least, 0, exact)


def test_rooflines_leave_out_what_may_stay() -> None:
    """Where a slow memory binds, a large buffer lowers the bounds of the blocks."""
    chip = replace(load_accelerator("tpuv4-lanes"), hbm_bytes_per_s=1e11, glb_bytes=2**29)
    (variant,) = (
        candidate
        for candidate in workload(MODELS[3], 1, False).variants
        if candidate.tensor_parallel == 1
    )
    with_it, without = (
        least_layers(variant, [chip], CLUSTER, Training(64, residency=may_stay), rooflines=True)
        for may_stay in (True, False)
    )
    for passes in ("forward_s", "backward_s"):
        assert (getattr(with_it, passes) <= getattr(without, passes)).all()
        assert getattr(with_it, passes)[1, 0] < 0.99 * getattr(without, passes)[1, 0]
