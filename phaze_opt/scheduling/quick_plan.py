"""A plan of a part from list schedules, compiled; often bounds prove that none is shorter."""

from __future__ import annotations

from typing import NamedTuple

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.scheduling.bounds import (
    Bounds,
    drop_hopeless_modes,
    least_durations,
    root_bound,
    tails,
)
from phaze_opt.scheduling.instance import TIME_RESOLUTION, Instance, Plan, within_proof
from phaze_opt.scheduling.list_scheduler import best_list_schedule
from phaze_opt.scheduling.reduction import (
    INSTANCE_TYPE,
    RULES_TYPE,
    InstanceArrays,
    Rules,
    build_instance,
)


class QuickPlan(NamedTuple):
    """A plan of a part.

    Attributes
    ----------
    instance
        The part, without the modes that no shorter plan needs.
    bounds
        Lower bounds; of the instance as it is.
    plan
        A list schedule.
    proven
        Whether no plan is shorter.
    """

    instance: Instance
    bounds: Bounds
    plan: Plan
    proven: bool


def quick_plan(
    part: IntArray,
    core: IntArray,
    values: FloatArray,
    ancestors: IntArray,
    rules: Rules,
) -> QuickPlan:
    """Plan a part of a problem by list schedules.

    Parameters
    ----------
    part, core, values, ancestors, rules
        See `reduction.build_instance`.
    """
    arrays, total_s, plan, tail, (makespan, bound, is_open) = plan_part(
        part, core, values, ancestors, rules
    )
    return QuickPlan(
        Instance(*arrays, total_s / TIME_RESOLUTION),
        Bounds(bound, tail),
        Plan.of(plan, makespan),
        not is_open,
    )


@lazily_compiled(
    f"Tuple((Tuple(({INSTANCE_TYPE})), f8, i8[:, ::1], i8[::1], UniTuple(i8, 3)))"
    f"(i8[::1], i8[::1], f8[:, ::1], i8[:, ::1], {RULES_TYPE})"
)
def plan_part(
    part: IntArray,
    core: IntArray,
    values: FloatArray,
    ancestors: IntArray,
    rules: Rules,
) -> tuple[InstanceArrays, float, IntArray, IntArray, tuple[int, int, int]]:
    """Do the work of `quick_plan`.

    Returns the arrays of the instance, the seconds of `TIME_RESOLUTION` units, the plan, the tails,
    and its makespan, a lower bound, and 1 if a shorter plan is not excluded, else 0.
    """
    arrays, total_s = build_instance(part, core, values, ancestors, rules)
    duration, allowed, demand, capacity, before, after = arrays
    tail = tails(after, least_durations(duration, allowed))
    bound = root_bound(duration, allowed, demand, capacity, tail)
    plan, makespan = best_list_schedule(duration, allowed, demand, capacity, before, after, bound)
    proving = within_proof(makespan)
    if proving <= bound:
        return arrays, total_s, plan, tail, (makespan, bound, 0)
    if drop_hopeless_modes(duration, allowed, before, tail, proving):
        for i in range(len(allowed)):
            if not (allowed[i, 0] or allowed[i, 1]):
                return arrays, total_s, plan, tail, (makespan, proving, 0)
        tail = tails(after, least_durations(duration, allowed))
        bound = root_bound(duration, allowed, demand, capacity, tail)
        if proving <= bound:
            return arrays, total_s, plan, tail, (makespan, proving, 0)
    return arrays, total_s, plan, tail, (makespan, bound, 1)
