"""The least latency of one sample, by dynamic programming over downsets.

The devices of a placement, one after another, take the differences of nested downsets, so that a
placement grows from the empty downset to the whole graph. Of the placements of one downset, those
that another one dominates are dropped (`latency_kernels`); what is left is exact.

A placement is also dropped once it cannot end in time: once the inputs of some unit are there, that
unit and its descendants still take at least their own least latency, on the accelerators that are
left and with no transfer from outside. These smaller problems are solved by the same search, the
last unit first, so that each one uses the answers of those behind it.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.partitioning.dag import MOST_DOWNSETS, graph_arrays, least_latencies
from phaze_opt.partitioning.downsets import Downsets, enumerate_downsets
from phaze_opt.partitioning.latency import CPU
from phaze_opt.partitioning.latency_kernels import PARENT, STAGE, USED, Lattice, search_labels
from phaze_opt.partitioning.unit_graph import UnitGraph

STEPS_PER_S = 100_000_000
"""Steps of the search that take about a second."""

_SHARE = 20
"""A descendants' problem may take this part of the effort."""

_FIRST_WIDTH, _SECOND_WIDTH = 1, 16
"""Widths of the searches that give a good placement before the exact one."""

_ROUNDING = 1e-9
"""Relative rounding of sums of latencies."""


