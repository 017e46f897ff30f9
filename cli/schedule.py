"""The command ``phaze-opt schedule``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import ForceOption, JsonOption, check_outputs


def schedule(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="One problem as JSON, or JSON lines.")
    ],
    bandwidth: Annotated[
        bool,
        typer.Option(
            "--bandwidth/--no-bandwidth",
            help="Count HBM, global buffer and link bandwidth as resources.",
        ),
    ] = True,
    residency: Annotated[
        bool,
        typer.Option(
            "--residency/--no-residency",
            help="Let the tensors of the problem stay in the global buffer.",
        ),
    ] = True,
    method: Annotated[
        str,
        typer.Option(
            metavar="auto|branch-and-bound|cp-sat",
            help="Exact search: the branch and bound, and CP-SAT where it leaves a gap (auto), or "
            "one of the two alone. With residency, branch-and-bound means the fast method.",
        ),
    ] = "auto",
    intra_operator: Annotated[
        str,
        typer.Option(
            metavar="exclusive|per-type",
            help="Which operators may not run beside one on all cores of its type: all operators "
            "(exclusive), or those that need a core of its type (per-type).",
        ),
    ] = "exclusive",
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write a timeline: a lane per core, and what stays; .html is a drawing, any "
            "other file is for Perfetto.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = True,
) -> None:
    """Order operators on the cores of one accelerator in the least time, with a proof.

    Prints one line of JSON per problem, in the order of the file, with --json or without.

    Example: phaze-opt schedule layer.json --trace layer.trace.json

    A problem with "tensors" says what can stay in the global buffer; its line also has "method",
    "hbm_bytes" and "resident". One with "through" says which operators may run tile by tile; its
    line also has "groups", each with its "operators" in turns, their number of "tiles", what is
    "passed" by tiles and "held", "start_s", "end_s" and "hbm_saved_bytes" ('phaze-opt workload show
    MODEL --schedule-problem OUT --residency tiles' writes such problems). Example of a FILE:

    {"name": "two", "num_tc": 4, "num_vc": 4, "glb_bytes": 8000000, "hbm_bytes_per_s": 1e12,
    "operators": [{"id": "a", "core": "TC", "latency_s": 4e-5, "intra_op_latency_s": 1e-5,
    "hbm_bytes": 1e7, "other_s": 4e-6, "working_bytes": 2000000}, {"id": "b", "core": "VC",
    "latency_s": 4e-5, "intra_op_latency_s": 8e-6, "hbm_bytes": 8e6, "other_s": 1e-6}],
    "edges": [["a", "b"]], "tensors": [{"from": "a", "to": ["b"], "bytes": 4000000}]}
    """
    from phaze_opt.codec import to_json
    from phaze_opt.errors import unknown_name
    from phaze_opt.scheduling.problem_file import read_problems, result_row
    from phaze_opt.scheduling.schedule_problem import (
        INTRA_OPERATOR_RULES,
        SOLVE_METHODS,
        Schedule,
        ScheduleProblem,
    )
    from phaze_opt.scheduling.solve_schedule import solve_schedule

    rule = next((name for name in INTRA_OPERATOR_RULES if name == intra_operator), None)
    if rule is None:
        raise unknown_name("intra-operator rule", intra_operator, INTRA_OPERATOR_RULES)
    search = next((name for name in SOLVE_METHODS if name == method), None)
    if search is None:
        raise unknown_name("method", method, SOLVE_METHODS)
    check_outputs(trace, force=force)
    cache: dict[str, Schedule] = {}
    solved: list[tuple[ScheduleProblem, Schedule]] = []
    for problem in read_problems(file, rule):
        solution = solve_schedule(
            problem, cache, bandwidth=bandwidth, residency=residency, method=search
        )
        if trace is not None:
            solved.append((problem, solution))
        else:
            typer.echo(to_json(result_row(problem, solution)).decode())
    if trace is not None:
        from phaze_opt.report.timeline import write_drawing_or_events
        from phaze_opt.scheduling.perfetto import schedule_events

        write_drawing_or_events(trace, schedule_events(solved))
        # Only now: whoever reads the lines may end before this does.
        for problem, solution in solved:
            typer.echo(to_json(result_row(problem, solution)).decode())
