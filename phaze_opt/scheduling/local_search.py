"""Shorter plans by many small changes to the order and the modes of serial schedules.

One operator at a time gets another mode or another place in the order of a serial schedule
(`move_kernel`). A change is kept if the makespan is no longer than it was some changes ago, so that
the search also leaves plans that no single change makes shorter (late acceptance: E. K. Burke and
Y. Bykov, European Journal of Operational Research 258, 2017).
"""

from __future__ import annotations

import numpy as np

from phaze_opt.scheduling.bounds import least_durations, tails
from phaze_opt.scheduling.instance import Instance, Plan
from phaze_opt.scheduling.move_kernel import improve_moves

_PLACED_PER_EFFORT = 15
"""Operators placed in serial schedules, at most, per state of the exact search."""

_MEMORIES_PER_SEARCH = 200
"""A change is compared with the plan as it was this part of all changes ago."""


def improve_by_moves(instance: Instance, plan: Plan, effort: int) -> Plan:
    """Search for a shorter plan; the same instance, plan and effort give the same plan.

    Parameters
    ----------
    instance, plan
        The operators to schedule, and the best plan known.
    effort
        In states of the exact search; it takes about half as long.
    """
    before = instance.predecessors
    turns = _PLACED_PER_EFFORT * effort // instance.size
    starts_and_modes, makespan = improve_moves(
        instance.duration,
        instance.demand,
        instance.capacity,
        instance.ancestors,
        np.cumsum([0, *map(len, before)], dtype=np.int64),
        np.array([other for others in before for other in others], dtype=np.int64),
        tails(instance.descendants, least_durations(instance.duration, instance.allowed)),
        np.argsort(np.array(plan.start), kind="stable").astype(np.int64),
        np.array(plan.mode, dtype=np.int64),
        np.flatnonzero(instance.allowed.all(axis=1)).astype(np.int64),
        turns,
        max(1, turns // _MEMORIES_PER_SEARCH),
    )
    return Plan.of(starts_and_modes, makespan) if makespan < plan.makespan else plan
