"""Plans of a part whose operators share bandwidths elastically, with a bound on all such plans.

A problem in which every operator takes no longer, and works no longer on any bandwidth, has no
longer shortest elastic schedule: operators may run as they did. Rigid shares lack that: an operator
that computes faster takes a larger share, beside which another one may no longer fit.

Two bounds hold for elastic plans: that of the part without bandwidths, whose exact search is the
same, and the work of each bandwidth. Where a rigid plan meets one of them, none is better. Else the
shortest plans with rigid shares and without bandwidths are run with elastic shares (`plan_times`),
and the best is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.scheduling.bounds import Bounds
from phaze_opt.scheduling.branch_and_bound import improve_wide, narrow_passes
from phaze_opt.scheduling.instance import TIME_RESOLUTION, Instance, Plan, within_proof
from phaze_opt.scheduling.plan_times import BANDWIDTHS, elastic_times, rigid_times
from phaze_opt.scheduling.quick_plan import plan_part
from phaze_opt.scheduling.reduction import (
    INSTANCE_TYPE,
    RULES_TYPE,
    InstanceArrays,
    Rules,
    unreduced_demand,
)
from phaze_opt.scheduling.search_arrays import search_arrays

_SHORTER = 1.0 - 1e-12
"""Of a makespan: another plan is taken if it takes no more than this share."""

_PROVEN = 1.0 - 1e-9
"""Of a makespan: a bound of more than this share proves it."""

_TIMING = f"f8(Tuple(({INSTANCE_TYPE})), i8[:, ::1], f8[:, ::1], f8[:, :, ::1], f8[:, ::1])"


class ElasticPart(NamedTuple):
    """A part with the best plan known.

    Attributes
    ----------
    spans_s : (operators, 2)
        Starts and ends.
    on_all : (operators,)
        Mode of every operator.
    makespan_s, bound_s
        Of the plan, and of every plan.
    is_searched
        Whether list schedules did not suffice.
    latency_s, share : (operators, 2), (operators, 2, BANDWIDTHS)
        Least duration in each mode, and shares at full speed.
    seconds_per_unit
        Length of a time unit.
    instance
        Arrays of the part without bandwidths.
    relaxed, tail
        Its best plan, and `bounds.tails`.
    state
        Makespan and bound of that plan in time units, the effort that its search leaves, and the
        width of its next pass: 0 if its bound is the best that the search gives.
    """

    spans_s: FloatArray
    on_all: IntArray
    makespan_s: float
    bound_s: float
    is_searched: bool
    latency_s: FloatArray
    share: FloatArray
    seconds_per_unit: float
    instance: InstanceArrays
    relaxed: IntArray
    tail: IntArray
    state: tuple[int, int, int, int]


ElasticColumns = tuple[
    FloatArray, IntArray, float, float, bool, FloatArray, FloatArray, float, InstanceArrays,
    IntArray, IntArray, tuple[int, int, int, int],
]  # fmt: skip
"""The fields of an `ElasticPart`, as compiled code returns them."""


@lazily_compiled(_TIMING)
def _better_of_both(
    instance: InstanceArrays,
    plan: IntArray,
    latency_s: FloatArray,
    share: FloatArray,
    spans_s: FloatArray,
) -> float:
    """Run a plan with elastic shares, which are given out in both ways; see `elastic_times`."""
    other_s = np.empty_like(spans_s)
    makespan_s = elastic_times(*instance, plan, latency_s, share, True, spans_s)
    in_order_s = elastic_times(*instance, plan, latency_s, share, False, other_s)
    if in_order_s < makespan_s * _SHORTER:
        spans_s[:] = other_s
        return in_order_s
    return makespan_s


@lazily_compiled(
    "Tuple((f8[:, ::1], i8[::1], f8, f8, b1, f8[:, ::1], f8[:, :, ::1], f8,"
    f" Tuple(({INSTANCE_TYPE})), i8[:, ::1], i8[::1], UniTuple(i8, 4)))"
    f"(i8[::1], i8[::1], f8[:, ::1], i8[:, ::1], {RULES_TYPE}, i8)"
)
def plan_elastic_part(
    part: IntArray,
    core: IntArray,
    values: FloatArray,
    ancestors: IntArray,
    rules: Rules,
    effort: int,
) -> ElasticColumns:
    """Plan a part whose operators share bandwidths elastically.

    Parameters
    ----------
    part, core, values, ancestors, rules
        See `reduction.build_instance`.
    effort
        States that each search may expand.

    Returns
    -------
    The fields of an `ElasticPart`.
    """
    arrays, total_s, plan, tail, (makespan, bound, is_open) = plan_part(
        part, core, values, ancestors, rules
    )
    unit_s, size = total_s / TIME_RESOLUTION, len(part)
    latency_s, share = np.empty((size, 2)), np.zeros((size, 2, BANDWIDTHS))
    unlimited = values.copy()
    for place in range(size):
        own = values[part[place]]
        latency_s[place, 0], latency_s[place, 1] = own[0], own[1]
        share[place, 0] = own[2:5]
        share[place, 1, 0], share[place, 1, 1], share[place, 1, 2] = own[5], own[6], own[4]
        unlimited[part[place], 2:] = 0.0
    spans_s = np.empty((size, 2))
    makespan_s = rigid_times(plan, arrays[0], latency_s, 0.0, spans_s)
    on_all = plan[:, 1].copy()
    if is_open == 0:
        state = makespan, makespan, effort, 0
        return (
            spans_s, on_all, makespan_s, makespan_s, False, latency_s, share, unit_s, arrays, plan,
            tail, state,
        )  # fmt: skip
    instance, _, relaxed, relaxed_tail, (shortest, least, is_open) = plan_part(
        part, core, unlimited, ancestors, rules
    )
    left, width = effort, 0
    if is_open != 0:
        search, at_once = search_arrays(*instance, relaxed_tail)
        relaxed, shortest, least, left, width = narrow_passes(
            search, at_once, relaxed, shortest, least, effort
        )
    bound = max(bound, least)
    trial_s = np.empty((size, 2))
    if within_proof(makespan) > bound:
        found_s = _better_of_both(instance, relaxed, latency_s, share, trial_s)
        if found_s < makespan_s * _SHORTER:
            makespan_s, spans_s[:], on_all[:] = found_s, trial_s, relaxed[:, 1]
    if makespan_s * _PROVEN > bound * unit_s:
        search, at_once = search_arrays(*arrays, tail)
        rigid, _, _, _, _ = narrow_passes(search, at_once, plan, makespan, bound, effort)
        found_s = rigid_times(rigid, arrays[0], latency_s, 0.0, trial_s)
        if found_s < makespan_s * _SHORTER:
            makespan_s, spans_s[:], on_all[:] = found_s, trial_s, rigid[:, 1]
        # It may run an operator on all cores only because it takes a smaller share there. Without
        # bandwidths no plan needs that mode, and `instance` may lack the cores that it takes.
        demand, capacity = unreduced_demand(part, core, unlimited, rules)
        unreduced = instance[0], instance[1], demand, capacity, instance[4], instance[5]
        found_s = _better_of_both(unreduced, rigid, latency_s, share, trial_s)
        if found_s < makespan_s * _SHORTER:
            makespan_s, spans_s[:], on_all[:] = found_s, trial_s, rigid[:, 1]
    bound_s = makespan_s
    if makespan_s * _PROVEN > bound * unit_s:
        # Rounding changed the duration of every operator by at most one unit.
        bound_s = min(makespan_s * _PROVEN, (bound - size) * unit_s)
    state = shortest, least, left, width
    return (
        spans_s, on_all, makespan_s, bound_s, True, latency_s, share, unit_s, instance, relaxed,
        relaxed_tail, state,
    )  # fmt: skip


def improve_elastic(part: ElasticPart) -> ElasticPart:
    """Search on without bandwidths, where the narrow passes did not end.

    Returns
    -------
    The part with a plan and a bound that are no worse.
    """
    makespan, bound, left, width = part.state
    instance = Instance(*part.instance, part.seconds_per_unit)
    before = Plan.of(part.relaxed, makespan)
    improved, bound = improve_wide(instance, Bounds(bound, part.tail), before, left, width)
    size = len(part.relaxed)
    bound_s = max(part.bound_s, (bound - size) * part.seconds_per_unit)
    plan, spans_s = np.column_stack([improved.start, improved.mode]), np.empty((size, 2))
    makespan_s = _better_of_both(part.instance, plan, part.latency_s, part.share, spans_s)
    better = part._replace(bound_s=bound_s)
    if makespan_s < part.makespan_s * _SHORTER:
        better = better._replace(spans_s=spans_s, on_all=plan[:, 1].copy(), makespan_s=makespan_s)
    return better._replace(bound_s=min(bound_s, better.makespan_s))
