"""Priority list schedules: fast, feasible, often optimal.

A list schedule goes through time and starts, whenever something ends, the waiting operators that
fit in the order of their priority (Graham, 1969). The modes are chosen beforehand; several choices
of modes and priorities are tried until one meets the bound, and the shortest schedule is kept.
"""

from __future__ import annotations

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
    packed, ancestors = instance.packed, instance.ancestors
    guards, free = packed.guards, packed.capacity
    length = [pair[m] for pair, m in zip(instance.duration, mode, strict=True)]
    demand = [pair[m] for pair, m in zip(packed.demand, mode, strict=True)]
    start = [0] * instance.size
    running: list[tuple[int, int]] = []
    done, now, makespan = 0, 0, 0
    while waiting:
        left = []
        blocked = False
        for i in waiting:
            if blocked or ancestors[i] & ~done:
                left.append(i)
            elif (free - demand[i]) & guards != guards:
                blocked = drain
                left.append(i)
            else:
                start[i] = now
                free -= demand[i]
                running.append((now + length[i], i))
        waiting = left
        running.sort()
        now = running[0][0]
        makespan = max(makespan, running[-1][0])
        while running and running[0][0] == now:
            _, i = running.pop(0)
            done |= 1 << i
            free += demand[i]
    return Plan(tuple(start), tuple(mode), makespan)
