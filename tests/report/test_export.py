"""Trials as files of other programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.printing import printable
from phaze_opt.report.export import _to_csv, _to_parquet, write_trials
from phaze_opt.study.trials import trial_to_json_dict
from tests.study.fakes import quick_study

CELLS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=3), CELLS, min_size=1), min_size=1))
def test_no_text_is_a_formula(rows: list[dict[str, Any]]) -> None:
    """No text begins as a formula does, names of columns neither; numbers stay as they are."""
    table = csv.reader(io.StringIO(_to_csv(rows).decode(), newline=""))
    names, *lines = table
    columns = list(dict.fromkeys(name for row in rows for name in row))
    assert len(lines) == len(rows)
    for shown, name in zip(names, columns, strict=True):
        assert shown in (printable(name), f"'{printable(name)}")
        assert not shown.startswith(("=", "+", "-", "@"))
    for line, row in zip(lines, rows, strict=True):
        for shown, name in zip(line, columns, strict=True):
            cell = row.get(name)
            if isinstance(cell, str):
                assert shown in (printable(cell), f"'{printable(cell)}")
                assert not shown.startswith(("=", "+", "-", "@"))
            else:
                assert shown == ("" if cell is None else str(cell))


def test_numbers_below_zero_are_numbers() -> None:
    """A minus of a number is no formula."""
    rows = [{"value": -0.5, "reason": "-0.5", "=name": "=HYPERLINK()"}]
    assert _to_csv(rows).decode() == "value,reason,'=name\n-0.5,'-0.5,'=HYPERLINK()\n"


def test_all_forms_hold_the_same(tmp_path: Path) -> None:
    """JSON and Parquet give every row back, with its types."""
    study = quick_study(f"sqlite:///{tmp_path / 'a.db'}", trials=5)
    study.run()
    rows = [trial_to_json_dict(trial) for trial in study.trials()]
    assert write_trials(study, tmp_path / "t.json", "json") == 5
    assert json.loads((tmp_path / "t.json").read_text()) == rows
    write_trials(study, tmp_path / "t.parquet", "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert table.to_pylist() == rows
    write_trials(study, tmp_path / "t.csv", "csv")
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 6


@given(st.lists(st.dictionaries(st.sampled_from("abc"), CELLS), min_size=1, max_size=5))
def test_a_parquet_column_has_one_type(rows: list[dict[str, Any]]) -> None:
    """Whatever stands in a column: numbers and truth values as such, else text."""
    table = pyarrow.parquet.read_table(io.BytesIO(_to_parquet(rows)))
    for name in table.column_names:
        cells = [row.get(name) for row in rows]
        kinds = {type(cell) for cell in cells if cell is not None}
        read = table.column(name).to_pylist()
        if kinds <= {int, float} or kinds == {bool}:
            assert read == cells or kinds == {int, float} or kinds == {int}
        else:
            assert read == [None if cell is None else str(cell) for cell in cells]


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Parquet needs pyarrow, and it says so; the file that there was stays."""
    study = quick_study(f"sqlite:///{tmp_path / 'a.db'}")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "t"
    path.write_text("before")
    with pytest.raises(InputError, match=r"phaze-opt\[parquet\]"):
        write_trials(study, path, "parquet")
    assert path.read_text() == "before"
    assert write_trials(study, path, "csv") == 0
