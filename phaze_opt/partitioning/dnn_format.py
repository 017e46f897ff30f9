"""Reader of the ``dnn-partitioning`` format of M. Tarnawski et al. (NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct, field

from phaze_opt.limits import MOST_DEVICES
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


class DnnNode(Struct, frozen=True, kw_only=True):
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
    """

    id: Id
    cpu_latency: Amount = field(name="cpuLatency")
    accelerator_latency: Amount = field(name="fpgaLatency")
    supported: Flag = field(name="supportedOnFpga")
    backward: Flag = field(name="isBackwardNode", default=False)
    colocation: Id | None = field(name="colorClass", default=None)
    size_bytes: Amount = field(name="size")


class _DnnEdge(FileEdge, frozen=True):
    """An edge with the time of one transfer."""

    cost: Amount


_Count = Annotated[int, Meta(ge=0, le=MOST_DEVICES)]


class _DnnFile(Struct, frozen=True):
    """A file."""

    memory_bytes: Amount = field(name="maxSizePerFPGA")
    accelerators: _Count = field(name="maxFPGAs")
    cpus: _Count = field(name="maxCPUs")
    nodes: Annotated[tuple[DnnNode, ...], Meta(min_length=1)]
    edges: tuple[_DnnEdge, ...]


@dataclass(frozen=True)
class DnnProblem:
    """The content of a file of the ``dnn-partitioning`` format; edges are pairs of node indices.

    Attributes
    ----------
    output_costs
        By node: time of one transfer of its output.
    """

    memory_bytes: float
    accelerators: int
    cpus: int
    nodes: tuple[DnnNode, ...]
    edges: tuple[tuple[int, int], ...]
    output_costs: tuple[float, ...]


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
    file = read_rows(data, _DnnFile, what)
    ids = [node.id for node in file.nodes]
    edges = edge_indices(file.edges, index_by_id(ids, f"{what}: nodes"), f"{what}: edges")
    check_acyclic(edges, ids, f"{what}: edges")
    costs = [0.0] * len(ids)
    # The cost belongs to the source; if the edges of a source differ, the largest cost counts.
    for (source, _), edge in zip(edges, file.edges, strict=True):
        costs[source] = max(costs[source], edge.cost)
    return DnnProblem(
        memory_bytes=file.memory_bytes,
        accelerators=file.accelerators,
        cpus=file.cpus,
        nodes=file.nodes,
        edges=tuple(sorted(set(edges))),
        output_costs=tuple(costs),
    )
