from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.report.layout import to_text
from phaze_opt.report.validation import (
    row_tables,
    summary_table,
    unexpressed_table,
    validation_to_builtins,
    write_plot,
)
from phaze_opt.validation.measured import UnexpressedRow, ValidationRow, ValidationTable

PARTS_S = {"forward": 0.3, "backward": 0.5, "tensor_collectives": 0.1, "bubble": 0.1}
TABLE = ValidationTable(
    "a table",
    "a100-80",
    25e-6,
    "somewhere",
    (
        ValidationRow("first", 1.25, 1.0, assumed="microbatch 4", parts_s=PARTS_S),
        ValidationRow("again", 1.0, 1.0, repeats="first", trust="low: a guess", parts_s=PARTS_S),
    ),
)


def test_a_line_per_table_has_bias_and_independent_rows() -> None:
    """Mean, bias and worst stand side by side; a repeated row is not counted as independent."""
    text = to_text(summary_table([TABLE]))
    assert "a table  a100-80  2 (1)  10.0%  -10.0%  -20.0%     25 µs" in text


def test_rows_say_what_the_time_consists_of() -> None:
    """Percentages of the predicted time, what was assumed, and what repeats what."""
    text = to_text(row_tables([TABLE]))
    assert "comp coll tran bubb opt" in text
    assert "-20.0%  80%  10%   0%  10%  0%" in text
    for words in ("assumed: microbatch 4", "repeats first", "a guess"):
        assert words in text


def test_rows_fit_a_terminal_of_80_columns() -> None:
    """No line is longer, whatever a row is called."""
    long = UnexpressedRow("table", "a case with many words " * 4, "a reason of many words " * 4)
    for shown in (summary_table([TABLE]), row_tables([TABLE]), unexpressed_table([long])):
        assert max(len(line) for line in to_text(shown).splitlines()) <= 80


def test_plain_data_holds_every_row() -> None:
    """Every row has its error, its trust and what its time consists of."""
    plain: dict[str, Any] = validation_to_builtins(TABLE)
    assert (plain["bias"], plain["independent_rows"]) == (pytest.approx(-0.1), 1)
    assert plain["rows"][0]["parts_s"] == PARTS_S
    assert plain["rows"][1]["repeats"] == "first"
    assert plain["rows"][1]["independent"] is False


def test_the_plot_loads_nothing(tmp_path: Path) -> None:
    """The page holds its script; no element names another address."""
    path = tmp_path / "plot.html"
    write_plot([TABLE, TABLE], path)
    page = path.read_text("utf-8")
    assert "Plotly.newPlot" in page
    head = page.replace(" ", "").lower()
    assert "<scriptsrc=" not in head and "<link" not in head and "<iframe" not in head
    assert '<scriptcharset="utf-8"src=' not in head
    assert "first: -20.0%" in page


def test_a_plot_is_a_page(tmp_path: Path) -> None:
    """Another suffix, or nothing to plot, is refused."""
    with pytest.raises(InputError, match=r"must end in \.html"):
        write_plot([TABLE], tmp_path / "plot.png")
    with pytest.raises(InputError, match="nothing to plot"):
        write_plot([], tmp_path / "plot.html")
