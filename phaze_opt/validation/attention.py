"""Predicted against measured forwards of fused attention, chip by chip.

The rows and who measured them are in ``data/attention_forward_chips.csv`` and ``.toml``. A measured
call holds more than its kernel; what that is belongs to the table of a chip and is stated there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.single import attention_graph, estimate_attention
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.attention import AttentionShape

_PRECISION = "bfloat16"


@dataclass(frozen=True)
class AttentionTable:
    """The measured forwards of one chip.

    Attributes
    ----------
    accelerator
        Name of the preset.
    call_overhead_s
        Of the measurement, per call.
    earlier_traffic
        Traffic of the kernels before, in multiples of what the attention kernel reads and writes.
    source
        Who measured it, and in which file it is.
    rows
        Sizes, and measured seconds.
    """

    accelerator: str
    call_overhead_s: float
    earlier_traffic: float
    source: str
    rows: tuple[tuple[AttentionShape, float], ...]


def measured_attention() -> list[AttentionTable]:
    """Return the measured forwards in bf16, one table per chip in the order of the data."""
    provenance = data_table("validation", "attention_forward_chips.toml")
    by_chip: dict[str, list[dict[str, str]]] = {}
    for row in data_rows("validation", "attention_forward_chips.csv"):
        if row["dtype"] == row["kv_dtype"] == _PRECISION:
            by_chip.setdefault(row["chip"], []).append(row)
    return [_table(provenance, chip, rows) for chip, rows in by_chip.items()]


def validate_attention() -> list[ValidationTable]:
    """Predict every measured forward in bf16.

    Returns
    -------
    tables
        One per chip, in the order of the data.
    """
    tables = []
    for table in measured_attention():
        chip = with_kernel(find_accelerator(table.accelerator), "serving").accelerator
        rows = tuple(_predict(shape, measured_s, chip, table) for shape, measured_s in table.rows)
        tables.append(
            ValidationTable(
                "attention serving, forward",
                table.accelerator,
                table.call_overhead_s,
                table.source,
                rows,
            )
        )
    return tables


def _table(provenance: Mapping[str, Any], chip: str, rows: list[dict[str, str]]) -> AttentionTable:
    """Read the rows of one chip."""
    shapes = []
    for row in rows:
        sequence = int(row["seq"])
        heads, kv_heads, head_dim = int(row["heads"]), int(row["kv_heads"]), int(row["head_dim"])
        shape = AttentionShape(
            int(row["batch"]), sequence, sequence, heads, kv_heads, head_dim, causal=True
        )
        shapes.append((shape, float(row["latency_ms"]) * 1e-3))
    file = rows[0]["source"].split()[-1]
    return AttentionTable(
        **provenance["table"][chip],
        source=f"{provenance['measured_by']}, {file}",
        rows=tuple(shapes),
    )


def _predict(
    shape: AttentionShape, measured_s: float, chip: Accelerator, table: AttentionTable
) -> ValidationRow:
    """Estimate one call: the kernel, the constant per call, the traffic of the kernels before."""
    (moved_bytes,) = attention_graph(shape).moved_bytes
    traffic_s = moved_bytes / chip.memory_bytes_per_s
    kernel_s = estimate_attention(shape, chip, None, table.call_overhead_s).latency_s
    case = (
        f"attention {shape.batch}×{shape.queries}, {shape.heads}/{shape.kv_heads} heads of "
        f"{shape.head_dim}, causal"
    )
    before = f"{table.earlier_traffic:g} × its traffic in the kernels before"
    return ValidationRow(case, measured_s, kernel_s + table.earlier_traffic * traffic_s, before)
