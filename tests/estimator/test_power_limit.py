"""Products of long runs: one rate for all layouts, and an accumulator that is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from phaze_opt.errors import InputError
from phaze_opt.estimator.single import estimate_attention, estimate_gemm
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm
from tests.strategies import any_accelerators, gemms

B200 = load_accelerator("b200")


@given(gemms, any_accelerators)
def test_a_power_limit_is_a_roofline(gemm: Gemm, chip: Accelerator) -> None:
    """A product takes the longer of its burst and of its work at the sustained rate."""
    unlimited = replace(chip, calibration=replace(chip.calibration, sustained_peak_share=None))
    limited_s = estimate_gemm(gemm, chip, sustained=True).latency_s
    burst_s = estimate_gemm(gemm, unlimited, sustained=True).latency_s
    share = chip.calibration.sustained_peak_share
    work_s = 0.0 if share is None else gemm.flops / (share * chip.peak_flops_per_s)
    assert limited_s == pytest.approx(max(burst_s, work_s), rel=1e-12)


def test_some_cores_have_their_share_of_the_power() -> None:
    """Half of the cores sustain half of the rate."""
    gemm = Gemm(8192, 8192, 8192)
    whole_s, half_s = (
        estimate_gemm(gemm, B200, cores, sustained=True).latency_s for cores in (148, 74)
    )
    assert half_s == pytest.approx(2.0 * whole_s)


@given(gemms)
def test_only_a_weight_gradient_waits_for_its_accumulator(gemm: Gemm) -> None:
    """Forward and data gradient take the same; the third reads four bytes of every result more."""
    forward_s, data_s, weight_s = (
        estimate_gemm(gemm, B200, layout=layout, sustained=True).latency_s
        for layout in ("tn", "nn", "nt")
    )
    read_s = 4 * gemm.batch * gemm.m * gemm.n / B200.sustained_hbm_bytes_per_s
    assert data_s == forward_s
    assert weight_s >= forward_s + read_s * (1 - 1e-9)


def test_an_unknown_layout_is_refused() -> None:
    """The sentence names those that there are."""
    with pytest.raises(InputError, match="tt"):
        estimate_gemm(Gemm(8, 8, 8), B200, layout="tt")  # type: ignore[arg-type]


def test_attention_of_a_long_run_is_held_back_too() -> None:
    """A long forward of a B200 ends at the rate of its products, a short one waits for its tail."""
    shape = AttentionShape(1, 131072, 131072, 8, 1, 128, causal=True)
    rate = (B200.calibration.sustained_peak_share or 1.0) * B200.peak_flops_per_s
    long_s = estimate_attention(shape, B200, sustained=True).latency_s
    flops = 4 * 128 * shape.scores.visible
    assert long_s == pytest.approx(flops / rate, rel=0.01)
    assert estimate_attention(shape, B200).latency_s < 0.9 * long_s
