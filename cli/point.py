"""``phaze-opt evaluate`` and ``phaze-opt explain``: one point, answered and explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.choices import ChakraRanks
from phaze_opt.errors import InfeasibleError, InputError

from .degrade_option import DegradeOption, SpareNodesOption, read_degradation
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
    spare_nodes: SpareNodesOption = 0,
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
    from phaze_opt.evaluation import (
        place_on_slice,
        with_degraded,
        with_range,
        with_recompute_solved,
    )
    from phaze_opt.point import cost_point

    files = _Files(timeline, chakra, chakra_ranks)
    files.check(force=force)
    degradation = read_degradation(degrade, spare_nodes)
    if kinds := options.kinds():
        beside = {"--degrade": degrade, "--timeline": timeline, "--chakra": chakra}
        if what := next((name for name, given in beside.items() if given), None):
            raise InputError(f"Several kinds of device do not go with {what}; leave it out.")
        _evaluate_kinds(options, kinds, as_json)
        return
    point = with_recompute_solved(options.point())
    costed, answer = place_on_slice(cost_point(point))
    evaluation = with_range(point, with_degraded(costed, answer, degradation))
    # Before the answer is printed: whoever reads that may end before this does.
    files.write(costed, evaluation.placement)
    _show(options, evaluation, point, as_json)
    options.warn_of_assumptions(evaluation)
    _exit_where_infeasible(evaluation)


@dataclass(frozen=True)
class _Files:
    """Files that are asked for beside the answer; `evaluate` has the options."""

    timeline: Path | None
    chakra: Path | None
    chakra_ranks: ChakraRanks

    def check(self, *, force: bool) -> None:
        """Make sure that they can be written, before the work whose result they are."""
        check_outputs(self.timeline, force=force)
        if self.chakra is not None:
            from phaze_opt.interchange.chakra import check_new_folder

            check_new_folder(self.chakra)
        elif self.chakra_ranks != "all":
            raise InputError(
                f"--chakra-ranks is {self.chakra_ranks}, but traces need --chakra DIR."
            )

    def write(self, costed: CostedPoint, placement: Placement | None) -> None:
        """Write what is asked for, if the run fits, as it is costed on the slice that it takes."""
        if placement is None:
            return
        cost = costed.costs[placement.tensor]
        if self.timeline is not None:
            from phaze_opt.report.timeline import write_timeline

            passes = [scheduled for layer in cost.passes for scheduled in layer.all()]
            write_timeline(self.timeline, placement, passes)
        if self.chakra is not None:
            from phaze_opt.interchange.chakra import write_traces
            from phaze_opt.interchange.layer_pieces import pieces_of_layers

            pieces = pieces_of_layers(cost)
            write_traces(self.chakra, costed.problem, placement, pieces, self.chakra_ranks)


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


def _exit_where_infeasible(evaluation: Evaluation) -> None:
    """End with the exit code of an infeasible problem; the answer already stands on stdout."""
    if not evaluation.feasible:
        raise typer.Exit(InfeasibleError.exit_code)
