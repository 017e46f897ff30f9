"""What may be split: operators merged into units that must stay together, and what they cost.

A unit is a set of operators that share a device: a colocation class with its forward and backward
operators. Splits are contiguous in the forward graph. The preparation follows M. Tarnawski et al.,
"Efficient algorithms for device placement of DNN graph operators" (NeurIPS 2020), section 5 and
appendix: units on a cycle are merged, a backward operator without a forward one gets an artificial
forward unit with mirrored edges, and a forward operator that costs nothing and has a single
neighbour joins it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from phaze_opt.partitioning.formats import PartitionNode, PartitionProblem


@dataclass(frozen=True)
class Unit:
    """Operators that share a device.

    Attributes
    ----------
    members
        Indices of the file's nodes.
    accelerator_latency
        Infinite if an accelerator cannot run one of them.
    """

    members: tuple[int, ...]
    accelerator_latency: float
    cpu_latency: float
    size_bytes: float


@dataclass(frozen=True)
class Tensor:
    """An output that leaves its unit: moved once from its producer and once to each consumer."""

    producer: int
    consumers: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class Partition:
    """Units in a topological order of the forward graph.

    Attributes
    ----------
    edges
        Of the forward graph, between units, source before destination.
    tensors
        Of the whole graph, forward and backward.
    """

    units: tuple[Unit, ...]
    edges: tuple[tuple[int, int], ...]
    tensors: tuple[Tensor, ...]
    memory_bytes: float
    accelerators: int
    cpus: int


def prepare(problem: PartitionProblem, contiguous: bool = True) -> Partition:
    """Merge operators into units.

    Parameters
    ----------
    problem
        As read.
    contiguous
        Whether splits must be contiguous; if not, only colocation merges.
    """
    group = _colocation_groups(problem)
    if not contiguous:
        return _partition(problem, group, [])
    forward = _forward_edges(problem, group)
    group, forward = _merge_cycles(group, forward)
    group, forward = _join_free_nodes(problem, group, forward)
    group, forward = _merge_cycles(group, forward)
    return _partition(problem, group, sorted(forward))


def _colocation_groups(problem: PartitionProblem) -> list[int]:
    """Give the colocation classes numbers in the order of their first operator."""
    number: dict[Hashable, int] = {}
    for index, node in enumerate(problem.nodes):
        number.setdefault(_class(index, node), len(number))
    return [number[_class(index, node)] for index, node in enumerate(problem.nodes)]


def _class(index: int, node: PartitionNode) -> Hashable:
    """Return the colocation class, or one of the operator's own."""
    return ("class", node.colocation) if node.colocation is not None else ("node", index)


def _forward_edges(problem: PartitionProblem, group: list[int]) -> set[tuple[int, int]]:
    """Return the forward graph between groups, mirrored edges of orphans included."""
    has_forward = {group[i] for i, node in enumerate(problem.nodes) if not node.backward}
    edges: set[tuple[int, int]] = set()
    for source, destination in problem.edges:
        backward = problem.nodes[source].backward, problem.nodes[destination].backward
        ends = group[source], group[destination]
        if not any(backward):
            edges.add(ends)
        elif all(backward) and not has_forward.issuperset(ends):
            edges.add((ends[1], ends[0]))
    return {(source, destination) for source, destination in edges if source != destination}


def _merge_cycles(
    group: list[int], edges: Iterable[tuple[int, int]]
) -> tuple[list[int], set[tuple[int, int]]]:
    """Merge the groups of every cycle, and renumber them."""
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(set(group)))
    graph.add_edges_from(sorted(edges))
    parts = sorted(sorted(part) for part in nx.strongly_connected_components(graph))
    return _renumber(group, edges, {old: new for new, part in enumerate(parts) for old in part})


def _renumber(
    group: list[int], edges: Iterable[tuple[int, int]], number: Mapping[int, int]
) -> tuple[list[int], set[tuple[int, int]]]:
    """Give groups new numbers; edges inside a group vanish."""
    renamed = {(number[source], number[destination]) for source, destination in edges}
    return [number[old] for old in group], {pair for pair in renamed if pair[0] != pair[1]}


