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
    """
    from phaze_opt.degraded import Degradation
    from phaze_opt.evaluation import (
        evaluation_to_json_dict,
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
    if chakra is not None and evaluation.placement is not None:
        from phaze_opt.interchange.chakra import write_traces
        from phaze_opt.interchange.layer_pieces import pieces_of_layers

        placement = evaluation.placement
        pieces = pieces_of_layers(placed.costs[placement.tensor])
        write_traces(chakra, placed.problem, placement, pieces, chakra_ranks)
    if as_json:
        print_json(evaluation_to_json_dict(evaluation))
    else:
        from phaze_opt.report.tables import evaluation_tables

        print_table(evaluation_tables(evaluation, options.title(point.workload)))
    options.warn_of_assumptions(evaluation)
    warn_of_power([evaluation])
    _exit_where_infeasible(evaluation)


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
