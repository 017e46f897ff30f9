"""``phaze-opt evaluate``: one point, with its breakdown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phaze_opt.errors import InputError

from .output import JsonOption, print_json, print_table, read_assignments

if TYPE_CHECKING:
    from phaze_opt.workload.graph import Workload

_DEGREES = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)x([1-9][0-9]*)")
_INFEASIBLE = 5

Degrees = tuple[int, int, int]
RecomputeChoice = Literal["none", "selective", "full"]
OptimizerChoice = Literal["sgd", "adam"]
FusionChoice = Literal["none", "elementwise", "epilogue"]
ScheduleChoice = Literal["1f1b", "gpipe", "interleaved"]


def evaluate(
    model: Annotated[str, typer.Option(help="Zoo name, gpt:…, llama:…, hf:PATH, or a .json.")],
    accelerator: Annotated[str, typer.Option(help="Preset name or TOML file.")],
    cluster: Annotated[str, typer.Option(help="Network preset.")],
    devices: Annotated[int, typer.Option(help="How many accelerators.")],
    global_batch: Annotated[int, typer.Option(help="Samples per optimizer step.")],
    microbatch: Annotated[int, typer.Option(help="Samples per pipeline step.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the accelerator."),
    ] = None,
    recompute: Annotated[RecomputeChoice, typer.Option(help="What runs again.")] = "none",
    optimizer: Annotated[OptimizerChoice, typer.Option(help="Its state and step.")] = "sgd",
    placement: Annotated[
        str, typer.Option(help="solve, expert, or PPxDPxTP: pipeline, data and tensor degrees.")
    ] = "solve",
    zero: Annotated[int, typer.Option(help="ZeRO stage, 0 to 3.")] = 0,
    pipeline_schedule: Annotated[
        ScheduleChoice | None,
        typer.Option(help="1f1b by default; interleaved with --interleave.", show_default=False),
    ] = None,
    interleave: Annotated[int, typer.Option(help="Chunks of layers per pipeline stage.")] = 1,
    fusion: Annotated[
        FusionChoice | None,
        typer.Option(
            help="epilogue by default; elementwise on chips that run one operator at a time.",
            show_default=False,
        ),
    ] = None,
    power_limit_w: Annotated[
        float | None, typer.Option(help="Average dynamic power a device may take.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens per sample, if not the model's own.")
    ] = None,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split the sequence over tensor groups.")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write the pipeline's timeline for Perfetto."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate, schedule and place one training run; exit code 5 where it does not fit.

    Example: phaze-opt evaluate --model bert-large --accelerator tpuv4-lanes --set hbm_gib=80
    --cluster tpuv4-ici-flat --devices 1024 --global-batch 4096 --microbatch 4 --json
    """
    from phaze_opt.evaluate import evaluate as evaluate_point
    from phaze_opt.evaluation import evaluation_to_json_dict
    from phaze_opt.hardware.cluster import load_cluster
    from phaze_opt.hardware.presets import load_accelerator
    from phaze_opt.placement.training import Training

    degrees = read_placement(placement)
    chip = load_accelerator(accelerator, read_assignments(changes or []))
    network = load_cluster(cluster, devices)
    training = Training(
        global_batch=global_batch,
        microbatch=microbatch,
        recompute=recompute,
        optimizer=optimizer,
        sequence_parallel=sequence_parallel,
        zero=zero,
        pipeline_schedule=pipeline_schedule or ("interleaved" if interleave > 1 else "1f1b"),
        interleave=interleave,
    )
    workload = _load(model, degrees, training.microbatch, sequence_parallel, sequence)
    evaluation = evaluate_point(
        workload, chip, network, training, degrees, fusion=fusion, power_limit_w=power_limit_w
    )
    record = evaluation_to_json_dict(evaluation)
    if as_json:
        print_json(record)
    else:
        from phaze_opt.report.tables import evaluation_tables

        title = (
            f"{model} on {devices} × {accelerator}, {cluster}, global batch {global_batch}, "
            f"microbatch {microbatch}, recompute {recompute}, {optimizer}"
        )
        print_table(evaluation_tables(title, record))
    if timeline is not None and evaluation.placement is not None:
        from phaze_opt.report.timeline import write_timeline

        write_timeline(timeline, evaluation.placement, training.pipeline_schedule)
    if not evaluation.feasible:
        raise typer.Exit(_INFEASIBLE)


def read_placement(text: str) -> Literal["solve", "expert"] | Degrees:
    """Read ``--placement``.

    Raises
    ------
    InputError
        If it is neither ``solve`` nor ``expert`` nor three degrees.
    """
    if text == "solve":
        return "solve"
    if text == "expert":
        return "expert"
    match = _DEGREES.fullmatch(text)
    if match is None:
        raise InputError(
            f"--placement is {text!r}, but it must be solve, expert or PPxDPxTP, for example "
            "4x256x1."
        )
    pipeline, data, tensor = (int(degree) for degree in match.groups())
    return pipeline, data, tensor


def _load(
    model: str,
    degrees: Degrees | Literal["solve", "expert"],
    microbatch: int,
    sequence_parallel: bool,
    sequence: int | None,
) -> Workload:
    """Capture the model at every width that the placement may use, or read it from the cache."""
    from phaze_opt.workload.zoo import load_workload, widths

    return load_workload(
        model,
        tensor_parallel=(degrees[2],) if isinstance(degrees, tuple) else widths(model),
        microbatch=(microbatch,),
        sequence_parallel=sequence_parallel,
        sequence=sequence,
    )