def _join_free_nodes(
    problem: PartitionProblem, group: list[int], edges: set[tuple[int, int]]
) -> tuple[list[int], set[tuple[int, int]]]:
    """Join groups that cost nothing and have one neighbour to that neighbour.

    They could only add transfers elsewhere, and without them there are far fewer downsets.
    """
    busy = {
        group[index]
        for index, node in enumerate(problem.nodes)
        if node.cpu_latency > 0 or node.accelerator_latency > 0 or not node.supported
    }
    near: dict[int, set[int]] = {number: set() for number in group}
    near_backward: set[int] = set()
    for source, destination in problem.edges:
        ends = group[source], group[destination]
        if ends[0] == ends[1]:
            continue
        if problem.nodes[source].backward or problem.nodes[destination].backward:
            near_backward.update(
                end
                for end, node in zip(ends, (source, destination), strict=True)
                if not problem.nodes[node].backward
            )
        else:
            near[ends[0]].add(ends[1])
            near[ends[1]].add(ends[0])
    target = {number: number for number in near}
    for number in sorted(near):
        if number in busy or number in near_backward or len(near[number]) != 1:
            continue
        (neighbour,) = near[number]
        if target[neighbour] == neighbour:
            target[number] = neighbour
    kept = {old: new for new, old in enumerate(sorted(set(target.values())))}
    return _renumber(group, edges, {old: kept[new] for old, new in target.items()})


def _partition(
    problem: PartitionProblem, group: list[int], edges: list[tuple[int, int]]
) -> Partition:
    """Add up the units' costs, in a topological order."""
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(set(group)))
    graph.add_edges_from(edges)
    position = {old: new for new, old in enumerate(_depth_first(graph))}
    members: list[list[int]] = [[] for _ in position]
    for index, old in enumerate(group):
        members[position[old]].append(index)
    unit_of = [position[old] for old in group]
    return Partition(
        units=tuple(_unit(problem, nodes) for nodes in members),
        edges=tuple(sorted((position[s], position[d]) for s, d in edges)),
        tensors=_tensors(problem, unit_of),
        memory_bytes=problem.memory_bytes,
        # More devices than units are of no use.
        accelerators=min(problem.accelerators, len(members)),
        cpus=min(problem.cpus, len(members)),
    )


def _depth_first(graph: nx.DiGraph) -> list[int]:
    """Return a topological order that stays on a branch as long as it can."""
    waiting = {node: graph.in_degree(node) for node in graph}
    ready = sorted((node for node in graph if waiting[node] == 0), reverse=True)
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for successor in sorted(graph.successors(node), reverse=True):
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return order


def _unit(problem: PartitionProblem, members: list[int]) -> Unit:
    nodes = [problem.nodes[index] for index in members]
    supported = all(node.supported for node in nodes)
    return Unit(
        members=tuple(members),
        accelerator_latency=sum(n.accelerator_latency for n in nodes)
        if supported
        else float("inf"),
        cpu_latency=sum(node.cpu_latency for node in nodes),
        size_bytes=sum(node.size_bytes for node in nodes),
    )


def _tensors(problem: PartitionProblem, unit_of: list[int]) -> tuple[Tensor, ...]:
    """Return the outputs that leave their unit; those with the same ends are one."""
    consumers: dict[int, set[int]] = {}
    for source, destination in problem.edges:
        if unit_of[source] != unit_of[destination]:
            consumers.setdefault(source, set()).add(unit_of[destination])
    costs: dict[tuple[int, tuple[int, ...]], float] = {}
    for source in sorted(consumers):
        ends = unit_of[source], tuple(sorted(consumers[source]))
        cost = problem.nodes[source].output_cost
        if cost > 0:
            costs[ends] = costs.get(ends, 0.0) + cost
    return tuple(Tensor(producer, users, cost) for (producer, users), cost in sorted(costs.items()))
