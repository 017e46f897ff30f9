"""Operator graphs from the bytes that operators move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead


class Moved(NamedTuple):
    """An operator, and the bytes that it reads and writes; some of these leave the graph."""

    operator: Operator
    read_bytes: int = 0
    write_bytes: int = 0
    outliving_bytes: int = 0


def graph_of(
    moved: Sequence[Moved],
    edges: Sequence[tuple[int, int, int]] = (),
    tensors: Sequence[Tensor] = (),
) -> OperatorGraph:
    """Return operators with tensors of bytes.

    Parameters
    ----------
    moved
        What operators move in all.
    edges
        ``(source, destination, bytes)``: the destination reads so much of what the source writes,
        but for that which leaves the graph if it writes more.
    tensors
        Parts of what operators move that are known.
    """
    read = [one.read_bytes for one in moved]
    written = [one.write_bytes - one.outliving_bytes for one in moved]
    outliving = [one.outliving_bytes for one in moved]
    known = list(tensors)
    for tensor in tensors:
        for writer, size in tensor.writers:
            left = outliving if tensor.outlives else written
            left[writer] -= size * tensor.element_bytes
        for reading in tensor.readers:
            read[reading.operator] -= reading.elements * tensor.element_bytes
    readers: dict[int, list[TensorRead]] = {}
    for source, destination, size in edges:
        readers.setdefault(source, []).append(TensorRead(destination, size))
        read[destination] -= size
    for index in range(len(moved)):
        handed, own = tuple(readers.get(index, ())), ((index, written[index]),)
        if outliving[index]:
            leaving = handed if not written[index] else ()
            own_leaving = ((index, outliving[index]),)
            known.append(_bytes(outliving[index], own_leaving, leaving, outlives=True))
        if written[index] or (handed and not outliving[index]):
            known.append(_bytes(written[index], own, handed))
        if read[index]:
            known.append(_bytes(read[index], (), (TensorRead(index, read[index]),)))
    return OperatorGraph(tuple([one.operator for one in moved]), tuple(known))


def outliving_bytes(graph: OperatorGraph) -> list[int]:
    """Return what every operator writes that leaves the graph."""
    found = [0] * len(graph.operators)
    for tensor in graph.tensors:
        for writer, elements in tensor.writers:
            found[writer] += elements * tensor.element_bytes * tensor.outlives
    return found


def _bytes(
    size: int,
    writers: tuple[tuple[int, int], ...],
    readers: tuple[TensorRead, ...],
    *,
    outlives: bool = False,
) -> Tensor:
    return Tensor(size, "uint8", "unknown", writers, readers, outlives)
