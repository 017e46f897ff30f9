"""When the operators of a plan run, with rigid shares of the bandwidths or with elastic ones.

With rigid shares every operator waits for what ended in the plan before it started, as
`instance.starts_in_order` has it. With elastic ones an operator that gets less of a bandwidth than
it could take runs slower: with a share u at full speed it takes ρ·u at speed ρ ≤ 1, and the speeds
change whenever an operator starts or ends. Cores are held from start to end, as ever.

* Cores are given out in the order in which the plan starts its operators.
* Bandwidths are given to the operators with the longest time left on the longest chain through
  them, at full speed, and those that have equally long to go get the same speed. That is the level
  algorithm (Muntz and Coffman, IEEE Trans. Computers 18, 1969), which is optimal for processors
  that are shared so; here it is a heuristic. Or they are given in the order of the plan.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, lazily_compiled
from phaze_opt.scheduling.instance import add_to_set, in_set
from phaze_opt.scheduling.list_scheduler import fits, holds
from phaze_opt.scheduling.reduction import INSTANCE_TYPE

BANDWIDTHS = 3
"""HBM, global buffer and link."""

_EQUAL = 1e-9
"""Times to go that differ by less than this share of all work count as equal."""


@lazily_compiled("f8(i8[:, ::1], i8[:, ::1], f8[:, ::1], f8, f8[:, ::1])")
def rigid_times(
    plan: IntArray,
    duration: IntArray,
    latency_s: FloatArray,
    origin_s: float,
    spans_s: FloatArray,
) -> float:
    """Run the operators of a plan with rigid shares, in the durations that they have in seconds.

    Parameters
    ----------
    plan : (operators, 2)
        Start in time units, and mode.
    duration : (operators, 2)
        Of the instance, in time units.
    latency_s : (operators, 2)
        The same in seconds.
    origin_s
        When the first operators start.
    spans_s : (operators, 2)
        Filled with start and end.

    Returns
    -------
    The last end, in seconds.
    """
    size = len(plan)
    start, end = plan[:, 0].copy(), np.empty(size, dtype=np.int64)
    for i in range(size):
        end[i] = start[i] + duration[i, plan[i, 1]]
    by_end = np.argsort(start, kind="mergesort")
    by_end = by_end[np.argsort(end[by_end], kind="mergesort")]
    by_start = np.argsort(end, kind="mergesort")
    by_start = by_start[np.argsort(start[by_start], kind="mergesort")]
    latest_end_s, last_s, passed = origin_s, origin_s, 0
    for i in by_start:
        while end[by_end[passed]] <= start[i]:
            latest_end_s = max(latest_end_s, spans_s[by_end[passed], 1])
            passed += 1
        spans_s[i, 0] = latest_end_s
        spans_s[i, 1] = latest_end_s + latency_s[i, plan[i, 1]]
        last_s = max(last_s, spans_s[i, 1])
    return last_s


@callee("void(f8[:, ::1], i8[::1], i8, f8[::1], b1, f8, f8[::1])")
def _give_out(
    share: FloatArray,
    running: IntArray,
    live: int,
    level: FloatArray,
    by_level: bool,
    equal: float,
    speed: FloatArray,
) -> None:
    """Fill in the speed of every running operator.

    Parameters
    ----------
    share : (operators, BANDWIDTHS)
        At full speed.
    running : (at least live,)
        Those with the first claim first.
    level : (operators,)
        Time to go; looked at if ``by_level``: those with equal ones get the same speed.
    equal
        Difference of levels that counts as none.
    """
    free = np.ones(BANDWIDTHS)
    first = 0
    while first < live:
        last = first + 1
        while by_level and last < live and level[running[first]] - level[running[last]] <= equal:
            last += 1
        for place in range(first, last):
            speed[running[place]] = -1.0
        left = last - first
        while left > 0:
            # What binds the operators of a group first sets the speed of those that use it.
            slowest, binding = 1.0, -1
            for r in range(BANDWIDTHS):
                asked = 0.0
                for place in range(first, last):
                    if speed[running[place]] < 0.0:
                        asked += share[running[place], r]
                if asked > 0.0 and asked * slowest > free[r]:
                    slowest, binding = max(free[r], 0.0) / asked, r
            for place in range(first, last):
                i = running[place]
                if speed[i] < 0.0 and (binding < 0 or share[i, binding] > 0.0):
                    speed[i] = slowest
                    left -= 1
                    for r in range(BANDWIDTHS):
                        free[r] -= slowest * share[i, r]
        first = last


@lazily_compiled(f"f8({INSTANCE_TYPE}, i8[:, ::1], f8[:, ::1], f8[:, :, ::1], b1, f8[:, ::1])")
def elastic_times(
    duration: IntArray,
    allowed: BoolArray,
    demand: IntArray,
    capacity: IntArray,
    ancestors: IntArray,
    descendants: IntArray,
    plan: IntArray,
    latency_s: FloatArray,
    share: FloatArray,
    by_level: bool,
    spans_s: FloatArray,
) -> float:
    """Run the operators of a plan with elastic shares of the bandwidths.

    Parameters
    ----------
    duration, allowed, demand, capacity, ancestors, descendants
        Of an instance without bandwidths, with every resource that the modes of the plan can exceed
        together: those of an `Instance` only if it allows these modes.
    plan : (operators, 2)
        Starts, whose order is the priority for cores, and modes.
    latency_s : (operators, 2)
        Least duration in each mode.
    share : (operators, 2, BANDWIDTHS)
        At full speed.
    by_level
        Whether those with the longest time to go have the first claim on bandwidths, else those
        that the plan starts first.
    spans_s : (operators, 2)
        Filled with start and end.

    Returns
    -------
    makespan_s
        Infinity if the levels do not settle.
    """
    size, mode = len(plan), plan[:, 1]
    left_s, own = np.empty(size), np.empty((size, BANDWIDTHS))
    total_s = 0.0
    for i in range(size):
        left_s[i] = latency_s[i, mode[i]]
        total_s += left_s[i]
        own[i] = share[i, mode[i]]
    below_s = np.zeros(size)
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, size):
            if in_set(descendants[i], j):
                below_s[i] = max(below_s[i], below_s[j] + left_s[j])
    waiting = np.argsort(plan[:, 0], kind="mergesort")
    running, level, speed = np.empty(size, dtype=np.int64), np.empty(size), np.empty(size)
    rank = np.empty(size, dtype=np.int64)
    for place in range(size):
        rank[waiting[place]] = place
    done, free = np.zeros(ancestors.shape[1], dtype=np.int64), capacity.copy()
    equal, now_s, live, queued = _EQUAL * total_s, 0.0, 0, size
    for _ in range(4 * size * size + 64):
        still = 0
        for place in range(queued):
            i = waiting[place]
            if holds(done, ancestors[i]) and fits(demand[i, mode[i]], free):
                spans_s[i, 0] = now_s
                running[live] = i
                live += 1
                for resource in range(len(free)):
                    free[resource] -= demand[i, mode[i], resource]
            else:
                waiting[still] = i
                still += 1
        queued = still
        if live == 0:
            return now_s
        for place in range(live):
            i = running[place]
            level[i] = left_s[i] + below_s[i] if by_level else -float(rank[i])
            at = place
            while at > 0 and level[running[at - 1]] < level[i]:
                running[at] = running[at - 1]
                at -= 1
            running[at] = i
        _give_out(own, running, live, level, by_level, equal, speed)
        step_s = np.inf
        for place in range(live):
            i = running[place]
            if speed[i] > 0.0:
                step_s = min(step_s, left_s[i] / speed[i])
            if by_level:
                for other in range(place):
                    j = running[other]
                    apart = level[j] - level[i]
                    if apart > equal and speed[j] > speed[i]:
                        step_s = min(step_s, apart / (speed[j] - speed[i]))
        now_s += step_s
        kept = 0
        for place in range(live):
            i = running[place]
            left_s[i] -= step_s * speed[i]
            if left_s[i] > 1e-12 * latency_s[i, mode[i]]:
                running[kept] = i
                kept += 1
                continue
            spans_s[i, 1] = now_s
            add_to_set(done, i)
            for resource in range(len(free)):
                free[resource] += demand[i, mode[i], resource]
        live = kept
    return np.inf
