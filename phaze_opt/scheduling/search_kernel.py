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
- it starts an operator without successors in a mode that runs alone: such operators can as well
  come last, and are added up when nothing else is left;
- it starts an operator without predecessors in a mode that runs alone after any other: such
  operators can as well come first;
- its layer holds ``width`` better ones; then the least bound among those dropped is remembered, so
  that the answer stays honest.
"""

from __future__ import annotations

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import compiled, inlined
from phaze_opt.scheduling.search_states import (
    ALIVE,
    ANCESTORS,
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
    TWIN,
    admit,
    has,
    rebuild_table,
    shrink,
)

NARROW = 16
"""Width of the search when the effort is spent."""

COMPARISONS_PER_STATE = 32
"""Comparing two states takes about this fraction of the time of expanding one."""

Problem = tuple[IntArray, IntArray, IntArray, FloatArray, IntArray]
"""What to schedule:

- operators (n, columns), see `search_states`;
- demand (codes, resources + 1), the last column saying whether the code runs alone;
- capacity (resources,), of those that can bind where operators run beside one another;
- rate (bounds, codes): share of each bound's resource or mixture that an operator takes;
- least (bounds, n): rate times duration in the cheaper mode, rounded down.
"""
_PROBLEM_TYPE = "Tuple((i8[:, ::1], i8[:, ::1], i8[::1], f8[:, ::1], i8[:, ::1]))"

Scratch = tuple[IntArray, IntArray, IntArray, IntArray, IntArray]
"""Hash table and links of the next layer's states; what is taken after each end; what may start;
what waits only for its predecessors."""
_SCRATCH_TYPE = "Tuple((i8[::1], i8[::1], i8[:, ::1], i8[:, ::1], i8[:, ::1]))"

_SLOTS_PER_STATE = 8
"""Of the hash table, per state whose children it holds."""


@inlined
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
    live = state[RUNNING]
    alone = capacity.shape[0]
    passed = 0
    if demand[code, alone]:
        passed = live
    for q in range(passed, live):
        running = state[LISTS + q]
        if demand[running, alone] or has(operator, ANCESTORS, running >> 1):
            passed = q + 1
    resource = 0
    while passed < live and resource < capacity.shape[0]:
        if usage[passed, resource] + demand[code, resource] > capacity[resource]:
            passed += 1
            resource = 0
        else:
            resource += 1
    if passed == 0:
        return int(state[NOW])
    return int(max(state[NOW], state[LISTS + lanes + passed - 1]))


@inlined
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
    # Operators that come first do so by rising number.
    after = state[CODE] >> 1 if state[OPENING] == 1 else operators.shape[0]
    for i in range(operators.shape[0]):
        missing = has(state, first_word, i)
        for word in range(operators.shape[1] - ANCESTORS):
            if operators[i, ANCESTORS + word] & ~state[first_word + word] != 0:
                missing = True
        if missing:
            continue
        twin = operators[i, TWIN]
        may_start = twin < 0 or has(state, first_word, twin)
        soonest = NEVER
        for code in range(2 * i, 2 * i + 2):
            if operators[i, DURATION + (code & 1)] < 0:
                continue
            start = _earliest_start(state, operators[i], demand, capacity, usage, lanes, code)
            end = start + operators[i, DURATION + (code & 1)]
            soonest = min(soonest, end)
            mode = code & 1
            in_turn = mode != operators[i, FIRST] or after < i
            if may_start and in_turn and mode != operators[i, LAST]:
                found[candidates, 0] = code
                found[candidates, 1] = start
                candidates += 1
                least_end = min(least_end, end)
        ready[waiting, 0] = i
        ready[waiting, 1] = soonest
        waiting += 1
    return candidates, waiting, least_end


@inlined
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
    child[OPENING] = state[OPENING] == 1 and operators[i, FIRST] == (code & 1)


@inlined
def _path_bound(
    state: IntArray, code: int, start: int, operators: IntArray, ready: IntArray, waiting: int
) -> int:
    """Bound a child by the longest path; most children are dropped by it, before they are written.

    The paths from what was running before are in the bound of the state itself.
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
    state: IntArray, bound: int, rate: FloatArray, least: IntArray, lanes: int, child: IntArray
) -> None:
    """Write the child's lower bound, and the key that ranks it.

    The bound is the largest over paths and the work left of every resource and mixture (`bounds`).
    The key adds a sixteenth of the mean work left: of states of one bound, those first with less.
    """
    start = child[NOW]
    i = child[CODE] >> 1
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


