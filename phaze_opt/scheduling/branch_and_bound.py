"""Exact search: passes of growing width, until one drops no state or the effort is spent.

A pass goes once through all layers of states (`search_kernel`). If it drops no state because of its
width, it is exact; otherwise it is a beam search, which improves the best plan known and still
proves a bound. On random layer-like graphs of 42 operators, 3 to 6 wide, this search proved in 1 to
200 ms optima that CP-SAT (ortools 9.15, one worker, hint from the list schedule) left open after 2
to 5 s; therefore CP-SAT (`cp_sat_modes`) is asked only where this search leaves a gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled, load
from phaze_opt.scheduling.bounds import Bounds, mixed_bound, runs_alone
from phaze_opt.scheduling.instance import INTRA, SINGLE, Instance, Plan, in_set, proving_bound
from phaze_opt.scheduling.search_kernel import Scratch, SearchArrays, expand_all
from phaze_opt.scheduling.search_states import (
    ANCESTORS,
    BELOW,
    CODE,
    DURATION,
    FIRST,
    LAST,
    LISTS,
    OPENING,
    SHORTEST,
    TWIN,
)

_FIRST_WIDTH, _SECOND_WIDTH, _GROWTH, _LAST_WIDTH = 16, 2**10, 8, 2**15
"""Widths of the passes: the first pass finds a good plan, the second is exact for most layers, and
each later one is ``_GROWTH`` times as wide as the one before. The last width limits the memory to
100 MB."""

_CHEAP_PASSES = 2
"""Passes without the mixed bound, which takes a few milliseconds."""


def load_search() -> None:
    """Load the compiled code of the search, or compile it."""
    load(runs_alone, _operator_rows, _most_at_once)


def improve(instance: Instance, bounds: Bounds, incumbent: Plan, effort: int) -> tuple[Plan, int]:
    """Search for the shortest plan.

    Parameters
    ----------
    instance
        The operators to schedule.
    bounds
        Lower bounds of the instance.
    incumbent
        The best plan known.
    effort
        Largest number of states to expand; the first pass is always made.

    Returns
    -------
    The best plan known, and a lower bound on the makespan in time units.
    """
    alone = runs_alone(instance.allowed, instance.demand, instance.capacity)
    operators = _operator_rows(
        instance.duration,
        instance.allowed,
        instance.demand,
        instance.ancestors,
        instance.descendants,
        alone,
        bounds.tail,
    )
    rate = (instance.demand / instance.capacity).reshape(2 * instance.size, -1).T.copy()
    least = _least_costs(operators, rate)
    demand, capacity = _concurrent_resources(instance, alone)
    at_once = _most_at_once(instance.ancestors)
    best, lower, width, passes = incumbent, bounds.makespan, _FIRST_WIDTH, 0
    while lower < proving_bound(best.makespan):
        if passes == _CHEAP_PASSES:
            bound, mixed_rate = mixed_bound(instance)
            lower = max(lower, bound)
            rate = np.concatenate([rate, mixed_rate.reshape(1, -1)])
            least = _least_costs(operators, rate)
        table = np.zeros((instance.size, 2), dtype=np.int64)
        upper = proving_bound(best.makespan)
        makespan, dropped, expanded = _run_pass(
            (operators, demand, capacity, rate, least), at_once, width, upper, effort, table
        )
        if makespan < upper:
            start, mode = table.T.tolist()
            best = Plan(tuple(start), tuple(mode), makespan)
        lower = max(lower, min(makespan, dropped))
        effort -= expanded
        passes += 1
        wider = max(width * _GROWTH, _SECOND_WIDTH)
        wider = min(wider, effort // instance.size, _LAST_WIDTH)
        if wider < 2 * width:
            break
        width = wider
    return best, lower


def _run_pass(
    arrays: SearchArrays, at_once: int, width: int, upper: int, effort: int, plan: IntArray
) -> tuple[int, int, int]:
    """Go once through all layers of states.

    Parameters
    ----------
    arrays
        The operators to schedule.
    at_once
        Upper bound on the number of operators that run at the same time.
    width
        States kept in each layer.
    upper
        Makespan in time units; only shorter plans are searched.
    effort
        States to expand; after that many, the pass goes on with a narrow width.
    plan
        (operators, 2): receives start and mode of the shortest plan found, if any.

    Returns
    -------
    Makespan of that plan (or ``upper``), least bound among the states dropped because of the width
    (or `NEVER`), number of states expanded (with `COMPARISONS_PER_STATE` comparisons between states
    counted as one).
    """
    n = len(arrays[0])
    layers = _first_layer(arrays, at_once, 8 * width)
    trail = np.empty((n * width, 3), dtype=np.int64)
    first = np.empty(n + 1, dtype=np.int64)
    scratch = _allocate_scratch(arrays, at_once, layers.shape[1])
    upper, dropped, expanded, layer, state = expand_all(
        arrays, at_once, layers, width, upper, effort, trail, first, scratch
    )
    if layer >= 0:
        plan[:] = _read_plan(trail, first[:layer].tolist(), state, arrays[0])
    return upper, dropped, expanded


def _first_layer(arrays: SearchArrays, at_once: int, room: int) -> IntArray:
    """Allocate two layers of ``room`` states each; the first state has no operator started."""
    operators, *_, least = arrays
    rest = LISTS + 2 * at_once
    columns = rest + least.shape[0] + operators.shape[1] - ANCESTORS
    layers = np.empty((2, room, columns), dtype=np.int64)
    layers[0, 0] = 0
    layers[0, 0, rest : rest + least.shape[0]] = least.sum(axis=1)
    layers[0, 0, [OPENING, CODE]] = 1, -1
    return layers


def _allocate_scratch(arrays: SearchArrays, at_once: int, room: int) -> Scratch:
    """Allocate the working arrays of the kernel."""
    n = len(arrays[0])
    return (
        np.empty(2 << (room - 1).bit_length(), dtype=np.int64),
        np.empty(room, dtype=np.int64),
        np.empty((at_once + 1, len(arrays[2])), dtype=np.int64),
        np.empty((2 * n, 2), dtype=np.int64),
        np.empty((n, 2), dtype=np.int64),
    )


def _read_plan(trail: IntArray, first: Sequence[int], state: int, operators: IntArray) -> IntArray:
    """Give start and mode of all operators, walking back from the last state of the shortest plan.

    Operators that the state has not started run after the others, one after another.

    Parameters
    ----------
    trail
        (states, 3): parent, code and start of every state kept.
    first
        Row of the first state of each layer, up to the layer of the state.
    state
        Place of the state in its layer.
    operators
        Rows of operators, see `search_states`.
    """
    plan = np.full((len(operators), 2), -1, dtype=np.int64)
    now = 0
    for row in reversed(first):
        state, code, start = trail[row + state].tolist()
        plan[code >> 1] = start, code & 1
        now = max(now, start + int(operators[code >> 1, DURATION + (code & 1)]))
    for i in np.flatnonzero(plan[:, 0] < 0).tolist():
        mode = int(operators[i, LAST])
        plan[i] = now, mode
        now += int(operators[i, DURATION + mode])
    return plan


def _concurrent_resources(instance: Instance, alone: BoolArray) -> tuple[IntArray, IntArray]:
    """Keep the resources that can bind while several operators run, and mark who runs alone.

    An operator in a mode that runs alone needs no comparison of resources: one more column of the
    demand marks it.
    """
    beside = instance.demand * (instance.allowed & ~alone)[:, :, np.newaxis]
    binding = beside.max(axis=1).sum(axis=0) > instance.capacity
    marked = np.concatenate([instance.demand[:, :, binding], alone[:, :, np.newaxis]], axis=2)
    marked = np.ascontiguousarray(marked.reshape(2 * instance.size, -1))
    return marked, instance.capacity[binding]


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


def _least_costs(operators: IntArray, rate: FloatArray) -> IntArray:
    """Give rate × duration in the cheaper mode, rounded down: (bounds, operators)."""
    durations = operators[:, :2].reshape(-1)
    cost = np.where(durations >= 0, np.floor(rate * durations), np.inf)
    least: IntArray = cost.reshape(len(rate), -1, 2).min(axis=2).astype(np.int64)
    return least


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
