"""Predicted against measured operators, timed one framework call at a time.

Their constant per call belongs to that measurement and is a column of the table.
"""

from __future__ import annotations

from itertools import chain

from phaze_opt.codec import data_rows
from phaze_opt.estimator.single import estimate_gemm, estimate_vector
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.graph import Gemm

_FILES = ("gemm.csv", "gemm_tpuv6e.csv", "gemm_tpu7x.csv", "vector.csv", "copy_tpu7x.csv")


def validate_single_operators() -> list[ValidationTable]:
    """Predict matrix products and vector operators that were timed call by call.

    Returns
    -------
    tables
        One per operator kind and accelerator, in the order of the data. The older products of
        GPUs disagree with those that constants are fitted to.
    """
    grouped: dict[tuple[str, str], list[tuple[ValidationRow, float]]] = {}
    for row in chain.from_iterable(data_rows("validation", name) for name in _FILES):
        key = row.get("op", "gemm"), row["accelerator"]
        overhead_s = float(row["call_overhead_us"]) * 1e-6
        grouped.setdefault(key, []).append((_predict(row, overhead_s), overhead_s))
    return [
        ValidationTable(
            kind,
            accelerator,
            members[0][1],
            members[0][0].source,
            tuple(row for row, _ in members),
            minor=kind == "gemm" and not accelerator.startswith("tpu"),
        )
        for (kind, accelerator), members in grouped.items()
    ]


def _predict(row: dict[str, str], overhead_s: float) -> ValidationRow:
    """Estimate one measured row."""
    chip = load_accelerator(row["accelerator"])
    if "op" in row:
        rows, columns = int(row["rows"]), int(row["columns"])
        estimate = estimate_vector(row["op"], rows, columns, chip, call_overhead_s=overhead_s)
        case = f"{row['op']} {rows}×{columns}"
    else:
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        gemm = Gemm(m, n, k, batch=int(row.get("batch") or 1))
        estimate = estimate_gemm(gemm, chip, call_overhead_s=overhead_s)
        case = f"gemm {m}×{n}×{k}" + (f", {gemm.batch} at once" if gemm.batch > 1 else "")
    return ValidationRow(case, float(row["measured_s"]), estimate.latency_s, source=row["source"])
