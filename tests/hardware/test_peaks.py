"""No operator of any preset runs above the nominal peak, whatever its precision and kernel."""

from __future__ import annotations

from typing import cast

import pytest

from phaze_opt.estimator.single import estimate_attention, estimate_gemm
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import accelerator_presets
from phaze_opt.precision import RECIPES, AttentionPrecision, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm

PRESETS = accelerator_presets()
KERNELS: list[tuple[str, str | None]] = [
    (name, kernel) for name, preset in PRESETS.items() for kernel in (None, *preset.kernels)
]
PRODUCTS = (
    (8192, 8192, 8192, 1),
    (16384, 4096, 768, 1),
    (128, 128, 64, 512),
    (4096, 14336, 4096, 1),
    (1, 32000, 4096, 1),
)
SHAPES = (
    AttentionShape(4, 4096, 4096, 32, 8, 128, True),
    AttentionShape(8, 2048, 2048, 16, 16, 64, False),
)
MODELS = ("bert-large", "llama2-7b")


def precisions_of(chip: Accelerator) -> list[PrecisionName]:
    """Return the precisions that a chip multiplies in."""
    return [name for name in RECIPES if chip.nominal_rate(name) > 0.0]


def attention_precisions_of(chip: Accelerator) -> list[AttentionPrecision]:
    """Return the precisions of fused attention that were measured on a chip."""
    own = chip.calibration
    names = ["bf16"]
    names += ["fp8"] if own.attention_fp8_rate and own.attention_fp8_backward_rate else []
    names += ["mxfp8"] if own.attention_mxfp8_rate and own.attention_mxfp8_backward_rate else []
    return cast(list[AttentionPrecision], names)


@pytest.mark.parametrize("name", PRESETS)
def test_no_product_beats_the_peak(name: str) -> None:
    """In bursts and in long runs, of every precision that the chip states."""
    chip = PRESETS[name].accelerator
    for precision in precisions_of(chip):
        peak = chip.peak_flops_per_s * chip.nominal_rate(precision)
        for m, n, k, batch in PRODUCTS:
            product = Gemm(m, n, k, batch, precision)
            for sustained in (False, True):
                estimate = estimate_gemm(product, chip, sustained=sustained)
                assert 0.0 < product.flops / estimate.latency_s <= peak
                assert 0.0 < estimate.utilisation <= 1.0


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_no_fused_attention_beats_the_peak(name: str, kernel: str | None) -> None:
    """Of the scores that its mask leaves, forward and backward, with every kernel."""
    chip = with_kernel(PRESETS[name], kernel).accelerator
    for precision in attention_precisions_of(chip):
        for shape in SHAPES:
            for backward in (False, True):
                estimate = estimate_attention(shape, chip, backward=backward, precision=precision)
                assert 0.0 < estimate.utilisation <= 1.0


@pytest.mark.parametrize("name", PRESETS)
def test_no_run_has_an_mfu_above_one(name: str) -> None:
    """Nor with the FLOPs that run again; a model that fits no such chip has none."""
    chip = PRESETS[name].accelerator
    for precision in precisions_of(chip):
        if precision not in ("bf16", "fp8", "nvfp4"):
            continue
        training = Training(
            global_batch=64,
            microbatch=1,
            recompute="full",
            precision=precision,
        )
        for model in MODELS:
            result = evaluate(
                model, chip, "tpuv4-ici-flat", training, devices=64, attention="flash"
            )
            assert result.hfu is None or result.mfu <= result.hfu < 1.0
