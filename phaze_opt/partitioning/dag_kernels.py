"""The compiled loops of the dynamic program over downsets (`phaze_opt.partitioning.dag`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled

Words = NDArray[np.uint64]

DownsetSteps = tuple[IntArray, IntArray, IntArray]
"""``grow_start``, ``grow_node`` and ``grow_to`` of `downsets.Downsets`."""
STEPS_TYPE = "UniTuple(i8[::1], 3)"

GraphArrays = tuple[FloatArray, IntArray, IntArray, IntArray, IntArray, FloatArray]
"""A graph of units:

- units (units, 3): accelerator latency, CPU latency, size;
- touch_start, touch: where the tensors of each unit begin, and all their indices;
- end_start, ends: where the ends of each tensor begin, and all ends, each producer first;
- costs (tensors,): time of one transfer.
"""
GRAPH_TYPE = "Tuple((f8[:, ::1], i8[::1], i8[::1], i8[::1], i8[::1], f8[::1]))"

DownsetTable = tuple[FloatArray, NDArray[np.int32], BoolArray]
"""The dynamic program, each (downsets, accelerators + 1, CPUs + 1): least largest load of a downset
on these numbers of devices, the downset before its last stage, and whether that is on a CPU."""
_TABLE_TYPE = "Tuple((f8[:, :, ::1], i4[:, :, ::1], b1[:, :, ::1]))"

StageQueue = tuple[NDArray[np.int32], IntArray, FloatArray]
"""Stages to grow: for each downset the last one from which it was reached; the downsets in the
queue; and (downsets, 5) for each of these the stage's accelerator latency, CPU latency, size,
transfers, and transfers that remain however the stage grows."""
_QUEUE_TYPE = "Tuple((i4[::1], i8[::1], f8[:, ::1]))"


@lazily_compiled(f"f8[::1]({STEPS_TYPE}, f8[::1])")
def left_over(steps: DownsetSteps, latencies: FloatArray) -> FloatArray:
    """Return, per downset, the sum of the latencies of the units outside it."""
    grow_start, grow_node, grow_to = steps
    total = len(grow_start) - 1
    rest = np.full(total, latencies.sum())
    for index in range(total):
        for step in range(grow_start[index], grow_start[index + 1]):
            rest[grow_to[step]] = rest[index] - latencies[grow_node[step]]
    return rest


@inlined
def _member(bits: Words, downset: int, unit: int) -> bool:
    """Whether a unit is in a downset."""
    return bool(bits[downset, unit // 64] >> np.uint64(unit % 64) & np.uint64(1))


@inlined
def _in_stage(bits: Words, smaller: int, larger: int, unit: int) -> bool:
    """Whether a unit is in the larger downset and not in the smaller one."""
    return _member(bits, larger, unit) and not _member(bits, smaller, unit)


@inlined
def transfer_change(
    bits: Words, smaller: int, larger: int, unit: int, graph: GraphArrays
) -> tuple[float, float]:
    """Return how ``unit`` changes the transfers of the stage it joins, and how much of that stays.

    A tensor is moved if it is produced inside and used outside, or used inside and produced
    outside. A tensor that also touches the smaller downset is moved however the stage grows.
    """
    _, touch_start, touch, end_start, ends, costs = graph
    change, for_good = 0.0, 0.0
    for position in range(touch_start[unit], touch_start[unit + 1]):
        tensor = touch[position]
        producer = ends[end_start[tensor]]
        made_inside = _in_stage(bits, smaller, larger, producer)
        made_before = made_inside and producer != unit
        used_inside, used_outside, used_before, outside_before = False, False, False, False
        touches_smaller = _member(bits, smaller, producer)
        for place in range(end_start[tensor] + 1, end_start[tensor + 1]):
            user = ends[place]
            if _in_stage(bits, smaller, larger, user):
                used_inside = True
                if user == unit:
                    outside_before = True
                else:
                    used_before = True
            else:
                used_outside = True
                outside_before = True
                touches_smaller = touches_smaller or _member(bits, smaller, user)
        moved = used_outside if made_inside else used_inside
        moved_before = outside_before if made_before else used_before
        if moved and not moved_before:
            change += costs[tensor]
        elif moved_before and not moved:
            change -= costs[tensor]
        if touches_smaller and not made_before and not used_before:
            for_good += costs[tensor]
    return change, for_good


@inlined
def _reachable(table: DownsetTable, downset: int, limit: float) -> bool:
    """Whether some numbers of devices hold a downset within a load."""
    least = table[0]
    for a in range(least.shape[1]):
        for c in range(least.shape[2]):
            if least[downset, a, c] <= limit:
                return True
    return False


@inlined
def _relax(
    smaller: int,
    larger: int,
    accelerator_load: float,
    cpu_load: float,
    limit: float,
    rest: FloatArray,
    speed: FloatArray,
    table: DownsetTable,
) -> None:
    """Try a stage on an accelerator and on a CPU, for all numbers of devices used before it.

    The units after the stage must fit on the devices that remain, each within the limit.
    """
    least, origin, on_cpu = table
    accelerators, cpus = least.shape[1] - 1, least.shape[2] - 1
    needed = rest[larger] / limit - 1e-6 if limit > 0.0 else 0.0
    for cpu in range(2):
        load = cpu_load if cpu else accelerator_load
        if load > limit:
            continue
        for a in range(accelerators + cpu):
            for c in range(cpus + 1 - cpu):
                to_a, to_c = a + 1 - cpu, c + cpu
                if (accelerators - to_a) * speed[0] + (cpus - to_c) * speed[1] < needed:
                    continue
                value = max(load, least[smaller, a, c])
                if value < least[larger, to_a, to_c]:
                    least[larger, to_a, to_c] = value
                    origin[larger, to_a, to_c] = smaller
                    on_cpu[larger, to_a, to_c] = cpu == 1


@lazily_compiled(
    f"void(i8, i8, u8[:, ::1], {STEPS_TYPE}, {GRAPH_TYPE}, f8, f8, f8[::1], f8[::1],"
    f" {_TABLE_TYPE}, {_QUEUE_TYPE})",
    allocates=False,
)
def relax_downsets(
    begin: int,
    end: int,
    bits: Words,
    steps: DownsetSteps,
    graph: GraphArrays,
    memory: float,
    known: float,
    rest: FloatArray,
    speed: FloatArray,
    table: DownsetTable,
    queue: StageQueue,
) -> None:
    """Extend the downsets ``begin`` … ``end`` − 1 by every stage that may follow them.

    A stage grows by one unit at a time, breadth first. Its latency, its size and its transfers from
    and to earlier downsets only grow; so a stage that is too slow or too large for both kinds of
    device grows no further.

    Parameters
    ----------
    begin, end
        Range of downsets.
    bits
        (downsets, words): members, see `downsets.Downsets`.
    steps, graph, table, queue
        See `DownsetSteps`, `GraphArrays`, `DownsetTable` and `StageQueue`.
    memory
        Bytes of an accelerator.
    known
        Upper bound on the least largest load.
    rest
        (downsets,): from `left_over`, of the units' least latencies.
    speed
        (2,): the largest part of its own latency that the least latency of a unit is, on an
        accelerator and on a CPU.
    """
    grow_start, grow_node, grow_to = steps
    units = graph[0]
    visited, queued, totals = queue
    limit = known * (1.0 + 1e-9)
    accelerators, cpus = table[0].shape[1] > 1, table[0].shape[2] > 1
    for smaller in range(begin, end):
        if not _reachable(table, smaller, limit):
            continue
        head, tail = 0, 1
        queued[0] = smaller
        totals[0, :] = 0.0
        while head < tail:
            here = queued[head]
            for step in range(grow_start[here], grow_start[here + 1]):
                larger, unit = grow_to[step], grow_node[step]
                if visited[larger] == smaller:
                    continue
                visited[larger] = smaller
                latency = totals[head, 0] + units[unit, 0]
                cpu_load = totals[head, 1] + units[unit, 1]
                size = totals[head, 2] + units[unit, 2]
                fits = accelerators and latency <= limit and size <= memory
                if not fits and not (cpus and cpu_load <= limit):
                    continue
                change, for_good = transfer_change(bits, smaller, larger, unit, graph)
                transfers, stays = totals[head, 3] + change, totals[head, 4] + for_good
                fits = fits and latency + stays <= limit
                if not fits and not (cpus and cpu_load <= limit):
                    continue
                queued[tail] = larger
                totals[tail, 0] = latency
                totals[tail, 1] = cpu_load
                totals[tail, 2] = size
                totals[tail, 3] = transfers
                totals[tail, 4] = stays
                tail += 1
                load = latency + transfers if fits else np.inf
                _relax(smaller, larger, load, cpu_load, limit, rest, speed, table)
            head += 1
