"""The inner loop of the exact search, compiled by numba.

A state is a set of started operators, the time of the last start ("now"), and the ends of those
that still run at this time. Layer k holds states with k started operators. A child starts one more
operator at the earliest time, not before now, at which its predecessors have ended and its demand
fits; at least one shortest schedule is built this way. A state is dropped if

- its lower bound reaches the best makespan known;
- its last operator starts only after another operator could have run from start to end;
- another state with an equal set of started operators dominates it: none of its times is later
  (the cutset rule of Demeulemeester and Herroelen, Management Science 38, 1992);
- it starts an operator where another one that goes before it (`search_arrays`) could start as
  early: exchanged, the two make a plan that is no longer;
- it starts an operator without successors in a mode that runs alone: some shortest schedule runs
  such operators last, so their durations are added when no other operator is left;
- it starts an operator without predecessors in a mode that runs alone after any other operator:
  some shortest schedule runs such operators first;
- its layer holds ``width`` better states; the least bound among the states dropped by this rule is
  kept, so that the bound of the answer is valid.
"""

from __future__ import annotations

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, inlined
from phaze_opt.scheduling.search_candidates import list_candidates
from phaze_opt.scheduling.search_states import (
    ALIVE,
    BELOW,
    BOUND,
    CODE,
    DURATION,
    FIRST,
    KEY,
    LAST,
    LISTS,
    NEVER,
    NOW,
    OPENING,
    PARENT,
    RUNNING,
    SHORTEST,
    admit,
    has,
    rebuild_table,
    shrink,
)

NARROW = 16
"""Width of a layer after the effort is spent."""

COMPARISONS_PER_STATE = 32
"""Comparisons of two states that take about the time of expanding one state."""

SearchArrays = tuple[IntArray, IntArray, IntArray, FloatArray, IntArray]
"""The operators to schedule:

- operators (n, columns), see `search_states`, whose last columns are sets of operators;
- demand (codes, resources + 1); the last column says whether the code runs alone;
- capacity (resources,), of the resources that can bind while several operators run;
- rate (bounds, codes): share of each bound's resource or mixture that an operator takes;
- least (bounds, n): rate × duration in the cheaper mode, rounded down.

A code is an operator in a mode: 2 · operator + mode.
"""
SEARCH_ARRAYS_TYPE = "Tuple((i8[:, ::1], i8[:, ::1], i8[::1], f8[:, ::1], i8[:, ::1]))"

Scratch = tuple[IntArray, IntArray, IntArray, IntArray, IntArray]
"""Working arrays: hash table and links of the states of the next layer; amounts in use after each
end; codes that may start; operators whose predecessors have started."""
_SCRATCH_TYPE = "Tuple((i8[::1], i8[::1], i8[:, ::1], i8[:, ::1], i8[:, ::1]))"

_SLOTS_PER_STATE = 8
"""Slots of the hash table per state of the current layer."""


@inlined
def _start_operator(
    state: IntArray,
    code: int,
    start: int,
    operators: IntArray,
    at_once: int,
    first_word: int,
    child: IntArray,
) -> None:
    """Write the child's set of started operators, and its running operators by rising end."""
    i = code >> 1
    end = start + operators[i, DURATION + (code & 1)]
    live = 0
    placed = False
    stop = LISTS + state[RUNNING]
    for q in range(LISTS, stop + 1):
        if not placed and (q == stop or state[q + at_once] > end):
            child[LISTS + live] = code
            child[LISTS + at_once + live] = end
            live += 1
            placed = True
        if q < stop and state[q + at_once] > start:
            child[LISTS + live] = state[q]
            child[LISTS + at_once + live] = state[q + at_once]
            live += 1
    for column in range(first_word, state.shape[0]):
        child[column] = state[column]
    child[first_word + (i >> 6)] |= 1 << (i & 63)
    child[NOW] = start
    child[CODE] = code
    child[ALIVE] = 1
    child[RUNNING] = live
    child[OPENING] = state[OPENING] == 1 and operators[i, FIRST] == (code & 1)


@inlined
def _path_bound(
    state: IntArray, code: int, start: int, operators: IntArray, ready: IntArray, waiting: int
) -> int:
    """Bound a child by the longest path; this drops most children before they are written.

    The bound of the state itself covers the paths from operators that run already.
    """
    i = code >> 1
    end = start + operators[i, DURATION + (code & 1)]
    bound = max(state[BOUND], end + operators[i, BELOW])
    for x in range(waiting):
        other = ready[x, 0]
        if other != i:
            soonest = max(ready[x, 1], start + operators[other, SHORTEST])
            bound = max(bound, soonest + operators[other, BELOW])
    return int(bound)


