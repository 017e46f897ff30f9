"""Lower bounds on the makespan.

The longest path in faster modes, and the work of every resource where each operator runs in the
mode that asks least of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phaze_opt.scheduling.instance import Instance
from phaze_opt.scheduling.reduction import bits


@dataclass(frozen=True)
class Bounds:
    """What is known about an instance before any search.

    Attributes
    ----------
    makespan
        No schedule is shorter, in time units.
    head, tail
        ``[operator]``: least time from the start of the schedule to the operator's start, and from
        the operator's start to the end of the schedule.
    """

    makespan: int
    head: tuple[int, ...]
    tail: tuple[int, ...]


def heads(instance: Instance) -> list[int]:
    """Give the longest path, in faster modes, to the start of each operator."""
    head = [0] * instance.size
    for index in range(instance.size):
        for other in bits(instance.ancestors[index]):
            head[index] = max(head[index], head[other] + instance.least_duration(other))
    return head


def tails(instance: Instance) -> list[int]:
    """Give the longest path, in faster modes, from the start of each operator to the end."""
    tail = [0] * instance.size
    for index in range(instance.size - 1, -1, -1):
        below = max([tail[other] for other in bits(instance.descendants[index])], default=0)
        tail[index] = below + instance.least_duration(index)
    return tail


def work_bound(instance: Instance, resource: int) -> int:
    """Give the time one resource needs for everything, each operator in its cheaper mode."""
    work = sum(
        min(
            instance.duration[index][mode] * instance.demand[index][mode][resource]
            for mode in instance.modes[index]
        )
        for index in range(instance.size)
    )
    return -(-work // instance.capacity[resource])


def root_bounds(instance: Instance) -> Bounds:
    """Compute all bounds of an instance."""
    head, tail = heads(instance), tails(instance)
    best = max(tail, default=0)
    for resource in range(len(instance.capacity)):
        best = max(best, work_bound(instance, resource))
    return Bounds(math.ceil(best), tuple(head), tuple(tail))
