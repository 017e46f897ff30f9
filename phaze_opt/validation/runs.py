"""The model held against measured silicon: every built-in row, its prediction and its error.

The operators in ``hardware/data/measured`` were timed one framework call at a time. Their constant
per call belongs to that measurement and is a column of the table. Training runs are evaluated as
they were run: same model, degrees, batch and recompute.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from phaze_opt.codec import data_rows
from phaze_opt.errors import PhazeError
from phaze_opt.estimator.single import estimate_gemm, estimate_vector
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import load_cluster
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import OPTIMIZERS, Overlap, Recompute, Training
from phaze_opt.workload.graph import Gemm
from phaze_opt.workload.zoo import load_workload

_MEASURED = ("measured_s", "measured_memory_bytes")


@dataclass(frozen=True)
class ValidationRow:
    """One measured row.

    Attributes
    ----------
    case
        What was measured, for a person.
    assumed
        Options that the source does not state, as they were chosen.
    measured, predicted
        In the table's unit; a time includes the constant per call of the measurement.
    """

    case: str
    measured: float
    predicted: float
    assumed: str = ""

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class ValidationTable:
    """All rows of one kind on one accelerator; ``unit`` is ``s`` or ``B``."""

    name: str
    accelerator: str
    call_overhead_s: float
    source: str
    rows: tuple[ValidationRow, ...]
    unit: Literal["s", "B"] = "s"

    @property
    def mean_absolute_error(self) -> float:
        """Mean of the absolute relative errors."""
        return sum(abs(row.error) for row in self.rows) / len(self.rows)

    @property
    def worst_error(self) -> float:
        """The relative error that is largest in absolute value."""
        return max((row.error for row in self.rows), key=abs)


def validate_operators() -> list[ValidationTable]:
    """Predict every measured matrix product and vector operator.

    Returns
    -------
    tables
        One per operator kind and accelerator, in the order of the data.
    """
    grouped: dict[tuple[str, str], list[tuple[ValidationRow, float, str]]] = {}
    for row in [*_read("gemm.csv"), *_read("vector.csv")]:
        key = row.get("op", "gemm"), row["accelerator"]
        overhead_s = float(row["call_overhead_us"]) * 1e-6
        grouped.setdefault(key, []).append((_predict(row, overhead_s), overhead_s, row["source"]))
    return [
        ValidationTable(
            kind, accelerator, members[0][1], members[0][2], tuple(row for row, _, _ in members)
        )
        for (kind, accelerator), members in grouped.items()
    ]


def validate_training() -> list[ValidationTable]:
    """Predict the time per batch of every measured training run.

    Where the source does not state the microbatch or the chunks of an interleaved pipeline, the
    fastest that fit are taken; the rows say which.

    Returns
    -------
    tables
        One per publication, in the order of the data.
    """
    return _of_runs(_read("training.csv"), "measured_s", "", "s")


def _of_runs(
    rows: list[dict[str, str]], column: str, suffix: str, unit: Literal["s", "B"]
) -> list[ValidationTable]:
    """Evaluate the runs for which a column holds a measured value, a table per publication."""
    runs = _Runs()
    grouped: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if row[column]:
            grouped.setdefault(row["table"], []).append(row)
    tables = []
    for name, members in grouped.items():
        found = []
        for row in members:
            run, assumed = runs.evaluate(row)
            measured, predicted = float(row[column]), _PREDICTED[unit](run)
            found.append(ValidationRow(row["case"], measured, predicted, assumed))
        chip, source = members[0]["accelerator"], members[0]["source"]
        tables.append(ValidationTable(name + suffix, chip, 0.0, source, tuple(found), unit))
    return tables


def _time_s(run: Evaluation) -> float:
    """Return the time per batch of a run that fits."""
    assert run.time_per_batch_s is not None
    return run.time_per_batch_s


def _memory_bytes(run: Evaluation) -> float:
    """Return what the fullest device of a run that fits holds."""
    assert run.placement is not None
    return float(max(stage.memory_bytes.total for stage in run.placement.stages))


_PREDICTED = {"s": _time_s, "B": _memory_bytes}


class _Runs:
    """Measured runs, each evaluated once."""

    def __init__(self) -> None:
        self._evaluated: dict[str, tuple[Evaluation, str]] = {}
        self._schedules: dict[str, Schedule] = {}

    def evaluate(self, row: dict[str, str]) -> tuple[Evaluation, str]:
        """Evaluate one measured run; say what was assumed of it."""
        key = repr([row[name] for name in row if name not in ("case", "source", *_MEASURED)])
        if key not in self._evaluated:
            fitting = [
                (run, training) for run, training in self._as_it_may_have_run(row) if run.feasible
            ]
            if not fitting:
                raise PhazeError(f"The measured run {row['case']!r} does not fit in the model.")
            run, training = min(fitting, key=lambda pair: _time_s(pair[0]))
            assumed = [
                f"{name} {value}"
                for name, column, value in (
                    ("microbatch", "microbatches", training.microbatch),
                    ("interleave", "interleave", training.interleave),
                )
                if len(row[column].split()) > 1
            ]
            self._evaluated[key] = run, ", ".join(assumed)
        return self._evaluated[key]

    def _as_it_may_have_run(self, row: dict[str, str]) -> Iterator[tuple[Evaluation, Training]]:
        """Evaluate one measured run at every microbatch and interleaving that it may have had."""
        degrees = int(row["pipeline"]), int(row["data"]), int(row["tensor"])
        microbatches = tuple(int(size) for size in row["microbatches"].split())
        sequence_parallel = row["sequence_parallel"] == "true"
        chip = load_accelerator(row["accelerator"])
        cluster = load_cluster(row["cluster"], degrees[0] * degrees[1] * degrees[2])
        workload = load_workload(
            row["model"],
            tensor_parallel=(degrees[2],),
            microbatch=microbatches,
            sequence_parallel=sequence_parallel,
        )
        chunks = (int(count) for count in row["interleave"].split())
        for interleave, microbatch in itertools.product(chunks, microbatches):
            training = Training(
                global_batch=int(row["global_batch"]),
                microbatch=microbatch,
                recompute=cast(Recompute, row["recompute"]),
                optimizer="adam",
                sequence_parallel=sequence_parallel,
                zero=int(row["zero"]),
                pipeline_schedule="interleaved" if interleave > 1 else "1f1b",
                interleave=interleave,
                overlap=cast(Overlap, row["overlap"]),
            )
            run = evaluate(workload, chip, cluster, training, degrees, cache=self._schedules)
            yield run, training


def validate_memory() -> list[ValidationTable]:
    """Predict what devices hold in published training runs.

    One table is of transformer blocks alone: ``blocks`` of its data says how many blocks' stashes
    the first stage holds at its peak: all of them without a pipeline, and
    ``L / p · p · (1 + (p − 1) / (p · v))`` in an interleaved one. The others are of whole runs.
    """
    rows = _read("memory.csv")
    blocks = ValidationTable(
        "korthikanti memory",
        "a100-80",
        0.0,
        rows[0]["source"],
        tuple(_predict_memory(row) for row in rows),
        unit="B",
    )
    return [blocks, *_of_runs(_read("training.csv"), "measured_memory_bytes", " memory", "B")]


def _predict_memory(row: dict[str, str]) -> ValidationRow:
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
    per_block: int = (
        block.parameters * state_bytes
        if row["quantity"] == "state"
        else getattr(block.stash_bytes, row["recompute"])
    )
    return ValidationRow(row["case"], float(row["measured_bytes"]), int(row["blocks"]) * per_block)


def _read(name: str) -> list[dict[str, str]]:
    """Read one measured table."""
    return data_rows("validation", name)


def _predict(row: dict[str, str], overhead_s: float) -> ValidationRow:
    """Estimate one measured row."""
    chip = load_accelerator(row["accelerator"])
    if "op" in row:
        rows, columns = int(row["rows"]), int(row["columns"])
        estimate = estimate_vector(row["op"], rows, columns, chip, call_overhead_s=overhead_s)
        case = f"{row['op']} {rows}×{columns}"
    else:
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        estimate = estimate_gemm(Gemm(m, n, k), chip, call_overhead_s=overhead_s)
        case = f"gemm {m}×{n}×{k}"
    return ValidationRow(case, float(row["measured_s"]), estimate.latency_s)
