"""Lower bounds on the makespan.

Let operator i take ``p[i][m]`` time units in mode m, and a share ``u[i][m][r]`` of resource r
while it runs. For weights ``w >= 0`` that add up to 1 over the resources, no schedule is shorter
than ``sum over i of min over m of p[i][m] * (sum over r of w[r] * u[i][m][r])``, because at every
instant the weighted use of all resources is at most 1. A chain of the precedence graph is a
resource too: of its operators and of those that run alone, one runs at a time and takes all of it.
So this formula gives the critical path, the work of every resource, and every mixture of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
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
    duration = instance.duration.astype(np.float64)
    forbidden = np.where(instance.allowed, 0.0, np.inf)
    share = instance.demand / instance.capacity
    alone = runs_alone(instance.allowed, instance.demand, instance.capacity)
    shares = list(np.moveaxis(share, 2, 0))
    weights = np.full(len(shares), 1.0 / len(shares))
    best, best_weights = -1.0, weights
    intra = ((duration + forbidden).argmin(axis=1) == 1).astype(np.float64)
    for _ in range(_CHAINS):
        chosen = np.where(alone, 0.0, duration)
        through = (1 - intra) * chosen[:, 0] + intra * chosen[:, 1]
        chain = _longest_chain(instance.ancestors, through)
        row: FloatArray = alone.astype(np.float64)
        row[chain] = 1.0
        if any(np.array_equal(row, known) for known in shares):
            break
        shares.append(row)
        weights = np.append(best_weights * (1.0 - _NEW_CHAIN_WEIGHT), _NEW_CHAIN_WEIGHT)
        value, weights, intra = _reweigh(np.array(shares) * duration, weights, forbidden)
        if value > best:
            best, best_weights = value, weights
        else:
            best_weights = np.append(best_weights, 0.0)
    rate = np.tensordot(best_weights, np.array(shares[: len(best_weights)]), axes=1)
    # One unit covers the rounding of the floating-point sums.
    return int((rate * duration + forbidden).min(axis=1).sum()) - 1, rate


def _reweigh(
    cost: FloatArray, weights: FloatArray, forbidden: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Move weight towards the resources and chains with the largest load.

    Parameters
    ----------
    cost
        (resources and chains, operators, 2): duration × share.
    weights
        (resources and chains,), positive, with sum 1.
    forbidden
        (operators, 2): infinity for modes that are not allowed, else 0.

    Returns
    -------
    The best bound, its weights, and the share of steps in which each operator ran on all cores:
    (operators,).
    """
    best, best_weights = -1.0, weights
    often = np.zeros(cost.shape[1])
    on_one = np.ascontiguousarray(cost[:, :, 0])
    more_on_all = cost[:, :, 1] - on_one
    load_on_one = on_one.sum(axis=1)
    only_one, only_all = forbidden[:, 1] > 0.0, forbidden[:, 0] > 0.0
    for step in range(_STEPS_PER_CHAIN):
        on_all = weights @ more_on_all < 0.0
        on_all = ((on_all & ~only_one) | only_all).astype(np.float64)
        load = load_on_one + more_on_all @ on_all
        value = float(weights @ load)
        if value > best:
            best, best_weights = value, weights
        often += on_all
        slack = load.max() - load
        if slack.max() <= 0.0:
            break
        weights = weights * np.exp(-slack / slack.max() * _STEP / np.sqrt(step + 4.0))
        weights = weights / weights.sum()
    return best, best_weights, often / (step + 1)


@lazily_compiled("i8[::1](i8[:, ::1], f8[::1])")
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
