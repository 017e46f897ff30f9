"""Lower bounds on the makespan.

Let operator i take ``p[i][m]`` time units in mode m, and a share ``u[i][m][r]`` of resource r
while it runs. For weights ``w >= 0`` that add up to 1 over the resources, no schedule is shorter
than ``sum over i of min over m of p[i][m] * (sum over r of w[r] * u[i][m][r])``, because at every
instant the weighted use of all resources is at most 1. A chain of the precedence graph is a
resource too: of its operators and of those that run alone, one runs at a time and takes all of it.
So this formula gives the critical path, the work of every resource, and every mixture of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.scheduling.instance import Instance

_CHAINS = 8
"""Chains added to a mixture at most."""

_STEPS_PER_CHAIN = 60
"""Updates of the weights after each new chain."""

_NEW_CHAIN_WEIGHT = 0.2
"""Weight with which a new chain starts; the others share the rest."""

_STEP = 3.0
"""Length of the first update; later ones fall with the square root of their number."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of an instance that need no search, in time units.

    Attributes
    ----------
    makespan
        Lower bound on the makespan of every schedule.
    tail
        ``[operator]``: least time from the operator's start to the end of the schedule.
    """

    makespan: int
    tail: tuple[int, ...]


def root_bounds(instance: Instance) -> Bounds:
    """Bound the makespan from below by the critical path and by the work of every resource."""
    tail = tails(instance, [instance.least_duration(i) for i in range(instance.size)])
    work = [work_bound(instance, resource) for resource in range(len(instance.capacity))]
    return Bounds(max([*tail, *work]), tuple(tail))


def tails(instance: Instance, duration: Sequence[int]) -> list[int]:
    """Give the longest path from the start of each operator to the end of the schedule.

    Parameters
    ----------
    instance
        The precedences.
    duration
        Duration of each operator, in time units.
    """
    tail = list(duration)
    for i in range(instance.size - 1, -1, -1):
        tail[i] += max([tail[j] for j in instance.successors[i]], default=0)
    return tail


def drop_hopeless_modes(instance: Instance, upper: int) -> Instance:
    """Keep the modes in which the longest path through the operator is shorter than a makespan.

    Parameters
    ----------
    instance
        The operators to schedule.
    upper
        Makespan in time units. Only shorter schedules count: if some operator has no mode left,
        no schedule is shorter.
    """
    shortest = [instance.least_duration(i) for i in range(instance.size)]
    tail = tails(instance, shortest)
    modes = []
    head = [0] * instance.size
    for i, kept in enumerate(instance.modes):
        head[i] = max([head[j] + shortest[j] for j in instance.predecessors[i]], default=0)
        around = head[i] + tail[i] - shortest[i]
        modes.append(tuple([m for m in kept if around + instance.duration[i][m] < upper]))
    return replace(instance, modes=tuple(modes))


def work_bound(instance: Instance, resource: int) -> int:
    """Bound the makespan by one resource: the sum of duration × demand, divided by capacity.

    Each operator counts in the mode in which duration × demand is smaller.
    """
    work = 0
    for duration, demand, modes in zip(
        instance.duration, instance.demand, instance.modes, strict=True
    ):
        work += min([duration[mode] * demand[mode][resource] for mode in modes])
    return -(-work // instance.capacity[resource])


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
    duration = np.array(instance.duration, dtype=np.float64)
    forbidden = np.array(
        [[0.0 if m in kept else np.inf for m in (0, 1)] for kept in instance.modes]
    )
    demand = np.array(instance.demand, dtype=np.float64)
    share = demand / np.array(instance.capacity, dtype=np.float64)
    alone = np.array(instance.runs_alone)
    shares = list(np.moveaxis(share, 2, 0))
    weights = np.full(len(shares), 1.0 / len(shares))
    best, best_weights = -1.0, weights
    intra = ((duration + forbidden).argmin(axis=1) == 1).astype(np.float64)
    for _ in range(_CHAINS):
        chosen = np.where(alone, 0.0, duration)
        chain = _longest_chain(instance, (1 - intra) * chosen[:, 0] + intra * chosen[:, 1])
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


def _longest_chain(instance: Instance, duration: FloatArray) -> list[int]:
    """Give the operators of the longest path, the last one first."""
    reach = [0.0] * instance.size
    previous = [-1] * instance.size
    for i in range(instance.size):
        for j in sorted(instance.predecessors[i]):
            if reach[j] > reach[i]:
                reach[i], previous[i] = reach[j], j
        reach[i] += float(duration[i])
    position = max(range(instance.size), key=reach.__getitem__)
    chain = []
    while position >= 0:
        chain.append(position)
        position = previous[position]
    return chain
