"""Predicted against measured operators of a user: one operator per row of a CSV file.

The columns are those of ``phaze-opt estimate --csv`` with ``latency_s`` and the name or path of the
chip, or of the network of collectives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from phaze_opt.calibration.expert_layers import estimate_expert_layer, row_bytes_of
from phaze_opt.calibration.measured_files import (
    ATTENTION_COLUMNS,
    EXPERT_COLUMNS,
    read_attention_shape,
    read_expert_layer,
    read_latency_s,
    read_layout,
    read_precision,
    read_switch,
)
from phaze_opt.choices import CollectiveName
from phaze_opt.codec import from_text
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.estimator.single import estimate_attention, estimate_gemm, estimate_vector
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.network.estimate import estimate_collective
from phaze_opt.network.presets import load_cluster
from phaze_opt.precision import AttentionPrecision
from phaze_opt.user_files import CsvRow, number_cell, read_rows, whole_cell
from phaze_opt.validation.measured import NOTES, ValidationRow, ValidationTable
from phaze_opt.workload.graph import Gemm


class _Kind(NamedTuple):
    """A kind of operators.

    Attributes
    ----------
    name
        In plural.
    columns
        By which a file is known, all needed.
    optional
        Columns that it may have too.
    where
        The column that names the chip or the network.
    predict
        Returns what is measured in words, and its seconds.
    """

    name: str
    columns: tuple[str, ...]
    optional: tuple[str, ...]
    where: str
    predict: Callable[[CsvRow], tuple[str, float]]


def validate_own_operators(path: Path) -> list[ValidationTable]:
    """Predict every operator of a CSV file.

    Parameters
    ----------
    path
        Its first line names ``latency_s``, ``accelerator`` (``cluster`` of collectives), perhaps
        ``call_overhead_us``, and the columns of one kind: ``m,n,k`` with ``batch``, ``layout``,
        ``precision`` and ``sustained``; ``op,rows,columns``; ``batch,sequence,heads,kv_heads,
        head_dim`` with ``head_dim_v``, ``window``, ``causal``, ``backward``, ``kernel``,
        ``precision`` and ``sustained``; ``tokens,hidden,ffn,topk,experts`` with ``precision``;
        or ``kind,devices,bytes``.

    Returns
    -------
    tables
        One per chip or network, in the order of the file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is no such file, or an operator cannot be estimated; names the line.
    """
    kinds: list[_Kind] = []

    def one(row: CsvRow) -> tuple[str, ValidationRow]:
        if not kinds:
            kinds.append(_kind_of(row))
        if None in row:
            raise InputError("The line has more cells than the first line has columns.")
        (kind,) = kinds
        place = (row.get(kind.where) or "").strip()
        if not place:
            raise InputError(f"{kind.where} is empty, but every row must name its own.")
        call_s = number_cell(row, "call_overhead_us") * 1e-6 if row.get("call_overhead_us") else 0.0
        if not 0.0 <= call_s < float("inf"):
            raise InputError(
                f"call_overhead_us is {call_s * 1e6}, but it must be finite and at least 0."
            )
        words, seconds = kind.predict(row)
        return place, ValidationRow(words, read_latency_s(row), seconds + call_s)

    rows = read_rows(path, ("latency_s",), one)
    if not rows:
        raise InputError(f"The CSV file {path} has no row, but it must have one per operator.")
    grouped: dict[str, list[ValidationRow]] = {}
    for place, predicted in rows:
        grouped.setdefault(place, []).append(predicted)
    name = f"{kinds[0].name} of {path.name}"
    return [
        ValidationTable(name, place, 0.0, str(path), tuple(members))
        for place, members in grouped.items()
    ]


def _kind_of(row: Mapping[str, object]) -> _Kind:
    """Return the kind whose columns a file has, and no others."""
    for kind in _KINDS:
        if all(column in row for column in kind.columns):
            allowed = (*kind.columns, *kind.optional, kind.where, *_COMMON)
            for column in filter(None, row):
                if column not in allowed:
                    raise unknown_name(f"column of {kind.name}", column, allowed)
            return kind
    known = "; ".join(",".join(kind.columns) for kind in _KINDS)
    raise InputError(f"The columns are of no kind of operator; the kinds have {known}.")


@functools.lru_cache(maxsize=64)
def _chip(name: str, kernel: str | None = None) -> Accelerator:
    """Return a chip by name or path, as a kernel of attention uses it."""
    return with_kernel(find_accelerator(name), kernel).accelerator


def _named_chip(row: CsvRow) -> Accelerator:
    """Return the chip of a row."""
    return _chip((row["accelerator"] or "").strip(), (row.get("kernel") or "").strip() or None)


def _product(row: CsvRow) -> tuple[str, float]:
    """Predict a product."""
    m, n, k = (whole_cell(row, name) for name in ("m", "n", "k"))
    batch, precision, layout = whole_cell(row, "batch", "1"), read_precision(row), read_layout(row)
    gemm = Gemm(m, n, k, batch, precision=precision)
    sustained = read_switch(row, "sustained", False)
    seconds = estimate_gemm(gemm, _named_chip(row), layout=layout, sustained=sustained).latency_s
    shape = f"{batch} × {m}×{n}×{k}" if batch > 1 else f"{m}×{n}×{k}"
    return f"{precision} {shape} {layout}", seconds


def _vector(row: CsvRow) -> tuple[str, float]:
    """Predict a vector operator."""
    kind, rows, columns = row["op"] or "", whole_cell(row, "rows"), whole_cell(row, "columns")
    seconds = estimate_vector(kind, rows, columns, _named_chip(row)).latency_s
    return f"{kind} {rows}×{columns}", seconds


def _attention(row: CsvRow) -> tuple[str, float]:
    """Predict a fused attention core."""
    shape, backward = read_attention_shape(row), read_switch(row, "backward", False)
    text = (row.get("precision") or "bf16").strip().lower()
    precision = cast(AttentionPrecision, from_text(text, AttentionPrecision, "precision"))
    estimate = estimate_attention(
        shape,
        _named_chip(row),
        backward=backward,
        sustained=read_switch(row, "sustained", False),
        precision=precision,
    )
    direction = "backward" if backward else "forward"
    words = f"{shape.batch} × {shape.queries} tokens, {shape.heads} heads of {shape.head_dim}"
    return f"{precision} {words}, {direction}", estimate.latency_s


def _experts(row: CsvRow) -> tuple[str, float]:
    """Predict a layer of experts."""
    layer = read_expert_layer(row)
    name = (row["accelerator"] or "").strip()
    seconds = estimate_expert_layer(layer, _named_chip(row), row_bytes_of(name)).latency_s
    return f"{layer.tokens} tokens to {layer.top_k} of {layer.experts} experts", seconds


def _collective(row: CsvRow) -> tuple[str, float]:
    """Predict a collective."""
    kind, devices = cast(CollectiveName, row["kind"] or ""), whole_cell(row, "devices")
    size_bytes = number_cell(row, "bytes")
    network = load_cluster((row["cluster"] or "").strip(), devices)
    seconds = estimate_collective(kind, size_bytes, devices, network).latency_s
    return f"{kind} of {size_bytes / 2**20:g} MiB on {devices}", seconds


_KINDS = (
    _Kind(
        "products",
        ("m", "n", "k"),
        ("batch", "layout", "precision", "sustained"),
        "accelerator",
        _product,
    ),
    _Kind("vector operators", ("op", "rows", "columns"), (), "accelerator", _vector),
    _Kind(
        "attention",
        ATTENTION_COLUMNS,
        ("head_dim_v", "window", "causal", "backward", "kernel", "precision", "sustained"),
        "accelerator",
        _attention,
    ),
    _Kind("experts", EXPERT_COLUMNS, ("precision",), "accelerator", _experts),
    _Kind("collectives", ("kind", "devices", "bytes"), (), "cluster", _collective),
)
_COMMON = ("latency_s", "call_overhead_us", *NOTES)
"""Columns that a file of any kind may have."""
