"""Lower bounds on the makespan.

Let operator i take ``p[i][m]`` time units in mode m, and a share ``u[i][m][r]`` of resource r
while it runs. For weights ``w >= 0`` that add up to 1 over the resources, no schedule is shorter
than ``sum over i of min over m of p[i][m] * (sum over r of w[r] * u[i][m][r])``, because at every
instant the weighted use of all resources is at most 1. A chain of the precedence graph is a
resource too: of its operators and of those that run alone, one runs at a time and takes all of it.
So this formula gives the critical path, the work of every resource, and every mixture of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.scheduling.instance import Instance, in_set

_CHAINS = 8
"""Chains added to a mixture at most."""

_STEPS_PER_CHAIN = 60
"""Updates of the weights after each new chain."""

_NEW_CHAIN_WEIGHT = 0.2
"""Weight with which a new chain starts; the others share the rest."""

_STEP = 3.0
"""Length of the first update; later ones fall with the square root of their number."""

_LIMB = 21
"""Bits of the lower part of a duration: a product with a demand then takes two integers."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lower bounds of an instance that need no search, in time units.

    Attributes
    ----------
    makespan
        Lower bound on the makespan of every schedule.
    tail : (operators,)
        Least time from the operator's start to the end of the schedule.
    """

    makespan: int
    tail: IntArray


@lazily_compiled("i8(i8[:, ::1], b1[:, ::1], i8[:, :, ::1], i8[::1], i8[::1])")
def root_bound(
    duration: IntArray, allowed: BoolArray, demand: IntArray, capacity: IntArray, tail: IntArray
) -> int:
    """Bound the makespan from below by the critical path and by the work of every resource.

    Parameters
    ----------
    duration, allowed, demand, capacity
        Of an `Instance`.
    tail
        `tails` of the least durations.
    """
    bound = 0
    for path in tail:
        bound = max(bound, path)
    for resource in range(len(capacity)):
        bound = max(bound, _work_bound(duration, allowed, demand, capacity[resource], resource))
    return bound


@lazily_compiled("i8[::1](i8[:, ::1], b1[:, ::1])")
def least_durations(duration: IntArray, allowed: BoolArray) -> IntArray:
    """Give the duration of each operator in its faster allowed mode."""
    least = np.empty(len(duration), dtype=np.int64)
    for i in range(len(duration)):
        least[i] = max(duration[i, 0], duration[i, 1])
        for mode in range(2):
            if allowed[i, mode]:
                least[i] = min(least[i], duration[i, mode])
    return least


@lazily_compiled("i8[::1](i8[:, ::1], i8[::1])")
def tails(descendants: IntArray, duration: IntArray) -> IntArray:
    """Give the longest path from the start of each operator to the end of the schedule.

    Parameters
    ----------
    descendants
        Of an `Instance`.
    duration : (operators,)
        In time units.
    """
    tail = duration.copy()
    for i in range(len(tail) - 1, -1, -1):
        longest = 0
        for j in range(i + 1, len(tail)):
            if in_set(descendants[i], j):
                longest = max(longest, tail[j])
        tail[i] += longest
    return tail


@lazily_compiled("b1(i8[:, ::1], b1[:, ::1], i8[:, ::1], i8[::1], i8)")
def drop_hopeless_modes(
    duration: IntArray, allowed: BoolArray, ancestors: IntArray, tail: IntArray, upper: int
) -> bool:
    """Keep the modes in which the longest path through the operator is shorter than a makespan.

    Parameters
    ----------
    duration, allowed, ancestors
        Of an `Instance`; modes that are dropped are no longer allowed.
    tail
        `tails` of the least durations.
    upper
        Makespan in time units. Only shorter schedules count: if some operator has no mode left,
        no schedule is shorter.

    Returns
    -------
    Whether a mode was dropped.
    """
    shortest = least_durations(duration, allowed)
    head = np.zeros(len(tail), dtype=np.int64)
    dropped = False
    for i in range(len(tail)):
        for j in range(i):
            if in_set(ancestors[i], j):
                head[i] = max(head[i], head[j] + shortest[j])
        around = head[i] + tail[i] - shortest[i]
        for mode in range(2):
            if allowed[i, mode] and around + duration[i, mode] >= upper:
                allowed[i, mode] = False
                dropped = True
    return dropped


@inlined
def _work_bound(
    duration: IntArray, allowed: BoolArray, demand: IntArray, capacity: int, resource: int
) -> int:
    """Bound the makespan by one resource: the sum of duration × demand, divided by capacity.

    Each operator counts in the mode in which duration × demand is smaller. Such a product may take
    more than 64 bits, and is written as high · 2^21 + low.
    """
    quotients, remainders = 0, 0
    for i in range(duration.shape[0]):
        least_high, least_low = -1, 0
        for mode in range(2):
            if allowed[i, mode]:
                units = demand[i, mode, resource]
                low = (duration[i, mode] & ((1 << _LIMB) - 1)) * units
                high = (duration[i, mode] >> _LIMB) * units + (low >> _LIMB)
                low &= (1 << _LIMB) - 1
                if least_high < 0 or high < least_high or (high == least_high and low < least_low):
                    least_high, least_low = high, low
        rest = ((least_high % capacity) << _LIMB) + least_low
        quotients += ((least_high // capacity) << _LIMB) + rest // capacity
        remainders += rest % capacity
    return quotients + (remainders + capacity - 1) // capacity


@lazily_compiled("b1[:, ::1](b1[:, ::1], i8[:, :, ::1], i8[::1])")
def runs_alone(allowed: BoolArray, demand: IntArray, capacity: IntArray) -> BoolArray:
    """Say of each operator in each mode whether no other operator can run beside it."""
    alone = np.ones((len(allowed), 2), dtype=np.bool_)
    for i in range(len(allowed)):
        for mode in range(2):
            needs_any = False
            for resource in range(len(capacity)):
                needs_any = needs_any or demand[i, mode, resource] > 0
                if demand[i, mode, resource] != capacity[resource]:
                    alone[i, mode] = False
            if allowed[i, mode] and not needs_any:
                # An operator that needs nothing can run beside every other.
                return np.zeros((len(allowed), 2), dtype=np.bool_)
    return alone


def mixed_bound(instance: Instance) -> tuple[int, FloatArray]:
    """Bound the makespan by a good mixture of resources and chains.

    The best mixture is the solution of a linear program with one row per chain. Multiplicative
    updates approach its weights (Plotkin, Shmoys and Tardos, 1995); each round adds the chain that
    is longest in the modes chosen so far. At any weights the bound is valid.

    Returns
    -------
    The bound in time units, and the share of the mixture that each operator takes in each mode:
    (operators, 2).
    """
    duration, share = instance.duration.astype(np.float64), instance.demand / instance.capacity
    alone = runs_alone(instance.allowed, instance.demand, instance.capacity)
    rate = mixed_rate(duration, instance.allowed, share, alone, instance.ancestors)
    least = np.where(instance.allowed, rate * duration, np.inf).min(axis=1)
    # One unit covers the rounding of the floating-point sums.
    return int(least.sum()) - 1, rate


@callee("i8[::1](i8[:, ::1], f8[::1])")
def _longest_chain(ancestors: IntArray, duration: FloatArray) -> IntArray:
    """Give the operators of the longest path, the last one first."""
    count = len(duration)
    reach, previous = np.zeros(count), np.full(count, -1)
    for i in range(count):
        waiting = ancestors[i].copy()
        for j in range(i - 1, -1, -1):
            if in_set(waiting, j):
                # A direct predecessor: those before it are none.
                for word in range(len(waiting)):
                    waiting[word] &= ~ancestors[j, word]
                if reach[j] >= reach[i] and reach[j] > 0.0:
                    reach[i], previous[i] = reach[j], j
        reach[i] += duration[i]
    chain = np.empty(count, dtype=np.int64)
    position, length = 0, 0
    for i in range(count):
        if reach[i] > reach[position]:
            position = i
    while position >= 0:
        chain[length] = position
        length += 1
        position = previous[position]
    return chain[:length]


@callee("Tuple((f8, f8[::1], f8[::1]))(f8[:, :, ::1], i8, f8[::1], b1[:, ::1])")
def _reweigh(
    cost: FloatArray, rows: int, weights: FloatArray, allowed: BoolArray
) -> tuple[float, FloatArray, FloatArray]:
    """Move weight towards the resources and chains with the largest load.

    Parameters
    ----------
    cost
        (resources and chains, operators, 2): duration × share.
    rows
        So many resources and chains are used.
    weights
        Of these, positive, with sum 1; the others have 0.
    allowed
        (operators, 2): of an `Instance`.

    Returns
    -------
    The best bound, its weights, and the share of steps in which each operator ran on all cores:
    (operators,).
    """
    operators = len(allowed)
    weights = weights.copy()
    best, best_weights = -1.0, weights.copy()
    mode, often = np.empty(operators, dtype=np.int64), np.zeros(operators)
    load = np.empty(rows)
    steps = 0
    for step in range(_STEPS_PER_CHAIN):
        steps = step + 1
        for i in range(operators):
            more_on_all = 0.0
            for row in range(rows):
                more_on_all += weights[row] * (cost[row, i, 1] - cost[row, i, 0])
            mode[i] = not allowed[i, 0] or (more_on_all < 0.0 and allowed[i, 1])
            often[i] += mode[i]
        value = 0.0
        for row in range(rows):
            load[row] = 0.0
            for i in range(operators):
                load[row] += cost[row, i, mode[i]]
            value += weights[row] * load[row]
        if value > best:
            best = value
            best_weights[:] = weights
        largest = least = load[0]
        for row in range(rows):
            largest, least = max(largest, load[row]), min(least, load[row])
        if largest <= least:
            break
        total = 0.0
        for row in range(rows):
            slack = (largest - load[row]) / (largest - least)
            weights[row] *= math.exp(-slack * _STEP / math.sqrt(step + 4.0))
            total += weights[row]
        for row in range(rows):
            weights[row] /= total
    for i in range(operators):
        often[i] /= steps
    return best, best_weights, often


@lazily_compiled("f8[:, ::1](f8[:, ::1], b1[:, ::1], f8[:, :, ::1], b1[:, ::1], i8[:, ::1])")
def mixed_rate(
    duration: FloatArray,
    allowed: BoolArray,
    share: FloatArray,
    alone: BoolArray,
    ancestors: IntArray,
) -> FloatArray:
    """Mix resources and chains.

    Parameters
    ----------
    duration, allowed : (operators, 2)
        Of an `Instance`.
    share : (operators, 2, resources)
        Of every resource that an operator takes.
    alone : (operators, 2)
        See `runs_alone`.
    ancestors
        Of an `Instance`.

    Returns
    -------
    rate : (operators, 2)
        Share of the mixture that each operator takes.
    """
    operators, _, resources = share.shape
    shares = np.empty((resources + _CHAINS, operators, 2))
    cost = np.empty_like(shares)
    weights, best_weights = np.zeros(len(shares)), np.zeros(len(shares))
    for row in range(resources):
        best_weights[row] = 1.0 / resources
        for i in range(operators):
            for mode in range(2):
                shares[row, i, mode] = share[i, mode, row]
                cost[row, i, mode] = share[i, mode, row] * duration[i, mode]
    best = -1.0
    intra = np.zeros(operators)
    for i in range(operators):
        faster = duration[i, 1] < duration[i, 0] or not allowed[i, 0]
        intra[i] = faster and allowed[i, 1]
    through = np.empty(operators)
    for rows in range(resources, resources + _CHAINS):
        for i in range(operators):
            on_one = 0.0 if alone[i, 0] else duration[i, 0]
            on_all = 0.0 if alone[i, 1] else duration[i, 1]
            through[i] = (1.0 - intra[i]) * on_one + intra[i] * on_all
        for i in range(operators):
            for mode in range(2):
                shares[rows, i, mode] = alone[i, mode]
        for i in _longest_chain(ancestors, through):
            shares[rows, i, 0] = shares[rows, i, 1] = 1.0
        if _is_among(shares, rows):
            break
        for i in range(operators):
            for mode in range(2):
                cost[rows, i, mode] = shares[rows, i, mode] * duration[i, mode]
        for row in range(rows):
            weights[row] = best_weights[row] * (1.0 - _NEW_CHAIN_WEIGHT)
        weights[rows] = _NEW_CHAIN_WEIGHT
        value, new_weights, intra = _reweigh(cost, rows + 1, weights, allowed)
        if value > best:
            best, best_weights = value, new_weights
    rate = np.zeros((operators, 2))
    for row in range(len(shares)):
        if best_weights[row] > 0.0:
            for i in range(operators):
                for mode in range(2):
                    rate[i, mode] += best_weights[row] * shares[row, i, mode]
    return rate


@inlined
def _is_among(shares: FloatArray, row: int) -> bool:
    """Say whether a row equals one before it."""
    for other in range(row):
        equal = True
        for i in range(shares.shape[1]):
            for mode in range(2):
                equal = equal and shares[row, i, mode] == shares[other, i, mode]
        if equal:
            return True
    return False
