"""``phaze-opt evaluate`` and ``phaze-opt explain``: one point, answered and explained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.choices import ChakraRanks
from phaze_opt.errors import InfeasibleError, InputError

from .output import (
    ForceOption,
    JsonOption,
    check_outputs,
    print_json,
    print_table,
    takes,
    warn_of_power,
)
from .point_options import PointOptions

if TYPE_CHECKING:
    from phaze_opt.evaluation import Evaluation
    from phaze_opt.placement.placement_problem import Placement
    from phaze_opt.point import CostedPoint, Point

DegradeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Also say what is left with slow-device=0.8 (speed of one device), link=0.5 or link.0="
        "0.5 (bandwidth of one device's links, at the outermost level in use or at that one), "
        "lost-node=1 (nodes that are gone). Repeat for more.",
        show_default=False,
    ),
]


@takes(PointOptions)
def evaluate(
    options: PointOptions,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write timelines of the pipeline and of each pass; .html is a drawing, any other "
            "file is for Perfetto.",
        ),
    ] = None,
    degrade: DegradeOption = None,
    spare_nodes: Annotated[
        int, typer.Option(help="Nodes that stand by, to take the place of lost or degraded ones.")
    ] = 0,
    chakra: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a batch as execution traces by Chakra's schema, a file per rank, into a "
            "new folder.",
            show_default=False,
        ),
    ] = None,
    chakra_ranks: Annotated[
        ChakraRanks,
        typer.Option(
            help="Traces of all ranks, which may have 4,000,000 nodes, or of the first of every "
            "stage."
        ),
    ] = "all",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Estimate, schedule and place one training run; exit code 5 where it does not fit.

    Example: phaze-opt evaluate --model bert-large --accelerator tpuv4-lanes --set hbm_gib=80
    --cluster tpuv4-ici-flat --devices 1024 --global-batch 4096 --microbatch 4 --json

    Example: phaze-opt evaluate --model bert-large --accelerator h100 --cluster dgx-h100
    --devices 64 --global-batch 512 --microbatch 4 --degrade slow-device=0.8 --degrade lost-node=1

    Example: phaze-opt evaluate --model llama3-8b --accelerator h100 --cluster dgx-h100
    --devices 16 --global-batch 32 --microbatch 1 --placement 2x2x4 --chakra traces

    Example: phaze-opt evaluate --model bert-large --accelerator a100-80=16,h100=8
    --cluster dgx-a100 --devices 24 --global-batch 512 --microbatch 4
    """
    from phaze_opt.degraded import Degradation
    from phaze_opt.evaluation import (
        place_on_slice,
        with_degraded,
        with_range,
        with_recompute_solved,
    )
    from phaze_opt.point import cost_point

    check_outputs(timeline, force=force)
    if spare_nodes and not degrade:
        raise InputError(
            f"--spare-nodes is {spare_nodes}, but nothing is degraded; give --degrade, for example "
            "--degrade lost-node=1."
        )
    degradation = Degradation.of_texts(degrade, spare_nodes) if degrade else None
    _check_chakra(chakra, chakra_ranks)
    if kinds := options.kinds():
        beside = {"--degrade": degrade, "--timeline": timeline, "--chakra": chakra}
        if what := next((name for name, given in beside.items() if given), None):
            raise InputError(f"Several kinds of device do not go with {what}; leave it out.")
        _evaluate_kinds(options, kinds, as_json)
        return
    point = with_recompute_solved(options.point())
    costed = cost_point(point)
    placed, answer = place_on_slice(costed)
    evaluation = with_range(point, with_degraded(placed, answer, degradation))
    # Before the answer is printed: whoever reads that may end before this does.
    if timeline is not None and evaluation.placement is not None:
        from phaze_opt.report.timeline import write_timeline

        layers = costed.costs[evaluation.placement.tensor].passes
        passes = [scheduled for layer in layers for scheduled in layer.all()]
        write_timeline(timeline, evaluation.placement, passes)
    _write_traces(chakra, chakra_ranks, placed, evaluation.placement)
    _show(options, evaluation, point, as_json)
    options.warn_of_assumptions(evaluation)
    _exit_where_infeasible(evaluation)


def _evaluate_kinds(options: PointOptions, kinds: dict[str, int], as_json: bool) -> None:
    """Do as `evaluate` on several kinds of device."""
    from phaze_opt.device_kinds import DeviceKind, evaluate_kinds

    each = {name: replace(options, accelerator=name) for name in kinds}
    devices = [
        DeviceKind(name, of_kind.preset().accelerator, kinds[name])
        for name, of_kind in each.items()
    ]
    point = next(iter(each.values())).point()
    evaluation = evaluate_kinds(point, devices)
    _show(options, evaluation, point, as_json)
    for of_kind in each.values():
        of_kind.warn_of_assumptions(evaluation)
    _exit_where_infeasible(evaluation)


def _show(options: PointOptions, evaluation: Evaluation, point: Point, as_json: bool) -> None:
    """Print an evaluation, and warn of its power."""
    from phaze_opt.evaluation_json import evaluation_to_json_dict

    if as_json:
        print_json(evaluation_to_json_dict(evaluation))
    else:
        from phaze_opt.report.tables import evaluation_tables

        print_table(evaluation_tables(evaluation, options.title(point.workload)))
    warn_of_power([evaluation])


@takes(PointOptions)
def explain(options: PointOptions, as_json: JsonOption = False) -> None:
    """Say what binds each layer, what a tenth more of each resource would bring, what would fit.

    Exit code 5 where the run does not fit: then what would make it fit is tried.

    Example: phaze-opt explain --model bert-large --accelerator tpuv4-lanes
    --cluster tpuv4-ici-flat --devices 1024 --global-batch 4096 --microbatch 4

    Example: phaze-opt explain --model gpt3-175b --accelerator a100-80 --cluster dgx-a100
    --devices 64 --global-batch 64 --microbatch 1 --optimizer adam --placement 8x1x8 --json
    """
    from phaze_opt.explanation.explain import explain_point, explanation_to_json_dict

    point = options.point()
    explanation = explain_point(point, options.load_workload, {})
    explanation = replace(explanation, fixes=tuple(map(options.beside, explanation.fixes)))
    if as_json:
        print_json(explanation_to_json_dict(explanation))
    else:
        from phaze_opt.report.explanation import explanation_tables

        print_table(explanation_tables(explanation, options.title(point.workload)))
    options.warn_of_assumptions(explanation.evaluation)
    warn_of_power([explanation.evaluation])
    _exit_where_infeasible(explanation.evaluation)


def _write_traces(
    folder: Path | None, ranks: ChakraRanks, costed: CostedPoint, placement: Placement | None
) -> None:
    """Write the traces of a run, where that was asked for and it fits."""
    if folder is None or placement is None:
        return
    from phaze_opt.interchange.chakra import write_traces
    from phaze_opt.interchange.layer_pieces import pieces_of_layers

    pieces = pieces_of_layers(costed.costs[placement.tensor])
    write_traces(folder, costed.problem, placement, pieces, ranks)


def _check_chakra(folder: Path | None, ranks: ChakraRanks) -> None:
    """Make sure that traces can be written, before the work whose result they are."""
    if folder is not None:
        from phaze_opt.interchange.chakra import check_new_folder

        check_new_folder(folder)
    elif ranks != "all":
        raise InputError(f"--chakra-ranks is {ranks}, but traces need --chakra DIR.")


def _exit_where_infeasible(evaluation: Evaluation) -> None:
    """End with the exit code of an infeasible problem; the answer already stands on stdout."""
    if not evaluation.feasible:
        raise typer.Exit(InfeasibleError.exit_code)
