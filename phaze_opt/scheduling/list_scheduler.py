"""Priority list schedules: fast, feasible, often optimal.

A list schedule goes through time and starts, whenever something ends, the waiting operators that
fit in the order of their priority (Graham, 1969). The modes are chosen beforehand; several choices
of modes and priorities are tried until one meets the bound, and the shortest schedule is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

from phaze_opt.scheduling.bounds import Bounds, tails
from phaze_opt.scheduling.instance import Instance
from phaze_opt.scheduling.plan import Plan, near


def best_list_schedule(instance: Instance, bounds: Bounds) -> Plan:
    """Give the shortest list schedule over the rules."""
    best: Plan | None = None
    for mode, priority, drain in _rules(instance):
        plan = list_schedule(instance, mode, priority, drain)
        if best is None or plan.makespan < best.makespan:
            best = plan
        if near(best.makespan) <= bounds.makespan:
            break
    assert best is not None  # there is always a first rule
    return best


def _rules(instance: Instance) -> Iterator[tuple[Sequence[int], Sequence[int], bool]]:
    """Yield modes, priorities and draining: the fastest modes first, the longest tail first."""
    fastest = tuple(
        min(kept, key=lambda mode: (instance.duration[i][mode], mode))
        for i, kept in enumerate(instance.modes)
    )
    single = tuple(kept[0] for kept in instance.modes)
    for mode in dict.fromkeys((fastest, single)):
        tail = tails(instance, [instance.duration[i][m] for i, m in enumerate(mode)])
        priority = [-value for value in tail]
        for drain in (False, True):
            yield mode, priority, drain


def list_schedule(
    instance: Instance, mode: Sequence[int], priority: Sequence[int], drain: bool
) -> Plan:
    """Build one list schedule.

    Parameters
    ----------
    instance
        What to schedule.
    mode
        Of each operator.
    priority
        Of each operator; the smallest is started first.
    drain
        Whether an operator that does not fit keeps those behind it waiting too, until it does.
    """
    waiting = sorted(range(instance.size), key=lambda i: (priority[i], i))
    start = [0] * instance.size
    free = list(instance.capacity)
    running: list[tuple[int, int]] = []
    done, now, makespan = 0, 0, 0
    while waiting:
        left = []
        blocked = False
        for i in waiting:
            if instance.ancestors[i] & ~done or blocked:
                left.append(i)
                continue
            demand = instance.demand[i][mode[i]]
            if any(map(operator.gt, demand, free)):
                blocked = drain
                left.append(i)
                continue
            start[i] = now
            free = [f - d for d, f in zip(demand, free, strict=True)]
            running.append((now + instance.duration[i][mode[i]], i))
        waiting = left
        now = min(running)[0]
        makespan = max(makespan, max(running)[0])
        for end, i in running:
            if end == now:
                done |= 1 << i
                demand = instance.demand[i][mode[i]]
                free = [f + d for d, f in zip(demand, free, strict=True)]
        running = [entry for entry in running if entry[0] > now]
    return Plan(tuple(start), tuple(mode), makespan)
