"""Schedule a problem part by part, compiled, up to what the narrow passes of the search leave open.

Each part gets a list schedule (`quick_plan`), and where that is not proven the narrow passes of the
exact search (`branch_and_bound`). The plans follow one another in seconds.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.scheduling.branch_and_bound import narrow_passes
from phaze_opt.scheduling.elastic_parts import plan_elastic_part
from phaze_opt.scheduling.instance import INTRA, SINGLE, TIME_RESOLUTION, within_proof
from phaze_opt.scheduling.plan_times import rigid_times
from phaze_opt.scheduling.quick_plan import plan_part
from phaze_opt.scheduling.reduction import RULES_TYPE, Rules, contracted_ancestors, series_parts
from phaze_opt.scheduling.search_arrays import search_arrays

SERIES, LISTED, SEARCHED = 0, 1, 2
"""What ended a part: it is one operator; its list schedule, or a plan of the search, is proven.
Places of the methods in `solve_schedule`."""


@inlined
def _append_operator(i: int, latency_s: float, times_s: FloatArray, totals_s: FloatArray) -> None:
    """Let one operator run after the schedule so far."""
    times_s[i, 0] = totals_s[0]
    totals_s[0] += latency_s
    totals_s[1] += latency_s
    times_s[i, 1] = totals_s[0]


@lazily_compiled(
    "void(i8[::1], f8[:, ::1], i8[:, ::1], i8[:, ::1], i8, i8, f8, f8[:, ::1], f8[::1], b1[::1])"
)
def append_plan(
    part: IntArray,
    values: FloatArray,
    duration: IntArray,
    plan: IntArray,
    makespan: int,
    bound: int,
    seconds_per_unit: float,
    times_s: FloatArray,
    totals_s: FloatArray,
    on_all: BoolArray,
) -> None:
    """Let the plan of a part, in seconds, run after the schedule so far.

    Parameters
    ----------
    part
        The operators.
    values, times_s, totals_s, on_all
        See `schedule_parts`.
    duration : (part, 2)
        Of the instance, in time units.
    plan : (part, 2)
        Start and mode.
    makespan, bound
        Of the plan, in time units, and a lower bound.
    seconds_per_unit
        Length of a time unit.
    """
    size = len(part)
    latency_s, spans_s = np.empty((size, 2)), np.empty((size, 2))
    for i in range(size):
        latency_s[i, 0], latency_s[i, 1] = values[part[i], 0], values[part[i], 1]
    last_s = rigid_times(plan, duration, latency_s, totals_s[0], spans_s)
    length_s = last_s - totals_s[0]
    if within_proof(makespan) > bound:
        # Rounding changed the duration of every operator by at most one unit.
        length_s = min(length_s, (bound - size) * seconds_per_unit)
    for i in range(size):
        times_s[part[i]] = spans_s[i]
        on_all[part[i]] = plan[i, 1] == INTRA
    totals_s[0] = last_s
    totals_s[1] += length_s


@lazily_compiled("void(i8[::1], f8[:, ::1], i8[::1], f8, f8, f8[:, ::1], f8[::1], b1[::1])")
def append_spans(
    part: IntArray,
    spans_s: FloatArray,
    mode: IntArray,
    makespan_s: float,
    bound_s: float,
    times_s: FloatArray,
    totals_s: FloatArray,
    on_all: BoolArray,
) -> None:
    """Let the operators of a part run at some times after the schedule so far.

    Parameters
    ----------
    part, times_s, totals_s, on_all
        As for `append_plan`.
    spans_s : (part, 2)
        Starts and ends.
    mode : (part,)
        Of every operator.
    makespan_s, bound_s
        Of the part.
    """
    for i in range(len(part)):
        times_s[part[i], 0] = totals_s[0] + spans_s[i, 0]
        times_s[part[i], 1] = totals_s[0] + spans_s[i, 1]
        on_all[part[i]] = mode[i] == INTRA
    totals_s[0] += makespan_s
    totals_s[1] += bound_s


@lazily_compiled(
    "Tuple((i8, i8, i8[:, ::1], i8[::1], i8[:, ::1], UniTuple(i8, 4)))"
    f"(i8[::1], f8[:, ::1], i8[:, ::1], b1[::1], {RULES_TYPE}, b1, i8, i8, f8[:, ::1], f8[::1],"
    " b1[::1])"
)
def schedule_parts(
    core: IntArray,
    values: FloatArray,
    edges: IntArray,
    has_modes: BoolArray,
    rules: Rules,
    prove: bool,
    effort: int,
    begin: int,
    times_s: FloatArray,
    totals_s: FloatArray,
    on_all: BoolArray,
) -> tuple[int, int, IntArray, IntArray, IntArray, tuple[int, int, int, int]]:
    """Append the schedules of the parts from one on, up to the first that stays open.

    Parameters
    ----------
    core, values, edges
        Of a `canonical.CanonicalForm`.
    has_modes : (operators,)
        Whether each operator runs on a core.
    rules
        See `reduction.build_instance`.
    prove
        Whether elastic parts stay open that a search without bandwidths cannot prove.
    effort
        States that a search may expand; negative if rigid parts are not searched.
    begin
        The first part to schedule.
    times_s : (operators, 2)
        Receives starts and ends.
    totals_s : (2,)
        Makespan, and its lower bound, so far.
    on_all : (operators,)
        Receives whether each operator runs on all cores.

    Returns
    -------
    The part that is open, or the number of parts; the strongest of what ended the others;
    `contracted_ancestors`; of the open part, its operators (none if there is none), the best plan
    known, its makespan, a lower bound, the effort that is left, and the width of the next pass. Of
    an elastic part only the operators are returned.
    """
    count = len(core)
    instant = np.empty(count, dtype=np.bool_)
    for i in range(count):
        instant[i] = min(values[i, 0], values[i, 1]) <= 0.0
        if instant[i]:
            on_all[i] = values[i, 0] > 0.0
    ancestors = contracted_ancestors(instant, edges)
    members, first = series_parts(instant, ancestors)
    no_plan = np.empty((0, 2), dtype=np.int64)
    ended_by = SERIES
    for place in range(begin, len(first) - 1):
        part = members[first[place] : first[place + 1]]
        if len(part) == 1:
            i = part[0]
            mode = INTRA if values[i, 1] < values[i, 0] else SINGLE
            _append_operator(i, values[i, mode], times_s, totals_s)
            on_all[i] = mode == INTRA and has_modes[i]
            continue
        if rules[3]:
            planned = plan_elastic_part(part, core, values, ancestors, rules, max(effort, 0))
            spans_s, chosen, length_s, bound_s, is_searched = planned[:5]
            if bound_s < length_s and (prove or planned[-1][3] > 0):
                return place, ended_by, ancestors, part, no_plan, (0, 0, 0, 0)
            append_spans(part, spans_s, chosen, length_s, bound_s, times_s, totals_s, on_all)
            ended_by = max(ended_by, SEARCHED if is_searched else LISTED)
            continue
        arrays, total_s, plan, tail, (makespan, bound, is_open) = plan_part(
            part, core, values, ancestors, rules
        )
        if is_open != 0:
            if effort < 0:
                return place, ended_by, ancestors, part, plan, (makespan, bound, effort, 0)
            search, at_once = search_arrays(*arrays, tail)
            plan, makespan, bound, left, width = narrow_passes(
                search, at_once, plan, makespan, bound, effort
            )
            if bound < within_proof(makespan):
                return place, ended_by, ancestors, part, plan, (makespan, bound, left, width)
            ended_by = max(ended_by, SEARCHED)
        else:
            ended_by = max(ended_by, LISTED)
        unit_s = total_s / TIME_RESOLUTION
        append_plan(
            part, values, arrays[0], plan, makespan, bound, unit_s, times_s, totals_s, on_all
        )
    for e in range(len(edges)):
        # Edges are sorted by source, and sources come before targets: one pass is enough.
        source, target = edges[e, 0], edges[e, 1]
        if instant[target]:
            at_s = max(times_s[target, 0], times_s[source, 1])
            times_s[target, 0] = times_s[target, 1] = at_s
    return len(first) - 1, ended_by, ancestors, members[:0], no_plan, (0, 0, 0, 0)
