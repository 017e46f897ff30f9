"""One pass of the exact search: layer by layer through the states that the kernel expands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.scheduling.search_kernel import Problem, Scratch, expand_layer
from phaze_opt.scheduling.search_states import (
    ANCESTORS,
    CODE,
    DURATION,
    LAST,
    LISTS,
    NEVER,
    NOW,
    OPENING,
    PARENT,
    IntArray,
)

NARROW = 16
"""Width of the search when the effort is spent."""

COMPARISONS_PER_STATE = 32
"""Comparing two states takes about this fraction of the time of expanding one."""


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
    states, children = _first_layer(problem, lanes, 8 * width)
    scratch = _allocate_scratch(problem, lanes, children)
    trail: list[IntArray] = []
    count, expanded, dropped = 1, 0, NEVER
    while count > 0:
        expanded += count
        filled, least_dropped, compared, upper, best = expand_layer(
            problem, lanes, states, count, children, width, upper, scratch
        )
        if best >= 0:
            plan[:] = _trace_back(trail, best, problem[0])
        states, children, count = children, states, filled
        trail.append(states[:count, [PARENT, CODE, NOW]])
        expanded += compared // COMPARISONS_PER_STATE
        if expanded >= effort:
            width = min(width, NARROW)
        dropped = min(dropped, least_dropped)
    return upper, dropped, expanded


def _first_layer(problem: Problem, lanes: int, room: int) -> tuple[IntArray, IntArray]:
    """Give the layer of the empty schedule, and room for another one."""
    operators, *_, least = problem
    rest = LISTS + 2 * lanes
    columns = rest + least.shape[0] + operators.shape[1] - ANCESTORS
    states, children = np.empty((2, room, columns), dtype=np.int64)
    states[0] = 0
    states[0, rest : rest + least.shape[0]] = least.sum(axis=1)
    states[0, [OPENING, CODE]] = 1, -1
    return states, children


def _allocate_scratch(problem: Problem, lanes: int, children: IntArray) -> Scratch:
    """Allocate what `expand_layer` works on."""
    n, room = len(problem[0]), len(children)
    return (
        np.empty(2 << (room - 1).bit_length(), dtype=np.int64),
        np.empty(room, dtype=np.int64),
        np.empty((lanes + 1, len(problem[2])), dtype=np.int64),
        np.empty((2 * n, 2), dtype=np.int64),
        np.empty((n, 2), dtype=np.int64),
    )


def _trace_back(trail: Sequence[IntArray], state: int, operators: IntArray) -> IntArray:
    """Give start and mode of all operators: what led to a state, and then what comes last."""
    plan = np.full((len(operators), 2), -1, dtype=np.int64)
    now = 0
    for layer in reversed(trail):
        state, code, start = layer[state].tolist()
        plan[code >> 1] = start, code & 1
        now = max(now, start + int(operators[code >> 1, DURATION + (code & 1)]))
    for i in np.flatnonzero(plan[:, 0] < 0).tolist():
        mode = int(operators[i, LAST])
        plan[i] = now, mode
        now += int(operators[i, DURATION + mode])
    return plan
