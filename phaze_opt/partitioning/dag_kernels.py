"""The inner loops of the dynamic program over downsets (`phaze_opt.partitioning.dag`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import compiled

Words = NDArray[np.uint64]


@compiled("float64[::1](int64[::1], int64[::1], int64[::1], float64[::1])")
def left_over(
    grow_start: IntArray, grow_node: IntArray, grow_to: IntArray, latencies: FloatArray
) -> FloatArray:
    """Return, per downset, the latency of the units that are not in it."""
    total = len(grow_start) - 1
    rest = np.full(total, latencies.sum())
    for index in range(total):
        for step in range(grow_start[index], grow_start[index + 1]):
            rest[grow_to[step]] = rest[index] - latencies[grow_node[step]]
    return rest


@compiled("boolean(uint64[:,::1], int64, int64, int64)")
def _in_stage(bits: Words, smaller: int, larger: int, unit: int) -> bool:
    """Whether a unit is in the larger downset and not in the smaller one."""
    word, shift = unit // 64, np.uint64(unit % 64)
    return bool((bits[larger, word] & ~bits[smaller, word]) >> shift & np.uint64(1))


@compiled("boolean(uint64[:,::1], int64, int64)")
def _member(bits: Words, downset: int, unit: int) -> bool:
    """Whether a unit is in a downset."""
    return bool(bits[downset, unit // 64] >> np.uint64(unit % 64) & np.uint64(1))


@compiled(
    "UniTuple(float64, 2)(uint64[:,::1], int64, int64, int64, int64[::1], int64[::1], int64[::1],"
    " int64[::1], float64[::1])"
)
def _transfer_change(
    bits: Words,
    smaller: int,
    larger: int,
    unit: int,
    touch_start: IntArray,
    touch: IntArray,
    end_start: IntArray,
    ends: IntArray,
    costs: FloatArray,
) -> tuple[float, float]:
    """Return how transfers change when ``unit`` joins the rest of the stage, and how for good.

    A tensor is moved if it is produced inside and used outside, or used inside and produced
    outside. One that also touches the smaller downset stays moved however the stage grows.
    """
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


@compiled(
    "void(int64, int64, float64, float64, float64, float64[::1], float64[:,:,::1],"
    " int32[:,:,::1], boolean[:,:,::1])"
)
def _relax(
    smaller: int,
    larger: int,
    accelerator_load: float,
    cpu_load: float,
    known: float,
    rest: FloatArray,
    least: FloatArray,
    origin: NDArray[np.int32],
    on_cpu: BoolArray,
) -> None:
    """Try a stage on an accelerator and on a CPU, for all numbers of devices used before.

    What is left must fit the devices that are left, at the load known to be reachable.
    """
    accelerators, cpus = least.shape[1] - 1, least.shape[2] - 1
    needed = int(np.ceil(rest[larger] / known - 1e-6)) if known > 0.0 else 0
    for cpu in range(2):
        load = cpu_load if cpu else accelerator_load
        if load > known:
            continue
        for a in range(accelerators + cpu):
            for c in range(cpus + 1 - cpu):
                to_a, to_c = a + 1 - cpu, c + cpu
                if accelerators - to_a + cpus - to_c < needed:
                    continue
                value = max(load, least[smaller, a, c])
                if value < least[larger, to_a, to_c]:
                    least[larger, to_a, to_c] = value
                    origin[larger, to_a, to_c] = smaller
                    on_cpu[larger, to_a, to_c] = cpu == 1


@compiled(
    "void(int64, int64, uint64[:,::1], int64[::1], int64[::1], int64[::1], float64[:,::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], float64[::1], float64, float64,"
    " float64[::1], float64[:,:,::1], int32[:,:,::1], boolean[:,:,::1], int32[::1],"
    " float64[:,::1], int64[::1])"
)
def relax_downsets(
    begin: int,
    end: int,
    bits: Words,
    grow_start: IntArray,
    grow_node: IntArray,
    grow_to: IntArray,
    units: FloatArray,
    touch_start: IntArray,
    touch: IntArray,
    end_start: IntArray,
    ends: IntArray,
    costs: FloatArray,
    memory: float,
    known: float,
    rest: FloatArray,
    least: FloatArray,
    origin: NDArray[np.int32],
    on_cpu: BoolArray,
    visited: NDArray[np.int32],
    queue: FloatArray,
    queued: IntArray,
) -> None:
    """Extend the downsets ``begin`` … ``end`` − 1 by every stage that may follow them.

    Stages grow by one unit at a time, breadth first; latency, size and transfers from and to the
    downsets before only grow, so a stage too slow or too large for both kinds of device is not
    grown further. ``queue`` holds accelerator latency, CPU latency, size, transfers, and those of
    them that stay, of the downsets in ``queued``.
    """
    limit = known * (1.0 + 1e-9)
    cpus = least.shape[2] > 1
    accelerators = least.shape[1] > 1
    for smaller in range(begin, end):
        if not (least[smaller] <= limit).any():
            continue
        head, tail = 0, 1
        queued[0] = smaller
        queue[0, :] = 0.0
        while head < tail:
            here = queued[head]
            for step in range(grow_start[here], grow_start[here + 1]):
                larger, unit = grow_to[step], grow_node[step]
                if visited[larger] == smaller:
                    continue
                visited[larger] = smaller
                latency = queue[head, 0] + units[unit, 0]
                cpu_load = queue[head, 1] + units[unit, 1]
                size = queue[head, 2] + units[unit, 2]
                fits = accelerators and latency <= limit and size <= memory
                if not fits and not (cpus and cpu_load <= limit):
                    continue
                change, for_good = _transfer_change(
                    bits, smaller, larger, unit, touch_start, touch, end_start, ends, costs
                )
                transfers, stays = queue[head, 3] + change, queue[head, 4] + for_good
                fits = fits and latency + stays <= limit
                if not fits and not (cpus and cpu_load <= limit):
                    continue
                queued[tail] = larger
                queue[tail, 0] = latency
                queue[tail, 1] = cpu_load
                queue[tail, 2] = size
                queue[tail, 3] = transfers
                queue[tail, 4] = stays
                tail += 1
                load = latency + transfers if fits else np.inf
                _relax(smaller, larger, load, cpu_load, limit, rest, least, origin, on_cpu)
            head += 1
