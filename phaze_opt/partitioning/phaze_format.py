"""Reader of the ``phaze`` format, the input of the solver of Phaze (ICML 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_DEVICES, MOST_SAMPLES, check_size
from phaze_opt.partitioning.json_object import (
    JsonObject,
    check_acyclic,
    decode_json,
    edge_ends,
    json_list,
    refuse_duplicates,
)


@dataclass(frozen=True)
class PhazeNode:
    """A layer at one tensor-parallel width: bytes and seconds of one microbatch on one device."""

    id: int
    parameter_bytes: float
    activation_bytes: float
    forward_s: float
    backward_s: float
    tensor_parallel: bool


@dataclass(frozen=True)
class PhazeEdge:
    """An activation between two layers, given by their indices, and its size."""

    source: int
    destination: int
    bytes: float


@dataclass(frozen=True)
class PhazeProblem:
    """The content of a file of the ``phaze`` format.

    Attributes
    ----------
    memory_bytes
        Memory of one device.
    devices
        Number of devices.
    bandwidth_bytes_per_s
        Bandwidth between any two devices.
    microbatches
        Microbatches per batch, over all replicas.
    nodes, edges
        Layers and activations by tensor-parallel width; ids and their topological order are equal
        at every width.
    """

    memory_bytes: float
    devices: int
    bandwidth_bytes_per_s: float
    microbatches: int
    recompute: bool
    optimizer: str
    nodes: Mapping[int, tuple[PhazeNode, ...]]
    edges: Mapping[int, tuple[PhazeEdge, ...]]


def read_phaze(data: bytes, what: str) -> PhazeProblem:
    """Read the ``phaze`` format.

    Parameters
    ----------
    data
        The file's bytes.
    what
        Name of the file in errors.

    Raises
    ------
    InputError
        If a key is missing, a value has the wrong type or is negative, an id is there twice, an
        edge ends at no node, the edges form a cycle, or the widths have different layers.
    """
    top = JsonObject(decode_json(data, what), what)
    widths = _widths(top)
    optimizer = top.value("optimizerAlgorithm")
    if optimizer not in ("SGD", "Adam"):
        raise InputError(
            f"{what}: optimizerAlgorithm is {optimizer!r}, but it must be SGD or Adam."
        )
    tables, edge_tables = top.mapping("nodes"), top.mapping("edges")
    nodes: dict[int, list[PhazeNode]] = {}
    edges: dict[int, list[tuple[int, int, float]]] = {}
    for width, key in sorted(widths.items()):
        nodes[width] = _phaze_nodes(tables[key], f"{what}: nodes[{key!r}]")
        ids, first = ({node.id for node in nodes[w]} for w in (width, min(nodes)))
        if ids != first:
            raise InputError(
                f"{what}: nodes[{key!r}] has other ids than the width {min(nodes)}: "
                f"{min(ids ^ first)} is only in one of them."
            )
        if key not in edge_tables:
            raise InputError(f"{what}: edges lacks the width {key!r}.")
        edges[width] = _phaze_edges(edge_tables[key], ids, f"{what}: edges[{key!r}]")
    order = _topological(nodes[min(nodes)], edges, f"{what}: edges")
    ordered = {width: _ordered(nodes[width], edges[width], order) for width in nodes}
    return PhazeProblem(
        memory_bytes=top.number("maxMemoryPerDevice"),
        devices=top.integer("maxDevices", 1, MOST_DEVICES),
        bandwidth_bytes_per_s=top.positive("bandwidth"),
        microbatches=top.integer("mbsInBatch", 1, MOST_SAMPLES),
        recompute=top.flag("activationRecomputation"),
        optimizer=optimizer,
        nodes={width: pair[0] for width, pair in ordered.items()},
        edges={width: pair[1] for width, pair in ordered.items()},
    )


def _widths(top: JsonObject) -> dict[int, str]:
    """Return the tensor-parallel widths with their keys."""
    widths: dict[int, str] = {}
    for key in top.mapping("nodes"):
        if not key.isascii() or not key.isdigit() or int(key) < 1:
            raise InputError(f"{top.place}: nodes has the width {key!r}, not a positive integer.")
        check_size(f"{top.place}: a width", int(key), MOST_DEVICES)
        if int(key) in widths:
            raise InputError(f"{top.place}: nodes has the width {int(key)} twice.")
        widths[int(key)] = key
    if not widths:
        raise InputError(f"{top.place}: nodes is empty.")
    for key in top.mapping("edges"):
        if key not in widths.values():
            raise InputError(f"{top.place}: edges has the width {key!r}, which nodes lacks.")
    return widths


def _phaze_nodes(plain: object, place: str) -> list[PhazeNode]:
    """Return the nodes of one width."""
    entries = enumerate(json_list(plain, place))
    nodes = [_phaze_node(JsonObject(entry, f"{place}[{i}]")) for i, entry in entries]
    if not nodes:
        raise InputError(f"{place} is empty.")
    refuse_duplicates([node.id for node in nodes], place)
    return nodes


def _phaze_node(reader: JsonObject) -> PhazeNode:
    return PhazeNode(
        id=reader.integer("id"),
        parameter_bytes=reader.number("parameterSize"),
        activation_bytes=reader.number("activationSize"),
        forward_s=reader.number("optimalLatencyFw"),
        backward_s=reader.number("optimalLatencyBw"),
        tensor_parallel=reader.flag("isTensorParallelized"),
    )


def _phaze_edges(plain: object, ids: set[int], place: str) -> list[tuple[int, int, float]]:
    """Return (source id, destination id, bytes) of one width."""
    found = []
    for index, entry in enumerate(json_list(plain, place)):
        reader = JsonObject(entry, f"{place}[{index}]")
        source, destination = edge_ends(reader, ids)
        found.append((source, destination, reader.number("communicationCost")))
    return found


def _topological(
    nodes: Sequence[PhazeNode], edges: Mapping[int, list[tuple[int, int, float]]], place: str
) -> list[int]:
    """Return the ids in a topological order for the edges of all widths.

    Depth first and independent of the ids: among the nodes that may come next the deepest one, of
    these the costliest, of these the first one in the file.
    """
    index_of = {node.id: index for index, node in enumerate(nodes)}
    pairs = {(index_of[s], index_of[d]) for found in edges.values() for s, d, _ in found}
    check_acyclic(pairs, [node.id for node in nodes], place)
    waiting = [0] * len(nodes)
    after: list[set[int]] = [set() for _ in nodes]
    for source, destination in pairs:
        after[source].add(destination)
        waiting[destination] += 1
    depth = [0] * len(nodes)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        index = max(ready, key=lambda i: (depth[i], _weight(nodes[i]), -i))
        ready.remove(index)
        order.append(index)
        for following in after[index]:
            depth[following] = max(depth[following], depth[index] + 1)
            waiting[following] -= 1
            if waiting[following] == 0:
                ready.append(following)
    return [nodes[index].id for index in order]


def _weight(node: PhazeNode) -> tuple[float, ...]:
    return (node.forward_s, node.backward_s, node.activation_bytes, node.parameter_bytes)


def _ordered(
    nodes: Sequence[PhazeNode], edges: Sequence[tuple[int, int, float]], order: Sequence[int]
) -> tuple[tuple[PhazeNode, ...], tuple[PhazeEdge, ...]]:
    """Put nodes in the order of ``order``, and write edges with indices instead of ids."""
    by_id = {node.id: node for node in nodes}
    placed = tuple(by_id[identifier] for identifier in order)
    position = {node.id: index for index, node in enumerate(placed)}
    named = (PhazeEdge(position[s], position[d], size) for s, d, size in edges)
    return placed, tuple(sorted(named, key=lambda e: (e.source, e.destination, e.bytes)))
