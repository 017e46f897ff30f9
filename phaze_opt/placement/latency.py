"""Latency of one sample of an inference graph over accelerators and a pool of CPUs.

An accelerator runs its units as one subgraph: it starts when everything from outside is there,
reads it in, runs, and writes out what others need; only then is any of its units available. A unit
on the CPUs runs when its inputs are there; CPUs are one pool that runs any number side by side.
The model is that of M. Tarnawski et al., "Efficient algorithms for device placement of DNN graph
operators" (NeurIPS 2020), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import networkx as nx

from phaze_opt.placement.dag import least_latencies
from phaze_opt.placement.partition import Partition

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
    # Subgraphs on accelerators become single nodes, named -1, -2, …; CPU units keep their number.
    name = [unit if where == CPU else -where for unit, where in enumerate(device)]
    work: dict[int, float] = dict.fromkeys(name, 0.0)
    for index, unit in enumerate(partition.units):
        cost = unit.cpu_latency if device[index] == CPU else unit.accelerator_latency
        work[name[index]] += cost
    for where in set(name):
        if where < 0:
            work[where] += transfers(partition, {u for u, n in enumerate(name) if n == where})
    graph = nx.DiGraph()
    graph.add_nodes_from(work)
    pairs = ((name[source], name[destination]) for source, destination in partition.edges)
    graph.add_edges_from((s, d) for s, d in pairs if s != d)
    finish: dict[int, float] = {}
    try:
        for node in nx.topological_sort(graph):
            ready = max((finish[before] for before in graph.predecessors(node)), default=0.0)
            finish[node] = ready + work[node]
    except nx.NetworkXUnfeasible:
        return math.inf
    return max(finish.values())


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


def transfers(partition: Partition, inside: set[int]) -> float:
    """Return the cost of every tensor that enters or leaves a set of units, once each."""
    return sum(
        tensor.cost
        for tensor in partition.tensors
        if any((unit in inside) != (tensor.producer in inside) for unit in tensor.consumers)
    )


def greedy(partition: Partition) -> list[int]:
    """Return the best of a few simple placements.

    All on the CPUs; all on one accelerator; accelerators filled one after the other in topological
    order as far as their memory goes, the rest on the CPUs or, at worst, nowhere.
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
