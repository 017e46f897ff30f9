"""Merge operators whose intermediate tensors need not go through memory.

``elementwise`` merges chains of elementwise operators into one kernel, like the fused kernels of
eager frameworks (bias-dropout-add, bias-GELU) and compilers. ``epilogue`` also merges the remaining
elementwise operators into the product that makes their operand (the vector cores work on tiles as
the tensor cores finish them), or else into the operator that reads them by rows (norms, softmax,
reductions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from phaze_opt.workload.graph import (
    ELEMENTWISE_KINDS,
    Operator,
    OperatorGraph,
    SharedTensor,
    TensorRead,
)

FusionMode = Literal["none", "elementwise", "epilogue"]

_ELEMENTWISE = frozenset(ELEMENTWISE_KINDS)


def fuse(graph: OperatorGraph, mode: FusionMode) -> OperatorGraph:
    """Return the graph with operators merged.

    A producer is merged into a consumer that is the only reader of its results in the graph. The
    tensor between them no longer goes through memory; results that outlive the graph are still
    written. Products and vector elements stay as they are. Fusing again changes nothing.

    Parameters
    ----------
    graph
        A captured graph.
    mode
        Operators to merge: ``none``, ``elementwise`` or ``epilogue`` (see the module).
    """
    if mode == "none":
        return graph
    groups = _Groups(graph)
    for index, operator in enumerate(graph.operators):
        if _is_elementwise(operator):
            while (producer := groups.producer(index, products=False)) is not None:
                groups.merge(producer, index)
    if mode == "epilogue":
        for index in list(groups.operators):
            if _is_elementwise(groups.operators[index]):
                producer = groups.producer(index, products=True)
                if producer is not None:
                    groups.merge(producer, index)
        for index in list(groups.operators):
            if index in groups.operators and _is_by_rows(groups.operators[index]):
                while (producer := groups.producer(index, products=False)) is not None:
                    groups.merge(producer, index)
    return groups.graph()


def _is_elementwise(operator: Operator) -> bool:
    """Say whether an operator is vector work only, element by element."""
    return (
        bool(operator.vector)
        and not operator.gemms
        and operator.collective is None
        and all(work.kind in _ELEMENTWISE for work in operator.vector)
    )


def _is_by_rows(operator: Operator) -> bool:
    """Say whether an operator is vector work only, some of it over rows."""
    return bool(operator.vector) and not operator.gemms and operator.collective is None


def _is_product(operator: Operator) -> bool:
    """Say whether an operator is one matrix product with at most an elementwise epilogue.

    Fused attention is not one: its products are one kernel already.
    """
    return len(operator.gemms) == 1 and all(w.kind in _ELEMENTWISE for w in operator.vector)


class _Groups:
    """Merged operators by the index of their last part, with reads and readers of each."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.operators = dict(enumerate(graph.operators))
        self._tensors = graph.tensors
        self._place_of = list(range(len(graph.operators)))
        self._reads: dict[int, dict[int, int]] = {index: {} for index in self.operators}
        self._readers: dict[int, set[int]] = {index: set() for index in self.operators}
        for source, destination, size in graph.edges:
            self._reads[destination][source] = size
            self._readers[source].add(destination)

    def producer(self, index: int, *, products: bool) -> int | None:
        """Return the latest producer that only this operator reads and that may be merged."""
        allowed = _is_product if products else _is_elementwise
        return max(
            (
                source
                for source in self._reads[index]
                if self._readers[source] == {index} and allowed(self.operators[source])
            ),
            default=None,
        )

    def merge(self, source: int, destination: int) -> None:
        """Merge a producer into its only reader; their tensor stays on the chip."""
        first, second = self.operators.pop(source), self.operators[destination]
        self._place_of[source] = destination
        on_chip = self._reads[destination].pop(source)
        for before, size in self._reads.pop(source).items():
            reads = self._reads[destination]
            reads[before] = reads.get(before, 0) + size
            self._readers[before].discard(source)
            self._readers[before].add(destination)
        del self._readers[source]
        self.operators[destination] = Operator(
            id=f"{first.id}+{second.id}",
            gemms=first.gemms + second.gemms,
            vector=first.vector + second.vector,
            read_bytes=first.read_bytes + second.read_bytes - on_chip,
            write_bytes=first.outliving_bytes + second.write_bytes,
            outliving_bytes=first.outliving_bytes + second.outliving_bytes,
        )

    def graph(self) -> OperatorGraph:
        """Return the merged operators, each at the place of its last part."""
        position = {index: place for place, index in enumerate(sorted(self.operators))}
        tensors = (shared for one in self._tensors if (shared := self._merged(one, position)))
        edges = (
            (position[source], position[destination], size)
            for destination in position
            for source, size in sorted(self._reads[destination].items())
        )
        return OperatorGraph(
            tuple(self.operators[index] for index in position), tuple(edges), tuple(tensors)
        )

    def _merged(self, tensor: SharedTensor, position: Mapping[int, int]) -> SharedTensor | None:
        """Return a tensor between merged operators; ``None`` where only one of them uses it."""
        writers: dict[int, int] = {}
        for index, size in tensor.writers:
            place = self._place(index, position)
            writers[place] = writers.get(place, 0) + size
        readers: dict[int, TensorRead] = {}
        for read in tensor.readers:
            place = self._place(read.operator, position)
            before = readers.get(place, TensorRead(place, 0))
            readers[place] = TensorRead(
                place,
                before.bytes + read.bytes,
                before.first_operand or read.first_operand,
                before.second_operand or read.second_operand,
            )
        # Within one operator it stays on the chip; an operator reads what it makes by no memory.
        kept = tuple(readers[place] for place in sorted(readers.keys() - writers.keys()))
        if not kept or (not writers and len(kept) < 2):
            return None
        return SharedTensor(
            tensor.size_bytes, tuple(sorted(writers.items())), kept, tensor.outlives
        )

    def _place(self, index: int, position: Mapping[int, int]) -> int:
        """Return the place of the merged operator that an operator of the graph is part of."""
        while self._place_of[index] != index:
            index = self._place_of[index]
        return position[index]
