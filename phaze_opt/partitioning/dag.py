"""Contiguous splits of any graph with the least largest load, by dynamic programming.

The devices, one after another, take the differences of nested downsets. The load of an accelerator
is the latency of its units plus one transfer of every tensor with ends inside and outside; the load
of a CPU is the latency of its units. The dynamic program is that of M. Tarnawski et al., "Efficient
algorithms for device placement of DNN graph operators" (NeurIPS 2020), with one addition: the best
split of one topological order is an upper bound, and sets of units above it are not built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning.dag_kernels import DownsetTable, GraphArrays, left_over, relax_downsets
from phaze_opt.partitioning.downsets import Downsets, TooManyDownsetsError, enumerate_downsets
from phaze_opt.partitioning.merged_splits import Stages, improve_split
from phaze_opt.partitioning.path_search import STEPS, search_paths
from phaze_opt.partitioning.unit_graph import UnitGraph
from phaze_opt.units import format_bytes

MOST_DOWNSETS = 250_000
"""A graph with more downsets is split along one topological order and as merged units first."""

_LARGEST_GAP, _MORE_DOWNSETS = 0.03, 1.5
"""Where that leaves a larger gap, so many times the downsets are searched."""

CHUNK = 2048
"""Number of downsets between two reports of progress."""

ReportProgress = Callable[[int, int], None]
"""Takes the number of downsets done, and of all downsets."""

Device = tuple[str, tuple[int, ...]]
"""Kind of a device (``"accelerator"`` or ``"cpu"``), and its units."""


@dataclass(frozen=True)
class DeviceAssignment:
    """The device of every unit, with the proof.

    Attributes
    ----------
    devices
        Every device in use; in the order of the graph if the split is contiguous.
    loads
        Load of every device, in the file's unit.
    value
        The largest load, or the latency, whichever is minimised.
    status, bound
        ``"optimal"`` only where ``bound`` proves that no assignment has a value below ``value``.
    """

    devices: tuple[Device, ...]
    loads: tuple[float, ...]
    value: float
    status: Literal["optimal", "feasible"]
    bound: float
    solve_s: float

    @property
    def gap(self) -> float:
        """Relative gap ``(value − bound) / value``; 0 where proven."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value > 0 else 0.0


def device_load(graph: UnitGraph, kind: str, units: tuple[int, ...]) -> float:
    """Return the load of a device: latency of its units, on an accelerator also transfers."""
    if kind == "cpu":
        return sum(graph.units[unit].cpu_latency for unit in units)
    inside = set(units)
    transfers = 0.0
    for tensor in graph.tensors:
        ends = (tensor.producer, *tensor.consumers)
        if not inside.isdisjoint(ends) and not inside.issuperset(ends):
            transfers += tensor.cost
    return sum(graph.units[unit].accelerator_latency for unit in units) + transfers


def split_contiguous(
    graph: UnitGraph,
    most_downsets: int = MOST_DOWNSETS,
    progress: ReportProgress | None = None,
    steps: int = STEPS,
) -> DeviceAssignment:
    """Find the contiguous split with the least largest load.

    Parameters
    ----------
    graph
        Units and devices.
    most_downsets
        If the graph has more downsets, splits of one topological order and of merged units are
        searched first (`merged_splits`), then, if the graph is a few long paths, all splits within
        rising limits (`path_search`). All downsets are searched only if that leaves a gap above
        3 % and they are no more than half as many again; otherwise the status is ``"feasible"``
        unless the bound proves the answer.
    progress
        Called after every chunk of downsets.
    steps
        Effort of `path_search`.

    Raises
    ------
    InfeasibleError
        If no split fits the accelerators' memory.
    """
    began = time.perf_counter()
    linear, known = _solve_with_load(graph, _chain_downsets(len(graph.units)), np.inf)
    try:
        downsets = enumerate_downsets(len(graph.units), graph.edges, most_downsets)
    except TooManyDownsetsError:
        best = improve_split(graph, linear, known, _solve_with_load)
        if best is None:
            raise InfeasibleError(why_infeasible(graph)) from None
        best, bound = _search_paths(graph, best, steps)
        known = largest_load(graph, best)
        more = _more_downsets(graph, known, bound, most_downsets)
        if more is None:
            return describe_assignment(graph, best, bound, began)
        downsets = more
    device = _solve(graph, downsets, known, progress)
    if device is None:
        raise InfeasibleError(why_infeasible(graph))
    return describe_assignment(graph, device, np.inf, began)


