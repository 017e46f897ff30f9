"""What the exact search takes of the operators to schedule: rows of integers, rates and costs.

Operator j *goes before* i in a mode where a plan that starts i in this mode, while j could start as
early, is no shorter than some plan that starts j. That is so if both have the same durations and
demands, and every operator after i is also after j. Let i start at s and j at t ≥ s; exchange their
starts and modes:

- The resources in use are what they were, and what j waits for has ended by s.
- What is after both waits for both ends, which are the same two.
- What is after j alone waited for the end of j, at t or later. If the mode of i is the shorter one,
  j now ends no later.

If the same operators are after both, the one with the lower number goes before the other, in each
mode; so none go before one another in a circle. Modes that run first or last have rules of their
own (`search_kernel`): in these, operators are exchanged only if nothing differs.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.scheduling.bounds import runs_alone
from phaze_opt.scheduling.instance import INTRA, SINGLE, add_to_set, in_set
from phaze_opt.scheduling.reduction import INSTANCE_TYPE
from phaze_opt.scheduling.search_kernel import SEARCH_ARRAYS_TYPE, SearchArrays
from phaze_opt.scheduling.search_states import (
    ANCESTORS,
    BELOW,
    DURATION,
    FIRST,
    LAST,
    SETS,
    SHORTEST,
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
def _are_equal(values: IntArray | BoolArray, other: IntArray | BoolArray) -> bool:
    """Whether two rows of one length hold the same."""
    same = True
    for place in range(len(values)):
        same = same and values[place] == other[place]
    return same


@inlined
def _is_within(words: IntArray, others: IntArray) -> bool:
    """Whether a set is part of another one."""
    outside = 0
    for place in range(len(words)):
        outside |= words[place] & ~others[place]
    return outside == 0


@inlined
def _may_exchange(row: IntArray, other: IntArray, mode: int, same_after: bool) -> bool:
    """Whether an operator in a mode may be exchanged with another one that differs from it."""
    ruled = row[LAST] != other[LAST] or row[FIRST] != other[FIRST]
    ruled = ruled or mode == row[LAST] or mode == row[FIRST]
    return not ruled and (same_after or row[DURATION + mode] == row[SHORTEST])


@inlined
def _write_orders(
    rows: IntArray,
    duration: IntArray,
    allowed: BoolArray,
    demand: IntArray,
    ancestors: IntArray,
    descendants: IntArray,
) -> None:
    """Write into the row of every operator which others go before it, in each mode."""
    words = ancestors.shape[1]
    for i in range(len(rows)):
        for j in range(len(rows)):
            if (
                i == j
                or not _are_equal(duration[i], duration[j])
                or not _are_equal(allowed[i], allowed[j])
                or not _are_equal(demand[i, INTRA], demand[j, INTRA])
                or not _are_equal(demand[i, SINGLE], demand[j, SINGLE])
                or not _is_within(descendants[i], descendants[j])
            ):
                continue
            same_after = _are_equal(descendants[i], descendants[j])
            if same_after and i < j:
                continue
            nothing_differs = same_after and _are_equal(ancestors[i], ancestors[j])
            for mode in (SINGLE, INTRA):
                if nothing_differs or _may_exchange(rows[i], rows[j], mode, same_after):
                    add_to_set(rows[i, ANCESTORS + (1 + mode) * words :], j)


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
    words = ancestors.shape[1]
    rows = np.zeros((len(duration), ANCESTORS + SETS * words), dtype=np.int64)
    for i in range(len(rows)):
        rows[i, SHORTEST] = max(duration[i, INTRA], duration[i, SINGLE])
        rows[i, LAST] = rows[i, FIRST] = -1
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
        rows[i, ANCESTORS : ANCESTORS + words] = ancestors[i]
    _write_orders(rows, duration, allowed, demand, ancestors, descendants)
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
