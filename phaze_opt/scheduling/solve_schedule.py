"""The one entrance of the scheduler: a problem in, a schedule with its proof out."""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from phaze_opt.scheduling.bounds import drop_hopeless_modes, root_bounds
from phaze_opt.scheduling.canonical import Attributes, canonical_form, form_key
from phaze_opt.scheduling.instance import INTRA, SINGLE, Instance
from phaze_opt.scheduling.list_scheduler import best_list_schedule
from phaze_opt.scheduling.plan import Plan, near, replay
from phaze_opt.scheduling.problem_checks import CORE_TYPES, validate
from phaze_opt.scheduling.reduction import (
    build_instance,
    contracted_ancestors,
    is_instant,
    series_parts,
)
from phaze_opt.scheduling.schedule_problem import (
    Schedule,
    ScheduledOperator,
    ScheduleMethod,
    ScheduleProblem,
)

SOLVER_VERSION = 1
"""Part of every key in a cache; to be raised when schedules of the same problem change."""

DEFAULT_EFFORT = 2_000_000
"""States that the exact search expands at most in each part: two seconds or so."""

_METHODS: tuple[ScheduleMethod, ...] = ("bound", "list", "branch-and-bound")


@dataclass
class _Placed:
    """What is known so far of every operator, in canonical order."""

    start_s: list[float]
    end_s: list[float]
    intra_operator: list[bool]
    makespan_s: float = 0.0
    bound_s: float = 0.0
    method: int = 0
    loading_s: float = 0.0


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
        Schedules by content (`problem_key`); read and filled. What it holds names operators by
        their place in the canonical order, so that problems of the same content share it.
    bandwidth
        Whether HBM, global buffer and link bandwidth are resources.
    effort
        About how many partial schedules the exact search may expand in each part of the problem;
        a million take about a second.

    Raises
    ------
    InputError
        If the problem is not valid; see `validate`.
    """
    began = time.perf_counter()
    order = validate(problem)
    canonical, attributes, edges = canonical_form(problem, order, bandwidth)
    key = form_key(problem, attributes, edges, _settings(bandwidth, effort))
    found = cache.get(key) if cache is not None else None
    # What a cache holds may come from a database that somebody has written to.
    if found is None or len(found.operators) != len(problem.operators):
        placed = _place(problem, attributes, edges, effort)
        # Loading the compiled search, or compiling it once per installation, is not solving.
        began += placed.loading_s
        found = _to_schedule(placed, time.perf_counter() - began)
        if cache is not None:
            cache[key] = found
    own = list(found.operators)
    for entry, index in zip(found.operators, canonical, strict=True):
        name = problem.operators[index].id
        own[index] = ScheduledOperator(name, entry.start_s, entry.end_s, entry.intra_operator)
    return Schedule(
        operators=tuple(own),
        makespan_s=found.makespan_s,
        status=found.status,
        bound_s=found.bound_s,
        method=found.method,
        solve_s=time.perf_counter() - began,
    )


def problem_key(
    problem: ScheduleProblem, *, bandwidth: bool = True, effort: int = DEFAULT_EFFORT
) -> str:
    """Name the answer of `solve` by content: independent of ids, names and the order of writing.

    Raises
    ------
    InputError
        If the problem is not valid; see `validate`.
    """
    _, attributes, edges = canonical_form(problem, validate(problem), bandwidth)
    return form_key(problem, attributes, edges, _settings(bandwidth, effort))


def _settings(bandwidth: bool, effort: int) -> tuple[int, ...]:
    """List what the answer depends on besides the problem."""
    return (SOLVER_VERSION, int(bandwidth), effort)


def _place(
    problem: ScheduleProblem,
    attributes: Sequence[Attributes],
    edges: Sequence[tuple[int, int]],
    effort: int,
) -> _Placed:
    """Schedule the canonical form part by part."""
    count = len(attributes)
    placed = _Placed([0.0] * count, [0.0] * count, [False] * count)
    if problem.serial:
        for index, entry in enumerate(attributes):
            _place_alone(index, entry, INTRA, placed)
        return placed
    instant = [is_instant(entry) for entry in attributes]
    placed.intra_operator = [
        skip and entry[1] > 0.0 for skip, entry in zip(instant, attributes, strict=True)
    ]
    ancestors = contracted_ancestors(instant, edges)
    for part in series_parts([i for i in range(count) if not instant[i]], ancestors):
        if len(part) == 1:
            entry = attributes[part[0]]
            _place_alone(part[0], entry, INTRA if entry[2] < entry[1] else SINGLE, placed)
            continue
        cores = (problem.num_tc, problem.num_vc)
        instance = build_instance(part, attributes, ancestors, cores, problem.intra_operator)
        plan, bound, method = _solve_instance(instance, effort, placed)
        placed.method = max(placed.method, _METHODS.index(method))
        _place_part(part, attributes, instance, plan, bound, placed)
    for source, target in edges:
        # Edges are sorted by source, and sources come before targets: one pass is enough.
        if instant[target]:
            at_s = max(placed.start_s[target], placed.end_s[source])
            placed.start_s[target] = placed.end_s[target] = at_s
    return placed


def _place_alone(index: int, entry: Attributes, mode: int, placed: _Placed) -> None:
    """Put one operator behind everything so far."""
    placed.start_s[index] = placed.makespan_s
    placed.makespan_s += entry[1 + mode]
    placed.bound_s += entry[1 + mode]
    placed.end_s[index] = placed.makespan_s
    placed.intra_operator[index] = mode == INTRA and entry[0] != CORE_TYPES.index("none")


def _solve_instance(
    instance: Instance, effort: int, placed: _Placed
) -> tuple[Plan, int, ScheduleMethod]:
    """Give a schedule, a bound in time units, and what ended the search."""
    bounds = root_bounds(instance)
    plan = best_list_schedule(instance, bounds)
    if near(plan.makespan) <= bounds.makespan:
        return plan, bounds.makespan, "list"
    fewer = drop_hopeless_modes(instance, near(plan.makespan))
    if not all(fewer.modes):
        return plan, near(plan.makespan), "list"
    if fewer.modes != instance.modes:
        instance, bounds = fewer, root_bounds(fewer)
        if near(plan.makespan) <= bounds.makespan:
            return plan, near(plan.makespan), "list"
    # Numba is imported only where bounds and list schedules leave something open.
    began = time.perf_counter()
    from phaze_opt.scheduling.branch_and_bound import improve

    placed.loading_s += time.perf_counter() - began
    plan, bound = improve(instance, bounds, plan, effort)
    return plan, bound, "branch-and-bound"


def _place_part(
    part: Sequence[int],
    attributes: Sequence[Attributes],
    instance: Instance,
    plan: Plan,
    bound: int,
    placed: _Placed,
) -> None:
    """Replay a part's schedule in seconds, behind everything so far."""
    origin_s = placed.makespan_s
    end = [start + instance.duration[i][plan.mode[i]] for i, start in enumerate(plan.start)]
    duration_s = [attributes[index][1 + plan.mode[i]] for i, index in enumerate(part)]
    start_s = replay(plan.start, end, duration_s, origin_s)
    for i, index in enumerate(part):
        placed.start_s[index] = start_s[i]
        placed.end_s[index] = start_s[i] + duration_s[i]
        placed.intra_operator[index] = plan.mode[i] == INTRA
        placed.makespan_s = max(placed.makespan_s, placed.end_s[index])
    length_s = placed.makespan_s - origin_s
    if near(plan.makespan) <= bound:
        placed.bound_s += length_s
    else:
        # Every operator's duration was rounded by at most one unit.
        placed.bound_s += min(length_s, (bound - instance.size) * instance.seconds_per_unit)


def _to_schedule(placed: _Placed, solve_s: float) -> Schedule:
    """Write the result, with places in the canonical order for ids."""
    proven = placed.bound_s >= placed.makespan_s * (1.0 - 1e-9)
    entries = zip(placed.start_s, placed.end_s, placed.intra_operator, strict=True)
    return Schedule(
        operators=tuple([ScheduledOperator(str(i), *entry) for i, entry in enumerate(entries)]),
        makespan_s=placed.makespan_s,
        status="optimal" if proven else "feasible",
        bound_s=placed.makespan_s if proven else placed.bound_s,
        method=_METHODS[placed.method],
        solve_s=solve_s,
    )
