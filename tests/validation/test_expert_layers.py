"""Measured layers of experts."""

import pytest

from phaze_opt.codec import data_rows
from phaze_opt.validation.expert_layers import validate_expert_layers
from phaze_opt.validation.measured import ValidationTable


@pytest.fixture(scope="module")
def tables() -> dict[str, ValidationTable]:
    """Return the tables by chip."""
    return {table.name.partition(", ")[2]: table for table in validate_expert_layers()}


def test_every_measured_row_is_in_one_table(tables: dict[str, ValidationTable]) -> None:
    """No row is left out."""
    count = sum(len(table.rows) for table in tables.values())
    assert count == len(data_rows("validation", "expert_layers.csv")) == 157
    assert all("row and element" in row.assumed for row in tables["h100"].rows)


@pytest.mark.parametrize(("chip", "greatest"), [("h100", 0.08), ("b200", 0.14)])
def test_layers_are_met(tables: dict[str, ValidationTable], chip: str, greatest: float) -> None:
    """One number of each chip is fitted to the rows; their products are those of dense layers."""
    assert tables[chip].mean_absolute_error <= greatest


def test_layers_of_other_chips_are_met(tables: dict[str, ValidationTable]) -> None:
    """Nothing is fitted to these chips."""
    rows = [row for chip in ("b300", "gb300") for row in tables[chip].rows]
    assert sum(abs(row.error) for row in rows) / len(rows) <= 0.13
