"""Predicted against measured kernels of fused attention that train: forward, backward, windows.

The rows and who measured them are in ``data/attention_training.csv`` and ``.toml``; the constants
of each kernel on each chip are fitted to them (`phaze_opt.hardware.kernels`).
"""

from __future__ import annotations

from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.single import estimate_attention
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.attention import AttentionShape

_LEAST_TOKENS = 4096
_SHORT = f", < {_LEAST_TOKENS} tokens"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def attention_shape(row: dict[str, str]) -> AttentionShape:
    """Return the sizes of a row of the data."""
    return AttentionShape(
        batch=int(row["batch"]),
        queries=int(row["sequence"]),
        keys=int(row["sequence"]),
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
        causal=row["causal"] == "1",
        window=int(row["window"]),
        value_dim=int(row["head_dim_v"]),
    )


def attention_case(row: dict[str, str]) -> str:
    """Return the name of a row of the data."""
    shape = attention_shape(row)
    seen = "causal" if shape.causal else "full"
    if shape.window:
        seen = f"window of {shape.window}"
    width = str(shape.head_dim)
    if shape.width != shape.head_dim:
        width = f"{shape.head_dim}/{shape.width}"
    return (
        f"{DIRECTIONS[row['direction']]} {shape.batch}×{shape.queries}, "
        f"{shape.heads}/{shape.kv_heads} heads of {width}, {seen}"
    )


def validate_training_attention() -> list[ValidationTable]:
    """Predict every measured forward and backward of the kernels that train.

    Returns
    -------
    tables
        For each chip and kernel: forwards and backwards from 4,096 tokens, their sums where both
        were measured, windows, and shorter ones.
    """
    provenance = data_table("validation", "attention_training.toml")
    grouped: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in data_rows("validation", "attention_training.csv"):
        grouped.setdefault((row["accelerator"], row["kernel"]), []).append(row)
    tables = []
    for (name, kernel), rows in grouped.items():
        table = provenance["table"][name][kernel]
        chip = with_kernel(find_accelerator(name), kernel).accelerator
        by_kind: dict[str, list[ValidationRow]] = {}
        for row in rows:
            kind, predicted = _kind(row), _predict(row, chip, table)
            by_kind.setdefault(kind, []).append(predicted)
        for kind, members in by_kind.items():
            label = f"attention {kernel}, {kind}"
            overhead_s = table["call_overhead_s"][0 if "forward" in kind else 1]
            tables.append(
                ValidationTable(
                    label,
                    name,
                    overhead_s,
                    table["source"],
                    tuple(members),
                    minor=kind.endswith(_SHORT) or kernel == "cudnn-deterministic",
                )
            )
        sums = _sums(rows, chip, table)
        if sums:
            label = f"attention {kernel}, forward and backward"
            overhead_s = sum(table["call_overhead_s"])
            tables.append(ValidationTable(label, name, overhead_s, table["source"], sums))
    return tables


def _kind(row: dict[str, str]) -> str:
    """Say in which table of its chip and kernel a row is."""
    direction = DIRECTIONS[row["direction"]]
    if row["window"] != "0":
        return f"{direction}, windows"
    return direction if int(row["sequence"]) >= _LEAST_TOKENS else f"{direction}{_SHORT}"


def _predict(
    row: dict[str, str], chip: Accelerator, table: dict[str, list[float]]
) -> ValidationRow:
    """Estimate one kernel."""
    shape, backward = attention_shape(row), row["direction"] == "bwd"
    case = attention_case(row)
    overhead_s = table["call_overhead_s"][int(backward)]
    # What was timed are kernels one behind the other for a while, as in training.
    estimated = estimate_attention(shape, chip, None, overhead_s, backward=backward, sustained=True)
    return ValidationRow(case, float(row["latency_s"]), estimated.latency_s, source=row["source"])


def _sums(
    rows: list[dict[str, str]], chip: Accelerator, table: dict[str, list[float]]
) -> tuple[ValidationRow, ...]:
    """Add the forward and the backward of every shape for which both were measured."""
    by_shape: dict[AttentionShape, dict[str, dict[str, str]]] = {}
    for row in rows:
        if int(row["sequence"]) >= _LEAST_TOKENS:
            by_shape.setdefault(attention_shape(row), {})[row["direction"]] = row
    sums = []
    for both in by_shape.values():
        if len(both) == len(DIRECTIONS):
            forward, backward = (_predict(both[name], chip, table) for name in DIRECTIONS)
            measured_s = forward.measured + backward.measured
            predicted_s = forward.predicted + backward.predicted
            case = forward.case.removeprefix("forward ")
            sums.append(ValidationRow(case, measured_s, predicted_s, source=forward.source))
    return tuple(sums)
