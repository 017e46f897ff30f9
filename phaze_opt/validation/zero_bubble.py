"""Predicted against measured runs of pipelines that split the backward, as ratios to 1F1B.

All schedules of a model ran on the same devices, so what the model leaves out of all of them goes
out of the ratio; the runs with 1F1B are compared by themselves beside it. Stages have the same
number of layers, embedding and head among them, as the source says; the vocabulary and the kernel
of attention are not stated (see the provenance of the data).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple, cast

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.codec import data_rows
from phaze_opt.degrees import Degrees
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.point import Point, cost_point
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.software import SOFTWARE
from phaze_opt.training import Training
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.zoo import load_workload

_BASE: PipelineScheduleName = "1f1b"
_ACCELERATOR, _CLUSTER = "a100-80", "dgx-a100"
_GB = 1e9


class _Run(NamedTuple):
    """A run as it was measured, and as it is predicted."""

    measured_s: float
    measured_bytes: float
    placement: Placement

    @property
    def predicted_bytes(self) -> float:
        """What the fullest device holds."""
        return float(max(stage.memory_bytes.total for stage in self.placement.stages))


def validate_zero_bubble_times() -> list[ValidationTable]:
    """Predict the seconds per batch of 1F1B, and those of the other schedules relative to it."""
    return _tables("time", "s", lambda run: (run.measured_s, run.placement.time_per_batch_s))


def validate_zero_bubble_memory() -> list[ValidationTable]:
    """Predict what the fullest device holds under 1F1B, and under the others relative to that."""
    return _tables("memory", "B", lambda run: (run.measured_bytes, run.predicted_bytes))


def _tables(
    quantity: str,
    unit: Literal["s", "B"],
    numbers: Callable[[_Run], tuple[float, float]],
) -> list[ValidationTable]:
    """Compare one quantity of all runs."""
    runs = _runs()
    rows: dict[str, list[ValidationRow]] = {"1f1b": [], "zero bubble": [], "interleaved": []}
    for (model, microbatches, schedule), run in runs.items():
        measured, predicted = numbers(run)
        case = f"{model}, {microbatches} microbatches"
        if schedule == _BASE:
            rows["1f1b"].append(ValidationRow(case, measured, predicted))
            continue
        base_measured, base_predicted = numbers(runs[model, microbatches, _BASE])
        ratios = measured / base_measured, predicted / base_predicted
        kind = "interleaved" if schedule == "interleaved" else "zero bubble"
        rows[kind].append(ValidationRow(f"{case}, {schedule}", *ratios))
    source = data_rows("validation", "zero_bubble.csv")[0]["source"]
    return [
        ValidationTable(
            f"qi {quantity} 1f1b" if kind == "1f1b" else f"{kind} {quantity} ratio",
            _ACCELERATOR,
            0.0,
            source,
            tuple(of_kind),
            unit if kind == "1f1b" else "ratio",
        )
        for kind, of_kind in rows.items()
    ]


@cache
def _runs() -> dict[tuple[str, int, PipelineScheduleName], _Run]:
    """Evaluate all runs once, by model, microbatches and schedule."""
    schedules: dict[str, Schedule] = {}
    return {
        (
            row["model"],
            int(row["microbatches"]),
            cast(PipelineScheduleName, row["pipeline_schedule"]),
        ): _run(row, schedules)
        for row in data_rows("validation", "zero_bubble.csv")
    }


def _run(row: dict[str, str], schedules: dict[str, Schedule]) -> _Run:
    """Evaluate one run with as many layers on every stage."""
    stages, microbatch, software = int(row["stages"]), int(row["microbatch"]), SOFTWARE["megatron"]
    samples = microbatch * int(row["microbatches"])
    training = Training(
        global_batch=samples,
        microbatch=microbatch,
        optimizer=software.optimizer,
        pipeline_schedule=cast(PipelineScheduleName, row["pipeline_schedule"]),
        interleave=int(row["interleave"]),
        overlap=software.overlap,
        launch=software.launch,
        fused_accumulation=software.fused_accumulation,
    )
    workload = load_workload(row["workload"], tensor_parallel=(1,), microbatch=(microbatch,))
    degrees = Degrees(stages, 1, 1)
    chip, cluster = load_accelerator(_ACCELERATOR), load_cluster(_CLUSTER, stages)
    point = Point(workload, chip, cluster, training, degrees, software.fusion)
    problem = cost_point(point, schedules).problem
    (variant,) = workload.variants
    even = (len(variant.nodes) // stages,) * stages
    placement = solve_placement(problem, degrees, None if training.interleave > 1 else even)
    measured_s = samples / stages / float(row["samples_per_gpu_s"])
    return _Run(measured_s, float(row["memory_gb"]) * _GB, placement)
