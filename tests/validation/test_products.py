import pytest

from phaze_opt.codec import data_rows
from phaze_opt.validation.measured import ValidationTable
from phaze_opt.validation.products import validate_products

LARGE = "gemm bf16 ≥10 GFLOP"


@pytest.fixture(scope="module")
def tables() -> dict[tuple[str, str], ValidationTable]:
    """Return all tables by chip and name."""
    return {(table.accelerator, table.name): table for table in validate_products()}


def bias(table: ValidationTable) -> float:
    """Return the mean signed error."""
    return sum(row.error for row in table.rows) / len(table.rows)


def test_every_measured_row_is_in_one_table(
    tables: dict[tuple[str, str], ValidationTable],
) -> None:
    """None is left out, and every table says who measured it."""
    count = sum(len(table.rows) for table in tables.values())
    assert count == len(data_rows("validation", "gemm_chips.csv")) == 565
    assert all("095f58a51" in table.source for table in tables.values())


@pytest.mark.parametrize(
    ("chip", "greatest"),
    [
        ("a100-80", 0.05),
        ("h100", 0.07),
        ("h200", 0.07),
        ("b200", 0.09),
        ("l40s", 0.09),
        ("b300", 0.09),
        ("gb300", 0.05),
        ("rtx-pro-6000", 0.07),
    ],
)
def test_large_products_are_met(
    tables: dict[tuple[str, str], ValidationTable], chip: str, greatest: float
) -> None:
    """Mean absolute error from 10 GFLOP up, and next to no bias."""
    table = tables[chip, LARGE]
    assert table.mean_absolute_error <= greatest
    assert abs(bias(table)) <= 0.02


@pytest.mark.parametrize(
    ("chip", "framework", "greatest"),
    [
        *(("h100", "TRTLLM", 0.05), ("h100", "VLLM", 0.12)),
        *(("b200", "TRTLLM", 0.07), ("b200", "VLLM", 0.1)),
    ],
)
def test_products_in_fp8_are_met_with_their_quantisation(
    tables: dict[tuple[str, str], ValidationTable], chip: str, framework: str, greatest: float
) -> None:
    """At twice the rate of bf16 and the same clock, with what a call holds beside its product."""
    table = tables[chip, f"gemm fp8 ≥10 GFLOP, {framework}"]
    assert table.mean_absolute_error <= greatest
    assert abs(bias(table)) <= 0.04
    assert all(row.predicted > table.call_overhead_s > 0.0 for row in table.rows)
    assert all("B to quantise" in row.assumed for row in table.rows)


def test_products_in_bf16_hold_nothing_else(
    tables: dict[tuple[str, str], ValidationTable],
) -> None:
    """Their rows are kernels."""
    bf16 = [table for (_, name), table in tables.items() if name.startswith("gemm bf16")]
    assert all(table.call_overhead_s == 0.0 for table in bf16)
    assert not any(row.assumed for table in bf16 for row in table.rows)
