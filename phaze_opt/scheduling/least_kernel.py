"""The compiled loops of `least_makespan`: a destructive bound of every part on every chip.

A destructive bound (Klein and Scholl, EJOR 112, 1999) takes a limit and asks what schedules that
are shorter must look like. An operator whose longest chain does not fit the limit on one core runs
on all cores, and so alone. An operator that can run beside no other one runs alone as well. All
that run alone add to every chain and to the work of every resource, so that further operators no
longer fit. What then is the least makespan, or the limit if that is smaller, bounds every schedule,
whatever the limit was.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, compiled

_RESOURCES = 5
"""Tensor cores, vector cores, HBM, global buffer and link."""
_SLACK = 1e-8
"""By how much two shares must exceed a whole resource to exclude each other."""
_HALVINGS = 3
"""Limits that are tried below the time of all operators one after another."""
_ENOUGH = 1e-3
"""Relative distance of a bound from that time at which no further limit is tried."""

_ANY, _ALONE, _ON_ALL_CORES = 0, 1, 2
"""What is known of an operator: nothing, that it runs alone, or that it does so on all cores."""

Part = tuple[FloatArray, FloatArray, FloatArray, BoolArray, BoolArray, IntArray, FloatArray]
"""Operators of a part on one chip, at the front of longer arrays: seconds on one core and on all
cores; share of every resource on one core; whether the second precedes the first; whether two
cannot run side by side; and room for what is known of each, and for the longest chain before it."""
_PART = "Tuple((f8[::1], f8[::1], f8[:, ::1], b1[:, ::1], b1[:, ::1], i8[::1], f8[::1]))"


@callee(f"f8({_PART}, i8)")
def _alone_s(part: Part, size: int) -> float:
    """Sum the times of the operators that run alone."""
    one_core_s, all_cores_s, _, _, _, known, _ = part
    total_s = 0.0
    for a in range(size):
        if known[a] == _ON_ALL_CORES:
            total_s += all_cores_s[a]
        elif known[a] == _ALONE:
            total_s += min(one_core_s[a], all_cores_s[a])
    return total_s


@callee(f"b1({_PART}, i8, i8)")
def _runs_alone(part: Part, size: int, a: int) -> bool:
    """Whether no operator can run beside another one, both on one core."""
    excluded, known = part[4], part[5]
    beside = 0
    for b in range(size):
        beside += not excluded[a, b] and known[b] == _ANY
    return beside == 0


@callee(f"f8({_PART}, i8, f8, f8)")
def _restrict(part: Part, size: int, limit_s: float, alone_s: float) -> float:
    """Find operators that must run alone in schedules shorter than a limit, in one sweep.

    Returns
    -------
    chain_s
        The longest chain, before the sweep, of operators that need not run alone.
    """
    one_core_s, all_cores_s, _, before, _, known, head_s = part
    longest_s = 0.0
    for a in range(size):
        head_s[a] = 0.0
        for b in range(a):
            if before[a, b]:
                own_s = min(one_core_s[b], all_cores_s[b]) if known[b] == _ANY else 0.0
                head_s[a] = max(head_s[a], head_s[b] + own_s)
    tail_s = np.zeros(size)
    for a in range(size - 1, -1, -1):
        for b in range(a + 1, size):
            if before[b, a]:
                tail_s[a] = max(tail_s[a], tail_s[b])
        if known[a] == _ANY:
            tail_s[a] += min(one_core_s[a], all_cores_s[a])
        longest_s = max(longest_s, head_s[a] + tail_s[a])
    for a in range(size):
        if known[a] == _ANY:
            slower_s = one_core_s[a] - min(one_core_s[a], all_cores_s[a])
            if head_s[a] + tail_s[a] + slower_s + alone_s >= limit_s:
                known[a] = _ON_ALL_CORES
            elif _runs_alone(part, size, a):
                known[a] = _ALONE
    return longest_s


@callee(f"f8({_PART}, i8, f8)")
def _least_below(part: Part, size: int, limit_s: float) -> float:
    """Bound the makespan of the schedules that are shorter than a limit.

    Returns
    -------
    least_s
        Infinity if there are none.
    """
    one_core_s, all_cores_s, share, _, _, known, _ = part
    known[:size] = _ANY
    alone_s, before_s, least_s = 0.0, -1.0, 0.0
    while alone_s > before_s:
        before_s = alone_s
        least_s = _restrict(part, size, limit_s, alone_s) + alone_s
        if least_s >= limit_s:
            return np.inf
        alone_s = _alone_s(part, size)
    for resource in range(_RESOURCES):
        work_s = alone_s
        for a in range(size):
            if known[a] == _ANY:
                work_s += min(one_core_s[a] * share[a, resource], all_cores_s[a])
        least_s = max(least_s, work_s)
    return least_s


@callee(f"f8({_PART}, i8)")
def _least_of_part(part: Part, size: int) -> float:
    """Bound the makespan of a part by a few limits."""
    one_core_s, all_cores_s = part[0], part[1]
    # One after another, each in its faster mode, is a schedule.
    enough_s = 0.0
    for a in range(size):
        enough_s += min(one_core_s[a], all_cores_s[a])
    least_s = min(_least_below(part, size, enough_s), enough_s)
    for _ in range(_HALVINGS):
        if least_s >= enough_s * (1.0 - _ENOUGH):
            break
        limit_s = 0.5 * (least_s + enough_s)
        found_s = _least_below(part, size, limit_s)
        if found_s < limit_s:
            enough_s = limit_s
        least_s = max(least_s, min(found_s, limit_s))
    return least_s


@callee(f"void({_PART}, i8)")
def _exclude(part: Part, size: int) -> None:
    """Say which operators cannot run side by side: one precedes the other, or both need too much.

    Every operator is excluded from running beside itself.
    """
    _, _, share, before, excluded, _, _ = part
    for a in range(size):
        excluded[a, a] = True
        for b in range(a):
            needs_too_much = before[a, b]
            for resource in range(_RESOURCES):
                if share[a, resource] + share[b, resource] > 1.0 + _SLACK:
                    needs_too_much = True
            excluded[a, b] = excluded[b, a] = needs_too_much


@compiled("void(f8[:, ::1], f8[:, ::1], f8[:, :, ::1], b1[:, ::1], i8[::1], f8[::1])")
def least_of_parts(
    one_core_s: FloatArray,
    all_cores_s: FloatArray,
    shares: FloatArray,
    before: BoolArray,
    first: IntArray,
    least_s: FloatArray,
) -> None:
    """Bound the makespans of parts that run one after another.

    Parameters
    ----------
    one_core_s, all_cores_s : (chips, operators)
        Durations; infinity for a mode that an operator does not have.
    shares : (chips, operators, resources)
        Share of every resource that an operator takes on one core.
    before : (operators, operators)
        Whether the second operator precedes the first, directly or not; an operator comes after
        those that precede it.
    first : (parts + 1,)
        First operator of every part, and the number of operators.
    least_s : (chips,)
        Filled in.
    """
    most = 1
    for number in range(first.shape[0] - 1):
        most = max(most, first[number + 1] - first[number])
    on_one_core_s, on_all_cores_s, head_s = np.empty(most), np.empty(most), np.empty(most)
    share, known = np.empty((most, _RESOURCES)), np.empty(most, np.int64)
    order, excluded = np.empty((most, most), np.bool_), np.empty((most, most), np.bool_)
    part = (on_one_core_s, on_all_cores_s, share, order, excluded, known, head_s)
    for chip in range(one_core_s.shape[0]):
        least_s[chip] = 0.0
        for number in range(first.shape[0] - 1):
            begin, end = first[number], first[number + 1]
            size = end - begin
            if size == 1:
                least_s[chip] += min(one_core_s[chip, begin], all_cores_s[chip, begin])
                continue
            on_one_core_s[:size] = one_core_s[chip, begin:end]
            on_all_cores_s[:size] = all_cores_s[chip, begin:end]
            share[:size] = shares[chip, begin:end]
            order[:size, :size] = before[begin:end, begin:end]
            _exclude(part, size)
            least_s[chip] += _least_of_part(part, size)
