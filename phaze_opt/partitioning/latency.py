"""Latency of one sample of an inference graph over accelerators and a pool of CPUs.

An accelerator runs its units as one subgraph: it starts when all inputs from outside are available,
reads them, runs all units, and writes the outputs that other devices use; then the outputs of all
its units are available. A unit on the CPUs starts when its inputs are available; the CPUs are one
pool, which runs any number of units at the same time.
The model is that of M. Tarnawski et al., "Efficient algorithms for device placement of DNN graph
operators" (NeurIPS 2020), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import networkx as nx

from phaze_opt.partitioning.dag import least_latencies
from phaze_opt.partitioning.unit_graph import UnitGraph

CPU = 0
"""Device number of the pool of CPUs; accelerators are 1, 2, …"""


def latency_of(graph: UnitGraph, device: Sequence[int]) -> float:
    """Return the latency of a placement; infinite if it does not fit or its subgraphs form a cycle.

    Parameters
    ----------
    graph
        Units with tensors between them.
    device
        Device of every unit: `CPU`, or the number of an accelerator.
    """
    if not fits(graph, device):
        return math.inf
    finish = finishes(graph, device, float)
    return max(end for _, end in finish.values()) if finish else math.inf


def finishes(
    graph: UnitGraph, device: Sequence[int], cost: Callable[[float], float]
) -> dict[int, tuple[float, float]]:
    """Return start and finish of every accelerator's subgraph and of every unit on the CPUs.

    Parameters
    ----------
    graph, device
        As `latency_of`.
    cost
        Converts a latency or a transfer into the numbers to add (`float`, or rounding to steps).

    Returns
    -------
    dict
        By unit on the CPUs, or by minus the number of the accelerator; empty if there is a cycle.
    """
    name = [unit if where == CPU else -where for unit, where in enumerate(device)]
    work: dict[int, float] = {}
    for index, unit in enumerate(graph.units):
        latency = unit.cpu_latency if device[index] == CPU else unit.accelerator_latency
        work[name[index]] = work.get(name[index], cost(0.0)) + cost(latency)
    for tensor in graph.tensors:
        touched = {name[unit] for unit in (tensor.producer, *tensor.consumers)}
        for where in touched if len(touched) > 1 else ():
            if where < 0:
                work[where] += cost(tensor.cost)
    order = nx.DiGraph()
    order.add_nodes_from(work)
    pairs = ((name[source], name[destination]) for source, destination in graph.edges)
    order.add_edges_from((s, d) for s, d in pairs if s != d)
    spans: dict[int, tuple[float, float]] = {}
    try:
        for node in nx.topological_sort(order):
            start = max((spans[before][1] for before in order.predecessors(node)), default=cost(0))
            spans[node] = start, start + work[node]
    except nx.NetworkXUnfeasible:
        return {}
    return spans


def fits(graph: UnitGraph, device: Sequence[int]) -> bool:
    """Whether the devices exist, have the memory, and support their units."""
    held: dict[int, float] = {}
    for unit, where in zip(graph.units, device, strict=True):
        if where == CPU:
            if graph.cpus == 0:
                return False
            continue
        if where > graph.accelerators or math.isinf(unit.accelerator_latency):
            return False
        held[where] = held.get(where, 0.0) + unit.size_bytes
    return all(size <= graph.memory_bytes for size in held.values())


def longest_path(graph: UnitGraph) -> float:
    """Bound the latency from below, by the longest path with every unit's least latency.

    Raises
    ------
    InfeasibleError
        If no device can run some unit.
    """
    finish = [0.0] * len(graph.units)
    for index, latency in enumerate(least_latencies(graph)):
        finish[index] += latency
        for source, destination in graph.edges:
            if source == index:
                finish[destination] = max(finish[destination], finish[index])
    return max(finish)


def greedy(graph: UnitGraph) -> list[int]:
    """Return the best of a few simple placements: the device of every unit.

    All units on the CPUs; all on one accelerator; accelerators filled one after another in
    topological order up to their memory, with the other units on the CPUs; and the best placement
    under the assumption that no two devices run at the same time.
    """
    count = len(graph.units)
    options = [[CPU] * count, [1] * count]
    for shares in range(1, graph.accelerators + 1):
        room = min(
            graph.memory_bytes,
            max(1.0, sum(unit.size_bytes for unit in graph.units) / shares * 1.05),
        )
        options.append(_fill(graph, room))
    options.append(_fill(graph, graph.memory_bytes))
    options.append(_best_sequential(graph))
    return min(options, key=lambda option: latency_of(graph, option))


def _fill(graph: UnitGraph, room: float) -> list[int]:
    """Fill accelerators with up to ``room`` bytes each, in topological order."""
    device: list[int] = []
    where, held = 1, 0.0
    for unit in graph.units:
        if held + unit.size_bytes > room:
            where, held = where + 1, 0.0
        possible = (
            where <= graph.accelerators
            and unit.size_bytes <= room
            and not math.isinf(unit.accelerator_latency)
        )
        device.append(where if possible else CPU)
        held += unit.size_bytes if possible else 0.0
    return device


def _best_sequential(graph: UnitGraph) -> list[int]:
    """Return the best placement along one topological order if no two devices ran at a time.

    A dynamic program over the order: each run of units goes to the next accelerator with its
    transfers, or one unit to the CPUs. Devices that run at the same time only shorten the latency.
    """
    count, accelerators = len(graph.units), graph.accelerators
    best = [[math.inf] * (accelerators + 1) for _ in range(count + 1)]
    best[0] = [0.0] * (accelerators + 1)
    origin = [[(0, CPU)] * (accelerators + 1) for _ in range(count + 1)]
    for start, unit in enumerate(graph.units):
        for used in range(accelerators + 1):
            time = best[start][used] + unit.cpu_latency
            if graph.cpus and time < best[start + 1][used]:
                best[start + 1][used], origin[start + 1][used] = time, (start, CPU)
        for end, load in _runs(graph, start):
            for used in range(accelerators):
                time = best[start][used] + load
                if time < best[end][used + 1]:
                    best[end][used + 1], origin[end][used + 1] = time, (start, used + 1)
    used = min(range(accelerators + 1), key=lambda number: best[count][number])
    device = [CPU] * count
    end = count
    if math.isinf(best[count][used]):
        return device
    while end > 0:
        start, where = origin[end][used]
        device[start:end] = [where] * (end - start)
        end, used = start, used - (where != CPU)
    return device


def _runs(graph: UnitGraph, start: int) -> Iterator[tuple[int, float]]:
    """Yield the end and the load of every run of units from ``start`` that fits an accelerator."""
    inside: set[int] = set()
    moved: dict[int, float] = {}
    work, size = 0.0, 0.0
    for index in range(start, len(graph.units)):
        unit = graph.units[index]
        work, size = work + unit.accelerator_latency, size + unit.size_bytes
        if size > graph.memory_bytes or math.isinf(work):
            return
        inside.add(index)
        for tensor in graph.tensors_of_unit[index]:
            ends = graph.tensors[tensor].producer, *graph.tensors[tensor].consumers
            crosses = not inside.issuperset(ends)
            moved[tensor] = graph.tensors[tensor].cost if crosses else 0.0
        yield index + 1, work + sum(moved.values())
