"""Predicted against measured matrix products, chip by chip.

The rows and who measured them are in ``data/gemm_chips.csv`` and ``.toml``. The large products in
bf16 are those that the constants of the chips are fitted to. The others are predicted with the same
constants: small products, which are mostly launch and library choices, and products in fp8, which
are too fast here: the power limit lowers the clock further in fp8, which no bf16 row shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from phaze_opt.calibration.products import LEAST_FLOPS, products_graph
from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.estimate import estimate_on_cores
from phaze_opt.estimator.single import estimate_gemm
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.graph import Gemm

_FP8_PER_BF16 = 2
"""Multiply-accumulates per cycle in fp8 for each in bf16 (data sheets), and operands per byte."""

_CAST_BYTES = 3
"""Traffic of an activation that is read in bf16 and written in fp8."""


def validate_products() -> list[ValidationTable]:
    """Predict every measured product.

    Returns
    -------
    tables
        For each chip in the order of the data: large products in bf16, small ones, and those in fp8
        of each framework.
    """
    provenance = data_table("validation", "gemm_chips.toml")
    presets = provenance["accelerator"]
    grouped: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in data_rows("validation", "gemm_chips.csv"):
        grouped.setdefault((presets[row["chip"]], _table_name(row)), []).append(row)
    order = list(presets.values())
    tables = []
    for accelerator, name in sorted(grouped, key=lambda key: (order.index(key[0]), key[1])):
        rows, chip = grouped[accelerator, name], load_accelerator(accelerator)
        files = dict.fromkeys(row["source"].rpartition(" ")[2] for row in rows)
        source = f"{provenance['measured_by']}, {', '.join(files)}"
        found = tuple(_predict(row, chip) for row in rows)
        tables.append(ValidationTable(name, accelerator, 0.0, source, found))
    return tables


def validate_best_products() -> list[ValidationTable]:
    """Predict the fastest product that was measured on each chip under load.

    The sustained clock of some of these chips is this rate over their units (see the sources of
    the presets), so their rows are no independent evidence; they hold that no other constant moves
    them.

    Returns
    -------
    tables
        One row each, in the order of the data.
    """
    tables = []
    for row in data_rows("validation", "best_product.csv"):
        gemm, chip = _gemm(row), load_accelerator(row["accelerator"])
        (predicted_s,) = estimate_on_cores(products_graph([gemm]), chip, chip.num_tc).busy_s
        measured_s = gemm.flops / (float(row["achieved_tflops"]) * 1e12)
        case = f"gemm {gemm.m}×{gemm.n}×{gemm.k}"
        found = ValidationRow(case, measured_s, float(predicted_s), source=row["source"])
        tables.append(
            ValidationTable("best product", row["accelerator"], 0.0, row["source"], (found,))
        )
    return tables


def _gemm(row: dict[str, str]) -> Gemm:
    """Return the product of a row."""
    return Gemm(int(row["m"]), int(row["n"]), int(row["k"]))


def _table_name(row: dict[str, str]) -> str:
    """Say in which table of its chip a row is; names sort in the order of the tables."""
    large = _gemm(row).flops >= LEAST_FLOPS
    size = f"{'≥' if large else '<'}{LEAST_FLOPS / 1e9:g} GFLOP"
    if row["dtype"] == "fp8":
        return f"gemm fp8 {size}, {row['framework']}"
    return f"gemm bf16 {size}"


def _predict(row: dict[str, str], chip: Accelerator) -> ValidationRow:
    """Estimate one measured row."""
    gemm = _gemm(row)
    predicted_s = sum(_parts_s(gemm, chip, row["dtype"]))
    case = f"gemm {gemm.m}×{gemm.n}×{gemm.k}, {row['framework']}"
    return ValidationRow(case, float(row["latency_ms"]) * 1e-3, predicted_s)


def _parts_s(gemm: Gemm, chip: Accelerator, dtype: str) -> Iterator[float]:
    """Yield the times of the product, and of the cast of its activation.

    A product in fp8 is one in bf16 with half the reduction: half the cycles of the arrays and half
    the bytes of the operands, with a result in bf16.
    """
    if dtype != "fp8":
        yield estimate_gemm(gemm, chip).latency_s
        return
    half = Gemm(gemm.m, gemm.n, max(gemm.k // _FP8_PER_BF16, 1))
    yield estimate_gemm(half, chip).latency_s
    yield _CAST_BYTES * gemm.m * gemm.k / chip.sustained_hbm_bytes_per_s
