"""Trials as files that other programs read."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phaze_opt.choices import TableFormat
from phaze_opt.errors import InputError
from phaze_opt.report.spreadsheet import harmless_cell
from phaze_opt.study.study import Study
from phaze_opt.study.trials import trial_to_json_dict
from phaze_opt.user_files import write_file

_LARGEST_INTEGER = 2**63 - 1


def write_trials(study: Study, path: Path, file_format: TableFormat) -> int:
    """Write all trials, one row or object each, and return how many there were.

    Raises
    ------
    InputError
        If Parquet is asked for, and pyarrow, which only that needs, is not installed.
    PhazeError
        If the file cannot be written; one that there was stays.
    """
    rows = [trial_to_json_dict(trial) for trial in study.trials()]
    writers = {"csv": _to_csv, "json": _to_json, "parquet": _to_parquet}
    write_file(path, writers[file_format](rows))
    return len(rows)


def _to_json(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write a list of objects."""
    return json.dumps(rows, allow_nan=False, indent=1).encode()


def _to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write a header and a line for each row; what is unknown is an empty cell."""
    columns = _columns(rows)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(harmless_cell, columns))
    for row in rows:
        writer.writerow([harmless_cell(row.get(name)) for name in columns])
    return stream.getvalue().encode()


def _to_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write a table whose columns have one type each."""
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow; \"pip install 'phaze-opt[parquet]'\" adds it, and the formats "
            "csv, json and bundle do without."
        ) from None
    arrays = {name: _arrow_array(arrow, [row.get(name) for row in rows]) for name in _columns(rows)}
    stream = io.BytesIO()
    parquet.write_table(arrow.table(arrays), stream)
    return stream.getvalue()


def _arrow_array(arrow: Any, cells: Sequence[Any]) -> Any:
    """Return a column: of numbers or truth values where all its cells are, else of text."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {bool}:
        return arrow.array(cells, arrow.bool_())
    if kinds == {int} and all(abs(cell or 0) <= _LARGEST_INTEGER for cell in cells):
        return arrow.array(cells, arrow.int64())
    if kinds and kinds <= {int, float}:
        numbers = [None if cell is None else float(cell) for cell in cells]
        return arrow.array(numbers, arrow.float64())
    return arrow.array([None if cell is None else str(cell) for cell in cells], arrow.string())


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of all columns in the order in which they appear."""
    return list(dict.fromkeys(name for row in rows for name in row))
