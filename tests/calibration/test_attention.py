"""The constants of a kernel of fused attention from measured forwards and backwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze_opt.calibration.attention import (
    AttentionCalls,
    MeasuredAttention,
    fit_attention,
    with_attention_constants,
)
from phaze_opt.codec import data_rows
from phaze_opt.errors import InputError
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator, load_accelerator
from phaze_opt.validation.attention_training import attention_shape
from phaze_opt.workload.attention import AttentionShape

H100 = load_accelerator("h100")
FORWARD = {
    "attention_rate": 0.7,
    "attention_overlap": 0.3,
    "attention_row_cycles": 4000.0,
    "call_overhead_s": 15e-6,
    "earlier_traffic": 1.2,
}
BACKWARD = {
    "attention_backward_rate": 0.5,
    "attention_backward_overlap": 0.6,
    "attention_backward_row_cycles": 9000.0,
    "attention_wide_rate": 0.75,
}
SHAPES = [
    AttentionShape(batch, sequence, sequence, 32, 4, width, causal, 0, min(width, 128))
    for batch, causal in ((1, True), (4, False))
    for sequence in (512, 2048, 8192)
    for width in (64, 128, 192)
]


def made_up(constants: dict[str, float], *, backward: bool = False) -> list[MeasuredAttention]:
    """Return rows that the model predicts with some constants."""
    rows = [MeasuredAttention(shape, 1.0, backward) for shape in SHAPES]
    seconds = AttentionCalls(rows, H100).seconds(constants)
    pairs = zip(rows, seconds.tolist(), strict=True)
    return [replace(row, latency_s=second) for row, second in pairs]


def test_constants_that_made_forwards_are_found() -> None:
    """Rows of the model itself give back what they were made with, wherever the fit starts."""
    far = {"attention_overlap": 0.9, "attention_rate": 0.4, "attention_row_cycles": 20_000.0}
    start = with_attention_constants(H100, far)
    found = fit_attention(made_up(FORWARD), start)
    for name, value in FORWARD.items():
        assert found.values[name] == pytest.approx(value, rel=0.1), name
    assert np.abs(found.errors).max() < 1e-2


def test_constants_that_made_backwards_are_found() -> None:
    """A backward has its own, and wide heads a rate of theirs; kernels alone have no call."""
    found = fit_attention(made_up(BACKWARD, backward=True), H100, calls=False)
    for name, value in BACKWARD.items():
        assert found.values[name] == pytest.approx(value, rel=3e-2), name
    assert "call_overhead_s" not in found.values


def test_a_kernel_of_a_preset_is_what_the_fit_gives() -> None:
    """The forwards of the H200 give the constants that its file states."""
    rows = [
        MeasuredAttention(attention_shape(row), float(row["latency_s"]))
        for row in data_rows("validation", "attention_training.csv")
        if (row["accelerator"], row["kernel"], row["direction"]) == ("h200", "cudnn", "fwd")
    ]
    chip = with_kernel(find_accelerator("h200"), "cudnn").accelerator
    values = fit_attention(rows, chip, calls=False).values
    for name in ("attention_rate", "attention_overlap", "attention_row_cycles"):
        assert values[name] == pytest.approx(getattr(chip.calibration, name), rel=0.03), name


def test_the_rate_of_exponentials_is_not_determined() -> None:
    """It keeps its stated value and has no error; without a unit it is that of the lanes."""
    constants = fit_attention(made_up(BACKWARD, backward=True), H100, calls=False).constants
    (rate,) = [one for one in constants if one.name == "exponentials_per_cycle"]
    assert (rate.value, rate.origin, rate.standard_error) == (16.0, "kept", None)
    assert not rate.determined


def test_fewer_rows_than_constants_are_refused() -> None:
    """The sentence names the constants."""
    with pytest.raises(InputError, match="2 measured rows of fused attention for 4 constants"):
        fit_attention(made_up(FORWARD)[:2], H100)


def test_a_shape_that_cannot_be_is_refused() -> None:
    """As for an estimate."""
    rows = made_up(FORWARD)
    rows[0] = replace(rows[0], shape=replace(rows[0].shape, kv_heads=5))
    with pytest.raises(InputError, match="kv_heads is 5"):
        fit_attention(rows, H100)
