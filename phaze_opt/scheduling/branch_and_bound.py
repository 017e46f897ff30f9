"""Exact search: passes of growing width, until one drops no state or the effort is spent.

A pass goes once through all layers of states (`search_kernel`). If it drops no state because of its
width, it is exact; otherwise it is a beam search, which improves the best plan known and still
proves a bound. Two narrow passes end nearly all searches.

On random layer-like graphs of 42 operators, 3 to 6 wide, this search proved in 1 to 200 ms optima
that CP-SAT (ortools 9.15, one worker, hint from the list schedule) left open after 2 to 5 s;
therefore CP-SAT (`cp_sat_modes`) is asked only where this search leaves a gap.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled, load
from phaze_opt.scheduling.bounds import Bounds, mixed_bound
from phaze_opt.scheduling.instance import (
    Instance,
    Plan,
    proving_bound,
    within_proof,
)
from phaze_opt.scheduling.search_arrays import least_costs, search_arrays
from phaze_opt.scheduling.search_kernel import SEARCH_ARRAYS_TYPE, SearchArrays, expand_all
from phaze_opt.scheduling.search_states import (
    ANCESTORS,
    CODE,
    DURATION,
    LAST,
    LISTS,
    OPENING,
    SETS,
)

_FIRST_WIDTH, _SECOND_WIDTH, _GROWTH, _LAST_WIDTH = 16, 2**10, 8, 2**15
"""Widths of the passes: the first pass finds a good plan, the second is exact for most layers, and
each later one is ``_GROWTH`` times as wide as the one before. The last width limits the memory to
100 MB."""

_EFFORT_PER_STATE = 3
"""Effort for a state that a wide pass keeps, with its comparisons."""

_UNLIMITED = 1 << 62
"""Effort of a pass whose width is chosen to suit it."""

_NARROW_PASSES = 2
"""Passes without the mixed bound: in the second, it leaves out no more than it costs."""


def load_search() -> None:
    """Load the compiled code of the search, or compile it."""
    load(search_arrays, run_pass)


def improve_wide(
    instance: Instance, bounds: Bounds, incumbent: Plan, effort: int, width: int
) -> tuple[Plan, int]:
    """Search for the shortest plan of what `narrow_passes` leave open.

    Parameters
    ----------
    instance
        The operators to schedule.
    bounds, incumbent
        Lower bounds of the instance, and the best plan known.
    effort
        Largest number of states to expand.
    width
        Of the next pass, 0 for no other pass.

    Returns
    -------
    The best plan known, and a lower bound on the makespan in time units.
    """
    best, lower = incumbent, bounds.makespan
    if not width or lower >= proving_bound(best.makespan):
        return best, lower
    bound, mixed_rate = mixed_bound(instance)
    lower = max(lower, bound)
    arrays, at_once = _with_prices(instance, bounds, mixed_rate)
    while width and lower < proving_bound(best.makespan):
        best, lower, expanded = _wide_pass(arrays, at_once, width, effort, best, lower)
        effort -= expanded
        width = next_width(width, effort, instance.size)
    return best, lower


def improve_with_prices(
    instance: Instance, bounds: Bounds, prices: FloatArray, incumbent: Plan, effort: int
) -> tuple[Plan, int]:
    """Search for a shorter plan with the prices of `set_bound`: two passes that keep their width.

    The bounds of states are then much closer to what is reached from them, so that far better ones
    are kept: on wide graphs the plans are up to a tenth shorter than those of `improve_wide`.

    Parameters
    ----------
    instance, bounds, incumbent, effort
        See `improve_wide`.
    prices : (operators, 2)
        No set of operators that may run at one time costs more than 1.

    Returns
    -------
    See `improve_wide`.
    """
    best, lower = incumbent, bounds.makespan
    arrays, at_once = _with_prices(instance, bounds, prices)
    width = min(effort // (_EFFORT_PER_STATE * instance.size), _LAST_WIDTH)
    for narrower in (_GROWTH, 1):
        if lower < proving_bound(best.makespan):
            last = max(_FIRST_WIDTH, width // narrower)
            best, lower, _ = _wide_pass(arrays, at_once, last, _UNLIMITED, best, lower)
    return best, lower


def _with_prices(
    instance: Instance, bounds: Bounds, prices: FloatArray
) -> tuple[SearchArrays, int]:
    """Return what `run_pass` takes, with a further bound: prices (operators, 2) of all modes."""
    (operators, demand, capacity, rate, _), at_once = search_arrays(*instance.arrays, bounds.tail)
    rate = np.concatenate([rate, prices.reshape(1, -1)])
    return (operators, demand, capacity, rate, least_costs(operators, rate)), at_once


def _wide_pass(
    arrays: SearchArrays, at_once: int, width: int, effort: int, best: Plan, lower: int
) -> tuple[Plan, int, int]:
    """Return the best plan and the lower bound known after a pass, and the states it expanded."""
    upper = proving_bound(best.makespan)
    makespan, dropped, expanded, plan = run_pass(arrays, at_once, width, upper, effort)
    if makespan < upper:
        best = Plan.of(plan, makespan)
    return best, max(lower, min(makespan, dropped)), expanded


def next_width(width: int, effort: int, size: int) -> int:
    """Give the width of the next pass over so many operators, 0 for no other pass."""
    wider = min(max(width * _GROWTH, _SECOND_WIDTH), effort // size, _LAST_WIDTH)
    return wider if wider >= 2 * width else 0


_next_width = inlined(next_width)


@lazily_compiled(
    f"Tuple((i8[:, ::1], i8, i8, i8, i8))({SEARCH_ARRAYS_TYPE}, i8, i8[:, ::1], i8, i8, i8)"
)
def narrow_passes(
    arrays: SearchArrays, at_once: int, plan: IntArray, makespan: int, bound: int, effort: int
) -> tuple[IntArray, int, int, int, int]:
    """Make the passes that take no mixed bound.

    Parameters
    ----------
    arrays, at_once
        See `run_pass`.
    plan, makespan
        The best plan known: (operators, 2), start and mode; and how long it takes.
    bound
        Lower bound of the makespan.
    effort
        Largest number of states to expand; the first pass is always made.

    Returns
    -------
    Plan, makespan and bound that are known then; the effort that is left; and the width of the next
    pass, 0 for none.
    """
    width = _FIRST_WIDTH
    for _ in range(_NARROW_PASSES):
        upper = within_proof(makespan)
        if width > 0 and bound < upper:
            least, dropped, expanded, better = run_pass(arrays, at_once, width, upper, effort)
            if least < upper:
                plan, makespan = better, least
            bound = max(bound, min(least, dropped))
            effort -= expanded
            width = _next_width(width, effort, len(plan))
    return plan, makespan, bound, effort, width


@lazily_compiled(f"Tuple((i8, i8, i8, i8[:, ::1]))({SEARCH_ARRAYS_TYPE}, i8, i8, i8, i8)")
def run_pass(
    arrays: SearchArrays, at_once: int, width: int, upper: int, effort: int
) -> tuple[int, int, int, IntArray]:
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

    Returns
    -------
    The makespan of the shortest plan found (or ``upper``); the least bound among the states dropped
    because of the width (or `NEVER`); the number of states expanded (with `COMPARISONS_PER_STATE`
    comparisons between states counted as one); start and mode of every operator in that plan, if
    there is any.
    """
    operators, _, capacity, _, least = arrays
    n, room = len(operators), 8 * width
    words = (operators.shape[1] - ANCESTORS) // SETS
    rest = LISTS + 2 * at_once
    # The first state has no operator started.
    layers = np.empty((2, room, rest + least.shape[0] + words), dtype=np.int64)
    layers[0, 0, :] = 0
    for f in range(least.shape[0]):
        for i in range(n):
            layers[0, 0, rest + f] += least[f, i]
    layers[0, 0, OPENING] = 1
    layers[0, 0, CODE] = -1
    slots = 2
    while slots < 2 * room:
        slots *= 2
    scratch = (
        np.empty(slots, dtype=np.int64),
        np.empty(room, dtype=np.int64),
        np.empty((at_once + 1, len(capacity)), dtype=np.int64),
        np.empty((2 * n, 2), dtype=np.int64),
        np.empty((n, 2), dtype=np.int64),
    )
    trail = np.empty((n * width, 3), dtype=np.int64)
    first = np.empty(n + 1, dtype=np.int64)
    upper, dropped, expanded, layer, state = expand_all(
        arrays, at_once, layers, width, upper, effort, trail, first, scratch
    )
    plan = np.full((n, 2), -1, dtype=np.int64)
    _read_plan(trail, first, layer, state, operators, plan)
    return upper, dropped, expanded, plan


@inlined
def _read_plan(
    trail: IntArray,
    first: IntArray,
    layer: int,
    state: int,
    operators: IntArray,
    plan: IntArray,
) -> None:
    """Write start and mode of all operators, walking back from the last state of a plan.

    Operators that the state has not started run after the others, one after another.

    Parameters
    ----------
    trail
        (states, 3): parent, code and start of every state kept.
    first
        Row of the first state of each layer.
    layer, state
        The layer of the state, -1 for no plan, and its place there.
    operators
        Rows of operators, see `search_states`.
    plan : (operators, 2)
        Holds -1.
    """
    now = 0
    for before in range(layer - 1, -1, -1):
        row = first[before] + state
        code, start = trail[row, 1], trail[row, 2]
        plan[code >> 1, 0] = start
        plan[code >> 1, 1] = code & 1
        now = max(now, start + operators[code >> 1, DURATION + (code & 1)])
        state = trail[row, 0]
    if layer >= 0:
        for i in range(len(operators)):
            if plan[i, 0] < 0:
                mode = operators[i, LAST]
                plan[i, 0] = now
                plan[i, 1] = mode
                now += operators[i, DURATION + mode]
