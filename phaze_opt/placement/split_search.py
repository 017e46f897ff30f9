"""The split of one candidate that the event replay finds fastest: best bound first, compiled.

Fronts (the first stages of a split, see `phaze_opt.placement.split_bounds`) are taken by rising
bound, and extended by every stage that may come next; a whole split is replayed. When the least
bound left is no less than the best time, nothing faster is left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.placement.closed_form import held_at
from phaze_opt.placement.pipeline import finished_s
from phaze_opt.placement.split_bounds import (
    FRONT,
    PROVEN,
    SplitWork,
    bound_s,
    empty_front,
    extend,
    least_of_rest,
)


class Searched(NamedTuple):
    """What a search has found.

    Attributes
    ----------
    time_s, starts
        The least time below the known one, and the first layers of the stages; the known time, and
        zeros, where there is none.
    bound_s
        No split takes less; at least the time where the search came to its end.
    steps
        Its effort: fronts that were tried, and stages times microbatches of every replay.
    """

    time_s: float
    starts: IntArray
    bound_s: float
    steps: int


@inlined
def _before(keys: FloatArray, a: int, b: int) -> bool:
    """Say whether an entry comes before another: the least bound, and then the newest."""
    return bool(keys[a] < keys[b] or (keys[a] == keys[b] and a > b))


@inlined
def push(heap: IntArray, size: int, keys: FloatArray, entry: int) -> None:
    """Add an entry to a heap of some size."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if not _before(keys, entry, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = entry


@inlined
def pop(heap: IntArray, size: int, keys: FloatArray) -> int:
    """Take the first entry out of a heap of some size, which then has one less."""
    first, last = heap[0], heap[size - 1]
    place, count = 0, size - 1
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and _before(keys, heap[child + 1], heap[child]):
            child += 1
        if not _before(keys, heap[child], last):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last
    return int(first)


@lazily_compiled(
    "float64[::1](SplitWork, float64[:,::1], float64[:,::1], int64[::1], int64[::1], float64)"
)
def least_replays(
    work: SplitWork,
    head_s: FloatArray,
    first_tails_s: FloatArray,
    pipeline: IntArray,
    microbatches: IntArray,
    known_s: float,
) -> FloatArray:
    """Bound the replays of many candidates by what stages cost at least.

    Parameters
    ----------
    work, head_s
        See `phaze_opt.placement.split_bounds.least_of_rest`.
    first_tails_s : (candidates, layers)
        Tails of a first stage of 1, 2, … layers; the others have none.
    pipeline, microbatches : (candidates,)
        Their stages and microbatches.
    known_s
        What takes as long is said to take for ever.

    Returns
    -------
    (candidates,)
    """
    layers, all_held = work.in_flight_limit.shape[0], work.all_held
    bounds_s = np.empty(len(pipeline))
    tail_s, front = np.zeros((layers, layers + 1)), np.empty(FRONT)
    empty_front(front)
    for index in range(len(pipeline)):
        stages, of_batch = pipeline[index], microbatches[index]
        held = np.empty(stages + 1, np.int64)
        for place in range(stages + 1):
            held[place] = held_at(place, of_batch, all_held)
        tail_s[0, 1:] = first_tails_s[index]
        rest = least_of_rest(work, head_s, tail_s, held, of_batch, known_s)
        bounds_s[index] = bound_s(front, rest, stages, 0, all_held)
    return bounds_s


@lazily_compiled(
    "Tuple((float64, int64[::1], float64, int64))(SplitWork, float64[:,::1], float64[:,::1],"
    " int64[::1], int64, float64, int64)"
)
def search_splits(
    work: SplitWork,
    head_s: FloatArray,
    tail_s: FloatArray,
    held: IntArray,
    microbatches: int,
    known_s: float,
    most_steps: int,
) -> tuple[float, IntArray, float, int]:
    """Find the split whose replayed time is the least.

    Parameters
    ----------
    work, head_s, tail_s
        See `phaze_opt.placement.split_bounds.least_of_rest`.
    held : (stages + 1,)
        Microbatches in flight of a stage by its place from the end of the pipeline.
    microbatches
        Per batch.
    known_s
        A time already reached.
    most_steps
        Effort after which the search ends.

    Returns
    -------
    See `Searched`.
    """
    forward_s, backward_s, parameters, saving_s_per_parameter, in_flight_limit, all_held = work
    layers, stages = in_flight_limit.shape[0], len(held) - 1
    starts = np.zeros(stages, np.int64)
    rest = least_of_rest(work, head_s, tail_s, held, microbatches, known_s)
    best_s, steps = known_s, 1
    empty = np.empty(FRONT)
    empty_front(empty)
    least_s = bound_s(empty, rest, stages, 0, all_held)
    if least_s >= best_s * (1.0 - PROVEN) or most_steps <= steps:
        return best_s, starts, least_s, steps
    # A front is pushed in a step, and steps are counted before each is extended.
    room = most_steps + layers
    fronts, keys = np.empty((room, FRONT)), np.empty(room)
    # Number of stages, the layer after them, and the front without the last one.
    origin, heap = np.empty((room, 3), np.int64), np.empty(room, np.int64)
    fronts[0], keys[0], heap[0] = empty, least_s, 0
    origin[0, 0], origin[0, 1], origin[0, 2] = 0, 0, -1
    used = size = 1
    limits = held[:0:-1].copy()
    done, split = np.empty((5, stages)), np.empty(stages + 1, np.int64)
    while size > 0:
        entry = pop(heap, size, keys)
        size -= 1
        if keys[entry] >= best_s * (1.0 - PROVEN) or steps >= most_steps:
            return best_s, starts, keys[entry], steps
        stage, i = origin[entry, 0], origin[entry, 1]
        if stage == stages:
            steps += stages * microbatches
            at = entry
            for back in range(stages, -1, -1):
                split[back], at = origin[at, 1], origin[at, 2]
            for s in range(stages):
                first, end = split[s], split[s + 1]
                done[0, s], done[1, s] = forward_s[first, end], backward_s[first, end]
                done[2, s] = parameters[first, end] * saving_s_per_parameter
                done[3, s], done[4, s] = head_s[first, end], tail_s[first, end]
            ends_s = finished_s(done[0], done[1], done[2], done[3], limits, microbatches)
            time_s = 0.0
            for s in range(stages):
                time_s = max(time_s, ends_s[s] + done[4, s])
            if time_s < best_s:
                best_s = time_s
                starts[:] = split[:stages]
            continue
        place = stages - stage
        for j in range(layers if place == 1 else i + 1, layers - place + 2):
            if in_flight_limit[i, j] < held[place] or rest[0, place - 1, j] == np.inf:
                continue
            steps += 1
            extend(
                fronts[entry],
                forward_s[i, j],
                backward_s[i, j],
                parameters[i, j] * saving_s_per_parameter,
                head_s[i, j],
                tail_s[i, j],
                held[place],
                microbatches,
                fronts[used],
            )
            longer_s = bound_s(fronts[used], rest, place - 1, j, all_held)
            if longer_s >= best_s * (1.0 - PROVEN):
                continue
            keys[used] = max(longer_s, keys[entry])
            origin[used, 0], origin[used, 1], origin[used, 2] = stage + 1, j, entry
            push(heap, size, keys, used)
            used += 1
            size += 1
    return best_s, starts, best_s, steps
