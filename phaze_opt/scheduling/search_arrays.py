"""What the exact search takes of the operators to schedule: rows of integers, rates and costs."""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.scheduling.bounds import runs_alone
from phaze_opt.scheduling.instance import INTRA, SINGLE, in_set
from phaze_opt.scheduling.reduction import INSTANCE_TYPE
from phaze_opt.scheduling.search_kernel import SEARCH_ARRAYS_TYPE, SearchArrays
from phaze_opt.scheduling.search_states import (
    ANCESTORS,
    BELOW,
    DURATION,
    FIRST,
    LAST,
    SHORTEST,
    TWIN,
)


@lazily_compiled(f"Tuple(({SEARCH_ARRAYS_TYPE}, i8))({INSTANCE_TYPE}, i8[::1])")
def search_arrays(
    duration: IntArray,
    allowed: BoolArray,
    demand: IntArray,
    capacity: IntArray,
    ancestors: IntArray,
    descendants: IntArray,
    tail: IntArray,
) -> tuple[SearchArrays, int]:
    """Write an `Instance` with its tails as the search takes it, and bound how many run at once."""
    n, resources = len(duration), len(capacity)
    alone = runs_alone(allowed, demand, capacity)
    operators = _operator_rows(duration, allowed, demand, ancestors, descendants, alone, tail)
    rate = np.empty((resources, 2 * n))
    binding = np.zeros(resources, dtype=np.bool_)
    count = 0
    for resource in range(resources):
        most = 0
        for i in range(n):
            beside = 0
            for mode in range(2):
                rate[resource, 2 * i + mode] = demand[i, mode, resource] / capacity[resource]
                if allowed[i, mode] and not alone[i, mode]:
                    beside = max(beside, demand[i, mode, resource])
            most += beside
        # Resources that can bind while several operators run. An operator in a mode that runs alone
        # needs no comparison of resources: one more column marks it.
        binding[resource] = most > capacity[resource]
        count += binding[resource]
    marked = np.empty((2 * n, count + 1), dtype=np.int64)
    fewer = np.empty(count, dtype=np.int64)
    place = 0
    for resource in range(resources):
        if binding[resource]:
            fewer[place] = capacity[resource]
            for code in range(2 * n):
                marked[code, place] = demand[code >> 1, code & 1, resource]
            place += 1
    for code in range(2 * n):
        marked[code, count] = alone[code >> 1, code & 1]
    arrays = (operators, marked, fewer, rate, least_costs(operators, rate))
    return arrays, _most_at_once(ancestors)


@lazily_compiled("i8[:, ::1](i8[:, ::1], f8[:, ::1])")
def least_costs(operators: IntArray, rate: FloatArray) -> IntArray:
    """Give rate × duration in the cheaper mode, rounded down: (bounds, operators)."""
    least = np.empty((len(rate), len(operators)), dtype=np.int64)
    for f in range(len(rate)):
        for i in range(len(operators)):
            cheaper = np.inf
            for mode in range(2):
                units = operators[i, DURATION + mode]
                if units >= 0:
                    cheaper = min(cheaper, np.floor(rate[f, 2 * i + mode] * units))
            least[f, i] = int(cheaper)
    return least


@inlined
def _is_empty(words: IntArray) -> bool:
    """Whether a set has no member."""
    members = 0
    for word in words:
        members |= word
    return members == 0


@inlined
def _are_equal(one: IntArray | BoolArray, other: IntArray | BoolArray) -> bool:
    """Whether two rows of one length hold the same."""
    same = True
    for place in range(len(one)):
        same = same and one[place] == other[place]
    return same


@lazily_compiled(
    "i8[:, ::1](i8[:, ::1], b1[:, ::1], i8[:, :, ::1], i8[:, ::1], i8[:, ::1], b1[:, ::1], i8[::1])"
)
def _operator_rows(
    duration: IntArray,
    allowed: BoolArray,
    demand: IntArray,
    ancestors: IntArray,
    descendants: IntArray,
    alone: BoolArray,
    tail: IntArray,
) -> IntArray:
    """Write the operators as rows of the kernel, with the columns of `search_states`."""
    rows = np.empty((len(duration), ANCESTORS + ancestors.shape[1]), dtype=np.int64)
    for i in range(len(rows)):
        rows[i, SHORTEST] = max(duration[i, INTRA], duration[i, SINGLE])
        rows[i, LAST] = rows[i, FIRST] = rows[i, TWIN] = -1
        for mode in (INTRA, SINGLE):
            rows[i, DURATION + mode] = -1
            if allowed[i, mode]:
                rows[i, DURATION + mode] = duration[i, mode]
                rows[i, SHORTEST] = min(rows[i, SHORTEST], duration[i, mode])
                if alone[i, mode] and _is_empty(descendants[i]):
                    rows[i, LAST] = mode
                elif alone[i, mode] and _is_empty(ancestors[i]):
                    rows[i, FIRST] = mode
        rows[i, BELOW] = tail[i] - rows[i, SHORTEST]
        rows[i, ANCESTORS:] = ancestors[i]
        for j in range(i - 1, -1, -1):
            if (
                _are_equal(duration[i], duration[j])
                and _are_equal(allowed[i], allowed[j])
                and _are_equal(demand[i, INTRA], demand[j, INTRA])
                and _are_equal(demand[i, SINGLE], demand[j, SINGLE])
                and _are_equal(ancestors[i], ancestors[j])
                and _are_equal(descendants[i], descendants[j])
            ):
                rows[i, TWIN] = j
                break
    return rows


@lazily_compiled("i8(i8[:, ::1])")
def _most_at_once(ancestors: IntArray) -> int:
    """Bound how many operators run at once, by a greedy cover with chains (Dilworth, 1950)."""
    ends = np.empty(len(ancestors), dtype=np.int64)
    chains = 0
    for i in range(len(ancestors)):
        chain = 0
        while chain < chains and not in_set(ancestors[i], ends[chain]):
            chain += 1
        ends[chain] = i
        chains = max(chains, chain + 1)
    return chains
