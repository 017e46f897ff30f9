"""The one entrance of the scheduler: a problem in, a schedule with its proof out."""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

from phaze_opt.scheduling.bounds import root_bounds
from phaze_opt.scheduling.canonical import canonical_form, form_key
from phaze_opt.scheduling.instance import INTRA, SINGLE
from phaze_opt.scheduling.list_scheduler import best_list_schedule
from phaze_opt.scheduling.plan import replay
from phaze_opt.scheduling.problem import Schedule, ScheduledOperator, ScheduleProblem
from phaze_opt.scheduling.reduction import (
    build_instance,
    contracted_ancestors,
    is_instant,
    series_parts,
)
from phaze_opt.scheduling.validation import CORE_TYPES, validate

OPTIMALITY_TOLERANCE = 1e-9
"""A schedule this close to a bound, relatively, is called optimal."""

DEFAULT_EFFORT = 2_000_000

_METHODS = ("bound", "list", "branch-and-bound", "cp-sat")


@dataclass
class _Placed:
    """What is known so far of every operator, in canonical order."""

    start_s: list[float]
    end_s: list[float]
    intra_operator: list[bool]
    bound_s: float = 0.0
    method: int = 0


def solve(
    problem: ScheduleProblem,
    cache: MutableMapping[str, Schedule] | None = None,
    *,
    bandwidth: bool = True,
    effort: int = DEFAULT_EFFORT,
) -> Schedule:
    """Find the shortest schedule, or a short one and how far from the shortest it can be.

    The result depends on nothing but the arguments' content: not on ids, on the order of operators
    or edges, on the clock or on the machine's load.

    Parameters
    ----------
    problem
        Operators, precedences and cores.
    cache
        Schedules by content; read and filled.
    bandwidth
        Whether HBM, global buffer and link bandwidth are resources.
    effort
        Largest number of partial schedules the exact search looks at, over all parts.

    Raises
    ------
    InputError
        If the problem is not valid; see `validate`.
    """
    began = time.perf_counter()
    order = validate(problem)
    canonical, attributes, edges = canonical_form(problem, order, bandwidth)
    key = form_key(problem, attributes, edges, (int(bandwidth), effort))
    found = cache.get(key) if cache is not None else None
    if found is None:
        placed = _place(problem, attributes, edges, effort)
        found = _to_schedule(placed, time.perf_counter() - began)
        if cache is not None:
            cache[key] = found
    own: list[ScheduledOperator] = list(found.operators)
    for position, index in enumerate(canonical):
        own[index] = replace(found.operators[position], id=problem.operators[index].id)
    return replace(found, operators=tuple(own), solve_s=time.perf_counter() - began)


def _place(
    problem: ScheduleProblem,
    attributes: Sequence[Sequence[float]],
    edges: Sequence[tuple[int, int]],
    effort: int,
) -> _Placed:
    """Schedule the canonical form part by part."""
    count = len(attributes)
    placed = _Placed([0.0] * count, [0.0] * count, [False] * count)
    if problem.serial:
        _place_serially(attributes, placed)
        return placed
    instant = [is_instant(entry) for entry in attributes]
    ancestors = contracted_ancestors(instant, edges)
    now_s = 0.0
    for part in series_parts([i for i in range(count) if not instant[i]], ancestors):
        now_s = _place_part(problem, attributes, ancestors, part, placed, now_s, effort)
    for source, target in edges:
        # Edges are sorted by source, and sources come before targets: one pass is enough.
        if instant[target]:
            at_s = max(placed.start_s[target], placed.end_s[source])
            placed.start_s[target] = placed.end_s[target] = at_s
    return placed


def _place_serially(attributes: Sequence[Sequence[float]], placed: _Placed) -> None:
    """Run one operator after another, each on all cores of its type; every order takes as long."""
    now_s = 0.0
    for index, entry in enumerate(attributes):
        placed.start_s[index] = now_s
        now_s += entry[2]
        placed.end_s[index] = now_s
        placed.intra_operator[index] = entry[0] != CORE_TYPES.index("none")
    placed.bound_s = now_s


def _place_part(
    problem: ScheduleProblem,
    attributes: Sequence[Sequence[float]],
    ancestors: Sequence[int],
    part: Sequence[int],
    placed: _Placed,
    now_s: float,
    effort: int,
) -> float:
    """Schedule one part from ``now_s`` on and return when it ends."""
    if len(part) == 1:
        mode = INTRA if attributes[part[0]][2] < attributes[part[0]][1] else SINGLE
        starts_s, modes = [now_s], [mode]
        bound_s, method = attributes[part[0]][1 + mode], 0
        proven = True
    else:
        cores = (problem.num_tc, problem.num_vc)
        instance = build_instance(part, attributes, ancestors, cores, problem.intra_operator)
        bounds = root_bounds(instance)
        plan = best_list_schedule(instance, bounds)
        bound, method = bounds.makespan, 1
        if plan.makespan * (1.0 - OPTIMALITY_TOLERANCE) > bound:
            from phaze_opt.scheduling import cp_sat

            plan, bound = cp_sat.improve(instance, bounds, plan, effort * 1e-6)
            method = 3
        end = [b + instance.duration[i][plan.mode[i]] for i, b in enumerate(plan.start)]
        durations_s = [attributes[index][1 + plan.mode[i]] for i, index in enumerate(part)]
        starts_s = replay(plan.start, end, durations_s, now_s)
        modes = list(plan.mode)
        bound_s = (bound - instance.size) * instance.seconds_per_unit
        proven = plan.makespan * (1.0 - 1e-6) <= bound
    end_s = now_s
    for i, index in enumerate(part):
        placed.start_s[index] = starts_s[i]
        placed.end_s[index] = starts_s[i] + attributes[index][1 + modes[i]]
        placed.intra_operator[index] = modes[i] == INTRA
        end_s = max(end_s, placed.end_s[index])
    placed.bound_s += end_s - now_s if proven else min(bound_s, end_s - now_s)
    placed.method = max(placed.method, method)
    return end_s


def _to_schedule(placed: _Placed, solve_s: float) -> Schedule:
    """Write the result with positions for ids."""
    makespan_s = max(placed.end_s, default=0.0)
    proven = placed.bound_s >= makespan_s * (1.0 - OPTIMALITY_TOLERANCE)
    return Schedule(
        operators=tuple(
            ScheduledOperator(str(i), start_s, end_s, intra)
            for i, (start_s, end_s, intra) in enumerate(
                zip(placed.start_s, placed.end_s, placed.intra_operator, strict=True)
            )
        ),
        makespan_s=makespan_s,
        status="optimal" if proven else "feasible",
        bound_s=makespan_s if proven else placed.bound_s,
        method=_METHODS[placed.method],
        solve_s=solve_s,
    )
