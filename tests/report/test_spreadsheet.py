"""Cells that no spreadsheet obeys."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.spreadsheet import harmless_cell, harmless_csv

CELLS = (
    st.text() | st.floats().map(repr) | st.sampled_from(["=1", '=H("a","b")', "\r=1", "-1", "@"])
)


def is_number(text: str) -> bool:
    """Whether a cell is a number, which Python writes without spaces or underscores."""
    try:
        float(text)
    except ValueError:
        return False
    return not set(text) & set(" _\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f") and text.isascii()


@given(st.lists(st.lists(CELLS, min_size=1), min_size=1))
def test_tables_of_other_programs(rows: list[list[str]]) -> None:
    """Every cell is as in our own tables, in its place; numbers stay as they are."""
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    harmless = harmless_csv(written.getvalue())
    read = list(csv.reader(io.StringIO(harmless, newline="")))
    expected = [[cell if is_number(cell) else harmless_cell(cell) for cell in row] for row in rows]
    assert read == expected


@pytest.mark.parametrize("cell", ["=1", "+1+1", "-x", "@a", "\t=1", "\r=1", "＝1"])
def test_beginnings_of_formulas(cell: str) -> None:
    """None is left at the beginning of a cell."""
    assert str(harmless_cell(cell))[0] in "'?"
    assert harmless_cell(-1.5) == -1.5


def test_a_cell_of_any_length() -> None:
    """Python's reader of CSV would refuse it."""
    assert harmless_csv("=" + 10**6 * "x" + "\r\n")[:3] == "'=x"
