"""The one entrance of the scheduler: a problem in, a schedule with its proof out."""

from __future__ import annotations

import itertools
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

from phaze_opt.compiled import load
from phaze_opt.errors import unknown_name
from phaze_opt.scheduling.cached_reads import schedule_with_cache
from phaze_opt.scheduling.canonical import (
    NO_CORE,
    CanonicalForm,
    canonical_form,
    canonical_order,
    form_key,
)
from phaze_opt.scheduling.instance import (
    INTRA,
    SINGLE,
    Instance,
    Plan,
    proving_bound,
    starts_in_order,
)
from phaze_opt.scheduling.problem_columns import PrecedenceGraph, ProblemColumns, problem_columns
from phaze_opt.scheduling.quick_plan import QuickPlan, plan_part, quick_plan
from phaze_opt.scheduling.reduction import contracted_ancestors, series_parts
from phaze_opt.scheduling.schedule_problem import (
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
    graph = PrecedenceGraph.of(problem.edges, check_problem(problem))
    columns = problem_columns(problem, graph)
    without = solve_columns(columns, cache, bandwidth=bandwidth, method=method, effort=effort)
    return with_residency(problem, without, cache, method, effort) if residency else without


def with_residency(
    problem: ScheduleProblem,
    without: Schedule,
    cache: MutableMapping[str, Schedule] | None,
    method: SolveMethod,
    effort: int = DEFAULT_EFFORT,
) -> Schedule:
    """Find a schedule in which tensors stay on the chip, if the problem has any that may.

    Parameters
    ----------
    problem
        A valid problem.
    without
        Its schedule without residency.
    cache, method, effort
        See `solve_schedule`.
    """
    if problem.cached is not None:
        return schedule_with_cache(problem, problem.cached, without)
    if problem.residency is None:
        return without
    from phaze_opt.scheduling.solve_jointly import solve_jointly

    return solve_jointly(problem, problem.residency, without, method, effort, cache)


def solve_columns(
    columns: ProblemColumns,
    cache: MutableMapping[str, Schedule] | None = None,
    *,
    bandwidth: bool = True,
    method: SolveMethod = "branch-and-bound",
    effort: int = DEFAULT_EFFORT,
) -> Schedule:
    """Find a short schedule in which every tensor goes through HBM, in the cache or anew.

    Parameters
    ----------
    columns
        A valid problem.
    cache, bandwidth, method, effort
        See `solve_schedule`.
    """
    # The solver's time leaves out loading its compiled code, or compiling it.
    load(canonical_order, contracted_ancestors, series_parts, plan_part)
    began = time.perf_counter()
    form = canonical_form(columns, bandwidth)
    order, key = form.order.tolist(), ""
    if cache is not None:
        settings: tuple[int, ...] = (SOLVER_VERSION, int(bandwidth), effort)
        if method != "branch-and-bound":
            settings = (*settings, SOLVE_METHODS.index(method))
        key = form_key(form, columns, settings)
        found = cache.get(key)
        # A stored schedule may be damaged: it comes from a database that others can write to.
        if found is not None and len(found.operators) == len(order):
            solve_s = time.perf_counter() - began
            return replace(
                found, operators=_named(found.operators, order, columns.ids), solve_s=solve_s
            )
    draft = _schedule_parts(form, columns, method, effort)
    entries = list(zip(draft.start_s, draft.end_s, draft.intra_operator, strict=True))
    if cache is not None:
        stored = tuple(
            [ScheduledOperator(str(place), *entry) for place, entry in enumerate(entries)]
        )
        cache[key] = _to_schedule(draft, stored, time.perf_counter() - began - draft.loading_s)
    own = dict(zip(order, entries, strict=True))
    operators = tuple([ScheduledOperator(name, *own[i]) for i, name in enumerate(columns.ids)])
    return _to_schedule(draft, operators, time.perf_counter() - began - draft.loading_s)


def _named(
    stored: Sequence[ScheduledOperator], order: Sequence[int], ids: Sequence[str]
) -> tuple[ScheduledOperator, ...]:
    """Give the entries of a canonical order the names and the order of a problem."""
    own = list(stored)
    for entry, index in zip(stored, order, strict=True):
        own[index] = ScheduledOperator(ids[index], entry.start_s, entry.end_s, entry.intra_operator)
    return tuple(own)


def _schedule_parts(
    form: CanonicalForm, columns: ProblemColumns, method: SolveMethod, effort: int
) -> _Draft:
    """Schedule the canonical form part by part."""
    core, latency_s = form.core.tolist(), form.values[:, :2].tolist()
    draft = _Draft([0.0] * len(core), [0.0] * len(core), [False] * len(core))
    if columns.serial:
        for index, kind in enumerate(core):
            _append_operator(index, INTRA, kind, latency_s[index], draft)
        return draft
    instant = form.values[:, :2].min(axis=1) <= 0.0
    draft.intra_operator = (instant & (form.values[:, 0] > 0.0)).tolist()
    ancestors = contracted_ancestors(instant, form.edges)
    members, first = series_parts(instant, ancestors)
    cores, exclusive = (columns.num_tc, columns.num_vc), columns.intra_operator == "exclusive"
    places, bounds = members.tolist(), first.tolist()
    for begin, end in itertools.pairwise(bounds):
        part = places[begin:end]
        if len(part) == 1:
            (index,) = part
            on_one_s, on_all_s = latency_s[index]
            mode = INTRA if on_all_s < on_one_s else SINGLE
            _append_operator(index, mode, core[index], latency_s[index], draft)
            continue
        quick = quick_plan(members[begin:end], form.core, form.values, ancestors, cores, exclusive)
        plan, bound, needed = _solve_instance(quick, method, effort, draft)
        draft.method = max(draft.method, _METHODS.index(needed))
        _append_part(part, latency_s, quick.instance, plan, bound, draft)
    if instant.any():
        for source, target in form.edges.tolist():
            # Edges are sorted by source, and sources come before targets: one pass is enough.
            if instant[target]:
                at_s = max(draft.start_s[target], draft.end_s[source])
                draft.start_s[target] = draft.end_s[target] = at_s
    return draft


def _append_operator(
    index: int, mode: int, core: int, latency_s: Sequence[float], draft: _Draft
) -> None:
    """Let one operator run after the schedule so far."""
    draft.start_s[index] = draft.makespan_s
    draft.makespan_s += latency_s[mode]
    draft.bound_s += latency_s[mode]
    draft.end_s[index] = draft.makespan_s
    draft.intra_operator[index] = mode == INTRA and core != NO_CORE


def _solve_instance(
    quick: QuickPlan, method: SolveMethod, effort: int, draft: _Draft
) -> tuple[Plan, int, ScheduleMethod]:
    """Give a plan, a lower bound in time units, and the method that ended the search."""
    instance, bounds, plan = quick.instance, quick.bounds, quick.plan
    if quick.proven:
        return plan, bounds.makespan, "list"
    found, bound = plan, bounds.makespan
    needed: ScheduleMethod = "list"
    # The search and the solver are imported only where list schedules leave something open.
    if method != "cp-sat":
        began = time.perf_counter()
        from phaze_opt.scheduling.branch_and_bound import improve, load_search

        load_search()
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
    latency_s: Sequence[Sequence[float]],
    instance: Instance,
    plan: Plan,
    bound: int,
    draft: _Draft,
) -> None:
    """Let the plan of a part, in seconds, run after the schedule so far."""
    origin_s = draft.makespan_s
    duration = instance.duration.tolist()
    end = [start + duration[i][plan.mode[i]] for i, start in enumerate(plan.start)]
    duration_s = [latency_s[index][plan.mode[i]] for i, index in enumerate(part)]
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


def _to_schedule(
    draft: _Draft, operators: tuple[ScheduledOperator, ...], solve_s: float
) -> Schedule:
    """Write the schedule."""
    proven = draft.bound_s >= draft.makespan_s * (1.0 - 1e-9)
    return Schedule(
        operators=operators,
        makespan_s=draft.makespan_s,
        status="optimal" if proven else "feasible",
        bound_s=draft.makespan_s if proven else draft.bound_s,
        method=_METHODS[draft.method],
        solve_s=solve_s,
    )
