"""Predicted against measured layers of experts, all on one device, chip by chip.

The rows and who measured them are in ``data/expert_layers.csv`` and ``.toml``. What the kernels
around the grouped products move belongs to the table of a chip and is stated there.
"""

from __future__ import annotations

from phaze_opt.calibration.expert_layers import ExpertCalls, ExpertLayer, row_bytes_of
from phaze_opt.codec import data_rows, data_table
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable


def validate_expert_layers() -> list[ValidationTable]:
    """Predict every measured layer of experts.

    Returns
    -------
    tables
        One per chip, in the order of the data's provenance.
    """
    provenance = data_table("validation", "expert_layers.toml")
    by_chip: dict[str, list[dict[str, str]]] = {chip: [] for chip in provenance["accelerator"]}
    for row in data_rows("validation", "expert_layers.csv"):
        by_chip[row["chip"]].append(row)
    tables = []
    for chip, rows in by_chip.items():
        name = provenance["accelerator"][chip]
        files = dict.fromkeys(row["source"].rpartition(" ")[2] for row in rows)
        tables.append(
            ValidationTable(
                f"experts bf16, {chip.partition('_')[0]}",
                name,
                0.0,
                f"{provenance['measured_by']}, {', '.join(files)}",
                _predict(rows, name),
            )
        )
    return tables


def expert_layer(row: dict[str, str]) -> ExpertLayer:
    """Return the sizes of a row of the data."""
    columns = ("tokens", "hidden", "inner", "top_k", "experts")
    tokens, hidden, inner, top_k, experts = (int(row[column]) for column in columns)
    return ExpertLayer(tokens, hidden, inner, top_k, experts)


def _predict(rows: list[dict[str, str]], accelerator: str) -> tuple[ValidationRow, ...]:
    """Estimate the rows of one chip."""
    row_bytes = row_bytes_of(accelerator)
    layers = [expert_layer(row) for row in rows]
    calls = ExpertCalls(layers, load_accelerator(accelerator))
    return tuple(
        ValidationRow(
            case=(
                f"{layer.tokens} tokens to {layer.top_k} of {layer.experts} experts, "
                f"{layer.hidden}×{layer.inner}"
            ),
            measured=float(row["latency_ms"]) * 1e-3,
            predicted=float(seconds),
            assumed=f"{row_bytes:g} B of traffic per row and element around the products",
        )
        for row, layer, seconds in zip(
            rows, layers, calls.seconds({"row_bytes": row_bytes}), strict=True
        )
    )
