"""Strict readers of the two published placement formats; errors name the place in the file.

``phaze`` is the input of the solver of Phaze (ICML 2024), ``dnn-partitioning`` that of M. Tarnawski
et al. (NeurIPS 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from phaze_opt.errors import InputError

_NUMBER = (int, float)


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


@dataclass(frozen=True)
class DnnNode:
    """An operator or layer of the ``dnn-partitioning`` format; times in the file's unit.

    Attributes
    ----------
    supported
        Whether accelerators can run it.
    backward
        Whether it belongs to the backward pass.
    colocation
        Number of its colocation class, whose operators share a device.
    size_bytes
        Memory that it takes on an accelerator.
    output_cost
        Time of one transfer of its output.
    """

    id: int
    cpu_latency: float
    accelerator_latency: float
    supported: bool
    backward: bool
    colocation: int | None
    size_bytes: float
    output_cost: float


@dataclass(frozen=True)
class DnnProblem:
    """The content of a file of the ``dnn-partitioning`` format; edges are pairs of node indices."""

    memory_bytes: float
    accelerators: int
    cpus: int
    nodes: tuple[DnnNode, ...]
    edges: tuple[tuple[int, int], ...]


class _Reader:
    """Reads values from one JSON object; its errors name the place of the object in the file."""

    def __init__(self, plain: object, place: str) -> None:
        if not isinstance(plain, dict):
            raise InputError(f"{place} must be an object, but is {_kind(plain)}.")
        self.plain: dict[str, Any] = plain
        self.place = place

    def value(self, key: str) -> Any:
        """Return what a key holds."""
        if key not in self.plain:
            raise InputError(f"{self.place} lacks the key {key!r}.")
        return self.plain[key]

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number that is not negative."""
        if default is not None and key not in self.plain:
            return default
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, _NUMBER):
            raise InputError(f"{self.place}: {key} is {value!r}, but it must be a number.")
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{self.place}: {key} is {value}, but it must not be negative.")
        return float(value)

    def positive(self, key: str) -> float:
        """Return a positive number."""
        value = self.number(key)
        if value <= 0:
            raise InputError(f"{self.place}: {key} is {value:g}, but it must be positive.")
        return value

    def integer(self, key: str, least: int | None = None) -> int:
        """Return an integer, also if written as 4.0."""
        value = self.value(key)
        whole = isinstance(value, _NUMBER) and not isinstance(value, bool)
        if not whole or not math.isfinite(value) or value != int(value):
            raise InputError(f"{self.place}: {key} is {value!r}, but it must be an integer.")
        if least is not None and value < least:
            raise InputError(f"{self.place}: {key} is {value}, but it must be at least {least}.")
        return int(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean, also if written as 0 or 1."""
        if default is not None and key not in self.plain:
            return default
        value = self.value(key)
        if value not in (0, 1):
            raise InputError(f"{self.place}: {key} is {value!r}, but it must be true or false.")
        return bool(value)

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        return _list(self.value(key), f"{self.place}: {key}")

    def mapping(self, key: str) -> dict[str, Any]:
        """Return an object."""
        return _Reader(self.value(key), f"{self.place}: {key}").plain


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
    top = _Reader(_decode(data, what), what)
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
        devices=top.integer("maxDevices", least=1),
        bandwidth_bytes_per_s=top.positive("bandwidth"),
        microbatches=top.integer("mbsInBatch", least=1),
        recompute=top.flag("activationRecomputation"),
        optimizer=optimizer,
        nodes={width: pair[0] for width, pair in ordered.items()},
        edges={width: pair[1] for width, pair in ordered.items()},
    )


def read_dnn_partitioning(data: bytes, what: str) -> DnnProblem:
    """Read the ``dnn-partitioning`` format; parameters and errors as `read_phaze`."""
    top = _Reader(_decode(data, what), what)
    entries = top.items("nodes")
    if not entries:
        raise InputError(f"{what}: nodes is empty.")
    readers = [_Reader(entry, f"{what}: nodes[{i}]") for i, entry in enumerate(entries)]
    ids = [reader.integer("id") for reader in readers]
    _refuse_duplicates(ids, f"{what}: nodes")
    index_of = {identifier: index for index, identifier in enumerate(ids)}
    costs: dict[int, float] = {}
    edges: list[tuple[int, int]] = []
    for index, entry in enumerate(top.items("edges")):
        reader = _Reader(entry, f"{what}: edges[{index}]")
        source, destination = _ends(reader, index_of.keys())
        # The cost belongs to the source; if the edges of a source differ, the largest cost counts.
        costs[source] = max(costs.get(source, 0.0), reader.number("cost"))
        edges.append((index_of[source], index_of[destination]))
    _check_acyclic(edges, ids, f"{what}: edges")
    return DnnProblem(
        memory_bytes=top.number("maxSizePerFPGA"),
        accelerators=top.integer("maxFPGAs", least=0),
        cpus=top.integer("maxCPUs", least=0),
        nodes=tuple(_dnn_node(reader, costs) for reader in readers),
        edges=tuple(sorted(set(edges))),
    )


def _decode(data: bytes, what: str) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{what} is not valid JSON: {error}.") from None


def _list(value: object, place: str) -> list[Any]:
    """Refuse a JSON value that is no list."""
    if not isinstance(value, list):
        raise InputError(f"{place} must be a list, but is {_kind(value)}.")
    return value


def _kind(value: object) -> str:
    """Name the kind of a JSON value."""
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    return names.get(type(value), repr(value))


def _widths(top: _Reader) -> dict[int, str]:
    """Return the tensor-parallel widths with their keys."""
    widths: dict[int, str] = {}
    for key in top.mapping("nodes"):
        if not key.isascii() or not key.isdigit() or int(key) < 1:
            raise InputError(f"{top.place}: nodes has the width {key!r}, not a positive integer.")
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
    entries = enumerate(_list(plain, place))
    nodes = [_phaze_node(_Reader(entry, f"{place}[{i}]")) for i, entry in entries]
    if not nodes:
        raise InputError(f"{place} is empty.")
    _refuse_duplicates([node.id for node in nodes], place)
    return nodes


def _phaze_node(reader: _Reader) -> PhazeNode:
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
    for index, entry in enumerate(_list(plain, place)):
        reader = _Reader(entry, f"{place}[{index}]")
        source, destination = _ends(reader, ids)
        found.append((source, destination, reader.number("communicationCost")))
    return found


def _ends(reader: _Reader, ids: Iterable[int]) -> tuple[int, int]:
    """Return the two ids of an edge, which must exist and differ."""
    source, destination = reader.integer("sourceId"), reader.integer("destId")
    for key, end in (("sourceId", source), ("destId", destination)):
        if end not in ids:
            raise InputError(f"{reader.place}: {key} is {end}, but there is no such node.")
    if source == destination:
        raise InputError(f"{reader.place} leads from node {source} to itself.")
    return source, destination


def _refuse_duplicates(ids: Sequence[int], place: str) -> None:
    seen: set[int] = set()
    for index, identifier in enumerate(ids):
        if identifier in seen:
            raise InputError(f"{place}[{index}]: the id {identifier} is there twice.")
        seen.add(identifier)


def _check_acyclic(edges: Iterable[tuple[int, int]], ids: Sequence[int], place: str) -> None:
    """Refuse a cycle, naming its nodes."""
    before: dict[int, set[int]] = {index: set() for index in range(len(ids))}
    for source, destination in edges:
        before[destination].add(source)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        path = " → ".join(str(ids[index]) for index in error.args[1])
        raise InputError(f"{place} form a cycle: {path}.") from None


def _topological(
    nodes: Sequence[PhazeNode], edges: Mapping[int, list[tuple[int, int, float]]], place: str
) -> list[int]:
    """Return the ids in a topological order for the edges of all widths.

    Depth first and independent of the ids: among the nodes that may come next the deepest one, of
    these the costliest, of these the first one in the file.
    """
    index_of = {node.id: index for index, node in enumerate(nodes)}
    pairs = {(index_of[s], index_of[d]) for found in edges.values() for s, d, _ in found}
    _check_acyclic(pairs, [node.id for node in nodes], place)
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


def _dnn_node(reader: _Reader, costs: Mapping[int, float]) -> DnnNode:
    identifier = reader.integer("id")
    has_class = reader.plain.get("colorClass") is not None
    return DnnNode(
        id=identifier,
        cpu_latency=reader.number("cpuLatency"),
        accelerator_latency=reader.number("fpgaLatency"),
        supported=reader.flag("supportedOnFpga"),
        backward=reader.flag("isBackwardNode", default=False),
        colocation=reader.integer("colorClass") if has_class else None,
        size_bytes=reader.number("size"),
        output_cost=costs.get(identifier, 0.0),
    )