def _search_paths(graph: UnitGraph, best: Stages, steps: int) -> tuple[Stages, float]:
    """Return the best split known after the search over paths, and a lower bound on any load."""
    low = share_bound(graph)
    search = search_paths(graph, least_latencies(graph), speeds(graph), steps)
    if search is None:
        return best, low
    low, best = search.between(low, best, partial(largest_load, graph))
    return best, low


def _more_downsets(graph: UnitGraph, known: float, bound: float, most: int) -> Downsets | None:
    """Return all downsets where a known split is far from its bound and there are not too many."""
    if bound >= known * (1.0 - _LARGEST_GAP):
        return None
    try:
        return enumerate_downsets(len(graph.units), graph.edges, int(most * _MORE_DOWNSETS))
    except TooManyDownsetsError:
        return None


def _chain_downsets(count: int) -> Downsets:
    """Return the downsets of a chain: the prefixes of one topological order."""
    return enumerate_downsets(count, [(node, node + 1) for node in range(count - 1)])


def _solve_with_load(
    graph: UnitGraph, downsets: Downsets, known: float
) -> tuple[list[Device] | None, float]:
    """Return the devices of the best split and its load; None and infinity if all are above."""
    devices = _solve(graph, downsets, known, None)
    return devices, np.inf if devices is None else largest_load(graph, devices)


def _solve(
    graph: UnitGraph, downsets: Downsets, known: float, progress: ReportProgress | None
) -> list[Device] | None:
    """Return the devices of the best split, or None if every split has a load above ``known``."""
    count = len(downsets)
    shape = (count, graph.accelerators + 1, graph.cpus + 1)
    table = (
        np.full(shape, np.inf),
        np.full(shape, -1, dtype=np.int32),
        np.zeros(shape, dtype=np.bool_),
    )
    table[0][0] = 0.0
    queue = (
        np.full(count, -1, dtype=np.int32),
        np.zeros(count, dtype=np.int64),
        np.zeros((count, 5)),
    )
    steps = (downsets.grow_start, downsets.grow_node, downsets.grow_to)
    arrays, memory = graph_arrays(graph), graph.memory_bytes
    least = np.asarray(least_latencies(graph), dtype=np.float64)
    rest, speed = left_over(steps, least), speeds(graph)
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        relax_downsets(
            begin, end, downsets.bits, steps, arrays, memory, known, rest, speed, table, queue
        )
        if progress is not None:
            progress(end, count)
    return _walk_back(downsets, table)


def graph_arrays(graph: UnitGraph) -> GraphArrays:
    """Return the graph as arrays."""
    units = np.array([(u.accelerator_latency, u.cpu_latency, u.size_bytes) for u in graph.units])
    touch_start, touch = _flatten(graph.tensors_of_unit)
    end_start, ends = _flatten([(x.producer, *x.consumers) for x in graph.tensors])
    costs = np.array([tensor.cost for tensor in graph.tensors], dtype=np.float64)
    return units, touch_start, touch, end_start, ends, costs


