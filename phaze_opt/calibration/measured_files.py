"""Measured operators from CSV files: the columns of ``phaze-opt estimate --csv``, and latency_s."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

from phaze_opt.calibration.attention import MeasuredAttention
from phaze_opt.calibration.collectives import CollectiveRow
from phaze_opt.calibration.products import MeasuredProduct
from phaze_opt.calibration.vector import MeasuredVector
from phaze_opt.errors import InputError
from phaze_opt.estimator.single import attention_graph, gemm_graph
from phaze_opt.network.collective import CollectiveName
from phaze_opt.user_files import CsvRow, read_rows
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm


def read_products(path: Path) -> list[MeasuredProduct]:
    """Read products with the columns m, n, k, latency_s and, if there is more than one, batch."""

    def one(row: CsvRow) -> MeasuredProduct:
        m, n, k = (_whole(row, column) for column in ("m", "n", "k"))
        gemm = Gemm(m, n, k, _whole(row, "batch", "1"))
        gemm_graph(gemm)  # refuses impossible sizes
        return MeasuredProduct(gemm, _seconds(row))

    return read_rows(path, ("m", "n", "k", "latency_s"), one)


def read_vector(path: Path) -> list[MeasuredVector]:
    """Read vector operators with the columns op, rows, columns, latency_s."""

    def one(row: CsvRow) -> MeasuredVector:
        shape = _whole(row, "rows"), _whole(row, "columns")
        return MeasuredVector(row["op"] or "", *shape, _seconds(row))

    return read_rows(path, ("op", "rows", "columns", "latency_s"), one)


def read_attention(path: Path) -> list[MeasuredAttention]:
    """Read fused attention forwards.

    The columns are batch, sequence, heads, kv_heads, head_dim, latency_s and causal (0 or 1; 1
    where it is left out).
    """
    columns = ("batch", "sequence", "heads", "kv_heads", "head_dim")

    def one(row: CsvRow) -> MeasuredAttention:
        batch, sequence, heads, kv_heads, head_dim = (_whole(row, column) for column in columns)
        causal = _whole(row, "causal", "1")
        if causal not in (0, 1):
            raise InputError(f"causal is {causal}, but it must be 0 or 1.")
        shape = AttentionShape(
            batch, sequence, sequence, heads, kv_heads, head_dim, causal=causal == 1
        )
        attention_graph(shape)  # refuses impossible sizes
        return MeasuredAttention(shape, _seconds(row))

    return read_rows(path, (*columns, "latency_s"), one)


def read_collectives(path: Path) -> list[CollectiveRow]:
    """Read collectives with the columns kind, devices, bytes (of the whole tensor), latency_s."""

    def one(row: CsvRow) -> CollectiveRow:
        kind = cast(CollectiveName, row["kind"] or "")
        return CollectiveRow(kind, _whole(row, "devices"), _number(row, "bytes"), _seconds(row))

    return read_rows(path, ("kind", "devices", "bytes", "latency_s"), one)


def _seconds(row: CsvRow) -> float:
    """Read the measured time of a row."""
    latency_s = _number(row, "latency_s")
    if not (math.isfinite(latency_s) and latency_s > 0.0):
        raise InputError(f"latency_s is {latency_s}, but it must be positive and finite.")
    return latency_s


def _whole(row: CsvRow, column: str, default: str = "") -> int:
    """Read one whole number of a row."""
    text = row.get(column) or default
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, but it must be a whole number.") from None


def _number(row: CsvRow, column: str) -> float:
    """Read one number of a row."""
    text = row.get(column) or ""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, but it must be a number.") from None
