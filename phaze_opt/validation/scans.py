"""Predicted against measured scans of Mamba-2: the kernel that joins scores and states.

The rows and who measured them are in ``data/scans.csv`` and ``.toml``. The kernel reads its scores
in 16 bits there.
"""

from __future__ import annotations

from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead
from phaze_opt.workload.recurrences import ScanShape


def validate_scans() -> list[ValidationTable]:
    """Predict every measured scan.

    Returns
    -------
    tables
        One per chip, in the order of the data.
    """
    source = data_table("validation", "scans.toml")["measured_by"]
    grouped: dict[str, list[ValidationRow]] = {}
    for row in data_rows("validation", "scans.csv"):
        names = ("batch", "tokens", "heads", "groups", "width", "state", "chunk")
        shape = ScanShape(*(int(row[name]) for name in names))
        chip = load_accelerator(row["accelerator"])
        kernels = estimate_isolated(_scan(shape), chip, chip.num_tc)
        case = f"{shape.heads} heads of {shape.width}, {shape.batch}×{shape.tokens} tokens"
        shown = ValidationRow(case, float(row["latency_s"]), float(kernels.latency_s.sum()))
        grouped.setdefault(row["accelerator"], []).append(shown)
    return [
        ValidationTable("state-space scans", name, 0.0, source, tuple(rows))
        for name, rows in grouped.items()
    ]


def _scan(shape: ScanShape) -> OperatorGraph:
    """Return the kernel, with what it does apart from its products before them."""
    work = shape.chunk_scan()
    operators = Operator("decay", vector=work.apart), Operator("scan", work.gemms, work.vector)
    tokens = shape.batch * shape.tokens
    results = tokens * shape.heads * shape.width
    read = (
        results,
        shape.chunks * shape.groups * shape.chunk**2,
        2 * tokens * shape.heads,
        tokens * shape.groups * shape.state,
        shape.chunks * shape.heads * shape.width * shape.state,
    )
    tensors = [Tensor(size, readers=(TensorRead(1, size),)) for size in read]
    written = Tensor(results, writers=((1, results),), outlives=True)
    return OperatorGraph(operators, (*tensors, written))
