"""Priority list schedules: fast, feasible, often optimal.

A list schedule goes through time; whenever an operator ends, it starts the waiting operators that
fit, in the order of their priority (Graham, 1969). The modes are chosen beforehand. Several choices
of modes and priorities are tried until one meets the bound, and the shortest schedule is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phaze_opt.scheduling.bounds import Bounds, tails
from phaze_opt.scheduling.instance import Instance, Plan, proving_bound


def best_list_schedule(instance: Instance, bounds: Bounds) -> Plan:
    """Give the shortest list schedule over all choices, or the first one that meets the bound."""
    best: Plan | None = None
    for mode, priority, drain in _choices(instance):
        plan = list_schedule(instance, mode, priority, drain)
        if best is None or plan.makespan < best.makespan:
            best = plan
        if proving_bound(best.makespan) <= bounds.makespan:
            break
    assert best is not None  # there is always a first choice
    return best


def _choices(instance: Instance) -> Iterator[tuple[Sequence[int], Sequence[int], bool]]:
    """Yield modes, priorities (longest tail first) and draining; the fastest modes come first."""
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
        The operators to schedule.
    mode
        Mode of each operator.
    priority
        Priority of each operator; of the waiting operators the one with the smallest starts first.
    drain
        Whether, while an operator does not fit, the operators behind it wait too.
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
