"""Merge operators whose intermediate tensors need not go through memory.

``elementwise`` merges chains of elementwise operators into one kernel, like the fused kernels of
eager frameworks (bias-dropout-add, bias-GELU) and compilers. ``epilogue`` also merges the remaining
elementwise operators into the product that makes their operand (the vector cores work on tiles as
the tensor cores finish them), or else into the operator that reads them by rows (norms, softmax,
reductions). It also merges a cast to fewer bits into the norm that makes what is cast.

An operator that makes complex numbers stays by itself: compilers call the framework's kernel for it
(``fallback_handler`` of ``torch/_inductor/lowering.py``, for tensors that are complex).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from phaze_opt.choices import FusionMode
from phaze_opt.workload.graph import (
    ELEMENTWISE_KINDS,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
)

_ELEMENTWISE = frozenset(ELEMENTWISE_KINDS)
_COMPLEX = frozenset({"complex64", "complex128"})


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
        if _is_elementwise(operator) and index not in groups.alone:
            while (producer := groups.producer(index, products=False)) is not None:
                groups.merge(producer, index)
    if mode == "epilogue":
        for index in list(groups.operators):
            if _is_elementwise(groups.operators[index]) and index not in groups.alone:
                producer = groups.producer(index, products=True)
                if producer is None and _is_cast(groups.operators[index]):
                    producer = groups.producer(index, by_rows=True)
                if producer is not None:
                    groups.merge(producer, index)
        for index in list(groups.operators):
            if index not in groups.operators or index in groups.alone:
                continue
            if _is_by_rows(groups.operators[index]):
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


def _is_cast(operator: Operator) -> bool:
    """Say whether an operator casts what it reads, as the last kernel of a norm can do."""
    return _is_elementwise(operator) and all(work.kind == "quantise" for work in operator.vector)


def _is_product(operator: Operator) -> bool:
    """Say whether an operator is one matrix product with at most an elementwise epilogue.

    Fused attention is not one: its products are one kernel already.
    """
    return len(operator.gemms) == 1 and all(w.kind in _ELEMENTWISE for w in operator.vector)


def _complex_writers(graph: OperatorGraph) -> frozenset[int]:
    """Return the operators that make complex numbers."""
    made = (tensor for tensor in graph.tensors if tensor.dtype in _COMPLEX)
    return frozenset(writer for tensor in made for writer, _ in tensor.writers)


class _Groups:
    """Merged operators by the index of their last part, with producers and readers of each."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.operators = dict(enumerate(graph.operators))
        self.alone = _complex_writers(graph)
        self._tensors = graph.tensors
        self._place_of = list(range(len(graph.operators)))
        self._producers: dict[int, set[int]] = {index: set() for index in self.operators}
        self._readers: dict[int, set[int]] = {index: set() for index in self.operators}
        for source, destination, _ in graph.edges:
            self._producers[destination].add(source)
            self._readers[source].add(destination)

    def producer(self, index: int, *, products: bool = False, by_rows: bool = False) -> int | None:
        """Return the latest producer that only this operator reads and that may be merged."""
        allowed = _is_by_rows if by_rows else _is_product if products else _is_elementwise
        return max(
            (
                source
                for source in self._producers[index]
                if self._readers[source] == {index}
                and source not in self.alone
                and allowed(self.operators[source])
            ),
            default=None,
        )

    def merge(self, source: int, destination: int) -> None:
        """Merge a producer into its only reader; their tensor stays on the chip."""
        first, second = self.operators.pop(source), self.operators[destination]
        self._place_of[source] = destination
        self._producers[destination].remove(source)
        for before in self._producers.pop(source):
            self._producers[destination].add(before)
            self._readers[before].discard(source)
            self._readers[before].add(destination)
        del self._readers[source]
        self.operators[destination] = Operator(
            id=f"{first.id}+{second.id}",
            gemms=first.gemms + second.gemms,
            vector=first.vector + second.vector,
            surplus_flops=(first.surplus_flops or 0) + (second.surplus_flops or 0) or UNSET,
        )

    def graph(self) -> OperatorGraph:
        """Return the merged operators, each at the place of its last part."""
        position = {index: place for place, index in enumerate(sorted(self.operators))}
        operators = tuple([self.operators[index] for index in position])
        merged = [self._last(index) for index in range(len(self._place_of))]
        places = [position[index] for index in merged]
        within = [index != last for index, last in enumerate(merged)]
        tensors = (_merged(tensor, places, within) for tensor in self._tensors)
        return OperatorGraph(operators, tuple([tensor for tensor in tensors if tensor is not None]))

    def _last(self, index: int) -> int:
        """Return the last part of the merged operator that an operator of the graph is part of."""
        while self._place_of[index] != index:
            index = self._place_of[index]
        return index


def _merged(tensor: Tensor, places: Sequence[int], within: Sequence[bool]) -> Tensor | None:
    """Return a tensor between merged operators; ``None`` where it stays within one of them.

    Parameters
    ----------
    tensor
        Of the graph.
    places
        Of every operator: the place of the merged operator that it is part of.
    within
        Whether it was merged into a later one, which writes for it only what outlives the graph.
    """
    if not tensor.writers and len(tensor.readers) == 1:  # most are so
        (only,) = tensor.readers
        place, first, second = places[only.operator], only.first_operand, only.second_operand
        read_once = (TensorRead(place, only.elements, first, second),)
        return Tensor(tensor.elements, tensor.dtype, tensor.kind, (), read_once, tensor.outlives)
    on_chip: dict[int, int] = {}
    if tensor.writers:
        for source, destination, elements in tensor.handed_over():
            if places[source] == places[destination]:
                on_chip[destination] = on_chip.get(destination, 0) + elements
    readers: dict[int, TensorRead] = {}
    for read in tensor.readers:
        place, elements = places[read.operator], read.elements - on_chip.get(read.operator, 0)
        if read.operator in on_chip and elements <= 0:
            continue
        first, second = read.first_operand, read.second_operand
        if place in readers:
            before = readers[place]
            elements += before.elements
            first, second = before.first_operand or first, before.second_operand or second
        readers[place] = TensorRead(place, elements, first, second)
    writers: dict[int, int] = {}
    for writer, elements in tensor.writers:
        if tensor.outlives or not within[writer]:
            writers[places[writer]] = writers.get(places[writer], 0) + elements
    if not (readers or writers):
        return None
    kept = sum(writers.values()) if tensor.writers else tensor.elements
    return Tensor(
        min(kept, tensor.elements),
        tensor.dtype,
        tensor.kind,
        tuple(sorted(writers.items())),
        tuple([readers[place] for place in sorted(readers)]),
        tensor.outlives,
    )
