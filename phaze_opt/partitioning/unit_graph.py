"""The graph of units: operators merged into units that share a device.

A unit holds the operators of a colocation class, forward and backward. Splits are contiguous in the
forward graph. Merging follows M. Tarnawski et al., "Efficient algorithms for device placement of
DNN graph operators" (NeurIPS 2020), section 5 and appendix: units on a cycle are merged, a backward
operator without a forward one gets an artificial forward unit with mirrored edges, and a forward
operator that costs nothing and has a single neighbour joins the unit of this neighbour.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import networkx as nx

from phaze_opt.on_demand import cached_property
from phaze_opt.partitioning.dnn_format import DnnNode, DnnProblem


@dataclass(frozen=True)
class Unit:
    """Operators that share a device.

    Attributes
    ----------
    members
        Indices of its operators among the nodes of the file.
    accelerator_latency, cpu_latency
        Sums over the operators, in the file's unit; the first is infinite if accelerators do not
        support one of them.
    """

    members: tuple[int, ...]
    accelerator_latency: float
    cpu_latency: float
    size_bytes: float


@dataclass(frozen=True)
class Transfer:
    """An output used by other units: one transfer from its producer and one to each consumer.

    ``producer`` and ``consumers`` are indices of units; ``cost`` is the time of one transfer.
    """

    producer: int
    consumers: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class UnitGraph:
    """Units in a topological order of the forward graph, with the devices of the file.

    Attributes
    ----------
    edges
        Edges of the forward graph as pairs of indices of units, sources first.
    tensors
        Tensors between units of the whole graph, forward and backward.
    memory_bytes
        Memory of one accelerator.
    accelerators, cpus
        Numbers of devices.
    """

    units: tuple[Unit, ...]
    edges: tuple[tuple[int, int], ...]
    tensors: tuple[Transfer, ...]
    memory_bytes: float
    accelerators: int
    cpus: int

    @cached_property
    def tensors_of_unit(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the tensors that each unit produces or consumes."""
        touching: list[list[int]] = [[] for _ in self.units]
        for index, tensor in enumerate(self.tensors):
            for unit in (tensor.producer, *tensor.consumers):
                touching[unit].append(index)
        return tuple(map(tuple, touching))


def build_unit_graph(problem: DnnProblem, contiguous: bool = True) -> UnitGraph:
    """Merge the operators of a file into units.

    Parameters
    ----------
    problem
        The file's content.
    contiguous
        Whether splits must be contiguous; if not, only operators of a colocation class are merged.
    """
    group = _colocation_groups(problem)
    if not contiguous:
        return _unit_graph(problem, group, [])
    forward = _forward_edges(problem, group)
    group, forward = _merge_cycles(group, forward)
    group, forward = _join_free_nodes(problem, group, forward)
    group, forward = _merge_cycles(group, forward)
    return _unit_graph(problem, group, sorted(forward))


def _colocation_groups(problem: DnnProblem) -> list[int]:
    """Give each operator the number of its colocation class, in the order of first operators."""
    number: dict[Hashable, int] = {}
    for index, node in enumerate(problem.nodes):
        number.setdefault(_class(index, node), len(number))
    return [number[_class(index, node)] for index, node in enumerate(problem.nodes)]


def _class(index: int, node: DnnNode) -> Hashable:
    """Return the colocation class of an operator, or a class of its own."""
    return ("class", node.colocation) if node.colocation is not None else ("node", index)


def _forward_edges(problem: DnnProblem, group: list[int]) -> set[tuple[int, int]]:
    """Return the edges of the forward graph between groups.

    An edge between backward operators counts reversed if one of their groups has no forward
    operator.
    """
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
    """Merge the groups of every cycle, and renumber the groups."""
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(set(group)))
    graph.add_edges_from(sorted(edges))
    parts = sorted(sorted(part) for part in nx.strongly_connected_components(graph))
    return _renumber(group, edges, {old: new for new, part in enumerate(parts) for old in part})


def _renumber(
    group: list[int], edges: Iterable[tuple[int, int]], number: Mapping[int, int]
) -> tuple[list[int], set[tuple[int, int]]]:
    """Give groups new numbers, and drop edges inside a group."""
    renamed = {(number[source], number[destination]) for source, destination in edges}
    return [number[old] for old in group], {pair for pair in renamed if pair[0] != pair[1]}


