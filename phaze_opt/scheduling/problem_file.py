"""Scheduling problems and results as JSON: what ``phaze-opt schedule`` reads and prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from phaze_opt.codec import from_builtins, read_file
from phaze_opt.errors import InputError
from phaze_opt.scheduling.schedule_problem import (
    CoreType,
    IntraOperatorRule,
    Schedule,
    ScheduledOperator,
    ScheduleOperator,
    ScheduleProblem,
    ScheduleStatus,
    check_problem,
    topological_order,
)

_DIGITS = 9
"""Sums of shares are rounded to billionths, so that 0.7 + 0.2 + 0.1 is 1."""


@dataclass(frozen=True)
class _OperatorRow:
    """One operator in a file; shares on all cores default to those on one core."""

    id: str
    core: str
    latency_s: float
    intra_op_latency_s: float
    hbm_fraction: float = 0.0
    glb_fraction: float = 0.0
    link_fraction: float = 0.0
    intra_op_hbm_fraction: float | None = None
    intra_op_glb_fraction: float | None = None


@dataclass(frozen=True)
class _ProblemRow:
    """One problem in a file; edges hold operator ids. A file may also state the known optimum."""

    num_tc: int
    num_vc: int
    operators: tuple[_OperatorRow, ...]
    edges: tuple[tuple[str, str], ...]
    name: str = ""
    optimal_makespan_s: float | None = None


@dataclass(frozen=True)
class ResourceUse:
    """Share of a resource in use: average over the makespan, and peak."""

    average: float
    peak: float


@dataclass(frozen=True)
class Utilisation:
    """Use of each core type and each bandwidth; above 1 only where bandwidth is no resource."""

    tc: ResourceUse
    vc: ResourceUse
    hbm: ResourceUse
    glb: ResourceUse
    link: ResourceUse


@dataclass(frozen=True)
class ScheduleResult:
    """The schedule of one problem as the command line prints it."""

    name: str
    makespan_s: float
    status: ScheduleStatus
    bound_s: float
    gap: float
    solve_s: float
    utilisation: Utilisation


def read_problems(
    path: Path, intra_operator: IntraOperatorRule = "exclusive"
) -> list[ScheduleProblem]:
    """Read a file with one problem, or with several problems one after another (JSON lines).

    Parameters
    ----------
    path
        The file.
    intra_operator
        The rule for operators on all cores, which is not part of the file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is malformed, or a problem is not valid; the sentence names the line.
    """
    what = "scheduling problem"
    try:
        text = read_file(path, what).decode()
    except UnicodeDecodeError:
        raise InputError(f"The {what} at {path} is not UTF-8 text.") from None
    # The standard library reads NaN, so that `check_problem` refuses it with the operator's id.
    decoder = json.JSONDecoder()
    problems = []
    position = _skip_space(text, 0)
    while position < len(text):
        line = text.count("\n", 0, position) + 1
        place = f"{what} at {path}, line {line}"
        try:
            plain, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"The {place} is not valid JSON: {error}.") from None
        row = from_builtins(plain, _ProblemRow, place)
        try:
            problems.append(_to_problem(row, intra_operator))
        except InputError as error:
            raise InputError(f"The {place} is not valid: {error}") from None
        position = _skip_space(text, position)
    if not problems:
        raise InputError(f"The {what} at {path} is empty, but it must hold at least one problem.")
    return problems


def _skip_space(text: str, position: int) -> int:
    """Give the position of the next character that is not white space."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _to_problem(row: _ProblemRow, intra_operator: IntraOperatorRule) -> ScheduleProblem:
    """Turn operator ids into indices, and check the problem: first operators, then edges."""
    problem = ScheduleProblem(
        name=row.name,
        num_tc=row.num_tc,
        num_vc=row.num_vc,
        operators=tuple(_to_operator(operator) for operator in row.operators),
        edges=(),
        intra_operator=intra_operator,
    )
    check_problem(problem)
    place = {operator.id: index for index, operator in enumerate(row.operators)}
    for edge in row.edges:
        for end in edge:
            if end not in place:
                raise InputError(f"There is the edge {list(edge)}, but no operator {end!r}.")
    edges = tuple((place[before], place[after]) for before, after in row.edges)
    problem = replace(problem, edges=edges)
    topological_order(problem)
    return problem


def _to_operator(row: _OperatorRow) -> ScheduleOperator:
    """Fill in the shares that the file leaves out; `check_problem` refuses unknown core types."""
    hbm, glb = row.intra_op_hbm_fraction, row.intra_op_glb_fraction
    return ScheduleOperator(
        id=row.id,
        core=cast(CoreType, row.core),
        latency_s=row.latency_s,
        intra_op_latency_s=row.intra_op_latency_s,
        hbm_fraction=row.hbm_fraction,
        glb_fraction=row.glb_fraction,
        link_fraction=row.link_fraction,
        intra_op_hbm_fraction=row.hbm_fraction if hbm is None else hbm,
        intra_op_glb_fraction=row.glb_fraction if glb is None else glb,
    )


def to_result(problem: ScheduleProblem, schedule: Schedule) -> ScheduleResult:
    """Give the result of a problem and its schedule."""
    return ScheduleResult(
        name=problem.name,
        makespan_s=schedule.makespan_s,
        status=schedule.status,
        bound_s=schedule.bound_s,
        gap=schedule.gap,
        solve_s=schedule.solve_s,
        utilisation=utilisation(problem, schedule),
    )


def utilisation(problem: ScheduleProblem, schedule: Schedule) -> Utilisation:
    """Compute the average and peak use of cores and bandwidths by a schedule of a problem."""
    uses: list[tuple[float, float, tuple[float, ...]]] = [
        (entry.start_s, entry.end_s, tuple(_shares(problem, operator, entry)))
        for operator, entry in zip(problem.operators, schedule.operators, strict=True)
        if entry.end_s > entry.start_s
    ]
    return Utilisation(*[_resource_use(uses, column, schedule.makespan_s) for column in range(5)])


def _shares(
    problem: ScheduleProblem, operator: ScheduleOperator, entry: ScheduledOperator
) -> Iterator[float]:
    """Yield the shares of TC, VC, HBM, global buffer and link that an operator takes."""
    for core, count in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        if core not in operator.core.split("+"):
            yield 0.0
        else:
            yield 1.0 if entry.intra_operator else 1.0 / count
    yield from operator.bandwidth_shares(entry.intra_operator)


def _resource_use(
    uses: list[tuple[float, float, tuple[float, ...]]], column: int, makespan_s: float
) -> ResourceUse:
    """Sweep over starts and ends in time; of equal times, ends come first."""
    work_s = 0.0
    changes: list[tuple[float, int, float]] = []
    for start_s, end_s, shares in uses:
        work_s += (end_s - start_s) * shares[column]
        changes.append((start_s, 1, shares[column]))
        changes.append((end_s, 0, -shares[column]))
    level, peak = 0.0, 0.0
    for _, _, change in sorted(changes):
        level += change
        peak = max(peak, level)
    average = work_s / makespan_s if makespan_s > 0.0 else 0.0
    return ResourceUse(round(average, _DIGITS), round(peak, _DIGITS))
