"""The compiled loops of the search for the least latency (`phaze_opt.partitioning.latency_search`).

A *label* is a placement of the units of one downset: how many accelerators it uses, when its last
unit ends, and when the inputs from it are there for each unit of its *border*, the units outside
that have a predecessor inside. Of two labels of one downset, the one that is no later in all of
these times and uses no more accelerators dominates the other, which is dropped.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.partitioning.dag_kernels import GRAPH_TYPE, GraphArrays, Words, transfer_change

PARENT, USED, STAGE, NEXT = 0, 1, 2, 3
"""Columns of a label: the label from which it grew (-1: none); accelerators in use; its downset,
negative if the last unit is on the CPUs; the next label of the same downset (-1: none)."""

DONE, READY = 0, 1
"""Columns of a label's times: when its last unit ends, and from here on when the inputs of each
unit of the border are there."""

Lattice = tuple[Words, IntArray, IntArray, IntArray, Words, IntArray, IntArray]
"""All downsets of a graph:

- bits, grow_start, grow_node, grow_to: of `downsets.Downsets`;
- before (units, words): the predecessors of each unit;
- border_start, border: where the border of each downset begins (and the last one ends), and all
  borders, by rising units.
"""
_LATTICE_TYPE = "Tuple((u8[:, ::1], i8[::1], i8[::1], i8[::1], u8[:, ::1], i8[::1], i8[::1]))"

Devices = tuple[float, int, bool]
"""Bytes of an accelerator, number of accelerators, and whether there are CPUs."""
_DEVICES_TYPE = "Tuple((f8, i8, b1))"

_Store = tuple[IntArray, FloatArray, IntArray]
"""All labels (labels, 4), their times, and the first label of each downset."""
_STORE_TYPE = "Tuple((i8[:, ::1], f8[:, ::1], i8[::1]))"

_Queue = tuple[IntArray, IntArray, FloatArray]
"""Stages to grow: for each downset the last one from which it was reached; the downsets in the
queue; and (downsets, 5) for each of these the stage's latency, size, transfers, transfers that
remain however the stage grows, and its earliest start over all labels."""
_QUEUE_TYPE = "Tuple((i8[::1], i8[::1], f8[:, ::1]))"

_Border = tuple[IntArray, FloatArray, IntArray, BoolArray, FloatArray]
"""Of the downset that grows: the place of each unit in its border (-1: none), and the earliest time
at which the inputs of each unit there are ready. Of the downset reached: where each unit of its
border stands in the first one (-1: not there), and whether the stage feeds it; and times of a new
label."""
_BORDER_TYPE = "Tuple((i8[::1], f8[::1], i8[::1], b1[::1], f8[::1]))"

_FIRST_LABELS = 1024
"""Room for labels at the beginning; doubled when full."""

_MOST_TIMES = 2**25
"""A search with more times in its labels gives up, which limits the memory to half a gigabyte."""


@inlined
def _is_in(bits: Words, downset: int, unit: int) -> bool:
    """Whether a unit is in a downset."""
    return bool(bits[downset, unit >> 6] >> np.uint64(unit & 63) & np.uint64(1))


@inlined
def _is_no_later(one: FloatArray, other: FloatArray, length: int) -> bool:
    """Whether no time of a label is after that of another."""
    place = 0
    while place < length and one[place] <= other[place]:
        place += 1
    return place == length


@inlined
def _insert(
    new: FloatArray, length: int, parent: int, used: int, stage: int, count: int, store: _Store
) -> tuple[bool, int]:
    """Add a label unless one of its downset dominates it; take out those that it dominates.

    Returns
    -------
    Whether it was added, as number ``count``; and with how many labels it was compared.
    """
    labels, times, head = store
    downset = abs(stage)
    compared, before, here = 0, -1, head[downset]
    while here >= 0:
        compared += 1
        following = labels[here, NEXT]
        if labels[here, USED] <= used and _is_no_later(times[here], new, length):
            return False, compared
        if used <= labels[here, USED] and _is_no_later(new, times[here], length):
            if before >= 0:
                labels[before, NEXT] = following
            else:
                head[downset] = following
        else:
            before = here
        here = following
    labels[count, PARENT], labels[count, USED] = parent, used
    labels[count, STAGE], labels[count, NEXT] = stage, head[downset]
    head[downset] = count
    for place in range(length):
        times[count, place] = new[place]
    return True, compared


@callee(f"i8[::1](i8, {_LATTICE_TYPE}, {_STORE_TYPE}, f8[:, ::1], i8)")
def _labels_of(
    downset: int, lattice: Lattice, store: _Store, tails: FloatArray, width: int
) -> IntArray:
    """Return the labels of a downset that grow: all, or the most promising ones."""
    border_start, border = lattice[5:]
    labels, times, head = store
    count, here = 0, head[downset]
    while here >= 0:
        count, here = count + 1, labels[here, NEXT]
    own, promise, here = np.empty(count, dtype=np.int64), np.empty(count), head[downset]
    begin = border_start[downset]
    for position in range(count):
        own[position], promise[position] = here, times[here, DONE]
        left = len(tails) - 1 - labels[here, USED]
        for place in range(begin, border_start[downset + 1]):
            latency = times[here, READY + place - begin] + tails[left, border[place]]
            promise[position] = max(promise[position], latency)
        here = labels[here, NEXT]
    if 0 < width < count:
        return own[np.argsort(promise, kind="mergesort")[:width]]
    return own


@inlined
def _grow_stage(
    smaller: int,
    larger: int,
    unit: int,
    first: int,
    last: int,
    lattice: Lattice,
    graph: GraphArrays,
    room: float,
    limit: float,
    queue: _Queue,
    borders: _Border,
) -> float:
    """Add a unit to the stage at the head of the queue, and queue the new stage if it may run.

    Returns
    -------
    The load of the new stage on an accelerator; infinite if it is too large or too late.
    """
    place_of, earliest = borders[:2]
    _, queued, totals = queue
    latency = totals[first, 0] + graph[0][unit, 0]
    size = totals[first, 1] + graph[0][unit, 2]
    start = totals[first, 4]
    if place_of[unit] >= 0:
        start = max(start, earliest[place_of[unit]])
    if size > room or start + latency >= limit:
        return np.inf
    change, stays = transfer_change(lattice[0], smaller, larger, unit, graph)
    transfers, stays = totals[first, 2] + change, totals[first, 3] + stays
    if start + latency + stays >= limit:
        return np.inf
    queued[last] = larger
    totals[last, 0], totals[last, 1], totals[last, 2] = latency, size, transfers
    totals[last, 3], totals[last, 4] = stays, start
    return float(latency + transfers)


@inlined
def _match_borders(smaller: int, larger: int, lattice: Lattice, borders: _Border) -> int:
    """Find where the inputs of the border of a larger downset come from; return its length."""
    bits, before, border_start, border = lattice[0], lattice[4], lattice[5], lattice[6]
    place_of, _, source, fed, _ = borders
    begin = border_start[larger]
    length = int(border_start[larger + 1] - begin)
    for place in range(length):
        unit = border[begin + place]
        source[place], fed[place] = place_of[unit], False
        for word in range(bits.shape[1]):
            stage = bits[larger, word] & ~bits[smaller, word]
            fed[place] = fed[place] or before[unit, word] & stage != 0
    return length


@inlined
def _time_label(
    label: int,
    smaller: int,
    larger: int,
    load: float,
    length: int,
    lattice: Lattice,
    times: FloatArray,
    tail: FloatArray,
    limit: float,
    borders: _Border,
) -> bool:
    """Write the times of a label with one more stage; say whether it may end below the limit."""
    bits, border_start, border = lattice[0], lattice[5], lattice[6]
    _, _, source, fed, new = borders
    begin, start = border_start[smaller], 0.0
    for place in range(begin, border_start[smaller + 1]):
        if _is_in(bits, larger, border[place]):
            start = max(start, times[label, READY + place - begin])
    finish = start + load
    new[DONE] = max(times[label, DONE], finish)
    good, begin = bool(new[DONE] < limit), border_start[larger]
    for place in range(length):
        ready = finish if fed[place] else 0.0
        if source[place] >= 0:
            ready = max(ready, times[label, READY + source[place]])
        new[READY + place] = ready
        good = good and bool(ready + tail[border[begin + place]] < limit)
    return good


@callee(
    f"Tuple(({_STORE_TYPE}, i8, f8, i8))(i8, i8[::1], {_LATTICE_TYPE}, {GRAPH_TYPE}, f8[:, ::1],"
    f" {_DEVICES_TYPE}, f8, {_STORE_TYPE}, i8, {_QUEUE_TYPE}, {_BORDER_TYPE})"
)
def _grow_labels(
    smaller: int,
    growing: IntArray,
    lattice: Lattice,
    graph: GraphArrays,
    tails: FloatArray,
    devices: Devices,
    limit: float,
    store: _Store,
    count: int,
    queue: _Queue,
    borders: _Border,
) -> tuple[_Store, int, float, int]:
    """Grow labels of one downset by every stage, and by one unit on the CPUs.

    A stage grows by one unit at a time, breadth first, as in `dag_kernels.relax_downsets`.

    Returns
    -------
    The labels and their number, the limit, which falls with what is found, and the steps done.
    """
    _, grow_start, grow_node, grow_to = lattice[:4]
    room, accelerators, on_cpu = devices
    visited, queued, totals = queue
    labels, times, head = store
    new, whole = borders[4], len(grow_start) - 2
    first, last, spent = 0, 1, 0
    queued[0], totals[0, :] = smaller, 0.0
    while first < last:
        here = queued[first]
        for step in range(grow_start[here], grow_start[here + 1]):
            larger, unit = grow_to[step], grow_node[step]
            if visited[larger] == smaller:
                continue
            visited[larger] = smaller
            load = _grow_stage(
                smaller, larger, unit, first, last, lattice, graph, room, limit, queue, borders
            )
            last += load < np.inf
            spent += 10
            single = on_cpu and here == smaller
            if load == np.inf and not single:
                continue
            length = _match_borders(smaller, larger, lattice, borders)
            for label in growing:
                for cpu in range(2):
                    used = labels[label, USED] + 1 - cpu
                    if used > accelerators or not (single if cpu else load < limit):
                        continue
                    own, tail = graph[0][unit, 1] if cpu else load, tails[accelerators - used]
                    spent += READY + length
                    if not _time_label(
                        label, smaller, larger, own, length, lattice, times, tail, limit, borders
                    ):
                        continue
                    if count == len(labels):
                        labels = np.concatenate((labels, np.empty_like(labels)))
                        times = np.concatenate((times, np.empty_like(times)))
                    stage = -larger if cpu else larger
                    added, compared = _insert(
                        new, READY + length, label, used, stage, count, (labels, times, head)
                    )
                    count, spent = count + added, spent + compared
                    if added and larger == whole:
                        limit = new[DONE]
        first += 1
    return (labels, times, head), count, limit, spent


@lazily_compiled(
    f"Tuple((f8, i8, i8[:, ::1], b1, i8))({_LATTICE_TYPE}, {GRAPH_TYPE}, f8[:, ::1],"
    f" {_DEVICES_TYPE}, i8, f8, i8, i8)"
)
def search_labels(
    lattice: Lattice,
    graph: GraphArrays,
    tails: FloatArray,
    devices: Devices,
    origin: int,
    limit: float,
    width: int,
    effort: int,
) -> tuple[float, int, IntArray, bool, int]:
    """Find the placement with the least latency below a limit.

    Parameters
    ----------
    lattice, devices
        See `Lattice` and `Devices`.
    graph
        See `dag_kernels.GraphArrays`.
    tails : (accelerators + 1, units)
        Least time from the moment at which the inputs of a unit are there to the end of all units,
        on so many accelerators.
    origin
        Only the units outside this downset are placed; those inside take no time.
    limit
        Only placements with less latency count.
    width
        So many labels of each downset grow, the most promising first; 0 for all.
    effort
        Steps after which the search gives up.

    Returns
    -------
    The least latency, infinite if there is none below the limit; its label; all labels; whether
    nothing was left out, so that nothing better exists; and the steps done.
    """
    border_start = lattice[5]
    total, longest = len(border_start) - 1, READY
    for downset in range(total):
        longest = max(longest, READY + border_start[downset + 1] - border_start[downset])
    labels = np.full((_FIRST_LABELS, 4), -1, dtype=np.int64)
    store = labels, np.zeros((_FIRST_LABELS, longest)), np.full(total, -1, dtype=np.int64)
    labels[0, USED], labels[0, STAGE], store[2][origin] = 0, origin, 0
    visited, queued = np.full(total, -1, dtype=np.int64), np.empty(total, dtype=np.int64)
    place_of, earliest = np.full(len(graph[0]), -1, dtype=np.int64), np.empty(longest)
    matched = np.empty(longest, dtype=np.int64), np.empty(longest, dtype=np.bool_)
    queue = visited, queued, np.empty((total, 5))
    borders = place_of, earliest, matched[0], matched[1], np.empty(longest)
    count, spent, complete = 1, 0, True
    for smaller in range(origin, total - 1):
        if spent > effort or count * longest > _MOST_TIMES:
            return np.inf, -1, store[0], False, spent
        growing = _labels_of(smaller, lattice, store, tails, width)
        complete = complete and (width == 0 or len(growing) < width)
        if len(growing) == 0:
            continue
        begin, end = border_start[smaller], border_start[smaller + 1]
        for place in range(begin, end):
            place_of[lattice[6][place]] = place - begin
            earliest[place - begin] = np.inf
            for label in growing:
                ready = store[1][label, READY + place - begin]
                earliest[place - begin] = min(earliest[place - begin], ready)
        store, count, limit, steps = _grow_labels(
            smaller, growing, lattice, graph, tails, devices, limit, store, count, queue, borders
        )
        spent += steps
        for place in range(begin, end):
            place_of[lattice[6][place]] = -1
    # A label of the whole graph is shorter than all that were found before it.
    answer = store[2][total - 1]
    best = store[1][answer, DONE] if answer >= 0 else np.inf
    return best, answer, store[0], complete, spent
