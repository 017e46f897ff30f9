"""Which operators a state of the exact search may start next, and when; see `search_kernel`."""

from __future__ import annotations

from phaze_opt.arrays import IntArray
from phaze_opt.compiled import inlined
from phaze_opt.scheduling.search_states import (
    ANCESTORS,
    CODE,
    DURATION,
    FIRST,
    LAST,
    LISTS,
    NEVER,
    NOW,
    OPENING,
    RUNNING,
    has,
)


@inlined
def _earliest_start(
    state: IntArray,
    operator: IntArray,
    demand: IntArray,
    capacity: IntArray,
    usage: IntArray,
    at_once: int,
    code: int,
) -> int:
    """Give the earliest time, not before now, at which an operator may start in a mode.

    Row q of ``usage`` holds the amounts in use after the first q running operators have ended.
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
    return int(max(state[NOW], state[LISTS + at_once + passed - 1]))


@inlined
def _all_have_started(state: IntArray, operator: IntArray, first_word: int) -> bool:
    """Say whether all ancestors of an operator have started."""
    missing = 0
    for word in range(state.shape[0] - first_word):
        missing |= operator[ANCESTORS + word] & ~state[first_word + word]
    return missing == 0


@inlined
def _waits_for_none(
    state: IntArray, operator: IntArray, at_once: int, first_word: int, start: int
) -> bool:
    """Say whether all ancestors of an operator have started, and end by its start."""
    if not _all_have_started(state, operator, first_word):
        return False
    for q in range(LISTS + state[RUNNING] - 1, LISTS - 1, -1):
        if state[q + at_once] <= start:
            break
        if has(operator, ANCESTORS, state[q] >> 1):
            return False
    return True


@inlined
def _another_goes_before(
    state: IntArray, operators: IntArray, code: int, start: int, at_once: int, first_word: int
) -> bool:
    """Say whether an operator that goes before the code's, not started yet, could start by then."""
    i, words = code >> 1, state.shape[0] - first_word
    before = ANCESTORS + (1 + (code & 1)) * words
    left = 0
    for word in range(words):
        left |= operators[i, before + word] & ~state[first_word + word]
    if left != 0:
        for other in range(operators.shape[0]):
            if (
                has(operators[i], before, other)
                and not has(state, first_word, other)
                and _waits_for_none(state, operators[other], at_once, first_word, start)
            ):
                return True
    return False


@inlined
def list_candidates(
    state: IntArray,
    operators: IntArray,
    demand: IntArray,
    capacity: IntArray,
    at_once: int,
    first_word: int,
    usage: IntArray,
    listed: IntArray,
    ready: IntArray,
) -> tuple[int, int, int]:
    """List the codes that may start next.

    Fills ``found`` with (code, start) of these, and ``ready`` with (operator, least end) of every
    operator whose predecessors have started. Returns both counts and the least end in ``found``.
    """
    live = state[RUNNING]
    for resource in range(capacity.shape[0]):
        usage[live, resource] = 0
        for q in range(live - 1, -1, -1):
            usage[q, resource] = usage[q + 1, resource] + demand[state[LISTS + q], resource]
    candidates, waiting, least_end = 0, 0, NEVER
    # Operators that run first start by rising number.
    after = state[CODE] >> 1 if state[OPENING] == 1 else operators.shape[0]
    for i in range(operators.shape[0]):
        if has(state, first_word, i) or not _all_have_started(state, operators[i], first_word):
            continue
        soonest = NEVER
        for code in range(2 * i, 2 * i + 2):
            if operators[i, DURATION + (code & 1)] < 0:
                continue
            start = _earliest_start(state, operators[i], demand, capacity, usage, at_once, code)
            end = start + operators[i, DURATION + (code & 1)]
            soonest = min(soonest, end)
            mode = code & 1
            in_turn = mode != operators[i, FIRST] or after < i
            if (
                in_turn
                and mode != operators[i, LAST]
                and not _another_goes_before(state, operators, code, start, at_once, first_word)
            ):
                listed[candidates, 0] = code
                listed[candidates, 1] = start
                candidates += 1
                least_end = min(least_end, end)
        ready[waiting, 0] = i
        ready[waiting, 1] = soonest
        waiting += 1
    return candidates, waiting, least_end
