"""``phaze-opt evaluate``: one point, with its breakdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import JsonOption, print_json, print_table
from .point import INFEASIBLE, PointOptions, takes_point


@takes_point
def evaluate(
    options: PointOptions,
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
    from phaze_opt.costed_point import cost_point
    from phaze_opt.evaluation import evaluation_to_json_dict, place_point

    point = options.point()
    evaluation = place_point(cost_point(point))
    record = evaluation_to_json_dict(evaluation)
    if as_json:
        print_json(record)
    else:
        from phaze_opt.report.tables import evaluation_tables

        print_table(evaluation_tables(options.title, record))
    if timeline is not None and evaluation.placement is not None:
        from phaze_opt.report.timeline import write_timeline

        write_timeline(timeline, evaluation.placement)
    if not evaluation.feasible:
        raise typer.Exit(INFEASIBLE)
