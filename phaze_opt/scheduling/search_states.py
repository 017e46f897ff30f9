"""The states of the exact search: rows of integers, in layers without dominated states.

A state is one row of 64-bit integers, because code with few arrays compiles quickly. A code is an
operator in a mode, 2 · operator + mode; a set of operators is a bit mask over several words.
"""

from __future__ import annotations

from phaze_opt.arrays import IntArray
from phaze_opt.compiled import inlined

NEVER = 2**62
"""Later than every time, and above every bound."""

# Columns of an operator's row: duration in each mode (-1 if the mode is not allowed), least time
# from its end to the end of the schedule, shorter duration, the mode in which it runs last or -1,
# the mode in which it runs first or -1, and three sets: its ancestors, and the operators that go
# before it in each mode (see `search_arrays`).
DURATION, BELOW, SHORTEST, LAST, FIRST, ANCESTORS = 0, 2, 3, 4, 5, 6
SETS = 3

# Columns of a state's row. Behind them follow the codes of the running operators and then their
# ends, each in ``at_once`` columns by rising end; then, for each bound, the sum of the least costs
# of the operators not started; then the set of started operators. OPENING is 1 while only operators
# that run first have started.
NOW, BOUND, KEY, PARENT, CODE, ALIVE, OPENING, RUNNING, LISTS = 0, 1, 2, 3, 4, 5, 6, 7, 8


@inlined
def has(row: IntArray, first_word: int, operator: int) -> bool:
    """Say whether the set whose words begin at column ``first_word`` holds an operator."""
    return bool((row[first_word + (operator >> 6)] >> (operator & 63)) & 1)


@inlined
def _slot(row: IntArray, first_word: int, slots: int) -> int:
    """Hash a set of operators to a slot of a table whose size is a power of two."""
    mixed = 0
    for column in range(first_word, row.shape[0]):
        mixed = (mixed ^ row[column]) * 0x1E3779B97F4A7C15
        mixed ^= mixed >> 29
    return mixed & (slots - 1)


@inlined
def _dominates(state: IntArray, other: IntArray, demand: IntArray, at_once: int) -> bool:
    """Say whether one state dominates another one with equal set: no time in it is later.

    That holds, too, where only in the other one operators may still run first (OPENING). Take a
    plan through it, move the operators that run first after it to the very beginning, and let the
    one state follow them: this plan is no longer, and fewer operators run first in it, since not
    all of the set did so in the one state. So of the shortest plans, one in which the fewest run
    first loses no such state. The other rules keep that number: they exchange operators that
    either may both run first, or may not.
    """
    if state[NOW] > other[NOW]:
        return False
    # The last to end first: most often that one is later.
    for x in range(LISTS + state[RUNNING] - 1, LISTS - 1, -1):
        if state[x + at_once] <= other[NOW]:
            break
        y = LISTS + other[RUNNING] - 1
        while y >= LISTS and other[y] >> 1 != state[x] >> 1:
            y -= 1
        if y < LISTS or other[y + at_once] < state[x + at_once]:
            return False
        if state[x] != other[y]:
            for resource in range(demand.shape[1]):
                if demand[state[x], resource] > demand[other[y], resource]:
                    return False
    return True


@inlined
def _kth_smallest(values: IntArray, count: int, k: int) -> int:
    """Give the k-th smallest, from 0, of the first values, and reorder them (Hoare's find)."""
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


@inlined
def shrink(states: IntArray, count: int, width: int, scratch: IntArray) -> tuple[int, int]:
    """Keep at most ``width`` living states with the least keys.

    Returns their number and the least bound among the others.
    """
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


@inlined
def admit(
    states: IntArray,
    count: int,
    demand: IntArray,
    at_once: int,
    first_word: int,
    table: IntArray,
    following: IntArray,
) -> int:
    """Admit the child at row ``count`` unless a state dominates it; kill the states it dominates.

    Returns one more than the number of states compared, negative if the child is not admitted.
    """
    child = states[count]
    slot = _slot(child, first_word, table.shape[0])
    x, previous, looked = table[slot], -1, 1
    while x >= 0:
        looked += 1
        same = True
        for column in range(first_word, child.shape[0]):
            same = same and states[x, column] == child[column]
        if same:
            if _dominates(states[x], child, demand, at_once):
                return -looked
            if _dominates(child, states[x], demand, at_once):
                states[x, ALIVE] = 0
        if states[x, ALIVE]:
            previous = x
        elif previous < 0:
            table[slot] = following[x]
        else:
            following[previous] = following[x]
        x = following[x]
    following[count] = table[slot]
    table[slot] = count
    return looked


@inlined
def rebuild_table(
    states: IntArray, count: int, first_word: int, table: IntArray, following: IntArray
) -> None:
    """Fill the hash table with the first ``count`` states of a layer."""
    for slot in range(table.shape[0]):
        table[slot] = -1
    for x in range(count):
        slot = _slot(states[x], first_word, table.shape[0])
        following[x] = table[slot]
        table[slot] = x