def search_latency(
    graph: UnitGraph, known: float, steps: int, most_downsets: int = MOST_DOWNSETS
) -> tuple[list[int] | None, float]:
    """Find the placement with the least latency.

    Parameters
    ----------
    graph
        Units and devices.
    known
        Latency of a known placement, or infinite.
    steps
        About the largest effort.
    most_downsets
        Limit on the number of downsets.

    Returns
    -------
    The device of every unit as in `latency.latency_of`, None if no placement below ``known`` was
    found, and a lower bound on the latency.

    Raises
    ------
    TooManyDownsetsError
        If the graph has more downsets.
    InfeasibleError
        If no device can run some unit.
    """
    search = _LatencySearch(graph, most_downsets)
    search.improve(known, _FIRST_WIDTH, steps // _SHARE)
    search.bound_tails(steps // 2)
    search.improve(search.value(known), _SECOND_WIDTH, steps // _SHARE)
    bound = float(np.max(search.heads + search.tails[graph.accelerators]))
    value = search.value(known)
    if bound < value * (1.0 - _ROUNDING):
        complete = search.improve(value, 0, steps - search.spent)
        bound = search.value(known) if complete else bound
    return search.device, min(bound, search.value(known))


class _LatencySearch:
    """What is known of one graph.

    Attributes
    ----------
    heads : (units,)
        Least time before the inputs of each unit are there.
    tails
        See `latency_kernels.search_labels`.
    device
        The best placement found, if any.
    spent
        Steps of all searches.
    """

    def __init__(self, graph: UnitGraph, most_downsets: int) -> None:
        self.graph, count = graph, len(graph.units)
        self.downsets = enumerate_downsets(count, graph.edges, most_downsets)
        self.arrays = graph_arrays(graph)
        self.lattice = _lattice(self.downsets, graph)
        self.after: list[list[int]] = [[] for _ in graph.units]
        for source, destination in graph.edges:
            self.after[source].append(destination)
        self.least = np.array(least_latencies(graph))
        self.heads = np.zeros(count)
        self.tails = np.zeros((graph.accelerators + 1, count))
        for unit in range(count):
            for following in self.after[unit]:
                ready = self.heads[unit] + self.least[unit]
                self.heads[following] = max(self.heads[following], ready)
        for unit in reversed(range(count)):
            self.tails[:, unit] = self._path(unit)
        self.device: list[int] | None = None
        self.best = np.inf
        self.spent = 0

    def value(self, known: float) -> float:
        """Return the latency of the best placement found, or of one known before."""
        return min(known, self.best)

    def improve(self, limit: float, width: int, steps: int) -> bool:
        """Look for a better placement of the whole graph; say whether none is left below it."""
        accelerators = self.graph.accelerators
        best, answer, labels, complete = self._search(
            0, self.arrays[5], accelerators, limit, width, steps
        )
        if answer >= 0:
            self.best, self.device = best, self._devices(labels, answer)
        return complete

    def bound_tails(self, steps: int) -> None:
        """Raise `tails` to the least latency of each unit's descendants, the last unit first."""
        accelerators, costs = self.graph.accelerators, self.arrays[5]
        index = {row.tobytes(): place for place, row in enumerate(self.downsets.bits)}
        words = self.downsets.bits.shape[1]
        everything = (1 << len(self.after)) - 1
        own = [0] * len(self.after)
        for unit in reversed(range(len(own))):
            own[unit] = 1 << unit
            for following in self.after[unit]:
                own[unit] |= own[following]
            outside = (everything & ~own[unit]).to_bytes(8 * words, "little")
            origin = index[np.frombuffer(outside, dtype="<u8").astype(np.uint64).tobytes()]
            inside = [own[unit] >> tensor.producer & 1 for tensor in self.graph.tensors]
            transfers = costs * np.array(inside, dtype=np.float64)
            self.tails[:, unit] = self._path(unit)
            limit = self.best - self.heads[unit]
            left, least = accelerators, 0.0
            # More accelerators are never slower: from the most on, each answer counts for all
            # numbers down to what it uses.
            while left >= 0 and self.spent < steps:
                least, used = self._tail(unit, origin, transfers, left, least, limit, steps)
                for number in range(used, left + 1):
                    self.tails[number, unit] = max(self.tails[number, unit], least)
                left = used - 1
            self.tails[: left + 1, unit] = np.maximum(self.tails[: left + 1, unit], least)

    def _path(self, unit: int) -> FloatArray:
        """Bound a unit's tail by those of its followers, for every number of accelerators."""
        behind: FloatArray = np.zeros(len(self.tails))
        for following in self.after[unit]:
            behind = np.maximum(behind, self.tails[:, following])
        behind += self.least[unit]
        return behind

    def _tail(
        self,
        unit: int,
        origin: int,
        transfers: FloatArray,
        accelerators: int,
        least: float,
        limit: float,
        steps: int,
    ) -> tuple[float, int]:
        """Bound the latency of the units outside a downset from below.

        Parameters
        ----------
        unit, origin, transfers
            The unit that comes first; the downset; and the costs of the tensors, 0 for those that
            come from the downset.
        accelerators
            Number of accelerators.
        least, limit
            A lower bound; and the value from which on it need not be known.
        steps
            Effort of all searches.

        Returns
        -------
        The bound, and the fewest accelerators for which it also holds.
        """
        least = max(least, float(self.tails[accelerators, unit]))
        if least >= limit:
            return least, accelerators
        part = steps // _SHARE
        given = origin, transfers, accelerators
        known, answer, labels, complete = self._search(*given, limit, _FIRST_WIDTH, part)
        used = accelerators if answer < 0 else int(labels[answer, USED])
        if not complete and known > least * (1.0 + _ROUNDING):
            known = min(known, limit)
            better, answer, labels, complete = self._search(*given, known, 0, part)
            if not complete:
                return least, accelerators
            if answer >= 0:
                known, used = better, int(labels[answer, USED])
        return max(least, min(known, limit)), used

    def _search(
        self,
        origin: int,
        transfers: FloatArray,
        accelerators: int,
        limit: float,
        width: int,
        steps: int,
    ) -> tuple[float, int, IntArray, bool]:
        """Call `latency_kernels.search_labels`, and count its steps."""
        graph = self.graph
        best, answer, labels, complete, spent = search_labels(
            self.lattice,
            (*self.arrays[:5], transfers),
            self.tails[: accelerators + 1],
            (float(graph.memory_bytes), accelerators, graph.cpus > 0),
            origin,
            limit,
            width,
            steps,
        )
        self.spent += spent
        return best, answer, labels, complete

    def _devices(self, labels: IntArray, answer: int) -> list[int]:
        """Return the device of every unit by walking back from a label."""
        device = [CPU] * len(self.graph.units)
        label = answer
        while labels[label, PARENT] >= 0:
            parent, stage = labels[label, PARENT], labels[label, STAGE]
            if stage > 0:
                for unit in self.downsets.members(abs(labels[parent, STAGE]), stage):
                    device[unit] = int(labels[label, USED])
            label = parent
        return device


def _lattice(downsets: Downsets, graph: UnitGraph) -> Lattice:
    """Write downsets and their borders as arrays."""
    bits, count = downsets.bits, len(graph.units)
    before = np.zeros((count, bits.shape[1]), dtype=np.uint64)
    for source, destination in graph.edges:
        before[destination, source // 64] |= np.uint64(1 << source % 64)
    at_border = np.empty((len(bits), count), dtype=np.bool_)
    for unit in range(count):
        inside = bits[:, unit // 64] >> np.uint64(unit % 64) & np.uint64(1)
        at_border[:, unit] = ((bits & before[unit]) != 0).any(axis=1) & (inside == 0)
    border_start = np.zeros(len(bits) + 1, dtype=np.int64)
    np.cumsum(at_border.sum(axis=1), out=border_start[1:])
    border = np.nonzero(at_border)[1].astype(np.int64)
    steps = downsets.grow_start, downsets.grow_node, downsets.grow_to
    return bits, *steps, before, border_start, border
