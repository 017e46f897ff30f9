"""Scheduling problems and results as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from phaze_opt.codec import from_builtins, read_file
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.scheduling.problem_checks import CORE_TYPES, topological_order, validate
from phaze_opt.scheduling.schedule_problem import (
    CoreType,
    IntraOperatorRule,
    Schedule,
    ScheduleOperator,
    ScheduleProblem,
    ScheduleStatus,
)
from phaze_opt.scheduling.utilisation import Utilisation, utilisation


@dataclass(frozen=True)
class _OperatorRow:
    """One operator in a file; shares on all cores are those on one core unless they are given."""

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
    """One problem in a file; edges name operators. A known optimum may stand beside it."""

    num_tc: int
    num_vc: int
    operators: tuple[_OperatorRow, ...]
    edges: tuple[tuple[str, str], ...]
    name: str = ""
    optimal_makespan_s: float | None = None


@dataclass(frozen=True)
class ScheduleResult:
    """What the command line says about one problem."""

    name: str
    makespan_s: float
    status: ScheduleStatus
    bound_s: float
    gap: float
    solve_s: float
    utilisation: Utilisation


def to_result(problem: ScheduleProblem, schedule: Schedule) -> ScheduleResult:
    """Sum up a schedule."""
    return ScheduleResult(
        name=problem.name,
        makespan_s=schedule.makespan_s,
        status=schedule.status,
        bound_s=schedule.bound_s,
        gap=schedule.gap,
        solve_s=schedule.solve_s,
        utilisation=utilisation(problem, schedule),
    )


def read_problems(
    path: Path, intra_operator: IntraOperatorRule = "exclusive"
) -> list[ScheduleProblem]:
    """Read a file of one problem, or of several one after another (JSON lines).

    Parameters
    ----------
    path
        The file.
    intra_operator
        The rule for operators on all cores, which files do not hold.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is malformed, or a problem is not valid.
    """
    what = "scheduling problem"
    try:
        text = read_file(path, what).decode()
    except UnicodeDecodeError:
        raise InputError(f"The {what} at {path} is not UTF-8 text.") from None
    # The standard library's reader lets NaN pass, which `validate` refuses with the operator's id.
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
    """Turn ids into indices, and check everything: operators first, then edges."""
    problem = ScheduleProblem(
        name=row.name,
        num_tc=row.num_tc,
        num_vc=row.num_vc,
        operators=tuple(_to_operator(operator) for operator in row.operators),
        edges=(),
        intra_operator=intra_operator,
    )
    validate(problem)
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
    """Fill in the shares that are not given."""
    hbm, glb = row.intra_op_hbm_fraction, row.intra_op_glb_fraction
    return ScheduleOperator(
        id=row.id,
        core=_core_type(row),
        latency_s=row.latency_s,
        intra_op_latency_s=row.intra_op_latency_s,
        hbm_fraction=row.hbm_fraction,
        glb_fraction=row.glb_fraction,
        link_fraction=row.link_fraction,
        intra_op_hbm_fraction=row.hbm_fraction if hbm is None else hbm,
        intra_op_glb_fraction=row.glb_fraction if glb is None else glb,
    )


def _core_type(row: _OperatorRow) -> CoreType:
    """Refuse a core type that there is not, by the operator's id."""
    for core in CORE_TYPES:
        if row.core == core:
            return core
    raise unknown_name(f"core type of operator {row.id!r}:", row.core, CORE_TYPES)
