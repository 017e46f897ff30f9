"""Scheduling problems and results as JSON: what ``phaze-opt schedule`` reads and prints.

A problem has ``num_tc``, ``num_vc``, ``operators`` and ``edges``. One with residency also has
``tensors``, ``glb_bytes`` and ``hbm_bytes_per_s``::

    {"name": "two", "num_tc": 4, "num_vc": 4, "glb_bytes": 8000000, "hbm_bytes_per_s": 1e12,
     "operators": [
       {"id": "a", "core": "TC", "latency_s": 4e-5, "intra_op_latency_s": 1e-5,
        "hbm_bytes": 1e7, "other_s": 4e-6, "working_bytes": 2000000},
       {"id": "b", "core": "VC", "latency_s": 4e-5, "intra_op_latency_s": 8e-6,
        "hbm_bytes": 8e6, "other_s": 1e-6}],
     "edges": [["a", "b"]],
     "tensors": [{"from": "a", "to": ["b"], "bytes": 4000000, "outlives": false}]}

``from`` is left out for an input of the pass. What an operator may state for residency:

- ``hbm_bytes`` (default 0): bytes from and to HBM with nothing resident;
- ``working_bytes`` (default 0): bytes in the global buffer while it runs;
- ``overhead_s`` (default 0): part of the latency that is overlapped with nothing;
- ``other_s``: time for everything but HBM, on all cores. Without it, an operator that takes longer
  on all cores than its HBM bytes is not bound by HBM, and residency does not shorten it; any other
  is bound by HBM alone. Either way its latencies are at least the time of its HBM bytes;
- ``levels``: further ways of blocking it, each with ``working_bytes``, ``hbm_bytes``, ``other_s``.

A tensor may state ``saved_bytes``: for its producer, if it has one, and for every reader, a list of
the HBM bytes that the operator saves at each of its levels if the tensor is resident. By default an
operator saves the tensor's size, or as much of it as its ``hbm_bytes`` allow.

A problem in which operators may run tile by tile also has ``through``: the edges of which the
second operator can begin with a tile as soon as the first one has made it. An operator that may be
cut has ``tiles``, one entry for every ``count`` of tiles, with ``levels`` as above (bytes and times
of all its tiles together) and, if it is to be stated, ``saved_bytes``: a list for every tensor that
the operator makes or reads, in the order of the file, and then for every held input of it. ``held``
lists inputs that one operator alone reads, and reads again for every tile, and sums to which every
tile adds; ``moved_bytes`` of them are moved once where they are held, by default all::

    "through": [["a", "b"]], "held": [{"operator": "b", "bytes": 1000000}]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from phaze_opt.choices import IntraOperatorRule
from phaze_opt.codec import from_builtins, read_file, to_builtins
from phaze_opt.errors import InputError
from phaze_opt.scheduling.problem_rows import OperatorRow, ProblemRow
from phaze_opt.scheduling.schedule_problem import (
    CoreType,
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
        except (ValueError, RecursionError) as error:  # no JSON, or a number without end
            raise InputError(f"The {place} is not valid JSON: {error}.") from None
        row = from_builtins(plain, ProblemRow, place)
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


def _to_problem(row: ProblemRow, intra_operator: IntraOperatorRule) -> ScheduleProblem:
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
    if row.tensors:
        from phaze_opt.scheduling.residency_file import add_residency

        problem = add_residency(problem, row)
        check_problem(problem)
    topological_order(problem)
    return problem


def _to_operator(row: OperatorRow) -> ScheduleOperator:
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


def result_row(problem: ScheduleProblem, schedule: Schedule) -> dict[str, object]:
    """Give the line that the command prints for a problem and its schedule.

    It says which method found the schedule where the problem has tensors or CP-SAT took part, and
    with tensors what stays on the chip, from when to when, and the bytes from and to HBM. Where
    operators may run tile by tile it lists the groups that do.
    """
    row: dict[str, object] = to_builtins(to_result(problem, schedule))
    if schedule.method == "cp-sat" or problem.residency is not None:
        row["method"] = schedule.method
    if problem.residency is not None:
        from phaze_opt.scheduling.residency_file import flow_bytes, resident_rows

        row["hbm_bytes"] = sum(flow_bytes(problem.residency, schedule))
        row["resident"] = resident_rows(problem, schedule)
        if problem.residency.tiling is not None:
            from phaze_opt.scheduling.tile_file import group_rows

            row["groups"] = group_rows(problem, schedule)
    return row


def to_row(problem: ScheduleProblem) -> dict[str, object]:
    """Write a problem as a file holds it; `read_problems` reads it back."""
    ids = [operator.id for operator in problem.operators]
    row: dict[str, object] = {
        "name": problem.name,
        "num_tc": problem.num_tc,
        "num_vc": problem.num_vc,
        "operators": to_builtins(problem.operators),
        "edges": [[ids[before], ids[after]] for before, after in problem.edges],
    }
    if problem.residency is not None:
        from phaze_opt.scheduling.residency_file import residency_rows

        row |= residency_rows(problem, problem.residency)
    return row


def utilisation(problem: ScheduleProblem, schedule: Schedule) -> Utilisation:
    """Compute the average and peak use of cores and bandwidths by a schedule of a problem."""
    uses: list[tuple[float, float, tuple[float, ...]]] = [
        (entry.start_s, entry.end_s, tuple(_shares(problem, operator, entry)))
        for operator, entry in zip(_operators(problem, schedule), schedule.operators, strict=True)
        if entry.end_s > entry.start_s
    ]
    return Utilisation(*[_resource_use(uses, column, schedule.makespan_s) for column in range(5)])


def _operators(problem: ScheduleProblem, schedule: Schedule) -> list[ScheduleOperator]:
    """List the operators; with residency, with the share of HBM that their bytes then take."""
    if schedule.residency is None or problem.residency is None:
        return list(problem.operators)
    shares = [
        flow / problem.residency.hbm_bytes_per_s / max(entry.end_s - entry.start_s, 1e-300)
        for flow, entry in zip(schedule.residency.hbm_bytes, schedule.operators, strict=True)
    ]
    return [
        replace(operator, hbm_fraction=share, intra_op_hbm_fraction=share)
        for operator, share in zip(problem.operators, shares, strict=True)
    ]


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
