"""The one entrance of the scheduler: a problem in, a schedule with its proof out."""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

from phaze_opt.scheduling.bounds import drop_hopeless_modes, root_bounds
from phaze_opt.scheduling.canonical import Attributes, canonical_form, form_key
from phaze_opt.scheduling.instance import (
    INTRA,
    SINGLE,
    Instance,
    Plan,
    proving_bound,
    starts_in_seconds,
)
from phaze_opt.scheduling.list_scheduler import best_list_schedule
from phaze_opt.scheduling.reduction import (
    build_instance,
    contracted_ancestors,
    is_instant,
    series_parts,
)
from phaze_opt.scheduling.schedule_problem import (
    CORE_TYPES,
    Schedule,
    ScheduledOperator,
    ScheduleMethod,
    ScheduleProblem,
    check_problem,
)

SOLVER_VERSION = 1
"""Part of every key in a cache. Raise it when the solver gives another schedule for a problem."""

DEFAULT_EFFORT = 2_000_000
"""Largest number of states that the exact search expands in each part: about two seconds."""

_METHODS: tuple[ScheduleMethod, ...] = ("bound", "list", "branch-and-bound")


@dataclass
class _Draft:
    """The schedule so far: sequences over the operators in canonical order."""

    start_s: list[float]
    end_s: list[float]
    intra_operator: list[bool]
    makespan_s: float = 0.0
    bound_s: float = 0.0
    method: int = 0
    loading_s: float = 0.0


def solve_schedule(
    problem: ScheduleProblem,
    cache: MutableMapping[str, Schedule] | None = None,
    *,
    bandwidth: bool = True,
    effort: int = DEFAULT_EFFORT,
) -> Schedule:
    """Find the shortest schedule, or a short one with a bound on its distance from the shortest.

    The result depends on the content of the problem only: not on ids, the order of operators or
    edges, the clock or the load of the machine.

    Parameters
    ----------
    problem
        Operators, precedences and cores.
    cache
        Schedules by `canonical.form_key`; read and filled. A stored schedule names operators by
        their place in the canonical order, so that problems of equal content share it.
    bandwidth
        Whether HBM, global buffer and link bandwidth are resources.
    effort
        About how many partial schedules the exact search may expand in each part of the problem;
        a million take about a second.

    Raises
    ------
    InputError
        If the problem is not valid; see `check_problem`.
    """
    began = time.perf_counter()
    order = check_problem(problem)
    canonical, attributes, edges = canonical_form(problem, order, bandwidth)
    key = form_key(problem, attributes, edges, (SOLVER_VERSION, int(bandwidth), effort))
    found = cache.get(key) if cache is not None else None
    # A stored schedule may be damaged: it comes from a database that others can write to.
    if found is None or len(found.operators) != len(problem.operators):
        draft = _schedule_parts(problem, attributes, edges, effort)
        # The solver's time leaves out loading the compiled search, or compiling it.
        began += draft.loading_s
        found = _to_schedule(draft, time.perf_counter() - began)
        if cache is not None:
            cache[key] = found
    own = list(found.operators)
    for entry, index in zip(found.operators, canonical, strict=True):
        name = problem.operators[index].id
        own[index] = ScheduledOperator(name, entry.start_s, entry.end_s, entry.intra_operator)
    return replace(found, operators=tuple(own), solve_s=time.perf_counter() - began)


def _schedule_parts(
    problem: ScheduleProblem,
    attributes: Sequence[Attributes],
    edges: Sequence[tuple[int, int]],
    effort: int,
) -> _Draft:
    """Schedule the canonical form part by part."""
    count = len(attributes)
    draft = _Draft([0.0] * count, [0.0] * count, [False] * count)
    if problem.serial:
        for index, entry in enumerate(attributes):
            _append_operator(index, entry, INTRA, draft)
        return draft
    instant = [is_instant(entry) for entry in attributes]
    draft.intra_operator = [
        skip and entry[1] > 0.0 for skip, entry in zip(instant, attributes, strict=True)
    ]
    ancestors = contracted_ancestors(instant, edges)
    for part in series_parts([i for i in range(count) if not instant[i]], ancestors):
        if len(part) == 1:
            entry = attributes[part[0]]
            _append_operator(part[0], entry, INTRA if entry[2] < entry[1] else SINGLE, draft)
            continue
        cores = (problem.num_tc, problem.num_vc)
        instance = build_instance(part, attributes, ancestors, cores, problem.intra_operator)
        plan, bound, method = _solve_instance(instance, effort, draft)
        draft.method = max(draft.method, _METHODS.index(method))
        _append_part(part, attributes, instance, plan, bound, draft)
    for source, target in edges:
        # Edges are sorted by source, and sources come before targets: one pass is enough.
        if instant[target]:
            at_s = max(draft.start_s[target], draft.end_s[source])
            draft.start_s[target] = draft.end_s[target] = at_s
    return draft


