"""The command ``phaze-opt schedule``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import JsonOption


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
        typer.Option(metavar="OUT", help="Write a timeline for Perfetto, a lane per core."),
    ] = None,
    as_json: JsonOption = True,
) -> None:
    """Order operators on the cores of one accelerator in the least time, with a proof.

    Prints one line of JSON per problem, in the order of the file, with --json or without.

    Example: phaze-opt schedule layer.json --trace layer.trace.json
    """
    from phaze_opt.codec import to_json
    from phaze_opt.errors import unknown_name
    from phaze_opt.scheduling.perfetto import write_trace
    from phaze_opt.scheduling.problem_file import read_problems, to_result
    from phaze_opt.scheduling.schedule_problem import (
        INTRA_OPERATOR_RULES,
        Schedule,
        ScheduleProblem,
    )
    from phaze_opt.scheduling.solve_schedule import solve_schedule

    rule = next((name for name in INTRA_OPERATOR_RULES if name == intra_operator), None)
    if rule is None:
        raise unknown_name("intra-operator rule", intra_operator, INTRA_OPERATOR_RULES)
    cache: dict[str, Schedule] = {}
    solved: list[tuple[ScheduleProblem, Schedule]] = []
    for problem in read_problems(file, rule):
        found = solve_schedule(problem, cache, bandwidth=bandwidth)
        typer.echo(to_json(to_result(problem, found)).decode())
        if trace is not None:
            solved.append((problem, found))
    if trace is not None:
        write_trace(trace, solved)
