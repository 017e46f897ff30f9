"""Fused attention against measured forwards."""

from __future__ import annotations

from functools import cache

import pytest

from phaze_opt.errors import InputError
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.validation.attention import measured_attention, validate_attention
from phaze_opt.validation.attention_training import validate_training_attention
from phaze_opt.validation.measured import ValidationTable


@cache
def tables() -> dict[str, ValidationTable]:
    """Return the forwards of every chip, by its name."""
    return {table.accelerator: table for table in validate_attention()}


@pytest.mark.parametrize(
    ("name", "rows", "most"),
    [("a100-80", 60, 0.05), ("h100", 56, 0.05), ("h200", 20, 0.05), ("b200", 37, 0.06)],
)
def test_forwards_are_within_a_few_percent(name: str, rows: int, most: float) -> None:
    """Mean absolute error, and a mean error within 3 %."""
    table = tables()[name]
    assert len(table.rows) == rows
    assert table.mean_absolute_error <= most
    assert abs(bias(table)) <= 0.03


def bias(table: ValidationTable) -> float:
    """Return the mean error of a table."""
    return sum(row.error for row in table.rows) / len(table.rows)


def test_a_table_says_what_a_call_holds_beside_its_kernel() -> None:
    """The constant per call and the traffic of the kernels before are stated, and in the time."""
    for table in measured_attention():
        shown = tables()[table.accelerator]
        assert shown.call_overhead_s == table.call_overhead_s > 0.0
        assert shown.source.endswith(".parquet")
        for row in shown.rows:
            assert row.assumed.startswith(f"{table.earlier_traffic:g} ×")
            assert row.predicted > table.call_overhead_s


def test_every_chip_has_a_default_kernel_and_others_by_name() -> None:
    """The calibration is that of the default; a kernel that nobody measured is refused."""
    preset = find_accelerator("h100")
    assert with_kernel(preset, None) is preset
    assert with_kernel(preset, "cudnn").accelerator == preset.accelerator
    slower = with_kernel(preset, "fa2").accelerator.attention_kernel
    assert slower.forward > preset.accelerator.attention_kernel.forward
    with pytest.raises(InputError, match="fa3 has no constants on b200; known are: te, serving"):
        with_kernel(find_accelerator("b200"), "fa3")
    with pytest.raises(InputError, match="Did you mean 'fa3'"):
        with_kernel(preset, "fa33")


@cache
def training() -> dict[tuple[str, str], ValidationTable]:
    """Return both directions of every chip and kernel."""
    return {
        (table.accelerator, table.name.removeprefix("attention ")): table
        for table in validate_training_attention()
    }


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("name", "kernel", "most"),
    [
        ("h200", "cudnn", 0.08),
        ("gb200", "cudnn", 0.08),
        ("b200", "te", 0.08),
        ("h100", "fa2", 0.12),
        ("h100", "fa3", 0.12),
    ],
)
def test_kernels_that_train_are_right_both_ways(
    name: str, kernel: str, most: float, direction: str
) -> None:
    """From 4,096 tokens, full and causal; the errors of forward and backward do not cancel."""
    table = training()[name, f"{kernel}, {direction}"]
    assert table.mean_absolute_error <= most
    assert abs(table.bias) <= 0.05
    if (name, f"{kernel}, {direction}, windows") in training() and name == "h200":
        assert training()[name, f"{kernel}, {direction}, windows"].mean_absolute_error <= 0.15
