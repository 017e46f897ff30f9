"""The one entrance of the scheduler: a problem in, a schedule with its proof out."""

from __future__ import annotations

import time
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.choices import SolveMethod
from phaze_opt.compiled import load
from phaze_opt.errors import unknown_name
from phaze_opt.on_demand import deferred
from phaze_opt.scheduling.branch_and_bound import (
    improve_wide,
    improve_with_prices,
    load_search,
)
from phaze_opt.scheduling.cached_reads import schedule_with_cache
from phaze_opt.scheduling.canonical import (
    NO_CORE,
    CanonicalForm,
    canonical_form,
    canonical_order,
    form_key,
)
from phaze_opt.scheduling.elastic_parts import ElasticPart, improve_elastic, plan_elastic_part
from phaze_opt.scheduling.instance import Plan, proving_bound
from phaze_opt.scheduling.part_schedules import append_plan, append_spans, schedule_parts
from phaze_opt.scheduling.problem_columns import PrecedenceGraph, ProblemColumns, problem_columns
from phaze_opt.scheduling.quick_plan import QuickPlan, plan_part, quick_plan
from phaze_opt.scheduling.reduction import Rules
from phaze_opt.scheduling.schedule_problem import (
    SOLVE_METHODS,
    Schedule,
    ScheduledOperator,
    ScheduleMethod,
    ScheduleProblem,
    check_problem,
)

SOLVER_VERSION = 5
"""Part of every key in a cache. Raise it when the solver gives another schedule for a problem."""

CP_SAT_VERSION = 4
"""Part of the keys of schedules that CP-SAT may have found, for what changes only those."""

DEFAULT_EFFORT = 2_000_000
"""Largest number of states that the exact search expands in each part: about two seconds."""

_METHODS: tuple[ScheduleMethod, ...] = ("bound", "list", "branch-and-bound", "cp-sat")
"""The weakest first; `part_schedules.schedule_parts` says which by its place."""


class _NarrowPasses(NamedTuple):
    """What is known of a part after the narrow passes of the search, if the method makes any."""

    plan: Plan
    bound: int
    effort_left: int
    next_width: int