def _join_free_nodes(
    problem: DnnProblem, group: list[int], edges: set[tuple[int, int]]
) -> tuple[list[int], set[tuple[int, int]]]:
    """Join each group that costs nothing and has one neighbour to this neighbour.

    On another device it could only add transfers, and fewer groups have far fewer downsets.
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


def _unit_graph(problem: DnnProblem, group: list[int], edges: list[tuple[int, int]]) -> UnitGraph:
    """Build the units from the group of each operator, in a topological order."""
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(set(group)))
    graph.add_edges_from(edges)
    position = {old: new for new, old in enumerate(_depth_first(graph))}
    members: list[list[int]] = [[] for _ in position]
    for index, old in enumerate(group):
        members[position[old]].append(index)
    unit_of = [position[old] for old in group]
    return UnitGraph(
        units=tuple(_unit(problem, nodes) for nodes in members),
        edges=tuple(sorted((position[s], position[d]) for s, d in edges)),
        tensors=_tensors(problem, unit_of),
        memory_bytes=problem.memory_bytes,
        # More devices than units cannot be used.
        accelerators=min(problem.accelerators, len(members)),
        cpus=min(problem.cpus, len(members)),
    )


def merge_units(graph: UnitGraph, group: Sequence[int]) -> tuple[UnitGraph, list[int]]:
    """Merge units.

    Parameters
    ----------
    graph
        Units and devices.
    group
        A number for every unit; equal ones are merged, which may make no cycle.

    Returns
    -------
    The merged graph, whose units hold the operators of theirs, and the merged unit of every unit.
    """
    order = nx.DiGraph()
    order.add_nodes_from(sorted(set(group)))
    pairs = {(group[source], group[destination]) for source, destination in graph.edges}
    order.add_edges_from(sorted(pair for pair in pairs if pair[0] != pair[1]))
    position = {old: new for new, old in enumerate(_depth_first(order))}
    unit_of = [position[number] for number in group]
    units: list[list[Unit]] = [[] for _ in position]
    for number, unit in zip(unit_of, graph.units, strict=True):
        units[number].append(unit)
    costs: dict[tuple[int, tuple[int, ...]], float] = {}
    for tensor in graph.tensors:
        producer = unit_of[tensor.producer]
        users = tuple(sorted({unit_of[unit] for unit in tensor.consumers} - {producer}))
        if users:
            costs[producer, users] = costs.get((producer, users), 0.0) + tensor.cost
    merged = replace(
        graph,
        units=tuple(map(_merged_unit, units)),
        edges=tuple(sorted((position[source], position[to]) for source, to in order.edges)),
        tensors=tuple(Transfer(*ends, cost) for ends, cost in sorted(costs.items())),
    )
    return merged, unit_of


def _merged_unit(units: Sequence[Unit]) -> Unit:
    return Unit(
        members=tuple(sorted(member for unit in units for member in unit.members)),
        accelerator_latency=sum(unit.accelerator_latency for unit in units),
        cpu_latency=sum(unit.cpu_latency for unit in units),
        size_bytes=sum(unit.size_bytes for unit in units),
    )


def _depth_first(graph: nx.DiGraph) -> list[int]:
    """Return a topological order that follows a branch as far as possible."""
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


def _unit(problem: DnnProblem, members: list[int]) -> Unit:
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


def _tensors(problem: DnnProblem, unit_of: list[int]) -> tuple[Transfer, ...]:
    """Return the outputs used by other units; outputs with equal ends become one tensor."""
    consumers: dict[int, set[int]] = {}
    for source, destination in problem.edges:
        if unit_of[source] != unit_of[destination]:
            consumers.setdefault(source, set()).add(unit_of[destination])
    costs: dict[tuple[int, tuple[int, ...]], float] = {}
    for source in sorted(consumers):
        ends = unit_of[source], tuple(sorted(consumers[source]))
        cost = problem.output_costs[source]
        if cost > 0:
            costs[ends] = costs.get(ends, 0.0) + cost
    return tuple(
        Transfer(producer, users, cost) for (producer, users), cost in sorted(costs.items())
    )
