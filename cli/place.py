"""``phaze-opt place``: split a layer or operator graph of a published format over devices."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phaze_opt.errors import InfeasibleError, InputError

from .output import print_json

if TYPE_CHECKING:
    from phaze_opt.partitioning.formats import PartitionProblem, PhazeProblem


class Format(StrEnum):
    """File formats."""

    phaze = "phaze"
    dnn_partitioning = "dnn-partitioning"


class Cost(StrEnum):
    """What a placement is judged by."""

    true = "true"
    phaze = "phaze"


class Splits(StrEnum):
    """Which splits are allowed."""

    contiguous = "contiguous"
    any = "any"


class Objective(StrEnum):
    """What is minimised."""

    throughput = "throughput"
    latency = "latency"


def place(
    file: Annotated[Path, typer.Argument(help="File to place.", show_default=False)],
    format_: Annotated[Format, typer.Option("--format", help="Its format.", show_default=False)],
    cost: Annotated[
        Cost | None,
        typer.Option(help="phaze format: true cost (default) or the published one."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="phaze format: devices; else the file's.", min=1)
    ] = None,
    splits: Annotated[
        Splits | None,
        typer.Option(help="dnn-partitioning format: contiguous splits (default) or any."),
    ] = None,
    objective: Annotated[
        Objective | None,
        typer.Option(help="dnn-partitioning format: throughput (default) or latency."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON is what this command prints anyway.")
    ] = True,
) -> None:
    """Place the layers of a file on devices and print the placement as JSON.

    Example: phaze-opt place model.json --format phaze --cost phaze --devices 1024
    """
    from phaze_opt.codec import read_file
    from phaze_opt.partitioning.formats import read_partition, read_phaze

    data = read_file(file, "placement file")
    what = f"placement file {file.name}"
    if format_ is Format.phaze:
        _refuse({"--splits": splits, "--objective": objective}, "dnn-partitioning")
        problem = read_phaze(data, what)
        if devices is not None:
            problem = replace(problem, devices=devices)
        by_cost = _place_published if cost is Cost.phaze else _place_true
        _print(lambda: by_cost(problem), _NO_PLACEMENT)
        return
    _refuse({"--cost": cost, "--devices": devices}, "phaze")
    partition = read_partition(data, what)
    latency = objective is Objective.latency
    if latency and splits is Splits.any:
        raise InputError("--splits is any, but --objective latency allows contiguous splits only.")
    any_split = splits is Splits.any
    key = "latency" if latency else "max_load"
    _print(lambda: _place_partition(partition, any_split, latency), {key: None, **_NO_SPLIT})


_NO_PLACEMENT: dict[str, Any] = {
    "time_per_batch_s": None,
    "pipeline": None,
    "data": None,
    "tensor": None,
    "stages": [],
    "solve_s": None,
}
_NO_SPLIT: dict[str, Any] = {"splits": [], "bound": None, "gap": None, "solve_s": None}


def _refuse(options: dict[str, object], format_name: str) -> None:
    """Refuse options of the other format."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} belongs to the {format_name} format only.")


def _print(solve: Any, nothing: dict[str, Any]) -> None:
    """Print the answer; an infeasible one too, before its error ends the command."""
    try:
        answer = solve()
    except InfeasibleError as error:
        print_json({"status": "infeasible", **nothing, "reason": str(error)})
        raise
    print_json(answer)


def _place_published(problem: PhazeProblem) -> dict[str, Any]:
    """Solve under the published cost."""
    from phaze_opt.partitioning.published import solve_published

    answer = solve_published(problem)
    stages = zip(answer.stages, answer.stage_devices, strict=True)
    return {
        "status": "optimal",
        "time_per_batch_s": answer.time_per_batch_s,
        "pipeline": answer.pipeline,
        "data": answer.data,
        "tensor": answer.tensor,
        "max_load_s": answer.max_load_s,
        "stages": [{"layers": list(layers), "devices": count} for layers, count in stages],
        "solve_s": answer.solve_s,
    }


def _place_true(problem: PhazeProblem) -> dict[str, Any]:
    """Solve under the true cost."""
    import time

    from phaze_opt.codec import to_builtins
    from phaze_opt.partitioning.true_cost import placement_problem
    from phaze_opt.placement.solve_placement import solve_placement

    begin = time.perf_counter()
    answer = solve_placement(placement_problem(problem))
    return {
        "status": "optimal",
        "time_per_batch_s": answer.time_per_batch_s,
        "pipeline": answer.pipeline,
        "data": answer.data,
        "tensor": answer.tensor,
        "microbatches": answer.microbatches,
        "stages": [
            {
                "layers": [int(name) for name in stage.layers],
                "devices": stage.devices,
                "load_s": stage.load_s,
                "memory_bytes": {
                    **to_builtins(stage.memory_bytes),
                    "total": stage.memory_bytes.total,
                },
            }
            for stage in answer.stages
        ],
        "time_breakdown_s": dict(answer.time_breakdown_s),
        "solve_s": time.perf_counter() - begin,
    }


def _place_partition(problem: PartitionProblem, any_split: bool, latency: bool) -> dict[str, Any]:
    """Split an operator graph."""
    from phaze_opt.partitioning.colocation import prepare
    from phaze_opt.partitioning.dag import split_contiguous

    if latency or any_split:
        from phaze_opt.partitioning.integer_program import least_latency, split_any

        split = least_latency(problem) if latency else split_any(problem)
        partition = prepare(problem, contiguous=latency)
    else:
        partition = prepare(problem)
        split = split_contiguous(partition, progress=_progress())
    return {
        "status": split.status,
        "latency" if latency else "max_load": split.value,
        "splits": [
            {
                "device": kind,
                "load": load,
                "nodes": sorted(
                    problem.nodes[member].id
                    for unit in units
                    for member in partition.units[unit].members
                ),
            }
            for (kind, units), load in zip(split.devices, split.loads, strict=True)
        ],
        "bound": split.bound,
        "gap": split.gap,
        "solve_s": split.solve_s,
    }


def _progress() -> Any:
    """Return what shows progress on a terminal, or nothing."""
    import sys

    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        print(f"\r{done} of {total} downsets", end="", file=sys.stderr)
        if done == total:
            print(file=sys.stderr)

    return show
