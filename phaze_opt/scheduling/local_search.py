"""Shorter plans by many small changes to the priorities and modes of list schedules.

One operator at a time gets another mode or another place in the order of a list schedule. A change
is kept if the makespan is no longer than it was some changes ago, so that the search also leaves
plans that no single change makes shorter (late acceptance: E. K. Burke and Y. Bykov, European
Journal of Operational Research 258, 2017).
"""

from __future__ import annotations

import random

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.scheduling.instance import Instance, Plan
from phaze_opt.scheduling.list_scheduler import list_schedule

_PAIRS_PER_EFFORT = 300
"""List schedules times the square of the operators, per state of the exact search."""

_MEMORY = 50
"""A change is compared with the plan so many changes ago."""

_FARTHEST = 8
"""Places by which an operator moves at most."""


def improve_by_moves(instance: Instance, plan: Plan, effort: int) -> Plan:
    """Search for a shorter plan; the same instance, plan and effort give the same plan.

    Parameters
    ----------
    instance, plan
        The operators to schedule, and the best plan known.
    effort
        In states of the exact search; it takes about twice as long.
    """
    draw, size = random.Random(0), instance.size
    order: IntArray = np.argsort(np.array(plan.start), kind="stable").astype(np.int64)
    mode = np.array(plan.mode, dtype=np.int64)
    fixed = instance.duration, instance.demand, instance.capacity, instance.ancestors
    both = [operator for operator, modes in enumerate(instance.modes) if len(modes) == 2]
    _, now = list_schedule(*fixed, mode, order, False)
    best, before = plan, [now] * _MEMORY
    for turn in range(_PAIRS_PER_EFFORT * effort // size**2):
        new_order, new_mode = order.copy(), mode.copy()
        if both and draw.random() < 0.5:
            new_mode[draw.choice(both)] ^= 1
        else:
            place = draw.randrange(size)
            to = min(size - 1, max(0, place + draw.randint(-_FARTHEST, _FARTHEST)))
            operator = order[place]
            new_order = np.insert(np.delete(order, place), to, operator)
        start, makespan = list_schedule(*fixed, new_mode, new_order, False)
        if makespan <= max(now, before[turn % _MEMORY]):
            order, mode, now = new_order, new_mode, makespan
            if makespan < best.makespan:
                best = Plan(tuple(start.tolist()), tuple(mode.tolist()), makespan)
        before[turn % _MEMORY] = now
    return best
