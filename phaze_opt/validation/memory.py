"""Predicted against published memory: of transformer blocks alone, and of whole training runs."""

from __future__ import annotations

from phaze_opt.codec import data_rows
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.zoo import load_workload


def validate_block_memory() -> list[ValidationTable]:
    """Predict what transformer blocks hold.

    ``blocks`` of the data says how many blocks' stashes the first stage holds at its peak: all of
    them without a pipeline, and ``L / p · p · (1 + (p − 1) / (p · v))`` in an interleaved one.
    """
    rows = data_rows("validation", "memory.csv")
    predicted = tuple(_predict(row) for row in rows)
    return [
        ValidationTable("korthikanti memory", "a100-80", 0.0, rows[0]["source"], predicted, "B")
    ]


def _predict(row: dict[str, str]) -> ValidationRow:
    """Read one row's bytes off the captured block."""
    workload = load_workload(
        row["model"],
        tensor_parallel=(int(row["tensor"]),),
        microbatch=(int(row["microbatch"]),),
        sequence_parallel=row["sequence_parallel"] == "true",
    )
    (variant,) = workload.variants
    (block,) = [layer for layer in variant.layers if layer.name == "block"]
    adam = OPTIMIZERS["adam"]
    state_bytes = adam.weight_bytes + adam.gradient_bytes + adam.state_bytes
    per_block: float = (
        block.parameters * state_bytes
        if row["quantity"] == "state"
        else getattr(block.stash_bytes, row["recompute"])
    )
    return ValidationRow(
        row["case"],
        float(row["measured_bytes"]),
        int(row["blocks"]) * per_block,
        source=row["source"],
    )
