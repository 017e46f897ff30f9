"""Fused attention: exposed lanes, laws over chips and sizes."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.estimator.estimate import ModeEstimate, estimate_each, estimate_on_cores
from phaze_opt.estimator.single import SingleEstimate, attention_graph, estimate_attention
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import (
    accelerator_presets,
    find_accelerator,
    load_accelerator,
)
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm, Operator, VectorWork, side_by_side
from phaze_opt.workload.zoo import load_workload
from tests.strategies import accelerators, attention_shapes
from tests.workload.graphs import Moved, graph_of

H100 = load_accelerator("h100")
SHAPE = AttentionShape(2, 4096, 4096, 32, 8, 128, causal=True)
SMALL = Accelerator(num_tc=1, num_vc=1, pe_x=2, pe_y=2, pe_vc=2, glb_bytes=2**21)
ALONE = Cluster("alone", (NetworkLevel(1.0, 0.0, "switch"),))

shapes = attention_shapes(3000, 2000, [32, 64, 80, 128, 256])


def with_calibration(chip: Accelerator, **changes: float) -> Accelerator:
    """Return a chip with other constants."""
    return replace(chip, calibration=replace(chip.calibration, **changes))


def run(chip: Accelerator = H100, **sizes: Any) -> SingleEstimate:
    """Estimate the shape with other sizes."""
    return estimate_attention(replace(SHAPE, **sizes), chip)


def mode_of(shape: AttentionShape, chip: Accelerator, *, backward: bool = False) -> ModeEstimate:
    """Estimate one core on all cores of a chip."""
    graph = attention_graph(shape, backward=backward)
    return estimate_on_cores(graph, chip, max(chip.num_tc, chip.num_vc))


@given(shapes, accelerators, st.booleans())
def test_no_core_is_below_a_roofline(
    shape: AttentionShape, chip: Accelerator, backward: bool
) -> None:
    """Visible multiply-accumulates, lane cycles and tensors bound from below."""
    graph = attention_graph(shape, backward=backward)
    estimate = estimate_attention(shape, chip, backward=backward)
    visible = shape.scores.visible / shape.scores.elements
    traffic_s = sum(graph.moved_bytes) / chip.sustained_hbm_bytes_per_s
    assert estimate.latency_s >= visible * graph.flops / chip.peak_flops_per_s * (1 - 1e-12)
    assert estimate.latency_s >= traffic_s * (1 - 1e-12)
    assert estimate.latency_s >= float(mode_of(shape, chip, backward=backward).vc_s[0])
    assert 0.0 < estimate.utilisation <= 1.0


@given(
    shapes,
    accelerators,
    st.sampled_from(["batch", "heads", "lengths", "head_dim"]),
    st.integers(1, 500),
    st.booleans(),
)
@example(AttentionShape(1, 1, 128, 1, 1, 128, causal=False), SMALL, "head_dim", 1, True)
def test_more_work_takes_no_less_time(
    shape: AttentionShape, chip: Accelerator, what: str, more: int, backward: bool
) -> None:
    """Arrays, lanes and HBM need at least as long for more samples, heads, positions, elements."""
    larger = {
        "batch": replace(shape, batch=shape.batch + more),
        "heads": replace(shape, heads=2 * more * shape.heads, kv_heads=2 * more * shape.kv_heads),
        "lengths": replace(shape, queries=shape.queries + more, keys=shape.keys + more),
        "head_dim": replace(shape, head_dim=shape.head_dim + more),
    }[what]
    before, after = (mode_of(size, chip, backward=backward) for size in (shape, larger))
    for name in ("tc_s", "vc_s", "hbm_s"):
        assert getattr(after, name)[0] >= getattr(before, name)[0] * (1 - 1e-12), name


@given(shapes, accelerators, st.booleans())
def test_a_mask_never_costs_time(shape: AttentionShape, chip: Accelerator, backward: bool) -> None:
    """Causal attention takes at most as long as the same without a mask."""
    causal, full = (
        estimate_attention(replace(shape, causal=causal), chip, backward=backward).latency_s
        for causal in (True, False)
    )
    assert causal <= full * (1 + 1e-12)


@given(
    shapes,
    accelerators,
    st.sampled_from(
        ["num_tc", "num_vc", "l2_tc_bytes", "glb_bytes_per_cycle", "hbm_bytes_per_s", "clock_hz"]
    ),
    st.booleans(),
)
def test_more_of_anything_is_never_slower(
    shape: AttentionShape, chip: Accelerator, field: str, backward: bool
) -> None:
    """Twice the cores, buffer, bandwidth or clock never cost time, whatever the blocks."""
    more: Accelerator = replace(chip, **{field: 2 * getattr(chip, field)})
    before, after = (mode_of(shape, accelerator, backward=backward) for accelerator in (chip, more))
    assert after.latency_s[0] <= before.latency_s[0] * (1 + 1e-12)


@given(shapes, accelerators, st.booleans())
def test_with_everything_hidden_the_longest_resource_decides(
    shape: AttentionShape, chip: Accelerator, backward: bool
) -> None:
    """An overlap of 1 is the rule of all other operators; the exposed share adds linearly."""
    modes = [
        mode_of(shape, with_calibration(chip, attention_overlap=overlap), backward=backward)
        for overlap in (1.0, 0.5, 0.0)
    ]
    hidden, half, none = (float(mode.tc_s[0]) for mode in modes)
    vc_s = float(modes[0].vc_s[0])
    assert modes[0].exposed_lanes_s[0] == 0.0
    assert half == pytest.approx(hidden + 0.5 * vc_s)
    assert none == pytest.approx(hidden + vc_s)
    mode = modes[0]
    longest_s = max(hidden, vc_s, float(mode.glb_s[0]), float(mode.hbm_s[0]))
    assert mode.latency_s[0] == longest_s + chip.calibration.operator_overhead_s


def test_causal_takes_a_little_more_than_half() -> None:
    """A causal mask saves nearly half of a long sequence, and less of a short one; joules too."""
    for sequence, most in ((16384, 0.52), (1024, 0.75)):
        sizes: dict[str, Any] = {"queries": sequence, "keys": sequence}
        causal, full = run(**sizes), run(**sizes, causal=False)
        assert 0.5 < causal.latency_s / full.latency_s < most
        for level in ("arithmetic", "registers"):
            share = causal.energy_by_level_j[level] / full.energy_by_level_j[level]
            assert 0.5 < share < most, level


def test_faster_exponentials_take_less_lane_time() -> None:
    """16 exponentials per cycle on 128 lanes are the table's 8 cycles; 32 save 4 of 12."""
    serial = with_calibration(H100, attention_overlap=0.0)
    shape = replace(SHAPE, queries=512, keys=512)
    lanes_s = {}
    for rate in (None, 16.0, 32.0):
        calibration = replace(serial.calibration, exponentials_per_cycle=rate)
        chip = replace(serial, calibration=calibration)
        lanes_s[rate] = float(mode_of(shape, chip).exposed_lanes_s[0])
    assert lanes_s[16.0] == lanes_s[None]
    assert lanes_s[32.0] == pytest.approx(lanes_s[16.0] * 8 / 12)


