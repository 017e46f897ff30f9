"""The one entrance of the scheduler: a problem in, a schedule with its proof out."""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

from phaze_opt.errors import unknown_name
from phaze_opt.scheduling.bounds import drop_hopeless_modes, root_bounds
from phaze_opt.scheduling.cached_reads import schedule_with_cache
from phaze_opt.scheduling.canonical import Attributes, canonical_form, form_key
from phaze_opt.scheduling.instance import (
    INTRA,
    SINGLE,
    Instance,
    Plan,
    proving_bound,
    starts_in_order,
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
    SOLVE_METHODS,
    Schedule,
    ScheduledOperator,
    ScheduleMethod,
    ScheduleProblem,
    SolveMethod,
    check_problem,
)

SOLVER_VERSION = 1
"""Part of every key in a cache. Raise it when the solver gives another schedule for a problem."""

DEFAULT_EFFORT = 2_000_000
"""Largest number of states that the exact search expands in each part: about two seconds."""

_METHODS: tuple[ScheduleMethod, ...] = ("bound", "list", "branch-and-bound", "cp-sat")


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
    residency: bool = True,
    method: SolveMethod = "branch-and-bound",
    effort: int = DEFAULT_EFFORT,
) -> Schedule:
    """Find the shortest schedule, or a short one with a bound on its distance from the shortest.

    Without residency, the result depends on the content of the problem only: not on ids, the order
    of operators or edges, the clock or the load of the machine. With residency it may also depend
    on the order of operators and tensors, near which the search begins.

    Parameters
    ----------
    problem
        Operators, precedences and cores.
    cache
        Schedules by `canonical.form_key`; read and filled. A stored schedule names operators by
        their place in the canonical order, so that problems of equal content share it.
    bandwidth
        Whether HBM, global buffer and link bandwidth are resources.
    residency
        Whether tensors may stay on the chip, if the problem has any: the shorter of the schedules
        with and without residency, and the bound that holds for both. With a cache, the operators
        in the order of the problem, and what it then serves.
    method
        Exact search for what bounds and list schedules leave open: the branch and bound, CP-SAT, or
        CP-SAT after the branch and bound where that leaves a gap (``"auto"``, which is never worse
        than either). With residency, ``"branch-and-bound"`` means the fast method alone, and the
        others CP-SAT after it where it leaves a gap.
    effort
        About how many partial schedules the exact search may expand in each part of the problem;
        a million take about a second. CP-SAT spends about as long.

    Raises
    ------
    InputError
        If the problem is not valid (see `check_problem`) or the method is unknown.
    """
    if method not in SOLVE_METHODS:
        raise unknown_name("method", method, SOLVE_METHODS)
    order = check_problem(problem)
    without = _solve_without_residency(problem, order, cache, bandwidth, method, effort)
    if residency and problem.cached is not None:
        return schedule_with_cache(problem, problem.cached, without)
    if problem.residency is None or not residency:
        return without
    from phaze_opt.scheduling.solve_jointly import solve_jointly

    return solve_jointly(problem, problem.residency, without, method, effort, cache)


def _solve_without_residency(
    problem: ScheduleProblem,
    order: Sequence[int],
    cache: MutableMapping[str, Schedule] | None,
    bandwidth: bool,
    method: SolveMethod,
    effort: int,
) -> Schedule:
    """Find a short schedule in which every tensor goes through HBM, in the cache or anew."""
    began = time.perf_counter()
    canonical, attributes, edges = canonical_form(problem, order, bandwidth)
    settings: tuple[int, ...] = (SOLVER_VERSION, int(bandwidth), effort)
    if method != "branch-and-bound":
        settings = (*settings, SOLVE_METHODS.index(method))
    key = form_key(problem, attributes, edges, settings)
    found = cache.get(key) if cache is not None else None
    # A stored schedule may be damaged: it comes from a database that others can write to.
    if found is None or len(found.operators) != len(problem.operators):
        draft = _schedule_parts(problem, attributes, edges, method, effort)
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
    method: SolveMethod,
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
        plan, bound, needed = _solve_instance(instance, method, effort, draft)
        draft.method = max(draft.method, _METHODS.index(needed))
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
    instance: Instance, method: SolveMethod, effort: int, draft: _Draft
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
    found, bound = plan, bounds.makespan
    needed: ScheduleMethod = "list"
    # Numba and the solver are imported only where bounds and list schedules leave something open.
    if method != "cp-sat":
        began = time.perf_counter()
        from phaze_opt.scheduling.branch_and_bound import improve

        draft.loading_s += time.perf_counter() - began
        found, bound = improve(instance, bounds, plan, effort)
        needed = "branch-and-bound"
    if method != "branch-and-bound" and bound < proving_bound(found.makespan):
        began = time.perf_counter()
        from phaze_opt.scheduling.cp_sat_modes import improve_with_cp_sat

        draft.loading_s += time.perf_counter() - began
        # The hint is the list schedule even after the branch and bound: CP-SAT then does what it
        # would do alone, so that the better of both is never worse than either.
        other, other_bound = improve_with_cp_sat(instance, bounds, plan, effort)
        found = min(found, other, key=lambda one: one.makespan)
        bound, needed = min(max(bound, other_bound), found.makespan), "cp-sat"
    return found, bound, needed


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
    start_s = starts_in_order(plan.start, end, duration_s, origin_s)
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
