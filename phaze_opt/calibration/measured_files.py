"""Measured operators from CSV files: the columns of ``phaze-opt estimate --csv``, and latency_s."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

from phaze_opt.calibration.attention import MeasuredAttention
from phaze_opt.calibration.collectives import CollectiveRow
from phaze_opt.calibration.products import MeasuredProduct
from phaze_opt.calibration.vector import MeasuredVector
from phaze_opt.codec import read_file
from phaze_opt.errors import InputError
from phaze_opt.estimator.single import attention_operator, gemm_operator
from phaze_opt.network.collective import CollectiveName
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm

T = TypeVar("T")
_Row = Mapping[str, str | None]


def read_products(path: Path) -> list[MeasuredProduct]:
    """Read products with the columns m, n, k, latency_s and, if there is more than one, batch."""

    def one(row: _Row) -> MeasuredProduct:
        m, n, k = (_whole(row, column) for column in ("m", "n", "k"))
        gemm = Gemm(m, n, k, _whole(row, "batch", "1"))
        gemm_operator(gemm)  # refuses impossible sizes
        return MeasuredProduct(gemm, _seconds(row))

    return _read(path, ("m", "n", "k"), one)


def read_vector(path: Path) -> list[MeasuredVector]:
    """Read vector operators with the columns op, rows, columns, latency_s."""

    def one(row: _Row) -> MeasuredVector:
        shape = _whole(row, "rows"), _whole(row, "columns")
        return MeasuredVector(row["op"] or "", *shape, _seconds(row))

    return _read(path, ("op", "rows", "columns"), one)


def read_attention(path: Path) -> list[MeasuredAttention]:
    """Read fused attention forwards.

    The columns are batch, sequence, heads, kv_heads, head_dim, latency_s and causal (0 or 1; 1
    where it is left out).
    """
    columns = ("batch", "sequence", "heads", "kv_heads", "head_dim")

    def one(row: _Row) -> MeasuredAttention:
        batch, sequence, heads, kv_heads, head_dim = (_whole(row, column) for column in columns)
        causal = _whole(row, "causal", "1")
        if causal not in (0, 1):
            raise InputError(f"causal is {causal}, but it must be 0 or 1.")
        shape = AttentionShape(
            batch, sequence, sequence, heads, kv_heads, head_dim, causal=causal == 1
        )
        attention_operator(shape)  # refuses impossible sizes
        return MeasuredAttention(shape, _seconds(row))

    return _read(path, columns, one)


def read_collectives(path: Path) -> list[CollectiveRow]:
    """Read collectives with the columns kind, devices, bytes (of the whole tensor), latency_s."""

    def one(row: _Row) -> CollectiveRow:
        kind = cast(CollectiveName, row["kind"] or "")
        return CollectiveRow(kind, _whole(row, "devices"), _number(row, "bytes"), _seconds(row))

    return _read(path, ("kind", "devices", "bytes"), one)


def _read(path: Path, columns: tuple[str, ...], one: Callable[[_Row], T]) -> list[T]:
    """Read every row of a file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If a column is missing or a row is not valid; names the line.
    """
    text = read_file(path, "CSV file").decode("utf-8-sig", errors="replace")
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    for column in (*columns, "latency_s"):
        if column not in (reader.fieldnames or []):
            raise InputError(f"The CSV file {path} has no column {column!r}.")
    rows = []
    for row in reader:
        try:
            rows.append(one(row))
        except InputError as error:
            raise InputError(f"Line {reader.line_num} of {path}: {error}") from None
    return rows


def _seconds(row: _Row) -> float:
    """Read the measured time of a row."""
    latency_s = _number(row, "latency_s")
    if not (math.isfinite(latency_s) and latency_s > 0.0):
        raise InputError(f"latency_s is {latency_s}, but it must be positive and finite.")
    return latency_s


def _whole(row: _Row, column: str, default: str = "") -> int:
    """Read one whole number of a row."""
    text = row.get(column) or default
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, but it must be a whole number.") from None


def _number(row: _Row, column: str) -> float:
    """Read one number of a row."""
    text = row.get(column) or ""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, but it must be a number.") from None
