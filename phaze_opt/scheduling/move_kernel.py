"""Serial schedules and the search by moves: the compiled loop of `local_search`.

A serial schedule places the operators in a given order, each as early as the ones before leave
room, also in gaps before them (R. Kolisch, European Journal of Operational Research 90, 1996). Of
any plan, the order of the starts gives a schedule that is no longer.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.scheduling.instance import in_set

_FARTHEST = 20
"""Places by which an operator moves at most."""


@inlined
def _drawn(state: IntArray, below: int) -> int:
    """Draw a number from 0 to ``below`` - 1; ``state`` (1,) is that of the generator."""
    # The generator of the C standard: the same numbers in compiled and in plain code.
    state[0] = (state[0] * 1103515245 + 12345) % 2147483648
    return int((state[0] >> 8) % below)


@inlined
def _copy_row(since: IntArray, free: IntArray, rows: int, row: int) -> None:
    """Insert a copy of a row of the profile behind it."""
    for later in range(rows, row + 1, -1):
        since[later] = since[later - 1]
        for resource in range(free.shape[1]):
            free[later, resource] = free[later - 1, resource]
    since[row + 1] = since[row]
    for resource in range(free.shape[1]):
        free[row + 1, resource] = free[row, resource]


@inlined
def _fits_row(demand: IntArray, operator: int, mode: int, free: IntArray, row: int) -> bool:
    """Say whether the resources that are free in a row of the profile suffice."""
    fits = True
    for resource in range(free.shape[1]):
        fits = fits and demand[operator, mode, resource] <= free[row, resource]
    return fits


@callee(
    "i8(i8[:, ::1], i8[:, :, ::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8,"
    " i8[:, ::1], i8[::1], i8[:, ::1])",
    allocates=False,
)
def _schedule_serially(
    duration: IntArray,
    demand: IntArray,
    capacity: IntArray,
    before_start: IntArray,
    before: IntArray,
    tail: IntArray,
    order: IntArray,
    mode: IntArray,
    limit: int,
    times: IntArray,
    since: IntArray,
    free: IntArray,
) -> int:
    """Build the serial schedule of an order, and return its makespan.

    Parameters
    ----------
    duration, demand, capacity
        Of an `Instance`.
    before_start, before, tail
        See `improve_moves`.
    order, mode : (operators,)
        A topological order, and the mode of each operator.
    limit
        Longest makespan of interest; of a longer one, only that it is longer is said.
    times : (operators, 2)
        Takes starts and ends.
    since, free : (2 * operators + 1,), (2 * operators + 1, resources)
        The profile: from when on how much is free, by rising times.
    """
    rows, makespan = 1, 0
    since[0] = 0
    for resource in range(len(capacity)):
        free[0, resource] = capacity[resource]
    for i in order:
        start = 0
        for place in range(before_start[i], before_start[i + 1]):
            start = max(start, times[before[place], 1])
        first, above = 0, rows
        while above - first > 1:
            middle = (first + above) // 2
            if since[middle] <= start:
                first = middle
            else:
                above = middle
        length, last = duration[i, mode[i]], first
        while last < rows and since[last] < start + length:
            if not _fits_row(demand, i, mode[i], free, last):
                # Everything is free in the last row, so that there is another one.
                first, start = last + 1, since[last + 1]
            last += 1
        if start + tail[i] > limit:
            return limit + 1
        end = start + length
        times[i, 0], times[i, 1] = start, end
        makespan = max(makespan, end)
        if since[first] < start:
            _copy_row(since, free, rows, first)
            rows, first, last = rows + 1, first + 1, last + 1
            since[first] = start
        if last == rows or since[last] > end:
            _copy_row(since, free, rows, last - 1)
            rows += 1
            since[last] = end
        for row in range(first, last):
            for resource in range(len(capacity)):
                free[row, resource] -= demand[i, mode[i], resource]
    return makespan if makespan <= limit else limit + 1


@inlined
def _reached(order: IntArray, ancestors: IntArray, place: int, to: int) -> int:
    """Give the place nearest to ``to`` that an operator may move to in a topological order."""
    reached = place
    while reached < to and not in_set(ancestors[order[reached + 1]], order[place]):
        reached += 1
    while reached > to and not in_set(ancestors[order[place]], order[reached - 1]):
        reached -= 1
    return reached


@inlined
def _move(order: IntArray, place: int, to: int) -> None:
    """Move the operator in a place of the order to another place."""
    operator = order[place]
    for passed in range(place, to):
        order[passed] = order[passed + 1]
    for passed in range(place, to, -1):
        order[passed] = order[passed - 1]
    order[to] = operator


@lazily_compiled(
    "Tuple((i8[:, ::1], i8))(i8[:, ::1], i8[:, :, ::1], i8[::1], i8[:, ::1], i8[::1], i8[::1],"
    " i8[::1], i8[::1], i8[::1], i8[::1], i8, i8)"
)
def improve_moves(
    duration: IntArray,
    demand: IntArray,
    capacity: IntArray,
    ancestors: IntArray,
    before_start: IntArray,
    before: IntArray,
    tail: IntArray,
    order: IntArray,
    mode: IntArray,
    both: IntArray,
    turns: int,
    memory: int,
) -> tuple[IntArray, int]:
    """Change the order or the modes of a serial schedule, one operator at a time.

    Parameters
    ----------
    duration, demand, capacity, ancestors
        Of an `Instance`.
    before_start, before
        Where the direct predecessors of each operator begin, and all of them.
    tail : (operators,)
        `bounds.tails` of the least durations.
    order, mode : (operators,)
        A topological order, and the mode of each operator, of the first schedule; overwritten.
    both
        The operators that may have either mode.
    turns
        Number of changes to try.
    memory
        A change is compared with the schedule so many changes ago.

    Returns
    -------
    Start and mode of each operator in the shortest schedule, and its makespan.
    """
    size = len(duration)
    times, since = np.zeros((size, 2), dtype=np.int64), np.empty(2 * size + 1, dtype=np.int64)
    free = np.empty((2 * size + 1, len(capacity)), dtype=np.int64)
    graph = duration, demand, capacity, before_start, before, tail
    now = _schedule_serially(*graph, order, mode, 1 << 62, times, since, free)
    best, plan = now, np.empty((size, 2), dtype=np.int64)
    plan[:, 0], plan[:, 1] = times[:, 0], mode
    earlier, state = np.full(memory, now), np.ones(1, dtype=np.int64)
    for turn in range(turns):
        place, to, changed = 0, 0, -1
        if len(both) > 0 and _drawn(state, 2) == 0:
            changed = both[_drawn(state, len(both))]
            mode[changed] = 1 - mode[changed]
        else:
            place = _drawn(state, size)
            to = place + _drawn(state, 2 * _FARTHEST + 1) - _FARTHEST
            to = _reached(order, ancestors, place, min(size - 1, max(0, to)))
            _move(order, place, to)
        if changed >= 0 or to != place:
            limit = max(now, earlier[turn % memory])
            makespan = _schedule_serially(*graph, order, mode, limit, times, since, free)
            if makespan <= limit:
                now = makespan
            elif changed >= 0:
                mode[changed] = 1 - mode[changed]
            else:
                _move(order, to, place)
            if now < best:
                best = now
                plan[:, 0], plan[:, 1] = times[:, 0], mode
        earlier[turn % memory] = now
    return plan, best
