"""The split of a chain over kinds of device that the event replay finds fastest: compiled.

As `phaze_opt.placement.split_search`, with a kind for every stage. A *state* says how many stages
of each kind are left to place, from the first stage on; it is a number, the digits of which are the
kinds'. What the stages of a state add at least, by their first layer, is found by dynamic
programming over states and layers, the last stage first: what a stage holds depends on its place
from the end alone, so that one table is for pipelines of all lengths. Pipelines are then searched
best bound first. A state that is taken is first extended to a whole pipeline, stage by stage by the
least bound, so that there is an answer however early the search has to end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, compiled_as, inlined, lazily_compiled
from phaze_opt.placement.closed_form import busy_s, held_at
from phaze_opt.placement.pipeline import finished_s
from phaze_opt.placement.split_bounds import (
    FRONT,
    LOADS,
    PROVEN,
    REST,
    bound_s,
    empty_front,
    extend,
    nothing_follows,
    precede,
)
from phaze_opt.placement.split_search import pop, push


@compiled_as(
    "float64[:,:,::1], float64[:,:,::1], float64[:,:,::1], float64[:,:,::1], float64[:,:,::1],"
    " int64[:,:,::1], int64[::1], int64, boolean"
)
class KindsWork(NamedTuple):
    """What every possible stage does and holds on every kind of device.

    Attributes
    ----------
    forward_s, backward_s, saving_s, head_s, tail_s, in_flight_limit : (kinds, layers, layers + 1)
        As `phaze_opt.placement.split_bounds.extend` takes them; the most microbatches in flight.
    most : (kinds,)
        The most stages of each kind.
    microbatches
        Per batch.
    all_held
        Whether every stage holds all microbatches (GPipe).
    """

    forward_s: FloatArray
    backward_s: FloatArray
    saving_s: FloatArray
    head_s: FloatArray
    tail_s: FloatArray
    in_flight_limit: IntArray
    most: IntArray
    microbatches: int
    all_held: bool


class KindsSearched(NamedTuple):
    """What a search has found; see `phaze_opt.placement.split_search.Searched`.

    Attributes
    ----------
    stages : (2, layers + 1)
        First layer and kind of every stage, −1 behind the last one.
    """

    time_s: float
    stages: IntArray
    bound_s: float
    steps: int


@inlined
def _digit(state: int, most: IntArray, kind: int) -> int:
    """Return how many stages of a kind are left."""
    weight = 1
    for other in range(kind):
        weight *= most[other] + 1
    return int(state // weight % (most[kind] + 1))


@inlined
def _without(state: int, most: IntArray, kind: int) -> int:
    """Return the state with one stage of a kind less."""
    weight = 1
    for other in range(kind):
        weight *= most[other] + 1
    return state - weight


@inlined
def _stages_left(state: int, most: IntArray) -> int:
    """Return how many stages are left."""
    count = 0
    for kind in range(len(most)):
        count += _digit(state, most, kind)
    return count


@callee("float64[:,:,::1](KindsWork, float64)")
def _least_of_states(work: KindsWork, limit_s: float) -> FloatArray:
    """Bound what the stages of every state add, by their first layer.

    Returns
    -------
    (rows, states, layers + 1)
        As `phaze_opt.placement.split_bounds.least_of_rest`.
    """
    layers, kinds, states = work.forward_s.shape[1], len(work.most), 1
    for kind in range(kinds):
        states *= work.most[kind] + 1
    rest = np.full((REST, states, layers + 1), np.inf)
    nothing_follows(rest, layers)
    for state in range(1, states):
        place = _stages_left(state, work.most)
        held = held_at(place, work.microbatches, work.all_held)
        for kind in range(kinds):
            if _digit(state, work.most, kind) == 0:
                continue
            after = _without(state, work.most, kind)
            for i in range(layers - place + 1):
                for j in range(i + 1, layers - place + 2):
                    forward, backward = work.forward_s[kind, i, j], work.backward_s[kind, i, j]
                    saving = work.saving_s[kind, i, j]
                    if work.in_flight_limit[kind, i, j] < held:
                        break
                    # Of more layers it may take less: the last ones receive no gradients.
                    if busy_s(work.microbatches, forward + backward, saving) >= limit_s:
                        continue
                    if rest[LOADS, after, j] == np.inf:
                        continue
                    precede(
                        rest,
                        state,
                        i,
                        after,
                        j,
                        forward,
                        backward,
                        saving,
                        work.head_s[kind, i, j],
                        work.tail_s[kind, i, j],
                        work.microbatches - held,
                        work.microbatches,
                        work.all_held,
                        0.0,
                        limit_s,
                    )
    return rest


@inlined
def _longer_s(
    work: KindsWork,
    rest: FloatArray,
    front: FloatArray,
    state: int,
    kind: int,
    i: int,
    j: int,
    longer: FloatArray,
) -> float:
    """Add a stage to a front, and bound what begins so; infinite if it does not fit."""
    place = _stages_left(state, work.most)
    held = held_at(place, work.microbatches, work.all_held)
    after = _without(state, work.most, kind)
    if work.in_flight_limit[kind, i, j] < held or rest[LOADS, after, j] == np.inf:
        return np.inf
    extend(
        front,
        work.forward_s[kind, i, j],
        work.backward_s[kind, i, j],
        work.saving_s[kind, i, j],
        work.head_s[kind, i, j],
        work.tail_s[kind, i, j],
        held,
        work.microbatches,
        longer,
    )
    return bound_s(longer, rest, after, j, work.all_held)


@callee("float64(KindsWork, int64[:,::1], int64)")
def _replayed_s(work: KindsWork, stages: IntArray, count: int) -> float:
    """Replay so many stages, of which the first layers and kinds are given."""
    layers = work.forward_s.shape[1]
    done, limits = np.empty((5, count)), np.empty(count, np.int64)
    for s in range(count):
        i, kind = stages[0, s], stages[1, s]
        j = stages[0, s + 1] if s + 1 < count else layers
        done[0, s], done[1, s] = work.forward_s[kind, i, j], work.backward_s[kind, i, j]
        done[2, s], done[3, s] = work.saving_s[kind, i, j], work.head_s[kind, i, j]
        done[4, s] = work.tail_s[kind, i, j]
        limits[s] = held_at(count - s, work.microbatches, work.all_held)
    ends_s = finished_s(done[0], done[1], done[2], done[3], limits, work.microbatches)
    time_s = 0.0
    for s in range(count):
        time_s = max(time_s, ends_s[s] + done[4, s])
    return time_s


@callee("int64(KindsWork, float64[:,:,::1], int64, int64[:,::1])")
def _extended(work: KindsWork, rest: FloatArray, state: int, stages: IntArray) -> int:
    """Take the stage with the least bound after one another; return how many there are, 0 if none.

    Parameters
    ----------
    stages : (2, layers + 1)
        Becomes first layer and kind of every stage.
    """
    layers, kinds = work.forward_s.shape[1], len(work.most)
    front, longer, best = np.empty(FRONT), np.empty(FRONT), np.empty(FRONT)
    empty_front(front)
    i = count = 0
    while state > 0:
        least_s, next_kind, next_layer = np.inf, -1, -1
        place = _stages_left(state, work.most)
        for kind in range(kinds):
            if _digit(state, work.most, kind) == 0:
                continue
            for j in range(i + 1, layers - place + 2):
                own_s = _longer_s(work, rest, front, state, kind, i, j, longer)
                if own_s < least_s:
                    least_s, next_kind, next_layer = own_s, kind, j
                    best[:] = longer
        if next_kind < 0:
            return 0
        stages[0, count], stages[1, count] = i, next_kind
        front[:] = best
        state, i = _without(state, work.most, next_kind), next_layer
        count += 1
    return count


@lazily_compiled("Tuple((float64, int64[:,::1], float64, int64))(KindsWork, float64, int64)")
def search_kinds(
    work: KindsWork, known_s: float, most_steps: int
) -> tuple[float, IntArray, float, int]:
    """Find the stages, and the kind of each, whose replayed time is the least.

    Parameters
    ----------
    work
        All possible stages.
    known_s
        A time already reached.
    most_steps
        Effort after which the search ends.

    Returns
    -------
    See `KindsSearched`.
    """
    layers, kinds = work.forward_s.shape[1], len(work.most)
    best, stages = np.full((2, layers + 1), -1), np.empty((2, layers + 1), np.int64)
    rest = _least_of_states(work, known_s)
    states, best_s, steps = rest.shape[1], known_s, 1
    # A front is pushed in a step, and steps are counted before each is extended.
    room = most_steps + states + kinds * layers + 1
    fronts, keys = np.empty((room, FRONT)), np.empty(room)
    # State and layer after the stages of a front, the kind of the last, the front without it.
    origin, heap = np.empty((room, 4), np.int64), np.empty(room, np.int64)
    used = size = 0
    for state in range(1, states):
        empty_front(fronts[used])
        keys[used] = bound_s(fronts[used], rest, state, 0, work.all_held)
        if keys[used] < best_s * (1.0 - PROVEN):
            origin[used, 0], origin[used, 1], origin[used, 2], origin[used, 3] = state, 0, -1, -1
            push(heap, size, keys, used)
            used += 1
            size += 1
    while size > 0:
        entry = pop(heap, size, keys)
        size -= 1
        if keys[entry] >= best_s * (1.0 - PROVEN) or steps >= most_steps:
            return best_s, best, min(keys[entry], best_s), steps
        state, i, count = origin[entry, 0], origin[entry, 1], 0
        place = _stages_left(state, work.most)
        if i == 0:
            count = _extended(work, rest, state, stages)
            steps += count * layers
        elif state == 0:
            at = entry
            while origin[at, 3] >= 0:
                count, at = count + 1, origin[at, 3]
            at = entry
            for s in range(count - 1, -1, -1):
                stages[1, s], at = origin[at, 2], origin[at, 3]
                stages[0, s] = origin[at, 1]
        if count > 0:
            steps += count * work.microbatches
            time_s = _replayed_s(work, stages, count)
            if time_s < best_s:
                best_s = time_s
                best[:] = -1
                best[:, :count] = stages[:, :count]
        for kind in range(kinds):
            if _digit(state, work.most, kind) == 0:
                continue
            for j in range(i + 1, layers - place + 2):
                steps += 1
                longer_s = _longer_s(work, rest, fronts[entry], state, kind, i, j, fronts[used])
                if longer_s >= best_s * (1.0 - PROVEN):
                    continue
                keys[used] = max(longer_s, keys[entry])
                after = _without(state, work.most, kind)
                origin[used, 0], origin[used, 1] = after, j
                origin[used, 2], origin[used, 3] = kind, entry
                push(heap, size, keys, used)
                used += 1
                size += 1
    return best_s, best, best_s, steps
