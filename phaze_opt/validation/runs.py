"""Predicted against measured training runs: time per batch, and memory of the fullest device.

A run is evaluated as it was: the same model, degrees, batch and recompute, and else as its software
runs by default, where the source states nothing else (`phaze_opt.validation.stated_run`). A source
that does not state the microbatch or the chunks of an interleaved pipeline leaves several; the
fastest that fit are taken, and the row says which. A run that fitted its devices but not the
predicted memory is evaluated as if they held it; the row says that too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Literal

from phaze_opt.codec import data_rows
from phaze_opt.validation.measured import TRAINING_FILES, ValidationRow, ValidationTable
from phaze_opt.validation.stated_run import EvaluatedRun, evaluate_stated_run

_MEASURED = ("measured_s", "measured_memory_bytes")
_NOT_OPTIONS = ("table", "case", "trust", "repeats", "source", *_MEASURED)
"""Columns that say something of the measurement, not of how the model ran."""


def validate_run_times(*, ranges: bool = False) -> list[ValidationTable]:
    """Predict the time per batch of every measured training run.

    Parameters
    ----------
    ranges
        Whether each row has the range of all that it leaves open, on the fastest and the slowest
        chips of the name, which takes three times as long.

    Returns
    -------
    tables
        One per publication and accelerator, in the order of the data.
    """
    return _tables("measured_s", "", "s", lambda run: run.time_s, ranges=ranges)


def validate_run_memory() -> list[ValidationTable]:
    """Predict what the fullest device holds in runs that publish it, as their framework counts."""
    return _tables("measured_memory_bytes", " memory", "B", lambda run: run.reserved_bytes)


def _tables(
    column: str,
    suffix: str,
    unit: Literal["s", "B"],
    predicted: Callable[[EvaluatedRun], float],
    *,
    ranges: bool = False,
) -> list[ValidationTable]:
    """Evaluate the runs for which a column holds a measured value."""
    grouped: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in itertools.chain.from_iterable(
        data_rows("validation", name) for name in TRAINING_FILES
    ):
        if row[column]:
            grouped.setdefault((row["table"] + _kind_of(row), row["accelerator"]), []).append(row)
    tables = []
    for (name, accelerator), members in grouped.items():
        rows = []
        for row in members:
            run = _evaluated(
                tuple((name, text) for name, text in row.items() if name not in _NOT_OPTIONS)
            )
            rows.append(
                ValidationRow(
                    case=row["case"],
                    measured=float(row[column]),
                    predicted=predicted(run),
                    assumed=run.assumed,
                    trust=row["trust"],
                    source=row["source"],
                    repeats=row["repeats"],
                    parts_s=run.parts_s if unit == "s" else {},
                    bound=run.bound if unit == "s" else "",
                    predicted_range=run.range_s if ranges else None,
                    precision=row["precision"],
                )
            )
        source = members[0]["source"]
        tables.append(ValidationTable(name + suffix, accelerator, 0.0, source, tuple(rows), unit))
    return tables


def _kind_of(row: dict[str, str]) -> str:
    """Say what sets the runs of a file apart from others of their publication."""
    if "context_parallel" in row:
        return ", sequences shared"
    if "offload_parts" not in row:
        return ""
    if row["zero_group"]:
        return ", several slices"
    return ", activations offloaded" if row["offload_parts"] else ", rematerialised by policy"


@functools.cache
def _evaluated(cells: tuple[tuple[str, str], ...]) -> EvaluatedRun:
    """Evaluate a run once, for its time and for its memory."""
    return evaluate_stated_run(dict(cells))
