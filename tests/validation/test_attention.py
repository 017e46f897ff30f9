"""Fused attention against measured forwards."""

from __future__ import annotations

import pytest

from phaze_opt.errors import InputError
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.attention import measured_attention, validate_attention
from phaze_opt.validation.measured import ValidationTable
from phaze_opt.validation.runs import _with_kernel

TABLES = {table.accelerator: table for table in validate_attention()}


@pytest.mark.parametrize(
    ("name", "rows", "most"),
    [("a100-80", 60, 0.05), ("h100", 56, 0.05), ("h200", 20, 0.05), ("b200", 37, 0.06)],
)
def test_forwards_are_within_a_few_percent(name: str, rows: int, most: float) -> None:
    """Mean absolute error, and a mean error within 3 %."""
    table = TABLES[name]
    assert len(table.rows) == rows
    assert table.mean_absolute_error <= most
    assert abs(bias(table)) <= 0.03


def bias(table: ValidationTable) -> float:
    """Return the mean error of a table."""
    return sum(row.error for row in table.rows) / len(table.rows)


def test_a_table_says_what_a_call_holds_beside_its_kernel() -> None:
    """The constant per call and the traffic of the kernels before are stated, and in the time."""
    for table in measured_attention():
        shown = TABLES[table.accelerator]
        assert shown.call_overhead_s == table.call_overhead_s > 0.0
        assert shown.source.endswith(".parquet")
        for row in shown.rows:
            assert row.assumed.startswith(f"{table.earlier_traffic:g} ×")
            assert row.predicted > table.call_overhead_s


def test_the_kernel_of_a_run_is_part_of_its_configuration() -> None:
    """A kernel of the A100's generation hides nothing on an H100; others are refused."""
    chip = load_accelerator("h100")
    assert _with_kernel(chip, "") is chip
    assert _with_kernel(chip, "synchronous").calibration.attention_overlap == 0.0
    with pytest.raises(InputError, match="attention_kernel is 'fa2'"):
        _with_kernel(chip, "fa2")