def test_shared_keys_are_read_once() -> None:
    """Grouped queries share keys: less traffic, the same arithmetic."""
    few, many = run(kv_heads=1), run(kv_heads=32)
    assert few.hbm_bytes < many.hbm_bytes
    assert few.energy_by_level_j["arithmetic"] == pytest.approx(
        many.energy_by_level_j["arithmetic"]
    )
    head_bytes = 2 * SHAPE.batch * SHAPE.keys * SHAPE.head_dim
    assert many.hbm_bytes - few.hbm_bytes == pytest.approx(2 * 31 * head_bytes)


def test_the_backward_is_five_products() -> None:
    """Its arrays take two and a half times as long as the forward's, but for one fill per block.

    Each kernel has rates of its own; these are those of products.
    """
    alike = load_accelerator("v100")
    hidden = with_calibration(alike, attention_overlap=1.0)
    full = replace(SHAPE, causal=False)
    ratio = mode_of(full, hidden, backward=True).tc_s[0] / mode_of(full, hidden).tc_s[0]
    assert 2.3 < ratio < 2.51


def test_lanes_bind_where_the_arrays_mostly_wait() -> None:
    """Tensor cores that wait for softmax most of their time are bound by the lanes."""
    few_lanes = with_calibration(replace(H100, pe_vc=16), attention_overlap=0.1)
    few_lanes = with_calibration(few_lanes, exponentials_per_cycle=2.0)
    assert run(few_lanes).bound == "lanes"
    assert run(with_calibration(H100, attention_overlap=1.0)).bound == "compute"