@inlined
def _finish(state: IntArray, operators: IntArray, lanes: int, first_word: int) -> int:
    """Give the makespan where all operators left can come last, else `NEVER`."""
    makespan = state[NOW]
    if state[RUNNING] > 0:
        makespan = state[LISTS + lanes + state[RUNNING] - 1]
    for i in range(operators.shape[0]):
        if not has(state, first_word, i):
            if operators[i, LAST] < 0:
                return NEVER
            makespan += operators[i, DURATION + operators[i, LAST]]
    return int(makespan)


@inlined
def _power_of_two(least: int) -> int:
    """Give the smallest power of two that is not less."""
    power = 1
    while power < least:
        power *= 2
    return power


@inlined
def _expand_layer(
    problem: Problem,
    lanes: int,
    states: IntArray,
    count: int,
    children: IntArray,
    width: int,
    upper: int,
    scratch: Scratch,
) -> tuple[int, int, int, int, int]:
    """Fill the next layer.

    Returns the number of its states, the least bound dropped, how many comparisons that took, and
    the least makespan below ``upper`` with the state that reaches it (or ``upper`` and -1).
    """
    operators, demand, capacity, rate, least = problem
    slots, following, usage, found, ready = scratch
    first_word = LISTS + 2 * lanes + least.shape[0]
    # Clearing a table for many states would take longer than expanding few.
    table = slots[: min(slots.shape[0], _power_of_two(_SLOTS_PER_STATE * count))]
    fill, dropped, compared = 0, NEVER, 0
    best = -1
    rebuild_table(children, fill, first_word, table, following)
    for s in range(count):
        state = states[s]
        makespan = _finish(state, operators, lanes, first_word)
        if makespan < upper:
            upper, best = makespan, s
        candidates, waiting, least_end = _list_candidates(
            state, operators, demand, capacity, lanes, first_word, usage, found, ready
        )
        for c in range(candidates):
            if found[c, 1] >= least_end:
                continue
            bound = _path_bound(state, found[c, 0], found[c, 1], operators, ready, waiting)
            if bound >= upper:
                continue
            if fill == children.shape[0]:
                fill, least_dropped = shrink(children, fill, width, following)
                dropped = min(dropped, least_dropped)
                rebuild_table(children, fill, first_word, table, following)
            child = children[fill]
            _start_operator(state, found[c, 0], found[c, 1], operators, lanes, first_word, child)
            _bound_child(state, bound, rate, least, lanes, child)
            if child[BOUND] >= upper:
                continue
            child[PARENT] = s
            looked = admit(children, fill, demand, lanes, first_word, table, following)
            compared += abs(looked)
            if looked > 0:
                fill += 1
    fill, least_dropped = shrink(children, fill, width, following)
    return fill, min(dropped, least_dropped), compared, upper, best


@compiled(
    f"UniTuple(i8, 5)({_PROBLEM_TYPE}, i8, i8[:, :, ::1], i8, i8, i8, i8[:, ::1], i8[::1],"
    f" {_SCRATCH_TYPE})",
    allocates=False,
)
def expand_all(
    problem: Problem,
    lanes: int,
    layers: IntArray,
    width: int,
    upper: int,
    effort: int,
    trail: IntArray,
    first: IntArray,
    scratch: Scratch,
) -> tuple[int, int, int, int, int]:
    """Go through all layers, which take turns in the two parts of ``layers``.

    Fills ``trail`` with (parent, code, now) of every state kept, and ``first`` with the row of the
    first one of each layer. Returns what `search_pass.search` does, and layer and state of the
    shortest schedule (or -1).
    """
    best_layer, best_state = -1, -1
    count, rows, expanded, dropped, depth = 1, 0, 0, NEVER, 0
    while count > 0:
        children = layers[(depth + 1) & 1]
        expanded += count
        count, least_dropped, compared, upper, best = _expand_layer(
            problem, lanes, layers[depth & 1], count, children, width, upper, scratch
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
