"""Schedules with a split backward: orders of a stage's work, and when everything happens.

The backward of a microbatch is done in two parts: B makes what the stage before waits for, W the
weight gradients, for which nobody waits, so that a stage can do W when it would otherwise wait. A
stage does F, B and W of every microbatch in some order, one at a time, and each of the three in the
order of the microbatches. With p stages of which k is the place from the end, and m microbatches:

* ``zb-h1``: as 1F1B, k forwards ahead, and every W p − k microbatches after its B;
* ``zb-h2``: 2k − 1 forwards ahead, and every W 2(p − k) microbatches after its B;
* ``zb-1p``, ``zb-2p``: the best of these orders and of those that a list schedule makes under the
  memory of 1F1B, and with twice its stashes. Its rules are in `_first_possible`, and the
  combinations of them that are tried in `ORDERS`;
* ``zb-v``: as ``zb-1p``, with two chunks of layers on every stage: the first ones go down the
  stages, the second ones up again, so that a device has the first and the last layers.

From its F to its B a microbatch holds a stash, from B to W what W reads
(`phaze_opt.workload.weight_gradients`). No order holds more than a stage has room for: of the two
schedules by rule, fewer forwards are ahead, or W follows sooner. A W that follows its own B at once
is a whole backward, and holds nothing in between. Every schedule also tries 1F1B, so that none of
them is slower.

Nothing waits for all stages to be done: each steps its parameters when its own gradients are there
and begins with the next batch, as in the source, which checks the norm of all gradients afterwards
and undoes a step that was wrong ("post-validation"). Such a step is not modelled. A batch takes the
longest time from the first forward of a stage to its own end.

Sources: P. Qi, X. Wan, G. Huang, M. Lin, "Zero bubble pipeline parallelism" (arXiv 2401.10241):
sections 2 to 4, tables 1 and 2, figure 3; ZB-V: the README of sail-sg/zero-bubble-pipeline-
parallelism. The list schedule is written anew from the description in section 3.1, and is not the
same: its rules are what a free stage does first, not the bubbles that have added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.compiled import compiled_as, inlined, lazily_compiled
from phaze_opt.placement.pipeline import PipelineWork, Replay, in_flight

FORWARD, BACKWARD, WEIGHT = range(3)
"""Parts of the work on a microbatch: F, B and W."""

STASHES: Mapping[PipelineScheduleName, tuple[int, int]] = {"zb-h2": (2, 1), "zb-2p": (2, 0)}
"""Stashes that a schedule has room for: so many times the stages, less so many; else (1, 0)."""

V_CHUNKS = 2
"""Chunks of a stage under ``zb-v``."""


@compiled_as(
    "float64[:,:,::1], float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], float64[::1]"
)
class ZeroBubbleWork(NamedTuple):
    """What the stages of a pipeline do for one microbatch and what it holds; by chunk and stage.

    Attributes
    ----------
    seconds : (3, chunks, stages)
        Of F, B and W, receives included.
    first_saving_s, head_s
        By how much the first microbatch's W is shorter; before which its F cannot start.
    stash_bytes, operand_bytes
        Held from F to B, and from B to W.
    room_bytes : (stages,)
        That these may take.
    """

    seconds: FloatArray
    first_saving_s: FloatArray
    head_s: FloatArray
    stash_bytes: FloatArray
    operand_bytes: FloatArray
    room_bytes: FloatArray

    @property
    def chunks(self) -> int:
        """Chunks of every stage."""
        return int(self.seconds.shape[1])

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.seconds.shape[2])


class OrderRule(NamedTuple):
    """How an order is made.

    Attributes
    ----------
    ahead
        Most forwards ahead of the backwards of a chunk: ``1f1b`` k, ``twice`` 2k − 1, ``room`` as
        many as there is room for.
    lag
        By rule: the W of a microbatch comes so many times p − k after its B; −1 for lists.
    backward_first
        Lists: whether B comes before F where both could run.
    makes_room
        Lists: whether W comes before B where F could run if there were room for it.
    waits
        Lists: which part of the seconds of a W a stage rather waits than begin with it.
    """

    ahead: str
    lag: int = -1
    backward_first: bool = False
    makes_room: bool = False
    waits: float = 0.0


_1F1B = OrderRule("1f1b", 0)
_H1 = OrderRule("1f1b", 1)
_H2 = OrderRule("twice", 2)
_LISTS = tuple(
    OrderRule(ahead, -1, backward_first, makes_room, waits)
    for waits in (0.0, 1.0)
    for ahead, backward_first in (
        ("1f1b", False),
        ("twice", False),
        ("twice", True),
        ("room", True),
    )
    for makes_room in (True, False)
)
ORDERS: Mapping[PipelineScheduleName, tuple[OrderRule, ...]] = {
    "zb-h1": (_1F1B, _H1),
    "zb-h2": (_1F1B, _H1, _H2),
    "zb-1p": (_1F1B, _H1, *_LISTS),
    "zb-2p": (_1F1B, _H1, _H2, *_LISTS),
    # More forwards ahead than a V needs change next to nothing.
    "zb-v": tuple(
        [rule for rule in _LISTS if rule.ahead == ("1f1b", "twice")[rule.backward_first]]
    ),
}
"""What every schedule tries; a placement says which it took."""

_ROUNDED = 1.0 + 1e-12
"""What sums of bytes may exceed the room by."""
_CLOSE = 1e-9
"""Relative distance from a bound at which no other order is looked for."""


PLANNED = 4
"""Microbatches a stage by which an order is chosen, at most."""

KnownOrders = dict[tuple[object, ...], int | None]
"""The best of `ORDERS` by what it is chosen for."""


class ZeroBubbleReplay(NamedTuple):
    """A batch in one order.

    Attributes
    ----------
    starts_s : (3, chunks, stages, microbatches)
        Of every F, B and W.
    finish_s : (stages,)
        End of the last work of each stage.
    peak_bytes : (stages,)
        The most that microbatches hold.
    """

    starts_s: FloatArray
    finish_s: FloatArray
    peak_bytes: FloatArray

    def own_s(self, head_s: FloatArray) -> FloatArray:
        """Return how long each stage takes, from what comes before its first F to its last work."""
        begin_s = self.starts_s[FORWARD, 0, :, 0] - head_s[0]
        return np.asarray(self.finish_s - begin_s)

    @property
    def replay(self) -> Replay:
        """The same as of other schedules; stashes count from F to B."""
        forward, backward, weight = self.starts_s
        return Replay(self.finish_s, forward, backward, _peaks(forward, backward), weight)


def _peaks(forward_s: FloatArray, backward_s: FloatArray) -> IntArray:
    """Return the most forwards of a stage that have begun whose backward has not."""
    _, stages, _ = forward_s.shape
    peaks = np.zeros(stages, dtype=np.int64)
    for stage in range(stages):
        begun, ended = np.sort(forward_s[:, stage].ravel()), np.sort(backward_s[:, stage].ravel())
        before = np.searchsorted(ended, begun, side="left")
        peaks[stage] = int((np.arange(1, len(begun) + 1) - before).max())
    return peaks


def planned_order(
    schedule: PipelineScheduleName, number: int, work: ZeroBubbleWork, microbatches: int
) -> IntArray | None:
    """Return an order again that `best_order` has chosen, or that of 1F1B."""
    return order_of(ORDERS[schedule][number], _alike(work), microbatches)


def order_of(rule: OrderRule, work: ZeroBubbleWork, microbatches: int) -> IntArray | None:
    """Return an order of the work of every stage; ``None`` if the stages would wait forever.

    Parameters
    ----------
    rule
        How it is made.
    work
        Of the stages; there is room for at least the stashes of 1F1B, or with two chunks for those
        of one microbatch.
    microbatches
        Per batch.

    Returns
    -------
    (stages, 3 · chunks · microbatches)
        ``part · chunks + chunk``, each in the order of its microbatches.
    """
    chunks, stages = work.chunks, work.stages
    places = np.arange(stages, 0, -1, dtype=np.int64)
    ahead = _ahead(rule.ahead, work, places, microbatches)
    order = np.zeros((stages, 3 * chunks * microbatches), dtype=np.int64)
    if rule.lag < 0:
        flags = rule.backward_first, rule.makes_room, rule.waits
        return order if _listed(work, ahead, *flags, microbatches, order) else None
    stash, operands = work.stash_bytes[0], work.operand_bytes[0]
    # After a B, before the W that is due, one more waits for its W and one less for its B.
    needed = ahead * stash + np.maximum(operands - stash, 0.0)
    left = np.maximum(work.room_bytes - needed, 0.0)
    fitting = np.floor_divide(left, np.maximum(operands, 1.0))
    lag = np.minimum(rule.lag * (stages - places), fitting).astype(np.int64)
    _by_rule(ahead, lag, microbatches, order)
    return order


def _ahead(kind: str, work: ZeroBubbleWork, places: IntArray, microbatches: int) -> IntArray:
    """Return the most forwards of each stage ahead of its backwards."""
    if kind == "room":
        return np.full_like(places, microbatches)
    if work.chunks > 1:
        # Down to the last stage and up again.
        both = 2 * len(places) - np.arange(len(places), dtype=np.int64)
        return np.minimum(both if kind == "1f1b" else 2 * both - 1, microbatches)
    known = in_flight(len(places), microbatches)
    if kind == "1f1b":
        return known
    stash = np.maximum(work.stash_bytes[0], 1.0)
    fitting = np.floor_divide(work.room_bytes, stash).astype(np.int64)
    twice = np.minimum(np.minimum(2 * places - 1, microbatches), np.maximum(fitting, known))
    # No stage can run ahead of what the one before it lets through.
    return np.maximum(np.minimum.accumulate(twice), known)


def replay_order(work: ZeroBubbleWork, order: IntArray, microbatches: int) -> ZeroBubbleReplay:
    """Replay a batch in an order, every part as soon as what it waits for is there."""
    starts_s = np.zeros((3, work.chunks, work.stages, microbatches))
    finish_s, peak_bytes = np.zeros(work.stages), np.zeros(work.stages)
    _replay_order(work, order, starts_s, finish_s, peak_bytes)
    return ZeroBubbleReplay(starts_s, finish_s, peak_bytes)


class Ordered(NamedTuple):
    """The best order: which of `ORDERS`, and the batch in it."""

    number: int
    done: ZeroBubbleReplay


def best_order(
    schedule: PipelineScheduleName, work: ZeroBubbleWork, microbatches: int, known: KnownOrders
) -> Ordered | None:
    """Return the order of a schedule that is the best for stages that are alike, and a batch in it.

    The published scheduler plans with the median stage, for all stages (``scheduler`` in
    ``megatron/core/pipeline_parallel/schedules.py`` of sail-sg/zero-bubble-pipeline-parallelism);
    what its stages hold is their own. Here the best is chosen by no more than `PLANNED`
    microbatches a stage, in which a pipeline comes to its steady state and leaves it again.

    Parameters
    ----------
    schedule
        One of `phaze_opt.training.ZERO_BUBBLE`.
    work
        See `order_of`.
    microbatches
        Per batch.
    known
        What was found before; what is found is added.

    Returns
    -------
    ``None`` where nothing but 1F1B can run, whose whole backwards are replayed elsewhere.
    """
    alike, planned = _alike(work), min(microbatches, PLANNED * work.stages)
    key = schedule, planned, alike.chunks, *(array.tobytes() for array in alike)
    if key not in known:
        known[key] = _best_number(schedule, alike, planned)
    number = known[key]
    order = None if number is None else order_of(ORDERS[schedule][number], alike, microbatches)
    if number is None or order is None:
        return None
    return Ordered(number, replay_order(work, order, microbatches))


def _best_number(
    schedule: PipelineScheduleName, alike: ZeroBubbleWork, microbatches: int
) -> int | None:
    """Return which order takes the least time with stages that are alike, the first of equals."""
    best: int | None = None
    best_s = np.inf
    bound_s = float(busy_s(alike, microbatches).max())
    for number, rule in enumerate(ORDERS[schedule]):
        order = None if rule == _1F1B else order_of(rule, alike, microbatches)
        if order is None:
            continue
        planned_s = float(replay_order(alike, order, microbatches).own_s(alike.head_s).max())
        if best is None or planned_s < best_s * (1.0 - _CLOSE):
            best, best_s = number, planned_s
        if best_s <= bound_s * (1.0 + _CLOSE):
            break
    return best


def _alike(work: ZeroBubbleWork) -> ZeroBubbleWork:
    """Return the work with the seconds of the median stage on all of them, every batch the same."""
    middle = np.sort(work.seconds, axis=2)[:, :, [work.stages // 2]]
    none = np.zeros_like(work.head_s)
    seconds = np.repeat(middle, work.stages, axis=2)
    return work._replace(seconds=seconds, first_saving_s=none, head_s=none)


def first_starts_s(work: PipelineWork) -> FloatArray:
    """Return when each stage of one chunk begins with its first forward."""
    starts_s = np.zeros(work.forward_s.shape[1])
    ready_s = 0.0
    for stage, forward_s in enumerate(work.forward_s[0].tolist()):
        starts_s[stage] = max(float(work.head_s[0, stage]), ready_s)
        ready_s = starts_s[stage] + forward_s
    return starts_s


def busy_s(work: ZeroBubbleWork, microbatches: int) -> FloatArray:
    """Return the work of each stage in a batch, which is the least that its own part takes."""
    each_s = microbatches * work.seconds.sum(axis=0) - work.first_saving_s
    return np.asarray(each_s.sum(axis=0) + work.head_s[0])


@lazily_compiled("void(int64[::1], int64[::1], int64, int64[:,::1])")
def _by_rule(ahead: IntArray, lag: IntArray, microbatches: int, order: IntArray) -> None:
    """Fill the orders of stages of one chunk: F up to so many ahead, then B, and W that are due."""
    for stage in range(len(ahead)):
        forwards = backwards = weights = place = 0
        while weights < microbatches:
            if forwards < microbatches and forwards - backwards < ahead[stage]:
                order[stage, place] = FORWARD
                forwards += 1
            elif backwards < microbatches and backwards - weights <= lag[stage]:
                order[stage, place] = BACKWARD
                backwards += 1
                if backwards - weights > lag[stage]:
                    place += 1
                    order[stage, place] = WEIGHT
                    weights += 1
            else:
                order[stage, place] = WEIGHT
                weights += 1
            place += 1


@inlined
def _neighbour(chunk: int, stage: int, step: int, chunks: int, stages: int) -> tuple[int, int]:
    """Return chunk and stage of the layers before (step −1) or after (1); chunk −1 for none."""
    place = stage if chunk == 0 else 2 * stages - 1 - stage
    place += step
    if place < 0 or place >= chunks * stages:
        return -1, 0
    return (0, place) if place < stages else (1, 2 * stages - 1 - place)


@inlined
def _part_s(work: ZeroBubbleWork, part: int, chunk: int, stage: int, microbatch: int) -> float:
    """Return the seconds of F, B or W of a microbatch."""
    own_s: float = work.seconds[part, chunk, stage]
    if part == WEIGHT and microbatch == 0:
        own_s -= work.first_saving_s[chunk, stage]
    return own_s


@lazily_compiled(
    "boolean(ZeroBubbleWork, int64[:,::1], float64[:,:,:,::1], float64[::1], float64[::1])"
)
def _replay_order(
    work: ZeroBubbleWork,
    order: IntArray,
    starts_s: FloatArray,
    finish_s: FloatArray,
    peak_bytes: FloatArray,
) -> bool:
    """Fill starts, ends of the stages and peaks; false if the stages wait forever."""
    _, _, head_s, stash, operands, _ = work
    chunks, stages = stash.shape
    ends_s = np.full(starts_s.shape, -1.0)
    done = np.zeros((3 * chunks, stages), dtype=np.int64)
    place = np.zeros(stages, dtype=np.int64)
    held = np.zeros(stages)
    left = order.size
    while left > 0:
        before = left
        for stage in range(stages):
            while place[stage] < order.shape[1]:
                code = order[stage, place[stage]]
                part, chunk = code // chunks, code % chunks
                microbatch = done[code, stage]
                ready_s = 0.0
                if part == FORWARD and microbatch == 0:
                    ready_s = head_s[chunk, stage]
                if part != WEIGHT:
                    step = -1 if part == FORWARD else 1
                    other, at = _neighbour(chunk, stage, step, chunks, stages)
                    if other >= 0:
                        if ends_s[part, other, at, microbatch] < 0.0:
                            break
                        ready_s = max(ready_s, ends_s[part, other, at, microbatch])
                start_s = max(finish_s[stage], ready_s)
                starts_s[part, chunk, stage, microbatch] = start_s
                finish_s[stage] = start_s + _part_s(work, part, chunk, stage, microbatch)
                ends_s[part, chunk, stage, microbatch] = finish_s[stage]
                if part == FORWARD:
                    held[stage] += stash[chunk, stage]
                elif part == BACKWARD:
                    held[stage] -= stash[chunk, stage]
                    follows = place[stage] + 1
                    weight = WEIGHT * chunks + chunk
                    whole = follows < order.shape[1] and order[stage, follows] == weight
                    if not (whole and done[weight, stage] == microbatch):
                        held[stage] += operands[chunk, stage]
                else:
                    last = order[stage, place[stage] - 1]
                    whole = last == BACKWARD * chunks + chunk
                    if not (whole and done[last, stage] == microbatch + 1):
                        held[stage] -= operands[chunk, stage]
                done[code, stage] += 1
                peak_bytes[stage] = max(peak_bytes[stage], held[stage])
                place[stage] += 1
                left -= 1
        if left == before:
            return False
    return True


@inlined
def _first_possible(
    work: ZeroBubbleWork,
    ahead: IntArray,
    backward_first: bool,
    makes_room: bool,
    waits: float,
    microbatches: int,
    done: IntArray,
    ends_s: FloatArray,
    held: FloatArray,
    stage: int,
    now_s: float,
) -> tuple[int, int, float]:
    """Return which part of which chunk a free stage does; part −1, and until when it waits.

    It does the first that it can of: F, of the last chunk first, as far as it is not too far ahead
    and there is room (for a first chunk also for the second one's, so that no microbatch is stuck);
    B, of the last chunk first; and W, if what it waits for comes later than some part of the W's
    seconds, or is not known yet. B comes before F where that is said; where F only lacks room, W
    may come before B.
    """
    _, _, head_s, stash, operands, room = work
    chunks, stages = stash.shape
    forward = backward = weight = -1
    lacks_room = False
    later_s = np.inf
    for chunk in range(chunks - 1, -1, -1):
        forwards, backwards = done[chunk, stage], done[chunks + chunk, stage]
        if forwards < microbatches:
            ready_s = head_s[chunk, stage] if forwards == 0 else 0.0
            before, at = _neighbour(chunk, stage, -1, chunks, stages)
            if before >= 0:
                ready_s = max(ready_s, ends_s[FORWARD, before, at, forwards])
            if chunk > 0 or forwards - backwards < ahead[stage]:
                needed = stash[chunk, stage]
                for other in range(chunk + 1, chunks):
                    needed += stash[other, stage]
                fits = held[stage] + needed <= room[stage] * _ROUNDED
                if ready_s > now_s:
                    if fits:
                        later_s = min(later_s, ready_s)
                elif fits and forward < 0:
                    forward = chunk
                elif not fits:
                    lacks_room = True
        if backwards < forwards:
            ready_s = 0.0
            after, at = _neighbour(chunk, stage, 1, chunks, stages)
            if after >= 0:
                ready_s = ends_s[BACKWARD, after, at, backwards]
            grown = held[stage] - stash[chunk, stage] + operands[chunk, stage]
            if ready_s > now_s:
                later_s = min(later_s, ready_s)
            elif grown > room[stage] * _ROUNDED and (done[2 * chunks + chunk, stage] < backwards):
                lacks_room = True
            elif backward < 0:
                backward = chunk
        if weight < 0 and done[2 * chunks + chunk, stage] < backwards:
            weight = chunk
    if forward >= 0 and not (backward_first and backward >= 0):
        return FORWARD, forward, later_s
    if backward >= 0 and not (makes_room and lacks_room and weight >= 0):
        return BACKWARD, backward, later_s
    if weight >= 0:
        gap_s = later_s - now_s
        if lacks_room or gap_s >= waits * work.seconds[WEIGHT, weight, stage]:
            return WEIGHT, weight, later_s
    return -1, 0, later_s


@lazily_compiled(
    "boolean(ZeroBubbleWork, int64[::1], boolean, boolean, float64, int64, int64[:,::1])"
)
def _listed(
    work: ZeroBubbleWork,
    ahead: IntArray,
    backward_first: bool,
    makes_room: bool,
    waits: float,
    microbatches: int,
    order: IntArray,
) -> bool:
    """Fill the orders by a list schedule; false if the stages wait forever.

    The stage that is free first does what `_first_possible` says. Where there is no room between B
    and W, they are one.
    """
    stash, operands, room = work.stash_bytes, work.operand_bytes, work.room_bytes
    chunks, stages = stash.shape
    done = np.zeros((3 * chunks, stages), dtype=np.int64)
    ends_s = np.full((2, chunks, stages, microbatches), np.inf)
    held, free_s = np.zeros(stages), np.zeros(stages)
    next_s = np.zeros(stages)  # when a stage looks for work again
    place = np.zeros(stages, dtype=np.int64)
    left = order.size
    while left > 0:
        stage = 0
        for other in range(1, stages):
            if next_s[other] < next_s[stage]:
                stage = other
        now_s = next_s[stage]
        if now_s == np.inf:
            return False
        part, chunk, later_s = _first_possible(
            work,
            ahead,
            backward_first,
            makes_room,
            waits,
            microbatches,
            done,
            ends_s,
            held,
            stage,
            now_s,
        )
        if part < 0:
            next_s[stage] = later_s
            continue
        code = part * chunks + chunk
        microbatch = done[code, stage]
        order[stage, place[stage]] = code
        place[stage] += 1
        left -= 1
        done[code, stage] += 1
        free_s[stage] = now_s + _part_s(work, part, chunk, stage, microbatch)
        if part != WEIGHT:
            ends_s[part, chunk, stage, microbatch] = free_s[stage]
            step = 1 if part == FORWARD else -1
            other, at = _neighbour(chunk, stage, step, chunks, stages)
            if other >= 0:
                next_s[at] = max(free_s[at], min(next_s[at], free_s[stage]))
        if part == FORWARD:
            held[stage] += stash[chunk, stage]
        elif part == WEIGHT:
            held[stage] -= operands[chunk, stage]
        else:
            held[stage] -= stash[chunk, stage]
            weight = WEIGHT * chunks + chunk
            if held[stage] + operands[chunk, stage] <= room[stage] * _ROUNDED:
                held[stage] += operands[chunk, stage]
            else:
                order[stage, place[stage]] = weight
                place[stage] += 1
                left -= 1
                done[weight, stage] += 1
                free_s[stage] += _part_s(work, WEIGHT, chunk, stage, microbatch)
        next_s[stage] = free_s[stage]
    return True
