"""The compiled loops of `least_makespan`: a destructive bound of every part on every chip.

A destructive bound (Klein and Scholl, EJOR 112, 1999) takes a limit and asks what schedules that
are shorter must look like. An operator whose longest chain does not fit the limit on one core runs
on all cores, and so alone. All that run alone add to every chain and to the work of every resource,
so that further operators no longer fit. What then is the least makespan, or the limit if that is
smaller, bounds every schedule, whatever the limit was.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, lazily_compiled

RESOURCES = 5
"""Tensor cores, vector cores, HBM, global buffer and link."""
_HALVINGS = 3
"""Limits that are tried below the time of all operators one after another."""
_ENOUGH = 1e-3
"""Relative distance of a bound from that time at which no further limit is tried."""

Part = tuple[FloatArray, FloatArray, FloatArray, FloatArray, IntArray, IntArray]
"""Operators of a part on one chip: seconds on one core, on all cores, and in the faster mode; share
of every resource on one core; where the predecessors of each begin among those of all operators;
and these, numbered from the first operator of the part."""
_PART = "Tuple((f8[::1], f8[::1], f8[::1], f8[:, ::1], i8[::1], i8[::1]))"
Room = tuple[BoolArray, FloatArray, FloatArray]
"""Room for what is found: which operators run alone on all cores; of the others the longest chain
before each; and the longest one from each on."""
_ROOM = "Tuple((b1[::1], f8[::1], f8[::1]))"


@callee(f"f8({_PART}, {_ROOM})")
def _longest_chain_s(part: Part, room: Room) -> float:
    """Find the longest chains, in which operators that run alone take no time."""
    _, _, fastest_s, _, first, before = part
    alone, head_s, tail_s = room
    size = fastest_s.shape[0]
    longest_s = 0.0
    for i in range(size):
        head_s[i] = tail_s[i] = 0.0
        for place in range(first[i], first[i + 1]):
            j = before[place]
            head_s[i] = max(head_s[i], head_s[j] if alone[j] else head_s[j] + fastest_s[j])
    for i in range(size - 1, -1, -1):
        if not alone[i]:
            tail_s[i] += fastest_s[i]
        for place in range(first[i], first[i + 1]):
            tail_s[before[place]] = max(tail_s[before[place]], tail_s[i])
        longest_s = max(longest_s, head_s[i] + tail_s[i])
    return longest_s


@callee(f"f8({_PART}, {_ROOM}, f8)")
def _least_below(part: Part, room: Room, limit_s: float) -> float:
    """Bound the makespan of the schedules that are shorter than a limit.

    Returns
    -------
    least_s
        Infinity if there are none.
    """
    one_core_s, all_cores_s, fastest_s, share, _, _ = part
    alone, head_s, tail_s = room
    size = fastest_s.shape[0]
    alone[:size] = False
    alone_s, least_s, changed = 0.0, 0.0, True
    while changed:
        changed = False
        before_s = alone_s
        least_s = before_s + _longest_chain_s(part, room)
        if least_s >= limit_s:
            return np.inf
        for i in range(size):
            through_s = head_s[i] + tail_s[i] - fastest_s[i] + one_core_s[i]
            if not alone[i] and before_s + through_s >= limit_s:
                alone[i] = changed = True
                alone_s += all_cores_s[i]
    for resource in range(RESOURCES):
        work_s = alone_s
        for i in range(size):
            if not alone[i]:
                work_s += min(one_core_s[i] * share[i, resource], all_cores_s[i])
        least_s = max(least_s, work_s)
    return least_s


@callee(f"f8({_PART}, {_ROOM})")
def _least_of_part(part: Part, room: Room) -> float:
    """Bound the makespan of a part by a few limits."""
    # One after another, each in its faster mode, is a schedule.
    enough_s = 0.0
    for fastest_s in part[2]:
        enough_s += fastest_s
    least_s = min(_least_below(part, room, enough_s), enough_s)
    for _ in range(_HALVINGS):
        if least_s >= enough_s * (1.0 - _ENOUGH):
            break
        limit_s = 0.5 * (least_s + enough_s)
        found_s = _least_below(part, room, limit_s)
        if found_s < limit_s:
            enough_s = limit_s
        least_s = max(least_s, min(found_s, limit_s))
    return float(least_s)


@lazily_compiled(
    "void(f8[:, ::1], f8[:, ::1], f8[:, :, ::1], i8[::1], i8[::1], i8[::1], i8[::1], f8[:, ::1])"
)
def least_of_parts(
    one_core_s: FloatArray,
    all_cores_s: FloatArray,
    share: FloatArray,
    first: IntArray,
    first_before: IntArray,
    before: IntArray,
    first_part: IntArray,
    least_s: FloatArray,
) -> None:
    """Bound the makespans of passes, whose parts run one after another.

    Parameters
    ----------
    one_core_s, all_cores_s : (chips, operators)
        Durations; infinity for a mode that an operator does not have.
    share : (chips, operators, resources)
        Share of every resource that an operator takes on one core.
    first : (parts + 1,)
        First operator of every part, and the number of operators.
    first_before : (operators + 1,)
        Where the predecessors of every operator begin in ``before``.
    before : (precedences,)
        Direct predecessors in the part, numbered from its first operator; each comes before its
        successors.
    first_part : (passes + 1,)
        First part of every pass, and the number of parts.
    least_s : (chips, passes)
        Filled in.
    """
    operators = one_core_s.shape[1]
    room = (np.empty(operators, np.bool_), np.empty(operators), np.empty(operators))
    fastest_s = np.empty(operators)
    for chip in range(one_core_s.shape[0]):
        for i in range(operators):
            fastest_s[i] = min(one_core_s[chip, i], all_cores_s[chip, i])
        for which in range(first_part.shape[0] - 1):
            least_s[chip, which] = 0.0
            for number in range(first_part[which], first_part[which + 1]):
                begin, end = first[number], first[number + 1]
                if end == begin + 1:
                    least_s[chip, which] += fastest_s[begin]
                    continue
                part = (
                    one_core_s[chip, begin:end],
                    all_cores_s[chip, begin:end],
                    fastest_s[begin:end],
                    share[chip, begin:end],
                    first_before[begin : end + 1],
                    before,
                )
                least_s[chip, which] += _least_of_part(part, room)