def test_only_fused_attention_depends_on_the_overlap() -> None:
    """Eager attention is the same bit for bit whatever the overlap; fused attention is not."""
    scores, context = SHAPE.products
    rows = SHAPE.scores.heads * SHAPE.queries
    softmax = VectorWork("softmax", rows, SHAPE.keys)
    eager = (
        Moved(Operator("scores", gemms=(scores,)), 10**8, 10**8),
        Moved(Operator("softmax", vector=(softmax,)), 10**8, 10**8),
        Moved(Operator("context", gemms=(context,)), 10**8, 10**8),
        Moved(Operator("fused", gemms=(Gemm(512, 512, 512),), vector=(softmax,))),
    )
    graph = side_by_side((graph_of(eager), attention_graph(SHAPE)))
    before, after = (
        estimate_each([graph], with_calibration(H100, **changes), ALONE)[0].all_cores
        for changes in (
            {"attention_overlap": 0.0},
            {"attention_overlap": 1.0, "exponentials_per_cycle": 64.0},
        )
    )
    count = len(eager)
    for old, other in zip(before.arrays(), after.arrays(), strict=True):
        assert np.array_equal(old[:count], other[:count])
    assert before.latency_s[count] > after.latency_s[count]
    # Beside fused attention, too, an operator has the numbers that it has alone.
    alone = estimate_each([graph_of(eager)], H100, ALONE)[0].all_cores
    for old, other in zip(alone.arrays(), before.arrays(), strict=True):
        assert np.array_equal(old, other[:count])


def test_a_chip_on_paper_hides_no_more_than_a_measured_one() -> None:
    """The default overlap is at most that of the H100's best kernel, and a TPU's is the default."""
    default = Calibration().attention_overlap
    measured = with_kernel(find_accelerator("h100"), "fa3").accelerator
    assert default <= measured.calibration.attention_overlap < default + 0.1
    for name, preset in accelerator_presets().items():
        if name.startswith("tpu"):
            assert preset.accelerator.calibration.attention_overlap == default
            assert "calibration.attention_overlap" not in preset.provenance


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_capture_finds_the_same_core(direction: str) -> None:
    """An estimate by sizes is of the operator that capture finds in a model of these sizes."""
    model = "llama:layers=1,hidden=64,heads=4,kv_heads=2,ffn=64,sequence=32,vocab=50"
    (variant,) = load_workload(model, tensor_parallel=(1,), microbatch=(3,)).variants
    (block,) = [layer for layer in variant.layers if layer.name == "block"]
    graph = getattr(block, direction)
    (place,) = [i for i, operator in enumerate(graph.operators) if operator.attention is not None]
    core = graph.operators[place]
    shape = AttentionShape(3, 32, 32, 4, 2, 16, causal=True)
    made = attention_graph(shape, backward=direction == "backward")
    assert (replace(core, id="attention"),) == made.operators
    assert (graph.read_bytes[place],) == made.read_bytes
    assert (graph.write_bytes[place],) == made.write_bytes


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"kv_heads": 7}, "kv_heads is 7, but it must divide the 32 heads"),
        ({"queries": 0}, "queries is 0"),
        ({"head_dim": -1}, "head_dim is -1"),
    ],
)
def test_sizes_that_no_core_has_are_refused(sizes: dict[str, Any], message: str) -> None:
    """The sentence names the size."""
    with pytest.raises(InputError, match=message):
        run(**sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_overlap": 1.5}, "attention_overlap is 1.5"),  # more than all
        ({"attention_overlap": float("nan")}, "attention_overlap is nan"),
        ({"exponentials_per_cycle": 0.0}, "exponentials_per_cycle is 0.0"),  # never done
    ],
)
def test_calibrations_out_of_range_are_refused(changes: dict[str, float], message: str) -> None:
    """A share is from 0 to 1, a rate is positive."""
    with pytest.raises(InputError, match=message):
        dataclasses.replace(Calibration(), **changes)


@pytest.mark.parametrize("positions", [1, 2, 8])
def test_a_mask_hides_what_lies_behind_a_query(positions: int) -> None:
    """Of n × n scores those above the diagonal, n · (n − 1) / 2."""
    shape = AttentionShape(1, positions, positions, 1, 1, 64, causal=True)
    graph = attention_graph(shape)
    hidden = positions * (positions - 1) / 2 / positions**2
    assert graph.masked_flops == pytest.approx(hidden * graph.flops)
    assert attention_graph(replace(shape, causal=False)).masked_flops == 0.0
