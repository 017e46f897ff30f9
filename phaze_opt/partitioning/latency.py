"""Latency of one sample of an inference graph over accelerators and a pool of CPUs.

An accelerator runs its units as one subgraph: it starts when everything from outside is there,
reads it in, runs, and writes out what others need; only then is any of its units available. A unit
on the CPUs runs when its inputs are there; CPUs are one pool that runs any number side by side.
The model is that of M. Tarnawski et al., "Efficient algorithms for device placement of DNN graph
operators" (NeurIPS 2020), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import networkx as nx

from phaze_opt.partitioning.colocation import Partition
from phaze_opt.partitioning.dag import least_latencies

CPU = 0
"""Device number of the pool of CPUs; accelerators are 1, 2, …"""


def latency_of(partition: Partition, device: Sequence[int]) -> float:
    """Return the latency of a placement; infinite if it does not fit or cannot be ordered.

    Parameters
    ----------
    partition
        Units with tensors between them.
    device
        Of every unit: `CPU` or the number of an accelerator.
    """
    if not fits(partition, device):
        return math.inf
    finish = finishes(partition, device, float)
    return max(end for _, end in finish.values()) if finish else math.inf


def finishes(
    partition: Partition, device: Sequence[int], cost: Callable[[float], float]
) -> dict[int, tuple[float, float]]:
    """Return start and finish of every accelerator's subgraph and of every unit on the CPUs.

    Parameters
    ----------
    partition, device
        As `latency_of`.
    cost
        What to count for a latency or a transfer (itself, or a rounded one).

    Returns
    -------
    dict
        By unit, or by minus the number of the accelerator; empty if there is no order.
    """
    name = [unit if where == CPU else -where for unit, where in enumerate(device)]
    work: dict[int, float] = {}
    for index, unit in enumerate(partition.units):
        latency = unit.cpu_latency if device[index] == CPU else unit.accelerator_latency
        work[name[index]] = work.get(name[index], cost(0.0)) + cost(latency)
    for tensor in partition.tensors:
        touched = {name[unit] for unit in (tensor.producer, *tensor.consumers)}
        for where in touched if len(touched) > 1 else ():
            if where < 0:
                work[where] += cost(tensor.cost)
    graph = nx.DiGraph()
    graph.add_nodes_from(work)
    pairs = ((name[source], name[destination]) for source, destination in partition.edges)
    graph.add_edges_from((s, d) for s, d in pairs if s != d)
    found: dict[int, tuple[float, float]] = {}
    try:
        for node in nx.topological_sort(graph):
            start = max((found[before][1] for before in graph.predecessors(node)), default=cost(0))
            found[node] = start, start + work[node]
    except nx.NetworkXUnfeasible:
        return {}
    return found


def fits(partition: Partition, device: Sequence[int]) -> bool:
    """Whether the devices exist, have the memory, and can run what is on them."""
    held: dict[int, float] = {}
    for unit, where in zip(partition.units, device, strict=True):
        if where == CPU:
            if partition.cpus == 0:
                return False
            continue
        if where > partition.accelerators or math.isinf(unit.accelerator_latency):
            return False
        held[where] = held.get(where, 0.0) + unit.size_bytes
    return all(size <= partition.memory_bytes for size in held.values())


def longest_path(partition: Partition) -> float:
    """Return the longest path at every unit's least latency: no placement is faster.

    Raises
    ------
    InfeasibleError
        If there is no device that can run some unit.
    """
    finish = [0.0] * len(partition.units)
    for index, latency in enumerate(least_latencies(partition)):
        finish[index] += latency
        for source, destination in partition.edges:
            if source == index:
                finish[destination] = max(finish[destination], finish[index])
    return max(finish)


def greedy(partition: Partition) -> list[int]:
    """Return the best of a few simple placements.

    All on the CPUs; all on one accelerator; accelerators filled one after the other in topological
    order as far as their memory goes, the rest on the CPUs or, at worst, nowhere; and the best
    placement in which everything runs one after the other.
    """
    count = len(partition.units)
    options = [[CPU] * count, [1] * count]
    for shares in range(1, partition.accelerators + 1):
        room = min(
            partition.memory_bytes,
            max(1.0, sum(unit.size_bytes for unit in partition.units) / shares * 1.05),
        )
        options.append(_fill(partition, room))
    options.append(_fill(partition, partition.memory_bytes))
    options.append(one_after_the_other(partition))
    return min(options, key=lambda option: latency_of(partition, option))


def _fill(partition: Partition, room: float) -> list[int]:
    """Fill accelerators up to some size each, in topological order."""
    device: list[int] = []
    where, held = 1, 0.0
    for unit in partition.units:
        if held + unit.size_bytes > room:
            where, held = where + 1, 0.0
        possible = (
            where <= partition.accelerators
            and unit.size_bytes <= room
            and not math.isinf(unit.accelerator_latency)
        )
        device.append(where if possible else CPU)
        held += unit.size_bytes if possible else 0.0
    return device


def one_after_the_other(partition: Partition) -> list[int]:
    """Return the best placement of one topological order if nothing ran side by side.

    A dynamic program over the order: each run of units goes to the next accelerator with its
    transfers, or a unit to the CPUs. What does run side by side only makes it faster.
    """
    count, accelerators = len(partition.units), partition.accelerators
    best = [[math.inf] * (accelerators + 1) for _ in range(count + 1)]
    best[0] = [0.0] * (accelerators + 1)
    origin = [[(0, CPU)] * (accelerators + 1) for _ in range(count + 1)]
    touching = _touching(partition)
    for start, unit in enumerate(partition.units):
        for used in range(accelerators + 1):
            time = best[start][used] + unit.cpu_latency
            if partition.cpus and time < best[start + 1][used]:
                best[start + 1][used], origin[start + 1][used] = time, (start, CPU)
        for end, load in _runs(partition, touching, start):
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


def _runs(
    partition: Partition, touching: list[list[int]], start: int
) -> Iterator[tuple[int, float]]:
    """Yield the end and the load of every run from a unit that fits an accelerator."""
    inside: set[int] = set()
    moved: dict[int, float] = {}
    work, size = 0.0, 0.0
    for index in range(start, len(partition.units)):
        unit = partition.units[index]
        work, size = work + unit.accelerator_latency, size + unit.size_bytes
        if size > partition.memory_bytes or math.isinf(work):
            return
        inside.add(index)
        for tensor in touching[index]:
            ends = partition.tensors[tensor].producer, *partition.tensors[tensor].consumers
            crosses = not inside.issuperset(ends)
            moved[tensor] = partition.tensors[tensor].cost if crosses else 0.0
        yield index + 1, work + sum(moved.values())


def _touching(partition: Partition) -> list[list[int]]:
    """Return the tensors that each unit makes or uses."""
    found: list[list[int]] = [[] for _ in partition.units]
    for index, tensor in enumerate(partition.tensors):
        for unit in (tensor.producer, *tensor.consumers):
            found[unit].append(index)
    return found