class _Draft:
    """The schedule so far, of operators in canonical order.

    Attributes
    ----------
    times_s : (operators, 2)
        Starts and ends.
    totals_s : (2,)
        Makespan, and its lower bound.
    on_all : (operators,)
        Whether each operator runs on all cores.
    method
        The strongest method that a part needed: place in `_METHODS`.
    loading_s
        Time to load compiled code and solvers.
    """

    def __init__(self, count: int) -> None:
        self.times_s: FloatArray = np.zeros((count, 2))
        self.totals_s: FloatArray = np.zeros(2)
        self.on_all: BoolArray = np.zeros(count, dtype=np.bool_)
        self.method = 0
        self.loading_s = 0.0

    def append(self, part: IntArray, solved: ElasticPart) -> None:
        """Let an elastic part run after the schedule so far."""
        self.method = max(self.method, _METHODS.index("branch-and-bound"))
        append_spans(
            part,
            solved.spans_s,
            solved.on_all,
            solved.makespan_s,
            solved.bound_s,
            self.times_s,
            self.totals_s,
            self.on_all,
        )

    def operators(self, ids: Iterable[str], order: IntArray) -> tuple[ScheduledOperator, ...]:
        """Return the operators, of which the places in some order are given, with names."""
        times_s, on_all = np.empty_like(self.times_s), np.empty_like(self.on_all)
        times_s[order], on_all[order] = self.times_s, self.on_all
        start_s, end_s = times_s.T.tolist()
        return tuple(map(ScheduledOperator, ids, start_s, end_s, on_all.tolist()))


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
        after the branch and bound, where that leaves a gap, the bound by sets, passes of the search
        with its prices, a local search and CP-SAT (``"auto"``, which is never worse than either).
        With residency, ``"branch-and-bound"`` means the fast method alone, and the others CP-SAT
        after it where it leaves a gap. What CP-SAT proves optimal counts as such only if a second
        model, built in another way, confirms it.
    effort
        About how many partial schedules the exact search may expand in each part of the problem;
        a million take about a second. Each of CP-SAT's models may spend about as long.

    Raises
    ------
    InputError
        If the problem is not valid (see `check_problem`) or the method is unknown.
    """
    if method not in SOLVE_METHODS:
        raise unknown_name("method", method, SOLVE_METHODS)
    graph = PrecedenceGraph.of(problem.edges, check_problem(problem))
    columns = problem_columns(problem, graph)
    without, _ = solve_columns(columns, cache, bandwidth=bandwidth, method=method, effort=effort)
    if residency and problem.cached is not None:
        return schedule_with_cache(columns, problem.cached, without)
    return with_residency(problem, without, cache, method, effort) if residency else without


def with_residency(
    problem: ScheduleProblem,
    without: Schedule,
    cache: MutableMapping[str, Schedule] | None,
    method: SolveMethod,
    effort: int = DEFAULT_EFFORT,
) -> Schedule:
    """Find a schedule in which tensors stay in a managed buffer, if the problem has any that may.

    Parameters
    ----------
    problem
        A valid problem.
    without
        Its schedule without residency.
    cache, method, effort
        See `solve_schedule`.
    """
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
) -> tuple[Schedule, BoolArray]:
    """Find a short schedule in which every tensor goes through HBM, in the cache or anew.

    Parameters
    ----------
    columns
        A valid problem.
    cache, bandwidth, method, effort
        See `solve_schedule`.

    Returns
    -------
    The schedule, and whether each operator runs on all cores.
    """
    # The solver's time leaves out loading its compiled code, or compiling it.
    load(canonical_order, schedule_parts)
    began = time.perf_counter()
    form = canonical_form(columns, bandwidth)
    order, key = form.order, ""
    if cache is not None:
        settings: tuple[int, ...] = (SOLVER_VERSION, int(bandwidth), effort)
        if method != "branch-and-bound":
            settings = (*settings, SOLVE_METHODS.index(method), CP_SAT_VERSION)
        key = form_key(form, columns, settings)
        cached = cache.get(key)
        # A stored schedule may be damaged: it comes from a database that others can write to.
        if cached is not None and len(cached.operators) == len(order):
            on_all = np.empty(len(order), dtype=np.bool_)
            on_all[order] = [entry.intra_operator for entry in cached.operators]
            named = deferred(lambda: _named(cached.operators, order.tolist(), columns.ids))
            return replace(cached, operators=named, solve_s=time.perf_counter() - began), on_all
    draft = _schedule_parts(form, columns, method, effort)
    if cache is not None:
        names = map(str, range(len(order)))
        stored = draft.operators(names, np.arange(len(order)))
        cache[key] = _to_schedule(draft, stored, time.perf_counter() - began - draft.loading_s)
    operators = deferred(lambda: draft.operators(columns.ids, order))
    on_all = np.empty_like(draft.on_all)
    on_all[order] = draft.on_all
    solve_s = time.perf_counter() - began - draft.loading_s
    return _to_schedule(draft, operators, solve_s), on_all


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
    draft = _Draft(len(form.core))
    has_modes = form.core != NO_CORE
    if columns.serial:
        # Every operator on all cores, one after the other.
        draft.times_s[:, 1] = np.add.accumulate(form.values[:, 1])
        draft.times_s[1:, 0] = draft.times_s[:-1, 1]
        draft.totals_s[:] = draft.times_s[-1:, 1].sum()
        draft.on_all = has_modes
        return draft
    exclusive = columns.intra_operator == "exclusive"
    rules: Rules = columns.num_tc, columns.num_vc, exclusive, columns.elastic
    kernel_effort = -1 if method == "cp-sat" else effort
    prove = method != "branch-and-bound"
    place = 0
    while True:
        place, ended_by, ancestors, part, plan, (makespan, bound, left, width) = schedule_parts(
            form.core,
            form.values,
            form.edges,
            has_modes,
            rules,
            prove,
            kernel_effort,
            place,
            draft.times_s,
            draft.totals_s,
            draft.on_all,
        )
        draft.method = max(draft.method, ended_by)
        if len(part) == 0:
            return draft
        began = time.perf_counter()
        load(plan_part, append_plan, plan_elastic_part, append_spans)
        load_search()
        draft.loading_s += time.perf_counter() - began
        place += 1
        if columns.elastic:
            open_part = plan_elastic_part(part, form.core, form.values, ancestors, rules, effort)
            solved = improve_elastic(ElasticPart(*open_part))
            draft.append(part, solved)
            continue
        quick = quick_plan(part, form.core, form.values, ancestors, rules)
        searched = _NarrowPasses(Plan.of(plan, makespan), bound, left, width)
        best, bound, needed = _solve_instance(quick, searched, method, effort, draft)
        draft.method = max(draft.method, _METHODS.index(needed))
        append_plan(
            part,
            form.values,
            quick.instance.duration,
            np.column_stack([best.start, best.mode]),
            best.makespan,
            bound,
            quick.instance.seconds_per_unit,
            draft.times_s,
            draft.totals_s,
            draft.on_all,
        )


def _solve_instance(
    quick: QuickPlan, searched: _NarrowPasses, method: SolveMethod, effort: int, draft: _Draft
) -> tuple[Plan, int, ScheduleMethod]:
    """Give a plan, a lower bound in time units, and the method that ended the search.

    Parameters
    ----------
    quick, searched
        The part, which its list schedule and the narrow passes of the search leave open.
    method, effort
        See `solve_schedule`.
    draft
        Takes the time to load CP-SAT.
    """
    instance, bounds, plan = quick.instance, quick.bounds, quick.plan
    best, bound, left, width = searched
    needed: ScheduleMethod = "branch-and-bound"
    if method != "cp-sat":
        best, bound = improve_wide(instance, replace(bounds, makespan=bound), best, left, width)
    if method == "auto" and bound < proving_bound(best.makespan):
        began = time.perf_counter()
        from phaze_opt.scheduling.local_search import improve_by_moves
        from phaze_opt.scheduling.move_kernel import improve_moves
        from phaze_opt.scheduling.price_kernel import heaviest_set
        from phaze_opt.scheduling.set_bound import set_bound

        load(improve_moves, heaviest_set)
        draft.loading_s += time.perf_counter() - began
        by_sets, prices = set_bound(instance, effort)
        bound = min(max(bound, by_sets), best.makespan)
        known = replace(bounds, makespan=bound)
        best, bound = improve_with_prices(instance, known, prices, best, effort)
        if bound < proving_bound(best.makespan):
            best = improve_by_moves(instance, best, effort)
    if method != "branch-and-bound" and bound < proving_bound(best.makespan):
        began = time.perf_counter()
        from phaze_opt.scheduling.cp_sat_modes import improve_with_cp_sat

        draft.loading_s += time.perf_counter() - began
        # The hint is the list schedule even after the branch and bound: CP-SAT then does what it
        # would do alone, so that the better of both is never worse than either.
        best, bound = improve_with_cp_sat(instance, bounds, plan, best, bound, effort)
        needed = "cp-sat"
    return best, bound, needed


def _to_schedule(
    draft: _Draft, operators: tuple[ScheduledOperator, ...], solve_s: float
) -> Schedule:
    """Write the schedule."""
    makespan_s, bound_s = draft.totals_s.tolist()
    proven = bound_s >= makespan_s * (1.0 - 1e-9)
    return Schedule(
        operators=operators,
        makespan_s=makespan_s,
        status="optimal" if proven else "feasible",
        bound_s=makespan_s if proven else bound_s,
        method=_METHODS[draft.method],
        solve_s=solve_s,
    )
