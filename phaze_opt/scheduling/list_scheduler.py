"""Priority list schedules: fast, feasible, often optimal.

A list schedule goes through time and starts, whenever something ends, the waiting operators that
fit in the order of their priority (Graham, 1969). The modes are chosen beforehand; several choices
of modes and priorities are tried and the shortest schedule kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from phaze_opt.scheduling.bounds import Bounds
from phaze_opt.scheduling.instance import Instance
from phaze_opt.scheduling.plan import Plan


def best_list_schedule(instance: Instance, bounds: Bounds) -> Plan:
    """Give the shortest list schedule over the rules, stopping where the bound is met."""
    best: Plan | None = None
    for mode in mode_choices(instance):
        for priority in priorities(instance, bounds, mode):
            for drain in (False, True):
                plan = list_schedule(instance, mode, priority, drain)
                if best is None or plan.makespan < best.makespan:
                    best = plan
                if best.makespan <= bounds.makespan:
                    return best
    assert best is not None  # there is always at least one choice of modes
    return best


def mode_choices(instance: Instance) -> list[tuple[int, ...]]:
    """List choices of modes: the faster of each, one core for all, the least use of resources."""
    choices = [
        tuple(
            min(kept, key=lambda mode: (instance.duration[index][mode], mode))
            for index, kept in enumerate(instance.modes)
        ),
        tuple(kept[0] for kept in instance.modes),
    ]
    return list(dict.fromkeys(choices))


def priorities(instance: Instance, bounds: Bounds, mode: Sequence[int]) -> list[tuple[float, ...]]:
    """List priorities, the smallest first: longest tail; longest tail in the chosen modes."""
    tail = [0] * instance.size
    for index in range(instance.size - 1, -1, -1):
        mask = instance.descendants[index]
        below = 0
        while mask:
            lowest = mask & -mask
            below = max(below, tail[lowest.bit_length() - 1])
            mask ^= lowest
        tail[index] = below + instance.duration[index][mode[index]]
    return [tuple(-value for value in tail)]


def list_schedule(
    instance: Instance, mode: Sequence[int], priority: Sequence[float], drain: bool
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
        Whether an operator that does not fit keeps all behind it waiting too.
    """
    size = instance.size
    start = [0] * size
    ranked = sorted(range(size), key=lambda index: (priority[index], index))
    free = list(instance.capacity)
    running: list[tuple[int, int]] = []
    done = 0
    now = 0
    while ranked:
        left = []
        blocked = False
        for index in ranked:
            ready = instance.ancestors[index] & ~done == 0
            demand = instance.demand[index][mode[index]]
            if ready and not blocked and all(d <= f for d, f in zip(demand, free, strict=True)):
                start[index] = now
                running.append((now + instance.duration[index][mode[index]], index))
                free = [f - d for d, f in zip(demand, free, strict=True)]
                continue
            blocked = blocked or (ready and drain)
            left.append(index)
        ranked = left
        now = min(running)[0]
        for end, index in running:
            if end == now:
                done |= 1 << index
                free = [
                    f + d for d, f in zip(instance.demand[index][mode[index]], free, strict=True)
                ]
        running = [entry for entry in running if entry[0] > now]
    makespan = max([now, *[end for end, _ in running]])
    return Plan(tuple(start), tuple(mode), makespan)