def _flatten(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Return where each list begins (and the last one ends), and all lists one after another."""
    start = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return start, np.array([value for numbers in lists for value in numbers], dtype=np.int64)


def _walk_back(downsets: Downsets, table: DownsetTable) -> list[Device] | None:
    """Return the devices by walking back from the whole graph; the fewest among equal answers."""
    least, origin, on_cpu = table
    last = len(downsets) - 1
    best = least[last].min()
    if not np.isfinite(best):
        return None
    options = np.argwhere(least[last] <= best)
    accelerators, cpus = min((tuple(o) for o in options), key=lambda o: (o[0] + o[1], o[1]))
    devices: list[Device] = []
    index = last
    while index != 0:
        state = index, accelerators, cpus
        before, cpu = int(origin[state]), bool(on_cpu[state])
        units = tuple(downsets.members(before, index))
        devices.append(("cpu" if cpu else "accelerator", units))
        index, accelerators, cpus = before, accelerators - (not cpu), cpus - cpu
    return devices[::-1]


def largest_load(graph: UnitGraph, devices: Sequence[Device]) -> float:
    """Return the load of the device with the largest load."""
    return max(device_load(graph, kind, units) for kind, units in devices)


def describe_assignment(
    graph: UnitGraph,
    devices: Sequence[Device],
    bound: float,
    began: float,
    *,
    value: float | None = None,
    rounding: float = 0.0,
) -> DeviceAssignment:
    """Compute loads, value and proof of an assignment.

    Parameters
    ----------
    graph, devices
        The units, and the devices with their units.
    bound
        Lower bound on the value of every assignment.
    began
        Start of the search, on the clock of `time.perf_counter`.
    value
        The minimised value; the largest load if None.
    rounding
        Relative rounding of the bound: the value is proven from ``value * (1 - rounding)`` on.
    """
    loads = tuple(device_load(graph, kind, units) for kind, units in devices)
    reached = max(loads) if value is None else value
    return DeviceAssignment(
        devices=tuple(devices),
        loads=loads,
        value=reached,
        status="optimal" if bound >= reached * (1.0 - rounding) else "feasible",
        bound=min(bound, reached),
        solve_s=time.perf_counter() - began,
    )


def least_latencies(graph: UnitGraph) -> list[float]:
    """Return the latency of every unit on the kind of device that runs it fastest.

    Raises
    ------
    InfeasibleError
        If no device can run some unit.
    """
    latencies = [
        min(
            unit.accelerator_latency if graph.accelerators else np.inf,
            unit.cpu_latency if graph.cpus else np.inf,
        )
        for unit in graph.units
    ]
    if not np.isfinite(latencies).all():
        raise InfeasibleError(why_infeasible(graph))
    return latencies


def speeds(graph: UnitGraph) -> FloatArray:
    """Return the most least latency that an accelerator, and a CPU, does in a unit of time."""
    pairs = zip(graph.units, least_latencies(graph), strict=True)
    busy = [(least / u.accelerator_latency, least / u.cpu_latency) for u, least in pairs if least]
    return np.max(busy, axis=0, initial=0.0) if busy else np.zeros(2)


def share_bound(graph: UnitGraph) -> float:
    """Bound the largest load from below, by the least work spread evenly and by each unit alone.

    A CPU gets less of the work than an accelerator, by the ratio of their latencies.
    """
    cheapest = least_latencies(graph)
    capacity = float(speeds(graph) @ (graph.accelerators, graph.cpus))
    return max(sum(cheapest) / capacity if capacity > 0.0 else 0.0, *cheapest)


def why_infeasible(graph: UnitGraph) -> str:
    """Say in one sentence why no split fits."""
    if graph.accelerators + graph.cpus == 0:
        return "There is neither an accelerator nor a CPU to place anything on."
    if graph.cpus == 0:
        for index, unit in enumerate(graph.units):
            if np.isinf(unit.accelerator_latency):
                return f"Unit {index} is not supported by accelerators and there is no CPU."
    largest = max(range(len(graph.units)), key=lambda i: graph.units[i].size_bytes)
    size_bytes = graph.units[largest].size_bytes
    if size_bytes > graph.memory_bytes:
        over = format_bytes(size_bytes - graph.memory_bytes)
        return (
            f"Unit {largest} (nodes {list(graph.units[largest].members)}) needs "
            f"{format_bytes(size_bytes)}, {over} more than the "
            f"{format_bytes(graph.memory_bytes)} of an accelerator, and there is no CPU."
        )
    total = sum(unit.size_bytes for unit in graph.units)
    room = graph.accelerators * graph.memory_bytes
    if total > room:
        return (
            f"All units together need {format_bytes(total)}, {format_bytes(total - room)} more "
            f"than the {format_bytes(room)} of {graph.accelerators} accelerators, and there "
            "is no CPU."
        )
    return (
        f"No contiguous split over {graph.accelerators} accelerators of "
        f"{format_bytes(graph.memory_bytes)} fits, although all units together need only "
        f"{format_bytes(total)}."
    )
