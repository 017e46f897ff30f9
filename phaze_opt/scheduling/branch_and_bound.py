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

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.scheduling.bounds import Bounds, mixed_bound
from phaze_opt.scheduling.instance import INTRA, SINGLE, Instance, Plan, proving_bound
from phaze_opt.scheduling.search_kernel import Scratch, SearchArrays, expand_all
from phaze_opt.scheduling.search_states import ANCESTORS, CODE, DURATION, LAST, LISTS, OPENING

_FIRST_WIDTH, _SECOND_WIDTH, _GROWTH, _LAST_WIDTH = 16, 2**10, 8, 2**15
"""Widths of the passes: the first pass finds a good plan, the second is exact for most layers, and
each later one is ``_GROWTH`` times as wide as the one before. The last width limits the memory to
100 MB."""

_CHEAP_PASSES = 2
"""Passes without the mixed bound, which takes a few milliseconds."""

_WORD = 64


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
    operators = _operator_rows(instance, bounds)
    demand = np.array(instance.demand, dtype=np.int64).reshape(2 * instance.size, -1)
    capacity = np.array(instance.capacity, dtype=np.int64)
    rate = np.ascontiguousarray((demand / capacity).T)
    least = _least_costs(operators, rate)
    demand, capacity = _concurrent_resources(instance, demand, capacity)
    at_once = _most_at_once(instance)
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


def _concurrent_resources(
    instance: Instance, demand: IntArray, capacity: IntArray
) -> tuple[IntArray, IntArray]:
    """Keep the resources that can bind while several operators run, and mark who runs alone.

    An operator in a mode that runs alone needs no comparison of resources: one more column of the
    demand marks it.
    """
    alone = np.array(instance.runs_alone).reshape(-1)
    used = np.array([mode in modes for modes in instance.modes for mode in (SINGLE, INTRA)])
    beside = np.where((used & ~alone)[:, np.newaxis], demand, 0)
    most = beside.reshape(instance.size, 2, -1).max(axis=1).sum(axis=0)
    binding = most > capacity
    marked = np.ascontiguousarray(np.column_stack([demand[:, binding], alone]))
    return marked, capacity[binding]


def _operator_rows(instance: Instance, bounds: Bounds) -> IntArray:
    """Write the operators as rows of the kernel, with the columns of `search_states`."""
    words = -(-instance.size // _WORD)
    seen: dict[tuple[object, ...], int] = {}
    rows = []
    for i, modes in enumerate(instance.modes):
        traits = (
            instance.duration[i],
            instance.demand[i],
            modes,
            instance.ancestors[i],
            instance.descendants[i],
        )
        alone = [mode for mode in modes if instance.runs_alone[i][mode]]
        last = alone[0] if alone and not instance.descendants[i] else -1
        first = alone[0] if alone and not instance.ancestors[i] and last < 0 else -1
        shortest = instance.least_duration(i)
        durations = [
            instance.duration[i][mode] if mode in modes else -1 for mode in (SINGLE, INTRA)
        ]
        set_bytes = instance.ancestors[i].to_bytes(words * _WORD // 8, "little")
        ancestors = np.frombuffer(set_bytes, dtype="<i8").tolist()
        rows.append(
            [
                *durations,
                bounds.tail[i] - shortest,
                shortest,
                seen.get(traits, -1),
                last,
                first,
                *ancestors,
            ]
        )
        seen[traits] = i
    return np.array(rows, dtype=np.int64)


def _least_costs(operators: IntArray, rate: FloatArray) -> IntArray:
    """Give rate × duration in the cheaper mode, rounded down: (bounds, operators)."""
    durations = operators[:, :2].reshape(-1)
    cost = np.where(durations >= 0, np.floor(rate * durations), np.inf)
    least: IntArray = cost.reshape(len(rate), -1, 2).min(axis=2).astype(np.int64)
    return least


def _most_at_once(instance: Instance) -> int:
    """Bound how many operators run at once, by a greedy cover with chains (Dilworth, 1950)."""
    ends: list[int] = []
    for i, ancestors in enumerate(instance.ancestors):
        for chain, end in enumerate(ends):
            if ancestors >> end & 1:
                ends[chain] = i
                break
        else:
            ends.append(i)
    return len(ends)
