"""Measured operators from CSV files: the columns of ``phaze-opt estimate --csv``, and latency_s."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

from phaze_opt.calibration.attention import MeasuredAttention
from phaze_opt.calibration.collectives import CollectiveRow
from phaze_opt.calibration.expert_layers import ExpertLayer
from phaze_opt.calibration.products import MeasuredProduct
from phaze_opt.calibration.vector import MeasuredVector
from phaze_opt.choices import CollectiveName, Layout
from phaze_opt.codec import from_text
from phaze_opt.errors import InputError
from phaze_opt.estimator.single import attention_graph, gemm_graph
from phaze_opt.precision import PrecisionName
from phaze_opt.user_files import CsvRow, number_cell, read_rows, whole_cell
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm


def read_products(path: Path) -> list[MeasuredProduct]:
    """Read products with the columns m, n, k, latency_s.

    There may be the columns batch (1 where it is left out) and layout (`read_layout`).
    """

    def product(row: CsvRow) -> MeasuredProduct:
        m, n, k = (whole_cell(row, column) for column in ("m", "n", "k"))
        gemm, layout = Gemm(m, n, k, whole_cell(row, "batch", "1")), read_layout(row)
        gemm_graph(gemm, layout)  # refuses impossible sizes
        return MeasuredProduct(gemm, read_latency_s(row), layout)

    return read_rows(path, ("m", "n", "k", "latency_s"), product)


def read_vector(path: Path) -> list[MeasuredVector]:
    """Read vector operators with the columns op, rows, columns, latency_s."""

    def vector(row: CsvRow) -> MeasuredVector:
        shape = whole_cell(row, "rows"), whole_cell(row, "columns")
        return MeasuredVector(row["op"] or "", *shape, read_latency_s(row))

    return read_rows(path, ("op", "rows", "columns", "latency_s"), vector)


def read_attention(path: Path) -> list[MeasuredAttention]:
    """Read fused attention cores: the columns of `read_attention_shape`, latency_s, and backward.

    The last is 0 or 1, and 0 where it is left out.
    """

    def attention(row: CsvRow) -> MeasuredAttention:
        shape, backward = read_attention_shape(row), read_switch(row, "backward", False)
        attention_graph(shape, backward=backward)  # refuses impossible sizes
        return MeasuredAttention(shape, read_latency_s(row), backward)

    return read_rows(path, (*ATTENTION_COLUMNS, "latency_s"), attention)


ATTENTION_COLUMNS = ("batch", "sequence", "heads", "kv_heads", "head_dim")
"""Columns that a row of fused attention has."""


def read_attention_shape(
    row: CsvRow, *, causal: bool = True, window: int = 0, value_dim: int = 0
) -> AttentionShape:
    """Read the sizes of a fused attention core.

    Parameters
    ----------
    row
        With `ATTENTION_COLUMNS`, and perhaps causal (0 or 1), window and head_dim_v.
    causal, window, value_dim
        What holds where these are left out.
    """
    batch, sequence, heads, kv_heads, head_dim = (
        whole_cell(row, name) for name in ATTENTION_COLUMNS
    )
    return AttentionShape(
        batch,
        sequence,
        sequence,
        heads,
        kv_heads,
        head_dim,
        causal=read_switch(row, "causal", causal),
        window=whole_cell(row, "window", str(window)),
        value_dim=whole_cell(row, "head_dim_v", str(value_dim)),
    )


def read_layout(row: CsvRow, default: Layout = "tn") -> Layout:
    """Read the layout of a product in either case; where it is empty or missing, the default."""
    return cast(Layout, (row.get("layout") or default).strip().lower())


def read_switch(row: CsvRow, column: str, default: bool) -> bool:
    """Read one 0 or 1 of a row; where it is empty or missing, the default holds."""
    text = (row.get(column) or "").strip()
    if text not in ("", "0", "1"):
        raise InputError(f"{column} is {text!r}, but it must be 0 or 1.")
    return default if text == "" else text == "1"


def read_collectives(path: Path) -> list[CollectiveRow]:
    """Read collectives with the columns kind, devices, bytes (of the whole tensor), latency_s."""

    def collective(row: CsvRow) -> CollectiveRow:
        kind = cast(CollectiveName, row["kind"] or "")
        return CollectiveRow(
            kind, whole_cell(row, "devices"), number_cell(row, "bytes"), read_latency_s(row)
        )

    return read_rows(path, ("kind", "devices", "bytes", "latency_s"), collective)


EXPERT_COLUMNS = ("tokens", "hidden", "ffn", "topk", "experts")
"""Columns that a row of a layer of experts has."""


def read_expert_layer(row: CsvRow, precision: PrecisionName = "bf16") -> ExpertLayer:
    """Read a layer of experts: `EXPERT_COLUMNS`, and perhaps precision."""
    tokens, hidden, inner, top_k, experts = (whole_cell(row, name) for name in EXPERT_COLUMNS)
    return ExpertLayer(tokens, hidden, inner, top_k, experts, read_precision(row, precision))


def read_precision(row: CsvRow, default: PrecisionName = "bf16") -> PrecisionName:
    """Read the recipe of a row; where it is empty or missing, the default holds."""
    text = (row.get("precision") or default).strip().lower()
    return cast(PrecisionName, from_text(text, PrecisionName, "precision"))


def read_latency_s(row: CsvRow) -> float:
    """Read the measured time of a row."""
    latency_s = number_cell(row, "latency_s")
    if not (math.isfinite(latency_s) and latency_s > 0.0):
        raise InputError(f"latency_s is {latency_s}, but it must be positive and finite.")
    return latency_s
