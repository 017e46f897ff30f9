"""``phaze-opt explain``: why a point is as fast as it is, and what to change."""

from __future__ import annotations

import typer

from .output import JsonOption, print_json, print_table
from .point import INFEASIBLE, PointOptions, takes_point


@takes_point
def explain(options: PointOptions, as_json: JsonOption = False) -> None:
    """Say what binds each layer, what a tenth more of each resource would bring, what would fit.

    Exit code 5 where the run does not fit: then what would make it fit is tried.

    Example: phaze-opt explain --model bert-large --accelerator tpuv4-lanes
    --cluster tpuv4-ici-flat --devices 1024 --global-batch 4096 --microbatch 4

    Example: phaze-opt explain --model gpt3-175b --accelerator a100-80 --cluster dgx-a100
    --devices 64 --global-batch 64 --microbatch 1 --optimizer adam --placement 8x1x8 --json
    """
    from phaze_opt.explanation.explain import explain_point, explanation_to_json_dict

    explanation = explain_point(options.point(), options.load_workload, {})
    record = explanation_to_json_dict(explanation)
    if as_json:
        print_json(record)
    else:
        from phaze_opt.report.explanation import explanation_tables

        print_table(explanation_tables(options.title, record))
    if not explanation.evaluation.feasible:
        raise typer.Exit(INFEASIBLE)
