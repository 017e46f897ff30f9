"""The inner loop of the exact search, compiled by numba.

A state is a set of started operators, the time of the last start ("now"), and the ends of those
that still run then. Layer k holds states of k started operators. A child starts one more operator
at the earliest moment, not before now, at which its predecessors have ended and its demand fits;
some shortest schedule arises so. A state is dropped when

- its lower bound reaches the best makespan known;
- its last operator starts only after another one could have run from start to end;
- another state with the same operators started is nowhere later (the cutset rule of Demeulemeester
  and Herroelen, Management Science 38, 1992);
- of interchangeable operators, a later one starts before an earlier one;
- its layer holds ``width`` better ones; then the least bound among those dropped is remembered, so
  that the answer stays honest.

Everything about a state is one row of 64-bit integers, because few arrays compile quickly. A code
is 2 * operator + mode.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phaze_opt.scheduling.compiled import compiled, inner

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NEVER = 2**62
"""Later than every time, and above every bound."""

# Columns of an operator's row: duration in each mode (-1 where it is not considered), least time
# after its end, shorter duration, the interchangeable operator before it or -1, set of ancestors.
DURATION, BELOW, SHORTEST, TWIN, ANCESTORS = 0, 2, 3, 4, 5

# Columns of a state's row. The codes and the ends of those running follow, each in as many columns
# as can run at once, by rising end; then one sum of costs of operators not started for each bound;
# then the set of those started.
NOW, BOUND, KEY, PARENT, CODE, ALIVE, RUNNING, LISTS = 0, 1, 2, 3, 4, 5, 6, 7


@inner("b1(i8[::1], i8, i8)")
def _has(row: IntArray, first_word: int, operator: int) -> bool:
    """Say whether the set that starts at a column holds an operator."""
    return bool((row[first_word + (operator >> 6)] >> (operator & 63)) & 1)


@inner("i8(i8[::1], i8, i8)")
def _slot(row: IntArray, first_word: int, slots: int) -> int:
    """Hash a set of operators to a place in a table, whose size is a power of two."""
    mixed = 0
    for column in range(first_word, row.shape[0]):
        mixed = (mixed ^ row[column]) * 0x1E3779B97F4A7C15
        mixed ^= mixed >> 29
    return mixed & (slots - 1)


@inner("b1(i8[::1], i8[::1], i8[:, ::1], i8)")
def _dominates(one: IntArray, other: IntArray, demand: IntArray, lanes: int) -> bool:
    """Say whether a state can do all that another one of the same set can, as early."""
    if one[NOW] > other[NOW]:
        return False
    for x in range(LISTS, LISTS + one[RUNNING]):
        if one[x + lanes] <= other[NOW]:
            continue
        covered = False
        for y in range(LISTS, LISTS + other[RUNNING]):
            if other[y] >> 1 == one[x] >> 1:
                covered = other[y + lanes] >= one[x + lanes]
                for resource in range(demand.shape[1]):
                    if demand[one[x], resource] > demand[other[y], resource]:
                        covered = False
                break
        if not covered:
            return False
    return True


@inner("i8(i8[::1], i8, i8)")
def _kth_smallest(values: IntArray, count: int, k: int) -> int:
    """Give the k-th smallest, from 0, of the first values, which are reordered (Hoare's find)."""
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return int(values[k])


@inner("UniTuple(i8, 2)(i8[:, ::1], i8, i8, i8[::1])")
def _shrink(states: IntArray, count: int, width: int, scratch: IntArray) -> tuple[int, int]:
    """Keep at most ``width`` living states, least keys first; give also the least bound dropped."""
    living = 0
    for x in range(count):
        if states[x, ALIVE]:
            scratch[living] = states[x, KEY]
            living += 1
    threshold = NEVER
    ties = living
    if living > width:
        threshold = _kth_smallest(scratch, living, width - 1)
        ties = width
        for x in range(count):
            if states[x, ALIVE] and states[x, KEY] < threshold:
                ties -= 1
    kept = 0
    dropped = NEVER
    for x in range(count):
        if not states[x, ALIVE]:
            continue
        if states[x, KEY] == threshold:
            ties -= 1
        if states[x, KEY] > threshold or (states[x, KEY] == threshold and ties < 0):
            dropped = min(dropped, states[x, BOUND])
            continue
        if kept < x:
            for column in range(states.shape[1]):
                states[kept, column] = states[x, column]
        kept += 1
    return kept, dropped


@inner("i8(i8[::1], i8[::1], i8[:, ::1], i8[::1], i8[:, ::1], i8, i8)")
def _earliest_start(
    state: IntArray,
    operator: IntArray,
    demand: IntArray,
    capacity: IntArray,
    usage: IntArray,
    lanes: int,
    code: int,
) -> int:
    """Give the first moment from now on when an operator may start in a mode.

    Row q of ``usage`` is what is taken after the first q ends among the running operators.
    """
    passed = 0
    for q in range(state[RUNNING]):
        if _has(operator, ANCESTORS, state[LISTS + q] >> 1):
            passed = q + 1
    resource = 0
    while resource < capacity.shape[0]:
        if usage[passed, resource] + demand[code, resource] > capacity[resource]:
            passed += 1
            resource = 0
        else:
            resource += 1
    if passed == 0:
        return int(state[NOW])
    return int(max(state[NOW], state[LISTS + lanes + passed - 1]))


@inner(
    "UniTuple(i8, 3)(i8[::1], i8[:, ::1], i8[:, ::1], i8[::1], i8, i8,"
    " i8[:, ::1], i8[:, ::1], i8[:, ::1])"
)
def _list_candidates(
    state: IntArray,
    operators: IntArray,
    demand: IntArray,
    capacity: IntArray,
    lanes: int,
    first_word: int,
    usage: IntArray,
    found: IntArray,
    ready: IntArray,
) -> tuple[int, int, int]:
    """List what may start next.

    Fills ``found`` with (code, start), and ``ready`` with (operator, least end) of every operator
    whose predecessors have started; returns both counts and the least end of what may start.
    """
    live = state[RUNNING]
    for resource in range(capacity.shape[0]):
        usage[live, resource] = 0
        for q in range(live - 1, -1, -1):
            usage[q, resource] = usage[q + 1, resource] + demand[state[LISTS + q], resource]
    candidates, waiting, least_end = 0, 0, NEVER
    for i in range(operators.shape[0]):
        missing = _has(state, first_word, i)
        for word in range(operators.shape[1] - ANCESTORS):
            if operators[i, ANCESTORS + word] & ~state[first_word + word] != 0:
                missing = True
        if missing:
            continue
        twin = operators[i, TWIN]
        may_start = twin < 0 or _has(state, first_word, twin)
        soonest = NEVER
        for code in range(2 * i, 2 * i + 2):
            if operators[i, DURATION + (code & 1)] < 0:
                continue
            start = _earliest_start(state, operators[i], demand, capacity, usage, lanes, code)
            soonest = min(soonest, start + operators[i, DURATION + (code & 1)])
            if may_start:
                found[candidates, 0] = code
                found[candidates, 1] = start
                candidates += 1
        if may_start:
            least_end = min(least_end, soonest)
        ready[waiting, 0] = i
        ready[waiting, 1] = soonest
        waiting += 1
    return candidates, waiting, least_end


@inner("void(i8[::1], i8, i8, i8[:, ::1], i8, i8, i8[::1])")
def _start_operator(
    state: IntArray,
    code: int,
    start: int,
    operators: IntArray,
    lanes: int,
    first_word: int,
    child: IntArray,
) -> None:
    """Write the child's set and running operators, by rising end."""
    i = code >> 1
    end = start + operators[i, DURATION + (code & 1)]
    live = 0
    placed = False
    stop = LISTS + state[RUNNING]
    for q in range(LISTS, stop + 1):
        if not placed and (q == stop or state[q + lanes] > end):
            child[LISTS + live] = code
            child[LISTS + lanes + live] = end
            live += 1
            placed = True
        if q < stop and state[q + lanes] > start:
            child[LISTS + live] = state[q]
            child[LISTS + lanes + live] = state[q + lanes]
            live += 1
    for column in range(first_word, state.shape[0]):
        child[column] = state[column]
    child[first_word + (i >> 6)] |= 1 << (i & 63)
    child[NOW] = start
    child[CODE] = code
    child[ALIVE] = 1
    child[RUNNING] = live


@inner("void(i8[::1], i8[:, ::1], f8[:, ::1], i8[:, ::1], i8[:, ::1], i8, i8, i8[::1])")
def _bound_child(
    state: IntArray,
    operators: IntArray,
    rate: FloatArray,
    least: IntArray,
    ready: IntArray,
    waiting: int,
    lanes: int,
    child: IntArray,
) -> None:
    """Write the child's lower bound, and the key that ranks it.

    The bound is the largest over paths and over the work left for every resource and mixture (see
    `bounds`). The key adds a sixteenth of the mean work left, so that among states of one bound
    those come first that have done more.
    """
    start = child[NOW]
    i = child[CODE] >> 1
    bound = state[BOUND]
    for q in range(LISTS, LISTS + child[RUNNING]):
        bound = max(bound, child[q + lanes] + operators[child[q] >> 1, BELOW])
    for x in range(waiting):
        other = ready[x, 0]
        if other != i:
            soonest = max(ready[x, 1], start + operators[other, SHORTEST])
            bound = max(bound, soonest + operators[other, BELOW])
    total = 0
    for f in range(least.shape[0]):
        rest = LISTS + 2 * lanes + f
        child[rest] = state[rest] - least[f, i]
        work = 0.0
        for q in range(LISTS, LISTS + child[RUNNING]):
            work += (child[q + lanes] - start) * rate[f, child[q]]
        reach = start + child[rest] + int(work)
        bound = max(bound, reach)
        total += reach
    child[BOUND] = bound
    child[KEY] = bound + (total // least.shape[0] >> 4)


@inner("b1(i8[:, ::1], i8, i8[::1], i8[:, ::1], i8, i8, i8[::1], i8[::1])")
def _admit(
    states: IntArray,
    count: int,
    child: IntArray,
    demand: IntArray,
    lanes: int,
    first_word: int,
    table: IntArray,
    following: IntArray,
) -> bool:
    """Write a child behind the layer's states unless one dominates it; bury those it dominates."""
    slot = _slot(child, first_word, table.shape[0])
    x = table[slot]
    while x >= 0:
        same = states[x, ALIVE] == 1
        for column in range(first_word, child.shape[0]):
            same = same and states[x, column] == child[column]
        if same:
            if _dominates(states[x], child, demand, lanes):
                return False
            if _dominates(child, states[x], demand, lanes):
                states[x, ALIVE] = 0
        x = following[x]
    for column in range(child.shape[0]):
        states[count, column] = child[column]
    following[count] = table[slot]
    table[slot] = count
    return True


@inner("void(i8[:, ::1], i8, i8, i8[::1], i8[::1])")
def _rebuild_table(
    states: IntArray, count: int, first_word: int, table: IntArray, following: IntArray
) -> None:
    """Hash the first states of a layer anew."""
    for slot in range(table.shape[0]):
        table[slot] = -1
    for x in range(count):
        slot = _slot(states[x], first_word, table.shape[0])
        following[x] = table[slot]
        table[slot] = x


@inner(
    "UniTuple(i8, 2)(i8[:, ::1], i8, i8[:, ::1], i8[:, ::1], i8[:, ::1], i8[::1], f8[:, ::1],"
    " i8[:, ::1], i8, i8, i8, i8[::1], i8[::1])"
)
def _expand_layer(
    states: IntArray,
    count: int,
    children: IntArray,
    operators: IntArray,
    demand: IntArray,
    capacity: IntArray,
    rate: FloatArray,
    least: IntArray,
    lanes: int,
    width: int,
    upper: int,
    table: IntArray,
    following: IntArray,
) -> tuple[int, int]:
    """Fill the next layer; return how many states it has and the least bound dropped."""
    n = operators.shape[0]
    first_word = LISTS + 2 * lanes + least.shape[0]
    usage = np.empty((lanes + 1, capacity.shape[0]), np.int64)
    found = np.empty((2 * n, 2), np.int64)
    ready = np.empty((n, 2), np.int64)
    child = np.empty(states.shape[1], np.int64)
    fill, dropped = 0, NEVER
    _rebuild_table(children, fill, first_word, table, following)
    for s in range(count):
        state = states[s]
        candidates, waiting, least_end = _list_candidates(
            state, operators, demand, capacity, lanes, first_word, usage, found, ready
        )
        for c in range(candidates):
            if found[c, 1] >= least_end:
                continue
            _start_operator(state, found[c, 0], found[c, 1], operators, lanes, first_word, child)
            _bound_child(state, operators, rate, least, ready, waiting, lanes, child)
            if child[BOUND] >= upper:
                continue
            child[PARENT] = s
            if fill == children.shape[0]:
                fill, least_dropped = _shrink(children, fill, width, following)
                dropped = min(dropped, least_dropped)
                _rebuild_table(children, fill, first_word, table, following)
            if _admit(children, fill, child, demand, lanes, first_word, table, following):
                fill += 1
    fill, least_dropped = _shrink(children, fill, width, following)
    return fill, min(dropped, least_dropped)


@compiled(
    "UniTuple(i8, 3)(i8[:, ::1], i8[:, ::1], i8[::1], f8[:, ::1], i8[:, ::1], i8, i8, i8,"
    " i8[:, ::1])"
)
def search(
    operators: IntArray,
    demand: IntArray,
    capacity: IntArray,
    rate: FloatArray,
    least: IntArray,
    lanes: int,
    width: int,
    upper: int,
    plan: IntArray,
) -> tuple[int, int, int]:
    """Go once through all layers.

    Parameters
    ----------
    operators
        (n, columns): see the columns above.
    demand
        (codes, resources).
    capacity
        (resources,).
    rate
        (bounds, codes): share of the bound's resource or mixture that an operator takes.
    least
        (bounds, n): rate times duration in the cheaper mode, rounded down.
    lanes
        At most so many operators run at once.
    width
        States kept in each layer.
    upper
        Only schedules shorter than this matter.
    plan
        (n, 2): receives start and mode of the shortest schedule found, if any.

    Returns
    -------
    Makespan of that schedule (or ``upper``), least bound dropped (or `NEVER`), states expanded.
    """
    n = operators.shape[0]
    room = 8 * width
    first_word = LISTS + 2 * lanes + least.shape[0]
    states = np.empty((room, first_word + operators.shape[1] - ANCESTORS), np.int64)
    children = np.empty_like(states)
    trail = np.empty((n, width, 3), np.int64)
    slots = 1
    while slots < 2 * room:
        slots *= 2
    table = np.empty(slots, np.int64)
    following = np.empty(room, np.int64)
    for column in range(states.shape[1]):
        states[0, column] = 0
    for f in range(least.shape[0]):
        for i in range(n):
            states[0, LISTS + 2 * lanes + f] += least[f, i]
    count, expanded, dropped = 1, 0, NEVER
    for layer in range(n):
        expanded += count
        count, least_dropped = _expand_layer(
            states, count, children, operators, demand, capacity, rate, least, lanes, width,
            upper, table, following,
        )  # fmt: skip
        dropped = min(dropped, least_dropped)
        states, children = children, states
        for x in range(count):
            trail[layer, x, 0] = states[x, PARENT]
            trail[layer, x, 1] = states[x, CODE]
            trail[layer, x, 2] = states[x, NOW]
    if count == 0:
        return upper, dropped, expanded
    best = 0
    for s in range(count):
        if states[s, BOUND] < states[best, BOUND]:
            best = s
    makespan = states[best, BOUND]
    for layer in range(n - 1, -1, -1):
        code = trail[layer, best, 1]
        plan[code >> 1, 0] = trail[layer, best, 2]
        plan[code >> 1, 1] = code & 1
        best = trail[layer, best, 0]
    return makespan, dropped, expanded
