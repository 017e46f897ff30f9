"""Contiguous splits of graphs of a few long paths, by the question whether any is within a limit.

One side extends the empty downset by stages within the limit, the other the whole graph backwards,
until together they have all devices; a split exists where both reach the same downset. A downset is
dropped if what is left is more than the remaining devices can do: the other side knows how much its
devices do at most, transfers counted. Limits are tried from the lower bound upwards: the nearer
they are to it, the fewer downsets remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.partitioning.merged_splits import Stages
from phaze_opt.partitioning.path_arrays import PathArrays, cover_by_paths, path_arrays
from phaze_opt.partitioning.path_kernels import Reached, extend_downsets
from phaze_opt.partitioning.unit_graph import UnitGraph

_MOST_STATES, _LONGEST = 24_000_000, 500
"""Graphs with longer paths, or more combinations of positions and of numbers of CPUs, are not
searched: arrays then take at most 300 MB."""

_MOST_ACCELERATORS = 254
"""Numbers of them fit in a byte."""

STEPS = 1_000_000_000
"""Default effort; a step takes about ten nanoseconds."""

_FIRST_RISE = 1 / 8
"""The first limits rise by this part of the gap. Each takes several times the steps of the one
before, so that all of them together take little more than the last."""

_NEAR = 0.002
"""Where the gap is smaller, the limit is the known load, which proves it."""

_TOLERANCE = 1e-11
"""Relative, for the rounding of sums."""


class _OutOfStepsError(Exception):
    """The effort does not suffice for a limit."""


@dataclass
class _Side:
    """What is reached from one end of the graph.

    Attributes
    ----------
    paths, arrays
        Units of each path, from this end on.
    reached
        See `path_kernels.Reached`.
    done
        With up to so many accelerators, and any CPUs, all is reached (at 0, without CPUs).
    """

    paths: Sequence[Sequence[int]]
    arrays: PathArrays
    reached: Reached
    done: int = 0

    def clear(self) -> None:
        """Forget everything but the empty downset."""
        level, origin, most = self.reached
        level[:], origin[:], most[:] = 0, 0, 0.0
        level[:, 0] = 1
        self.done = 0

    def most(self, accelerators: int, cpus: int, each: FloatArray) -> float:
        """Return the most least latency of devices, each of which does no more than ``each``."""
        known = min(self.done, accelerators)
        most = self.reached[2]
        return max(
            float(most[: known + 1, : some + 1].max() + each @ (accelerators - known, cpus - some))
            for some in range(cpus + 1)
        )

    def last(self, cpus: int) -> IntArray:
        """Return what all accelerators so far reach, with so many CPUs and not with fewer."""
        level = self.reached[0]
        new = level[cpus] == self.done + 1
        if cpus:
            new &= (level[cpus - 1] == 0) | (level[cpus - 1] > self.done + 1)
        return np.flatnonzero(new)

    def count(self) -> int:
        """Return the number of downsets that all accelerators so far reach, and fewer do not."""
        return sum(len(self.last(cpus)) for cpus in range(len(self.reached[0])))

    def stages(self, number: int, cpus: int) -> list[tuple[str, tuple[int, ...]]]:
        """Return the devices up to a downset, the last one first."""
        found = []
        while number:
            before = int(self.reached[1][cpus, number])
            on_cpu = before < 0
            before = -1 - before if on_cpu else before
            begin, end = self._positions(before), self._positions(number)
            ranges = zip(self.paths, begin, end, strict=True)
            units = tuple(sorted(unit for path, a, b in ranges for unit in path[a:b]))
            found.append(("cpu" if on_cpu else "accelerator", units))
            number, cpus = before, cpus - on_cpu
        return found

    def _positions(self, number: int) -> list[int]:
        """Return how far a downset reaches on each path."""
        arrays = self.arrays
        return [int(end) for end in number // arrays.stride % (arrays.length + 1)]


@dataclass
class PathSearch:
    """The search for splits within limits.

    Attributes
    ----------
    graph
        Units and devices.
    speed : (2,)
        The most least latency that an accelerator, and a CPU, does in a unit of time.
    forward, backward
        The two sides.
    steps
        Effort that is left.
    """

    graph: UnitGraph
    speed: FloatArray
    forward: _Side
    backward: _Side
    steps: int

    def between(
        self, low: float, best: Stages, load_of: Callable[[Stages], float]
    ) -> tuple[float, Stages]:
        """Bring a lower bound and a known split together as far as the effort goes.

        Parameters
        ----------
        low, best
            The bound, and the best split known.
        load_of
            Returns the largest load of a split.

        Returns
        -------
        The bound, which is the load where the split is proven, and the best split known then.
        """
        high = top = load_of(best)
        rise = (high - low) * _FIRST_RISE
        while self.steps > 0 and low < high and (top == high or top - low > _NEAR * high):
            closing = high - low <= _NEAR * high
            limit = high * (1.0 - 2.0 * _TOLERANCE) if closing else low + rise
            # Half of the effort: where that does not suffice, the rest goes to nearer limits.
            try:
                found = self.split_within(limit, self.steps - self.steps // 2)
            except _OutOfStepsError:
                top = limit
            else:
                if found is None:
                    low = high if closing else limit
                    rise = min(rise, (top - low) / 2)
                    continue
                if load_of(found) >= high or not self._fits(found):
                    # It is within the tolerances only.
                    break
                best, high = found, load_of(found)
                top = high
            rise = (top - low) / 2
        return low, best

    def _fits(self, stages: Stages) -> bool:
        """Say whether the units of every accelerator fit its memory."""
        units = self.graph.units
        return all(
            kind == "cpu" or sum(units[unit].size_bytes for unit in own) <= self.graph.memory_bytes
            for kind, own in stages
        )

    def split_within(self, limit: float, steps: int) -> Stages | None:
        """Return a split whose loads are within a limit; None if there is none.

        Raises
        ------
        _OutOfStepsError
            If so many steps do not suffice.
        """
        # Arrays of all downsets are cleared and read, whatever is reached.
        self.steps -= steps + self.forward.arrays.downsets
        self.forward.clear()
        self.backward.clear()
        for side, other in ((self.forward, self.backward), (self.backward, self.forward)):
            steps = self._extend(side, other, True, limit, steps)
        while self.forward.done + self.backward.done < self.graph.accelerators:
            side, other = self.forward, self.backward
            if other.count() < side.count():
                side, other = other, side
            steps = self._extend(side, other, False, limit, steps)
            steps = self._extend(side, other, True, limit, steps)
        self.steps += steps
        last = self.forward.arrays.downsets - 1
        for cpus in range(self.graph.cpus + 1):
            rest = self.graph.cpus - cpus
            there = self.forward.reached[0][cpus] > 0
            meet = np.flatnonzero(there & (self.backward.reached[0][rest][::-1] > 0))
            if len(meet):
                number = int(meet[0])
                ends = self.backward.stages(last - number, rest)
                return self.forward.stages(number, cpus)[::-1] + ends
        return None

    def _extend(self, side: _Side, other: _Side, on_cpu: bool, limit: float, steps: int) -> int:
        """Extend what one side has reached last by CPUs, or by one more accelerator."""
        limit *= 1.0 + _TOLERANCE
        to = side.done + (not on_cpu)
        for cpus in range(self.graph.cpus + (not on_cpu)):
            left = self.graph.accelerators - to, self.graph.cpus - cpus - on_cpu
            room = other.most(*left, limit * self.speed)
            steps = extend_downsets(
                side.last(cpus),
                to,
                cpus + on_cpu,
                on_cpu,
                side.arrays,
                limit,
                self.graph.memory_bytes * (1.0 + _TOLERANCE),
                room + _TOLERANCE * (room + limit),
                steps,
                side.reached,
            )
            if steps < 0:
                raise _OutOfStepsError
        side.done = to
        return steps


def search_paths(
    graph: UnitGraph, latencies: Sequence[float], speed: FloatArray, steps: int = STEPS
) -> PathSearch | None:
    """Prepare the search; None if the graph has too many or too long paths.

    Parameters
    ----------
    graph
        Units and devices.
    latencies
        Least latency of every unit.
    speed, steps
        See `PathSearch`.
    """
    paths = cover_by_paths(len(graph.units), graph.edges)
    states = (graph.cpus + 1.0) * np.prod([len(path) + 1.0 for path in paths])
    too_long = max(map(len, paths)) > _LONGEST
    if states > _MOST_STATES or too_long or graph.accelerators > _MOST_ACCELERATORS:
        return None
    reversed_edges = sorted(((to, source) for source, to in graph.edges), reverse=True)
    ways = (
        (paths, sorted(graph.edges)),
        ([path[::-1] for path in paths], reversed_edges),
    )
    sides = []
    for units, edges in ways:
        arrays = path_arrays(graph, units, latencies, edges)
        shape = graph.cpus + 1, arrays.downsets
        level, origin = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.int32)
        most = np.zeros((graph.accelerators + 1, graph.cpus + 1))
        sides.append(_Side(units, arrays, (level, origin, most)))
    forward, backward = sides
    return PathSearch(graph, speed, forward, backward, steps)
