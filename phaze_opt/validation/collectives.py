"""Predicted against measured collectives inside one node, chip by chip.

The rows and who measured them are in ``data/collectives_chips.csv`` and ``.toml``. Two tables per
chip: large tensors, as training sends them, and all. NCCL changes its protocol between 1 and 4 MB
on these chips, which the model does not follow: the rows there have the largest errors.
"""

from __future__ import annotations

from typing import cast

from phaze_opt.choices import CollectiveName
from phaze_opt.codec import data_rows, data_table
from phaze_opt.network.estimate import estimate_collective
from phaze_opt.network.presets import load_cluster
from phaze_opt.validation.measured import ValidationRow, ValidationTable

LARGE_BYTES = 2**20
"""Size of the whole tensor from which a row is in the table of large ones."""


def validate_collectives() -> list[ValidationTable]:
    """Predict every measured collective.

    Returns
    -------
    tables
        For each network in the order of the data: large tensors, then all. The network stands where
        the accelerator does in tables of operators.
    """
    provenance = data_table("validation", "collectives_chips.toml")
    by_cluster: dict[str, list[dict[str, str]]] = {}
    for row in data_rows("validation", "collectives_chips.csv"):
        by_cluster.setdefault(row["cluster"], []).append(row)
    tables = []
    for cluster, rows in by_cluster.items():
        source = f"{provenance['measured_by']}, {provenance['source'][cluster]}"
        large = [row for row in rows if int(row["bytes"]) >= LARGE_BYTES]
        for name, members in (("collectives from 1 MB", large), ("collectives", rows)):
            predicted = tuple(_predict(row) for row in members)
            tables.append(ValidationTable(name, cluster, 0.0, source, predicted))
    return tables


def _predict(row: dict[str, str]) -> ValidationRow:
    """Estimate one measured row."""
    kind = cast(CollectiveName, row["kind"])
    devices, size_bytes = int(row["devices"]), int(row["bytes"])
    estimate = estimate_collective(kind, size_bytes, devices, load_cluster(row["cluster"], devices))
    case = f"{kind} of {size_bytes / 2**20:g} MiB on {devices}"
    return ValidationRow(case, float(row["latency_s"]), estimate.latency_s)
