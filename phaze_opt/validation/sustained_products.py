"""Predicted against measured matrix products of long runs, chip by chip and layout by layout.

The rows and who measured them are in ``data/gemm_sustained.csv`` and ``.toml``; the rates that
chips sustain are fitted to them (`phaze_opt.estimator.power_limit`).
"""

from __future__ import annotations

import numpy as np

from phaze_opt.calibration.measured_files import read_layout
from phaze_opt.calibration.products import products_graph, products_s
from phaze_opt.choices import Layout
from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.power_limit import accumulator_s
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.graph import Gemm

_LAYOUTS: dict[Layout, str] = {
    "tn": "forward",
    "nn": "data gradient",
    "nt": "weight gradient",
}


def validate_sustained_products() -> list[ValidationTable]:
    """Predict every measured product of a long run.

    Returns
    -------
    tables
        One per chip and layout, in the order of the data.
    """
    sources = data_table("validation", "gemm_sustained.toml")["source"]
    grouped: dict[tuple[str, Layout], list[dict[str, str]]] = {}
    for row in data_rows("validation", "gemm_sustained.csv"):
        grouped.setdefault((row["accelerator"], read_layout(row)), []).append(row)
    tables = []
    for (name, layout), rows in grouped.items():
        title, predicted = f"gemm sustained, {_LAYOUTS[layout]}", _predict(name, layout, rows)
        tables.append(ValidationTable(title, name, 0.0, sources[name], predicted))
    return tables


def _predict(name: str, layout: Layout, rows: list[dict[str, str]]) -> tuple[ValidationRow, ...]:
    """Estimate the rows of one table."""
    chip = load_accelerator(name)
    gemms = [Gemm(int(row["m"]), int(row["n"]), int(row["k"])) for row in rows]
    waits_s = [accumulator_s(gemm, layout, chip) for gemm in gemms]
    graph = products_graph(gemms, [layout] * len(gemms))
    predicted_s = products_s(graph, chip, sustained=True) + np.array(waits_s)
    return tuple(
        ValidationRow(
            case=f"gemm {gemm.m}×{gemm.n}×{gemm.k}, {layout}, result in {row['result']}",
            measured=float(row["latency_s"]),
            predicted=float(seconds),
            source=row["source"],
        )
        for row, gemm, seconds in zip(rows, gemms, predicted_s, strict=True)
    )