def _append_operator(index: int, entry: Attributes, mode: int, draft: _Draft) -> None:
    """Let one operator run after the schedule so far."""
    draft.start_s[index] = draft.makespan_s
    draft.makespan_s += entry[1 + mode]
    draft.bound_s += entry[1 + mode]
    draft.end_s[index] = draft.makespan_s
    draft.intra_operator[index] = mode == INTRA and entry[0] != CORE_TYPES.index("none")


def _solve_instance(
    instance: Instance, effort: int, draft: _Draft
) -> tuple[Plan, int, ScheduleMethod]:
    """Give a plan, a lower bound in time units, and the method that ended the search."""
    bounds = root_bounds(instance)
    plan = best_list_schedule(instance, bounds)
    if proving_bound(plan.makespan) <= bounds.makespan:
        return plan, bounds.makespan, "list"
    fewer = drop_hopeless_modes(instance, proving_bound(plan.makespan))
    if not all(fewer.modes):
        return plan, proving_bound(plan.makespan), "list"
    if fewer.modes != instance.modes:
        instance, bounds = fewer, root_bounds(fewer)
        if proving_bound(plan.makespan) <= bounds.makespan:
            return plan, proving_bound(plan.makespan), "list"
    # Numba is imported only where bounds and list schedules leave something open.
    began = time.perf_counter()
    from phaze_opt.scheduling.branch_and_bound import improve

    draft.loading_s += time.perf_counter() - began
    plan, bound = improve(instance, bounds, plan, effort)
    return plan, bound, "branch-and-bound"


def _append_part(
    part: Sequence[int],
    attributes: Sequence[Attributes],
    instance: Instance,
    plan: Plan,
    bound: int,
    draft: _Draft,
) -> None:
    """Let the plan of a part, in seconds, run after the schedule so far."""
    origin_s = draft.makespan_s
    end = [start + instance.duration[i][plan.mode[i]] for i, start in enumerate(plan.start)]
    duration_s = [attributes[index][1 + plan.mode[i]] for i, index in enumerate(part)]
    start_s = starts_in_seconds(plan.start, end, duration_s, origin_s)
    for i, index in enumerate(part):
        draft.start_s[index] = start_s[i]
        draft.end_s[index] = start_s[i] + duration_s[i]
        draft.intra_operator[index] = plan.mode[i] == INTRA
        draft.makespan_s = max(draft.makespan_s, draft.end_s[index])
    length_s = draft.makespan_s - origin_s
    if proving_bound(plan.makespan) <= bound:
        draft.bound_s += length_s
    else:
        # Rounding changed the duration of every operator by at most one unit.
        draft.bound_s += min(length_s, (bound - instance.size) * instance.seconds_per_unit)


def _to_schedule(draft: _Draft, solve_s: float) -> Schedule:
    """Write the schedule, with places in the canonical order as ids."""
    proven = draft.bound_s >= draft.makespan_s * (1.0 - 1e-9)
    entries = zip(draft.start_s, draft.end_s, draft.intra_operator, strict=True)
    return Schedule(
        operators=tuple([ScheduledOperator(str(i), *entry) for i, entry in enumerate(entries)]),
        makespan_s=draft.makespan_s,
        status="optimal" if proven else "feasible",
        bound_s=draft.makespan_s if proven else draft.bound_s,
        method=_METHODS[draft.method],
        solve_s=solve_s,
    )
