"""A graph of units as a few paths: a downset is then how far it reaches on each of them.

Every unit is on one path, and the units of a path follow one another. A stage is a range of units
on each path. Tensors whose ends are all on one path add to the load of a range by themselves; the
others are bits of two words, which say whether an end of theirs is inside, and whether one is
outside. Of more than 64 of these, the most expensive count: loads are then bounds from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import compiled_as
from phaze_opt.partitioning.unit_graph import Transfer, UnitGraph

Words = NDArray[np.uint64]

MOST_SHARED = 64
"""So many tensors with ends on several paths count: the bits of a word."""

_BYTES, _BITS = 8, 8
"""Of a word, and of each byte."""


@compiled_as(
    "i8[::1], i8[::1], f8[:, ::1], f8[:, ::1], f8[:, ::1], f8[:, :, ::1], f8[:, :, ::1],"
    " u8[:, :, ::1], u8[:, :, ::1], f8[:, ::1], i8[:, :, ::1]"
)
class PathArrays(NamedTuple):
    """Paths as arrays; ranges are ``[first, end)``, and ``longest`` is the most units of a path.

    Attributes
    ----------
    length : (paths,)
        Number of units.
    stride : (paths,)
        What one more unit of a path adds to the number of a downset.
    least, cpu, size : (paths, longest + 1)
        Sums over the first units: least latency on any device, latency on a CPU, size.
    work : (paths, longest + 1, longest + 1)
        Latency of a range on an accelerator.
    load
        The same with the transfers of the tensors that have no end on another path.
    inside, outside
        Bits of the other tensors that have an end in a range, and one on its path outside it.
    price : (8, 256)
        Transfers of the tensors in each byte of such a word.
    needs : (paths, longest + 1, paths)
        How far each downset that holds the first units of a path reaches at least.
    """

    length: IntArray
    stride: IntArray
    least: FloatArray
    cpu: FloatArray
    size: FloatArray
    work: FloatArray
    load: FloatArray
    inside: Words
    outside: Words
    price: FloatArray
    needs: IntArray

    @property
    def downsets(self) -> int:
        """Numbers of downsets lie below this one."""
        return int((self.length + 1).prod())


def cover_by_paths(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Part the units into the fewest paths along edges, by augmenting a matching.

    Parameters
    ----------
    count
        Number of units.
    edges
        Pairs of units, the lower number first.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    for source, destination in edges:
        after[source].append(destination)
    before = [-1] * count
    for unit in range(count):
        _match(unit, after, before)
    follower = {source: unit for unit, source in enumerate(before) if source >= 0}
    paths = []
    for unit in range(count):
        if before[unit] < 0:
            path = [unit]
            while path[-1] in follower:
                path.append(follower[path[-1]])
            paths.append(path)
    return paths


def _match(unit: int, after: Sequence[Sequence[int]], before: list[int]) -> None:
    """Find a unit that may follow ``unit``, and others for those that it was to follow."""
    origin: dict[int, int] = {}
    waiting = [unit]
    for source in waiting:
        for destination in after[source]:
            if destination in origin:
                continue
            origin[destination] = source
            if before[destination] >= 0:
                waiting.append(before[destination])
                continue
            end = destination
            while True:
                source_of_end = origin[end]
                other = next((d for d, s in enumerate(before) if s == source_of_end), -1)
                before[end] = source_of_end
                if source_of_end == unit:
                    return
                end = other


def path_arrays(
    graph: UnitGraph,
    paths: Sequence[Sequence[int]],
    latencies: Sequence[float],
    edges: Sequence[tuple[int, int]],
) -> PathArrays:
    """Return paths as arrays.

    Parameters
    ----------
    graph
        Units and tensors.
    paths
        Each unit on one of them, in their order.
    latencies
        Least latency of every unit.
    edges
        What a downset must hold: with the second unit also the first. Sorted, so that what leads
        to a unit comes before what it leads to.
    """
    shape = len(paths), max(map(len, paths)) + 1
    length = np.array([len(path) for path in paths], dtype=np.int64)
    stride = np.cumprod([1, *(length[:-1] + 1)], dtype=np.int64)
    sums, work = np.zeros((3, *shape)), np.full((*shape, shape[1]), np.inf)
    for path, units in enumerate(paths):
        values = [
            (latencies[u], graph.units[u].cpu_latency, graph.units[u].size_bytes) for u in units
        ]
        sums[:, path, 1 : len(units) + 1] = np.cumsum(values, axis=0).T
        busy = [graph.units[unit].accelerator_latency for unit in units]
        for first in range(len(units) + 1):
            work[path, first, first : len(units) + 1] = np.cumsum([0.0, *busy[first:]])
    load, inside, outside, price = _transfers(graph.tensors, paths, work)
    needs = _needs(paths, edges, shape)
    least, cpu, size = sums
    return PathArrays(length, stride, least, cpu, size, work, load, inside, outside, price, needs)


def _transfers(
    tensors: Sequence[Transfer], paths: Sequence[Sequence[int]], work: FloatArray
) -> tuple[FloatArray, Words, Words, FloatArray]:
    """Return ``load``, ``inside``, ``outside`` and ``price`` of `PathArrays`."""
    load, inside, outside = work.copy(), *np.zeros((2, *work.shape), dtype=np.uint64)
    costs = np.zeros(_BYTES * _BITS)
    path_of = {unit: path for path, units in enumerate(paths) for unit in units}
    bit = 0
    for tensor in sorted(tensors, key=lambda tensor: -tensor.cost):
        ends = {tensor.producer, *tensor.consumers}
        touched = sorted({path_of[unit] for unit in ends})
        if len(touched) > 1:
            if bit == MOST_SHARED:
                continue
            costs[bit] = tensor.cost
        for path in touched:
            some, all_of_path = _ends_in_ranges([u in ends for u in paths[path]], work.shape[1])
            if len(touched) == 1:
                load[path] += tensor.cost * (some & ~all_of_path)
            else:
                inside[path] |= some.astype(np.uint64) << np.uint64(bit)
                outside[path] |= (~all_of_path).astype(np.uint64) << np.uint64(bit)
        bit += len(touched) > 1
    held = np.arange(1 << _BITS) >> np.arange(_BITS)[:, None] & 1
    return load, inside, outside, costs.reshape(_BYTES, _BITS) @ held


def _ends_in_ranges(is_end: Sequence[bool], size: int) -> tuple[BoolArray, BoolArray]:
    """Return, per first and end of a range, whether it has some, and all, of the marked units."""
    below = np.full(size, sum(is_end))
    below[: len(is_end) + 1] = np.cumsum([0, *is_end])
    within = below - below[:, None]
    return within > 0, within == below[-1]


def _needs(
    paths: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]], shape: tuple[int, int]
) -> IntArray:
    """Return ``needs`` of `PathArrays`."""
    of_unit = np.zeros((sum(map(len, paths)), len(paths)), dtype=np.int64)
    for path, units in enumerate(paths):
        of_unit[units, path] = np.arange(1, len(units) + 1)
    for source, destination in edges:
        np.maximum(of_unit[source], of_unit[destination], out=of_unit[destination])
    needs = np.zeros((*shape, len(paths)), dtype=np.int64)
    for path, units in enumerate(paths):
        needs[path, 1 : len(units) + 1] = np.maximum.accumulate(of_unit[units], axis=0)
    return needs
