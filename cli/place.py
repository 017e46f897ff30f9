"""``phaze-opt place``: split a layer or operator graph of a published format over devices."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.limits import MOST_DEVICES

from .output import JsonOption, print_json

if TYPE_CHECKING:
    from phaze_opt.partitioning.dnn_format import DnnProblem
    from phaze_opt.partitioning.phaze_format import PhazeProblem

FormatChoice = Literal["phaze", "dnn-partitioning"]
CostChoice = Literal["true", "phaze"]
SplitsChoice = Literal["contiguous", "any"]
ObjectiveChoice = Literal["throughput", "latency"]

_NO_PLACEMENT: dict[str, Any] = {
    "time_per_batch_s": None,
    "pipeline": None,
    "data": None,
    "tensor": None,
    "stages": [],
    "solve_s": None,
}
_NO_SPLIT: dict[str, Any] = {"splits": [], "bound": None, "gap": None, "solve_s": None}


def place(
    file: Annotated[Path, typer.Argument(help="File to place.", show_default=False)],
    format_: Annotated[
        FormatChoice, typer.Option("--format", help="Its format.", show_default=False)
    ],
    cost: Annotated[
        CostChoice | None,
        typer.Option(help="phaze format: true cost (default) or the published one."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="phaze format: devices; else the file's.", min=1, max=MOST_DEVICES),
    ] = None,
    splits: Annotated[
        SplitsChoice | None,
        typer.Option(help="dnn-partitioning format: contiguous splits (default) or any."),
    ] = None,
    objective: Annotated[
        ObjectiveChoice | None,
        typer.Option(help="dnn-partitioning format: throughput (default) or latency."),
    ] = None,
    as_json: JsonOption = True,
) -> None:
    """Place the layers of a file on devices and print the placement as JSON.

    Example: phaze-opt place model.json --format phaze --cost phaze --devices 1024
    """
    from phaze_opt.codec import read_file
    from phaze_opt.partitioning.dnn_format import read_dnn_partitioning
    from phaze_opt.partitioning.phaze_format import read_phaze

    data = read_file(file, "placement file")
    what = f"placement file {file.name}"
    if format_ == "phaze":
        _refuse({"--splits": splits, "--objective": objective}, "dnn-partitioning")
        problem = read_phaze(data, what)
        if devices is not None:
            problem = replace(problem, devices=devices)
        by_cost = _place_published if cost == "phaze" else _place_true
        _print(lambda: by_cost(problem), _NO_PLACEMENT)
        return
    _refuse({"--cost": cost, "--devices": devices}, "phaze")
    graph = read_dnn_partitioning(data, what)
    if objective == "latency" and splits == "any":
        raise InputError("--splits is any, but --objective latency allows contiguous splits only.")
    key = "latency" if objective == "latency" else "max_load"
    _print(lambda: _split(graph, key, splits), {key: None, **_NO_SPLIT})


def _refuse(options: dict[str, object], format_name: str) -> None:
    """Refuse options of the other format."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} belongs to the {format_name} format only.")


def _print(solve: Callable[[], dict[str, Any]], nothing: dict[str, Any]) -> None:
    """Print the answer; if there is none, print the reason before the error ends the command."""
    try:
        answer = solve()
    except InfeasibleError as error:
        print_json({"status": "infeasible", **nothing, "reason": str(error)})
        raise
    print_json(answer)


def _place_published(problem: PhazeProblem) -> dict[str, Any]:
    """Solve under the published cost."""
    from phaze_opt.codec import to_builtins
    from phaze_opt.partitioning.published import solve_published

    return {"status": "optimal", **to_builtins(solve_published(problem))}


def _place_true(problem: PhazeProblem) -> dict[str, Any]:
    """Solve under the true cost."""
    from phaze_opt.codec import to_builtins
    from phaze_opt.compiled import load_all
    from phaze_opt.partitioning.true_cost import true_cost_problem
    from phaze_opt.placement.solve_placement import solve_placement

    load_all()
    began = time.perf_counter()
    answer = solve_placement(true_cost_problem(problem))
    return {
        "status": answer.status,
        "bound_s": answer.bound_s,
        "gap": answer.gap,
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
        "solve_s": time.perf_counter() - began,
    }


def _split(problem: DnnProblem, key: str, splits: SplitsChoice | None) -> dict[str, Any]:
    """Split an operator graph; ``key`` names the value that is minimised."""
    from phaze_opt.partitioning.dag import split_contiguous
    from phaze_opt.partitioning.unit_graph import build_unit_graph

    graph = build_unit_graph(problem, contiguous=splits != "any")
    if key == "max_load" and splits != "any":
        split = split_contiguous(graph, progress=_progress())
    else:
        from phaze_opt.partitioning.integer_program import least_latency, split_any

        split = least_latency(problem) if key == "latency" else split_any(problem)
    return {
        "status": split.status,
        key: split.value,
        "splits": [
            {
                "device": kind,
                "load": load,
                "nodes": sorted(
                    problem.nodes[member].id
                    for unit in units
                    for member in graph.units[unit].members
                ),
            }
            for (kind, units), load in zip(split.devices, split.loads, strict=True)
        ],
        "bound": split.bound,
        "gap": split.gap,
        "solve_s": split.solve_s,
    }


def _progress() -> Callable[[int, int], None] | None:
    """Return a function that shows progress, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        print(f"\r{done} of {total} downsets", end="", file=sys.stderr)
        if done == total:
            print(file=sys.stderr)

    return show
