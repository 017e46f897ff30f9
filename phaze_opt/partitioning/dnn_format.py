"""Reader of the ``dnn-partitioning`` format of M. Tarnawski et al. (NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_DEVICES
from phaze_opt.partitioning.json_object import (
    JsonObject,
    check_acyclic,
    decode_json,
    edge_ends,
    refuse_duplicates,
)


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


def read_dnn_partitioning(data: bytes, what: str) -> DnnProblem:
    """Read the ``dnn-partitioning`` format.

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
        edge ends at no node, or the edges form a cycle.
    """
    top = JsonObject(decode_json(data, what), what)
    entries = top.items("nodes")
    if not entries:
        raise InputError(f"{what}: nodes is empty.")
    readers = [JsonObject(entry, f"{what}: nodes[{i}]") for i, entry in enumerate(entries)]
    ids = [reader.integer("id") for reader in readers]
    refuse_duplicates(ids, f"{what}: nodes")
    index_of = {identifier: index for index, identifier in enumerate(ids)}
    costs: dict[int, float] = {}
    edges: list[tuple[int, int]] = []
    for index, entry in enumerate(top.items("edges")):
        reader = JsonObject(entry, f"{what}: edges[{index}]")
        source, destination = edge_ends(reader, index_of.keys())
        # The cost belongs to the source; if the edges of a source differ, the largest cost counts.
        costs[source] = max(costs.get(source, 0.0), reader.number("cost"))
        edges.append((index_of[source], index_of[destination]))
    check_acyclic(edges, ids, f"{what}: edges")
    return DnnProblem(
        memory_bytes=top.number("maxSizePerFPGA"),
        accelerators=top.integer("maxFPGAs", 0, MOST_DEVICES),
        cpus=top.integer("maxCPUs", 0, MOST_DEVICES),
        nodes=tuple(_dnn_node(reader, costs) for reader in readers),
        edges=tuple(sorted(set(edges))),
    )


def _dnn_node(reader: JsonObject, costs: Mapping[int, float]) -> DnnNode:
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
