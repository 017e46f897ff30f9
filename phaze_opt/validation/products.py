"""Predicted against measured matrix products, chip by chip.

The rows and who measured them are in ``data/gemm_chips.csv`` and ``.toml``. The large products in
bf16 are those that the constants of the chips are fitted to. The others are predicted with the same
constants: small products, which are mostly launch and library choices, and products in fp8, at
the rate of the arrays in fp8. A measured product in fp8 is a call that quantises its activation
first; what that takes belongs to the table of a chip and a framework and is stated there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.products import LEAST_FLOPS, products_graph, products_s
from phaze_opt.calibration.quantised_products import QuantisedCalls
from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.estimate import estimate_on_cores
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.precision import PrecisionName
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.graph import Gemm

_FP8 = "fp8"


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
        constants = _constants_of_table(provenance, rows[0])
        predicted = _predict(rows, chip, constants)
        overhead_s = constants.get("call_overhead_s", 0.0)
        small = name.startswith("gemm") and "<" in name
        tables.append(
            ValidationTable(name, accelerator, overhead_s, source, predicted, minor=small)
        )
    return tables


def _constants_of_table(provenance: Mapping[str, Any], row: dict[str, str]) -> dict[str, float]:
    """Return what the calls of a table hold beside their product; nothing in bf16."""
    return provenance[_FP8][row["chip"]][row["framework"]] if row["dtype"] == _FP8 else {}


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
        precision = cast(PrecisionName, row["precision"])
        gemm = replace(gemm, precision=precision)
        (predicted_s,) = estimate_on_cores(products_graph([gemm]), chip, chip.num_tc).busy_s
        measured_s = gemm.flops / (float(row["achieved_tflops"]) * 1e12)
        case = f"gemm {gemm.m}×{gemm.n}×{gemm.k}"
        name = "best product" if precision == "bf16" else f"best product {precision}"
        validated = ValidationRow(case, measured_s, float(predicted_s), source=row["source"])
        tables.append(ValidationTable(name, row["accelerator"], 0.0, row["source"], (validated,)))
    return tables


def _gemm(row: dict[str, str]) -> Gemm:
    """Return the product of a row."""
    return Gemm(int(row["m"]), int(row["n"]), int(row["k"]))


def _table_name(row: dict[str, str]) -> str:
    """Say in which table of its chip a row is; names sort in the order of the tables."""
    large = _gemm(row).flops >= LEAST_FLOPS
    size = f"{'≥' if large else '<'}{LEAST_FLOPS / 1e9:g} GFLOP"
    if row["dtype"] == _FP8:
        return f"gemm fp8 {size}, {row['framework']}"
    return f"gemm bf16 {size}"


def _predict(
    rows: Sequence[dict[str, str]], chip: Accelerator, constants: Mapping[str, float]
) -> tuple[ValidationRow, ...]:
    """Estimate the rows of one table."""
    gemms = [_gemm(row) for row in rows]
    predicted_s = _calls_s(gemms, chip, constants)
    assumed = ""
    if constants:
        assumed = f"{constants['quantisation_bytes']:g} B to quantise an element of the activation"
    return tuple(
        ValidationRow(
            case=f"gemm {gemm.m}×{gemm.n}×{gemm.k}, {row['framework']}",
            measured=float(row["latency_ms"]) * 1e-3,
            predicted=float(seconds),
            assumed=assumed,
        )
        for row, gemm, seconds in zip(rows, gemms, predicted_s, strict=True)
    )


def _calls_s(
    gemms: Sequence[Gemm], chip: Accelerator, constants: Mapping[str, float]
) -> FloatArray:
    """Estimate products in bf16, or calls in fp8 where a table has constants for them."""
    if constants:
        return QuantisedCalls(gemms, chip).seconds(constants)
    return products_s(products_graph(gemms), chip)
