"""Reader of the ``phaze`` format, the input of the solver of Phaze (ICML 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from phaze_opt.codec import from_builtins
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_DEVICES, MOST_SAMPLES, check_size
from phaze_opt.partitioning.file_rows import (
    Amount,
    FileEdge,
    Flag,
    Id,
    check_acyclic,
    edge_indices,
    index_by_id,
    read_rows,
)


class PhazeNode(Struct, frozen=True):
    """A layer at one tensor degree: bytes and seconds of one microbatch on one device."""

    id: Id
    parameter_bytes: Amount = field(name="parameterSize")
    activation_bytes: Amount = field(name="activationSize")
    forward_s: Amount = field(name="optimalLatencyFw")
    backward_s: Amount = field(name="optimalLatencyBw")
    tensor_parallel: Flag = field(name="isTensorParallelized")


class PhazeEdge(FileEdge, frozen=True):
    """An activation between two layers, given by their ids or, in a problem, indices; its size."""

    bytes: Amount = field(name="communicationCost")


_Nodes = Annotated[tuple[PhazeNode, ...], Meta(min_length=1)]


class _PhazeFile(Struct, frozen=True):
    """A file; nodes and edges by the text of their tensor degree."""

    memory_bytes: Amount = field(name="maxMemoryPerDevice")
    devices: Annotated[int, Meta(ge=1, le=MOST_DEVICES)] = field(name="maxDevices")
    bandwidth: Annotated[float, Meta(gt=0.0)]
    microbatches: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)] = field(name="mbsInBatch")
    recompute: Flag = field(name="activationRecomputation")
    optimizer: Annotated[str, Meta(pattern="^(SGD|Adam)$")] = field(name="optimizerAlgorithm")
    nodes: dict[str, Any]
    edges: dict[str, Any]


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
        Layers and activations by tensor degree; ids and their topological order are equal
        at every tensor degree.
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
        edge ends at no node, the edges form a cycle, or the tensor degrees have different layers.
    """
    file = read_rows(data, _PhazeFile, what)
    nodes: dict[int, tuple[PhazeNode, ...]] = {}
    edges: dict[int, tuple[PhazeEdge, ...]] = {}
    pairs: set[tuple[int, int]] = set()
    first: dict[int, int] = {}
    for tensor, key in sorted(_tensor_degrees(file, what).items()):
        place = f"{what}: nodes[{key!r}]"
        nodes[tensor] = from_builtins(file.nodes[key], _Nodes, place)
        ids = index_by_id([node.id for node in nodes[tensor]], place)
        first = first or ids
        if ids.keys() != first.keys():
            raise InputError(
                f"{place} has other ids than the tensor degree {min(nodes)}: "
                f"{min(ids.keys() ^ first.keys())} is only in one of them."
            )
        if key not in file.edges:
            raise InputError(f"{what}: edges lacks the tensor degree {key!r}.")
        place = f"{what}: edges[{key!r}]"
        edges[tensor] = from_builtins(file.edges[key], tuple[PhazeEdge, ...], place)
        pairs.update(edge_indices(edges[tensor], first, place))
    check_acyclic(pairs, [*first], f"{what}: edges")
    order = _topological(nodes[min(nodes)], pairs)
    return PhazeProblem(
        memory_bytes=file.memory_bytes,
        devices=file.devices,
        bandwidth_bytes_per_s=file.bandwidth,
        microbatches=file.microbatches,
        recompute=bool(file.recompute),
        optimizer=file.optimizer,
        nodes={tensor: tuple(sorted(nodes[tensor], key=lambda n: order[n.id])) for tensor in nodes},
        edges={tensor: _by_position(edges[tensor], order) for tensor in nodes},
    )


def _tensor_degrees(file: _PhazeFile, what: str) -> dict[int, str]:
    """Return the tensor degrees with their keys."""
    tensor_degrees: dict[int, str] = {}
    for key in file.nodes:
        if not key.isascii() or not key.isdigit() or int(key) < 1:
            raise InputError(
                f"{what}: nodes has the tensor degree {key!r}, not a positive integer."
            )
        check_size(f"{what}: a tensor degree", int(key), MOST_DEVICES)
        if int(key) in tensor_degrees:
            raise InputError(f"{what}: nodes has the tensor degree {int(key)} twice.")
        tensor_degrees[int(key)] = key
    if not tensor_degrees:
        raise InputError(f"{what}: nodes is empty.")
    for key in file.edges:
        if key not in tensor_degrees.values():
            raise InputError(f"{what}: edges has the tensor degree {key!r}, which nodes lacks.")
    return tensor_degrees


def _topological(nodes: Sequence[PhazeNode], pairs: set[tuple[int, int]]) -> dict[int, int]:
    """Return the position of each id in a topological order for the edges of all tensor degrees.

    Depth first and independent of the ids: among the nodes that may come next the deepest one, of
    these the costliest, of these the first one in the file.
    """
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
    return {nodes[index].id: position for position, index in enumerate(order)}


def _weight(node: PhazeNode) -> tuple[float, ...]:
    return (node.forward_s, node.backward_s, node.activation_bytes, node.parameter_bytes)


def _by_position(edges: Sequence[PhazeEdge], position: Mapping[int, int]) -> tuple[PhazeEdge, ...]:
    """Return the edges with positions in place of ids."""
    placed = [PhazeEdge(position[e.source], position[e.destination], e.bytes) for e in edges]
    return tuple(sorted(placed, key=lambda e: (e.source, e.destination, e.bytes)))
