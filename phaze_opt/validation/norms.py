"""Predicted against measured norms, forward and backward.

The rows and who measured them are in ``data/norms.csv`` and ``.toml``. Fused kernels are predicted;
PyTorch's own, which read a row more than once and find the gradient of a weight apart, are not.
"""

from __future__ import annotations

from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.single import estimate_vector
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable


def validate_norms() -> list[ValidationTable]:
    """Predict every measured norm of a fused kernel.

    Returns
    -------
    tables
        Two per chip, in the order of the data.
    """
    provenance = data_table("validation", "norms.toml")
    overheads_s, source = provenance["call_overhead_s"], provenance["measured_by"]
    grouped: dict[tuple[str, str], list[ValidationRow]] = {}
    for row in data_rows("validation", "norms.csv"):
        direction = row["direction"]
        rows, columns = int(row["rows"]), int(row["columns"])
        kind = row["op"] + ("_backward" if direction == "backward" else "")
        estimated = estimate_vector(
            kind,
            rows,
            columns,
            load_accelerator(row["accelerator"]),
            call_overhead_s=overheads_s[direction],
        )
        case = f"{row['op']} {rows}×{columns}, {direction}"
        shown = ValidationRow(
            case, float(row["latency_s"]), estimated.latency_s, source=row["source"]
        )
        grouped.setdefault((row["accelerator"], direction), []).append(shown)
    return [
        ValidationTable(f"norms, {direction}", name, overheads_s[direction], source, tuple(members))
        for (name, direction), members in grouped.items()
    ]
