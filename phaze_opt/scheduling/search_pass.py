"""One pass of the exact search: layer by layer through the states that the kernel expands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.scheduling.search_kernel import Problem, Scratch, expand_all
from phaze_opt.scheduling.search_states import ANCESTORS, CODE, DURATION, LAST, LISTS, OPENING


def search(
    problem: Problem, lanes: int, width: int, upper: int, effort: int, plan: IntArray
) -> tuple[int, int, int]:
    """Go once through all layers.

    Parameters
    ----------
    problem
        What to schedule, see `Problem`.
    lanes
        At most so many operators run at once.
    width
        States kept in each layer.
    upper
        Only schedules shorter than this matter.
    effort
        When so many states have been expanded, the rest is searched narrowly.
    plan
        (n, 2): receives start and mode of the shortest schedule found, if any.

    Returns
    -------
    Makespan of that schedule (or ``upper``), least bound dropped (or `NEVER`), states expanded
    (including comparisons between states, at a rate of `COMPARISONS_PER_STATE`).
    """
    n = len(problem[0])
    layers = _first_layer(problem, lanes, 8 * width)
    trail = np.empty((n * width, 3), dtype=np.int64)
    first = np.empty(n + 1, dtype=np.int64)
    scratch = _allocate_scratch(problem, lanes, layers.shape[1])
    upper, dropped, expanded, layer, state = expand_all(
        problem, lanes, layers, width, upper, effort, trail, first, scratch
    )
    if layer >= 0:
        plan[:] = _trace_back(trail, first[:layer].tolist(), state, problem[0])
    return upper, dropped, expanded


def _first_layer(problem: Problem, lanes: int, room: int) -> IntArray:
    """Give two layers with room for so many states; the first holds the empty schedule."""
    operators, *_, least = problem
    rest = LISTS + 2 * lanes
    columns = rest + least.shape[0] + operators.shape[1] - ANCESTORS
    layers = np.empty((2, room, columns), dtype=np.int64)
    layers[0, 0] = 0
    layers[0, 0, rest : rest + least.shape[0]] = least.sum(axis=1)
    layers[0, 0, [OPENING, CODE]] = 1, -1
    return layers


def _allocate_scratch(problem: Problem, lanes: int, room: int) -> Scratch:
    """Allocate what the kernel works on."""
    n = len(problem[0])
    return (
        np.empty(2 << (room - 1).bit_length(), dtype=np.int64),
        np.empty(room, dtype=np.int64),
        np.empty((lanes + 1, len(problem[2])), dtype=np.int64),
        np.empty((2 * n, 2), dtype=np.int64),
        np.empty((n, 2), dtype=np.int64),
    )


def _trace_back(trail: IntArray, first: Sequence[int], state: int, operators: IntArray) -> IntArray:
    """Give start and mode of all operators: what led to a state, and then what comes last.

    Parameters
    ----------
    trail
        (states, 3): parent, code and start of every state kept.
    first
        Row of the first state of each layer up to that of the state.
    state
        Its place in its layer.
    operators
        See `search_states`.
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
