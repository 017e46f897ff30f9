"""Priority list schedules: fast, feasible, often optimal.

A list schedule goes through time; whenever an operator ends, it starts the waiting operators that
fit, in the order of their priority (Graham, 1969). The modes are chosen beforehand. Several choices
of modes and priorities are tried until one meets the bound, and the shortest schedule is kept.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.scheduling.bounds import tails
from phaze_opt.scheduling.instance import INTRA, SINGLE, add_to_set
from phaze_opt.scheduling.reduction import INSTANCE_TYPE


@lazily_compiled(f"Tuple((i8[:, ::1], i8))({INSTANCE_TYPE}, i8)")
def best_list_schedule(
    duration: IntArray,
    allowed: BoolArray,
    demand: IntArray,
    capacity: IntArray,
    ancestors: IntArray,
    descendants: IntArray,
    bound: int,
) -> tuple[IntArray, int]:
    """Give the shortest list schedule over all choices, or the first one that meets the bound.

    First every operator has its fastest mode, then the first that is allowed. Priority has the
    longest tail.

    Parameters
    ----------
    duration, allowed, demand, capacity, ancestors, descendants
        Of an `Instance`.
    bound
        Lower bound on the makespan.

    Returns
    -------
    plan : (operators, 2)
        Start and mode of each operator.
    makespan
        In time units.
    """
    size = len(duration)
    plan = np.empty((size, 2), dtype=np.int64)
    best = -1
    mode, fastest = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    for choice in range(2):
        is_new = choice == 0
        for i in range(size):
            slower = duration[i, INTRA] < duration[i, SINGLE]
            if choice == 0:
                fastest[i] = INTRA if not allowed[i, SINGLE] else SINGLE
                if allowed[i, SINGLE] and allowed[i, INTRA] and slower:
                    fastest[i] = INTRA
                mode[i] = fastest[i]
            else:
                mode[i] = SINGLE if allowed[i, SINGLE] else INTRA
                is_new = is_new or mode[i] != fastest[i]
        if not is_new:
            break
        length = np.array([duration[i, mode[i]] for i in range(size)])
        order = np.argsort(-tails(descendants, length), kind="mergesort")
        for drain in (False, True):
            start, makespan = list_schedule(
                duration, demand, capacity, ancestors, mode, order, drain
            )
            if best < 0 or makespan < best:
                best = makespan
                plan[:, 0] = start
                plan[:, 1] = mode
            if best - (best >> 30) <= bound:
                return plan, best
    return plan, best


@lazily_compiled(
    "Tuple((i8[::1], i8))(i8[:, ::1], i8[:, :, ::1], i8[::1], i8[:, ::1], i8[::1], i8[::1], b1)"
)
def list_schedule(
    duration: IntArray,
    demand: IntArray,
    capacity: IntArray,
    ancestors: IntArray,
    mode: IntArray,
    order: IntArray,
    drain: bool,
) -> tuple[IntArray, int]:
    """Build one list schedule.

    Parameters
    ----------
    duration, demand, capacity, ancestors
        Of an `Instance`.
    mode : (operators,)
        Mode of each operator.
    order : (operators,)
        The operators by priority: of those that wait the first one starts first.
    drain
        Whether, while an operator does not fit, the operators behind it wait too.

    Returns
    -------
    Start of each operator, and the makespan.
    """
    size = len(duration)
    waiting, start = order.copy(), np.zeros(size, dtype=np.int64)
    running, end = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    done, free = np.zeros(ancestors.shape[1], dtype=np.int64), capacity.copy()
    left, live, now, makespan = size, 0, 0, 0
    while left > 0:
        still, blocked = 0, False
        for place in range(left):
            i = waiting[place]
            ready = not blocked and holds(done, ancestors[i])
            if ready and fits(demand[i, mode[i]], free):
                start[i] = now
                end[i] = now + duration[i, mode[i]]
                makespan = max(makespan, end[i])
                running[live] = i
                live += 1
                for resource in range(len(free)):
                    free[resource] -= demand[i, mode[i], resource]
            else:
                blocked = blocked or (ready and drain)
                waiting[still] = i
                still += 1
        left = still
        now = end[running[0]]
        for place in range(1, live):
            now = min(now, end[running[place]])
        kept = 0
        for place in range(live):
            i = running[place]
            if end[i] > now:
                running[kept] = i
                kept += 1
                continue
            add_to_set(done, i)
            for resource in range(len(free)):
                free[resource] += demand[i, mode[i], resource]
        live = kept
    return start, makespan


@inlined
def holds(words: IntArray, others: IntArray) -> bool:
    """Say whether a set of operators holds all operators of another."""
    missing = False
    for word in range(words.shape[0]):
        missing = missing or others[word] & ~words[word] != 0
    return not missing


@inlined
def fits(demand: IntArray, free: IntArray) -> bool:
    """Say whether the free amounts suffice for a demand."""
    fits = True
    for resource in range(free.shape[0]):
        fits = fits and demand[resource] <= free[resource]
    return fits
