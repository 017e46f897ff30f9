"""The overlap of a chip from measured forwards."""

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
from phaze_opt.errors import InputError
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.attention import AttentionTable, measured_attention
from phaze_opt.workload.attention import AttentionShape

TABLES = {table.accelerator: table for table in measured_attention()}
CONSTANTS = {"attention_overlap": 0.3, "call_overhead_s": 15e-6, "earlier_traffic": 1.2}


def rows_of(table: AttentionTable) -> list[MeasuredAttention]:
    """Return the rows as the fit takes them."""
    return [MeasuredAttention(shape, measured_s) for shape, measured_s in table.rows]


def made_up(factor: float = 1.0) -> list[MeasuredAttention]:
    """Return rows that the model predicts with `CONSTANTS`."""
    shapes = [
        AttentionShape(batch, sequence, sequence, 32, kv_heads, 128, causal=True)
        for batch in (1, 4)
        for sequence in (512, 2048, 8192)
        for kv_heads in (4, 32)
    ]
    seconds = AttentionCalls(shapes, load_accelerator("h100")).seconds(CONSTANTS)
    pairs = zip(shapes, (factor * seconds).tolist(), strict=True)
    return [MeasuredAttention(shape, second) for shape, second in pairs]


@pytest.mark.parametrize("name", TABLES)
def test_built_in_overlaps_are_what_the_fit_gives(name: str) -> None:
    """The presets, and the constants stated beside the tables, are the fit's on their rows."""
    chip, table = load_accelerator(name), TABLES[name]
    found = fit_attention(rows_of(table), chip)
    values = found.values
    assert values["attention_overlap"] == pytest.approx(
        chip.calibration.attention_overlap, abs=5e-4
    )
    assert values["call_overhead_s"] == pytest.approx(table.call_overhead_s, abs=5e-8)
    assert values["earlier_traffic"] == pytest.approx(table.earlier_traffic, abs=5e-3)


def test_the_stated_overlap_does_not_matter() -> None:
    """Another value at the start gives the same fit."""
    chip = load_accelerator("h100")
    other = with_attention_constants(chip, {"attention_overlap": 0.9})
    one, two = (fit_attention(made_up(), start).values for start in (chip, other))
    assert one["attention_overlap"] == pytest.approx(two["attention_overlap"], abs=1e-3)


def test_constants_that_made_the_rows_are_found() -> None:
    """Rows of the model itself give back what they were made with."""
    found = fit_attention(made_up(), load_accelerator("h100"))
    for name, value in CONSTANTS.items():
        assert found.values[name] == pytest.approx(value, rel=1e-2)
    assert np.abs(found.errors).max() < 1e-3


def test_rows_beyond_physics_stay_at_the_bound() -> None:
    """Kernels slower than products and softmax in turns hide nothing, and no less."""
    overlap = fit_attention(made_up(1.5), load_accelerator("h100")).constants[0]
    assert overlap.value == pytest.approx(0.0, abs=1e-6)
    assert overlap.at_bound


def test_the_rate_of_exponentials_is_not_determined() -> None:
    """It keeps its stated value and has no error."""
    constants = fit_attention(made_up(), load_accelerator("h100")).constants
    (rate,) = [one for one in constants if one.name == "exponentials_per_cycle"]
    assert (rate.value, rate.origin, rate.standard_error) == (16.0, "kept", None)
    assert not rate.determined
    of_lanes = fit_attention(rows_of(TABLES["a100-80"]), load_accelerator("a100-80")).values
    assert of_lanes["exponentials_per_cycle"] == 8.0  # 64 lanes, 8 cycles each


def test_fewer_rows_than_constants_are_refused() -> None:
    """The sentence names the constants."""
    with pytest.raises(InputError, match="2 measured rows of fused attention for 3 constants"):
        fit_attention(made_up()[:2], load_accelerator("h100"))


def test_a_shape_that_cannot_be_is_refused() -> None:
    """As for an estimate."""
    rows = made_up()
    rows[0] = replace(rows[0], shape=replace(rows[0].shape, kv_heads=5))
    with pytest.raises(InputError, match="kv_heads is 5"):
        fit_attention(rows, load_accelerator("h100"))
