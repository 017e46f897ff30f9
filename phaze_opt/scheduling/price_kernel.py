"""The heaviest set of operators that may run together: the compiled loop of `set_bound`."""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.scheduling.instance import in_set

_PRECISION = 1.003
"""Sets that weigh no more than so many times the heaviest one found need not be seen."""

_NEAR, _LEAVES = 0.98, 10
"""Maximal sets that weigh so much of the heaviest one are written down, as many as this."""

_PRICE_STEPS, _PRICE_STEP = 12, 0.2
"""Updates of the prices of the resources in every search, and the length of the first one."""


@inlined
def _bound_rest(
    candidates: IntArray,
    chain: IntArray,
    weight: FloatArray,
    base: float,
    heaviest: FloatArray,
    rest: FloatArray,
) -> None:
    """Lower each candidate's bound to a base plus what the chains weigh from this candidate on.

    At most one operator of a chain is in a set, so that each counts with its heaviest candidate.
    """
    for place in range(len(candidates)):
        heaviest[chain[candidates[place] >> 1]] = 0.0
    total = base
    for place in range(len(candidates) - 1, -1, -1):
        code = candidates[place]
        more = weight[code >> 1, code & 1] - heaviest[chain[code >> 1]]
        if more > 0.0:
            total += more
            heaviest[chain[code >> 1]] += more
        rest[place] = min(rest[place], total)


@inlined
def _keep_beside(
    chosen: int,
    candidates: IntArray,
    related: IntArray,
    demand: IntArray,
    free: IntArray,
    kept: IntArray,
) -> int:
    """Write the candidates that may run beside a chosen one; return their number."""
    number = 0
    for place in range(len(candidates)):
        code = candidates[place]
        possible = not in_set(related[chosen >> 1], code >> 1)
        for resource in range(len(free)):
            possible = possible and demand[code >> 1, code & 1, resource] <= free[resource]
        if possible:
            kept[number] = code
            number += 1
    return number


@callee("f8[:, ::1](i8[::1], i8[::1], f8[:, ::1], f8[:, :, ::1], f8[::1])")
def _price_resources(
    candidates: IntArray, chain: IntArray, weight: FloatArray, share: FloatArray, price: FloatArray
) -> FloatArray:
    """Improve the prices of the resources by subgradient steps; return weights less prices.

    A set takes at most all of each resource. So the prices plus, for every chain, the largest
    weight less the price of what its operator takes bound every set.
    """
    best, least = price.copy(), np.inf
    net, top = np.zeros_like(weight), np.empty(chain.max() + 1, dtype=np.int64)
    for step in range(_PRICE_STEPS + 1):
        price[:] = price if step < _PRICE_STEPS else best
        top[:] = -1
        for code in candidates:
            net[code >> 1, code & 1] = weight[code >> 1, code & 1]
            for r in range(len(price)):
                net[code >> 1, code & 1] -= price[r] * share[code >> 1, code & 1, r]
            held, own = top[chain[code >> 1]], net[code >> 1, code & 1]
            if own > (net[held >> 1, held & 1] if held >= 0 else 0.0):
                top[chain[code >> 1]] = code
        bound, left = 0.0, np.ones(len(price))
        for r in range(len(price)):
            bound += price[r]
        for code in top:
            if code >= 0:
                bound += net[code >> 1, code & 1]
                left -= share[code >> 1, code & 1]
        if bound < least:
            least = bound
            best[:] = price
        for r in range(len(price)):
            if step < _PRICE_STEPS:
                price[r] = max(0.0, price[r] - left[r] * _PRICE_STEP / (step + 1.0))
    return net


@inlined
def _write_set(chosen: IntArray, length: int, row: IntArray) -> None:
    """Write the first so many of a list, and -1 behind them."""
    for place in range(len(row)):
        row[place] = chosen[place] if place < length else -1


@lazily_compiled(
    "Tuple((f8, i8[:, ::1], i8))(i8[::1], f8[:, ::1], i8[:, :, ::1], i8[::1], f8[:, :, ::1],"
    " i8[:, ::1], i8[::1], f8[::1], i8)"
)
def heaviest_set(
    candidates: IntArray,
    weight: FloatArray,
    demand: IntArray,
    capacity: IntArray,
    share: FloatArray,
    related: IntArray,
    chain: IntArray,
    price: FloatArray,
    most_nodes: int,
) -> tuple[float, IntArray, int]:
    """Find the set of operators that may run at one time whose weights have the largest sum.

    Parameters
    ----------
    candidates
        Twice the operator plus the mode, those of one chain one after another, the heaviest first.
    weight : (operators, 2)
        Of every operator in each mode.
    demand, capacity
        Of an `Instance`.
    share : (operators, 2, resources)
        Demand over capacity.
    related : (operators, words)
        Operators that do not run beside each one: itself, ancestors, descendants.
    chain : (operators,)
        Number of its chain.
    price : (resources,)
        First prices for the bounds of the search, not negative; holds better ones then.
    most_nodes
        Steps after which the search gives up.

    Returns
    -------
    An upper bound on the weight of all sets, close to that of the heaviest one unless the search
    gave up; the heaviest set found, as of ``candidates`` and ended by -1, and in further rows some
    that weigh nearly as much; and the steps done.
    """
    net = _price_resources(candidates, chain, weight, share, price)
    depth, width = chain.max() + 2, len(candidates)
    kept, count = np.empty((depth, width), dtype=np.int64), np.zeros(depth, dtype=np.int64)
    rest, place = np.zeros((depth, width + 1)), np.zeros(depth, dtype=np.int64)
    free = np.empty((depth, len(capacity)), dtype=np.int64)
    total, heaviest = np.zeros(depth), np.empty(depth)
    chosen, found = np.empty(depth, dtype=np.int64), np.full((1 + _LEAVES, depth), -1)
    kept[0], count[0], free[0] = candidates, width, capacity
    best, level, nodes, leaves, opened = 0.0, 0, 0, 0, True
    while level >= 0:
        if opened:
            base = 0.0
            for r in range(len(price)):
                base += price[r] * free[level, r] / capacity[r]
            own = kept[level, : count[level]]
            rest[level, : count[level]] = np.inf
            rest[level, count[level]] = 0.0
            _bound_rest(own, chain, weight, 0.0, heaviest, rest[level])
            _bound_rest(own, chain, net, base, heaviest, rest[level])
            place[level], opened = 0, False
        here = place[level]
        if total[level] + rest[level, here] <= best * _PRECISION:
            level -= 1
            continue
        nodes += 1
        if nodes > most_nodes:
            break
        code = kept[level, here]
        place[level], chosen[level] = here + 1, code
        total[level + 1] = total[level] + weight[code >> 1, code & 1]
        free[level + 1] = free[level] - demand[code >> 1, code & 1]
        if total[level + 1] > best:
            best = total[level + 1]
            _write_set(chosen, level + 1, found[0])
        left = kept[level, here + 1 : count[level]]
        level, opened = level + 1, True
        count[level] = _keep_beside(code, left, related, demand, free[level], kept[level])
        if count[level] == 0 and total[level] > _NEAR * best:
            _write_set(chosen, level, found[1 + leaves % _LEAVES])
            leaves += 1
    # Where the search gave up, what is left on every level bounds all that was not seen.
    upper = best * _PRECISION
    for open_level in range(level + 1):
        upper = max(upper, total[open_level] + rest[open_level, place[open_level]])
    return upper, found, nodes