@inlined
def _bound_child(
    state: IntArray, bound: int, rate: FloatArray, least: IntArray, at_once: int, child: IntArray
) -> None:
    """Write the child's lower bound, and the key by which the states of a layer are ranked.

    The bound is the largest over the paths and over the remaining work of every resource and
    mixture (see `bounds`). The key adds a sixteenth of the mean over the resources, so that of
    states with equal bounds those with less remaining work come first.
    """
    start = child[NOW]
    i = child[CODE] >> 1
    total = 0
    for f in range(least.shape[0]):
        rest = LISTS + 2 * at_once + f
        child[rest] = state[rest] - least[f, i]
        work = 0.0
        for q in range(LISTS, LISTS + child[RUNNING]):
            work += (child[q + at_once] - start) * rate[f, child[q]]
        reach = start + child[rest] + int(work)
        bound = max(bound, reach)
        total += reach
    child[BOUND] = bound
    child[KEY] = bound + (total // least.shape[0] >> 4)


@inlined
def _finish(state: IntArray, operators: IntArray, at_once: int, first_word: int) -> int:
    """Give the makespan if all operators not started can run last, else `NEVER`."""
    makespan = state[NOW]
    if state[RUNNING] > 0:
        makespan = state[LISTS + at_once + state[RUNNING] - 1]
    for i in range(operators.shape[0]):
        if not has(state, first_word, i):
            if operators[i, LAST] < 0:
                return NEVER
            makespan += operators[i, DURATION + operators[i, LAST]]
    return int(makespan)


@inlined
def _power_of_two(least: int) -> int:
    """Give the smallest power of two that is at least ``least``."""
    power = 1
    while power < least:
        power *= 2
    return power


@inlined
def _expand_layer(
    arrays: SearchArrays,
    at_once: int,
    states: IntArray,
    count: int,
    children: IntArray,
    width: int,
    upper: int,
    scratch: Scratch,
) -> tuple[int, int, int, int, int]:
    """Fill the next layer with the children of the current one.

    Returns the number of states in the next layer, the least bound among the states dropped because
    of the width, the number of comparisons, and the least makespan below ``upper`` with the state
    of the current layer that reaches it (or ``upper`` and -1).
    """
    operators, demand, capacity, rate, least = arrays
    slots, following, usage, listed, ready = scratch
    first_word = LISTS + 2 * at_once + least.shape[0]
    # A layer with few states uses a part of the table only, because clearing it takes time.
    table = slots[: min(slots.shape[0], _power_of_two(_SLOTS_PER_STATE * count))]
    fill, dropped, compared = 0, NEVER, 0
    best = -1
    rebuild_table(children, fill, first_word, table, following)
    for s in range(count):
        state = states[s]
        makespan = _finish(state, operators, at_once, first_word)
        if makespan < upper:
            upper, best = makespan, s
        candidates, waiting, least_end = list_candidates(
            state, operators, demand, capacity, at_once, first_word, usage, listed, ready
        )
        for c in range(candidates):
            if listed[c, 1] >= least_end:
                continue
            bound = _path_bound(state, listed[c, 0], listed[c, 1], operators, ready, waiting)
            if bound >= upper:
                continue
            if fill == children.shape[0]:
                fill, least_dropped = shrink(children, fill, width, following)
                dropped = min(dropped, least_dropped)
                rebuild_table(children, fill, first_word, table, following)
            child = children[fill]
            _start_operator(
                state, listed[c, 0], listed[c, 1], operators, at_once, first_word, child
            )
            _bound_child(state, bound, rate, least, at_once, child)
            if child[BOUND] >= upper:
                continue
            child[PARENT] = s
            looked = admit(children, fill, demand, at_once, first_word, table, following)
            compared += abs(looked)
            if looked > 0:
                fill += 1
    fill, least_dropped = shrink(children, fill, width, following)
    return fill, min(dropped, least_dropped), compared, upper, best


@callee(
    f"UniTuple(i8, 5)({SEARCH_ARRAYS_TYPE}, i8, i8[:, :, ::1], i8, i8, i8, i8[:, ::1], i8[::1],"
    f" {_SCRATCH_TYPE})",
    allocates=False,
)
def expand_all(
    arrays: SearchArrays,
    at_once: int,
    layers: IntArray,
    width: int,
    upper: int,
    effort: int,
    trail: IntArray,
    first: IntArray,
    scratch: Scratch,
) -> tuple[int, int, int, int, int]:
    """Go through all layers; current and next layer alternate between two halves of ``layers``.

    Fills ``trail`` with (parent, code, now) of every state kept, and ``first`` with the row in
    ``trail`` of the first state of each layer. Returns the least makespan found (or ``upper``), the
    least bound among the states dropped because of the width (or `NEVER`), the number of states
    expanded, and layer and state of the shortest plan (or -1).
    """
    best_layer, best_state = -1, -1
    count, rows, expanded, dropped, depth = 1, 0, 0, NEVER, 0
    while count > 0:
        children = layers[(depth + 1) & 1]
        expanded += count
        count, least_dropped, compared, upper, best = _expand_layer(
            arrays, at_once, layers[depth & 1], count, children, width, upper, scratch
        )
        if best >= 0:
            best_layer, best_state = depth, best
        first[depth] = rows
        for s in range(count):
            trail[rows, 0] = children[s, PARENT]
            trail[rows, 1] = children[s, CODE]
            trail[rows, 2] = children[s, NOW]
            rows += 1
        expanded += compared // COMPARISONS_PER_STATE
        if expanded >= effort:
            width = min(width, NARROW)
        dropped = min(dropped, least_dropped)
        depth += 1
    return upper, dropped, expanded, best_layer, best_state
