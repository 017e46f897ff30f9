"""Tokens that go to their experts in fp8: the cast before they are sent, and what arrives.

As DeepSeek-V3 is trained (arXiv 2412.19437, sections 3.3.2 and 3.3.3): tokens before the experts,
and the gradients of results in the backward, are cast with one scale per 128 elements and sent with
these; results come back in 16 bits. DeepEP takes and gives such operands (``x`` of
``Buffer.dispatch``: a tensor in fp8 and its scales, ``[num_tokens, hidden // 128]``).

* Tokens are cast once, before they are sorted, so that sorting moves fewer bytes too.
* Products in ``fp8-block`` have the same scales and multiply what arrives. Weight gradients need
  scales along the tokens: what arrives is cast once more, by a kernel that reads it and writes the
  copy by columns (the report's tiles of 128 × 1).
* For all others, in another recipe or in 16 bits, what arrives is made wide again (``widen``), and
  cast from there as if it had come in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from phaze_opt.precision import BF16, PRECISIONS, PrecisionName
from phaze_opt.workload.casts import QUANTISE, Casts, Making, operands_of
from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead, VectorWork

SENT: PrecisionName = "fp8-block"
"""The recipe whose operands are what is sent."""
_WIDEN = "widen"
_SENT_CAST = "sent_"


class _Way(NamedTuple):
    """The way of tokens: what sorts them, the last operator on it, and all tensors in between."""

    sorting: int
    last: int
    tensors: tuple[Tensor, ...]


def with_narrow_dispatch(graph: OperatorGraph) -> OperatorGraph:
    """Return a graph whose tokens are cast before they are sorted and sent, and widened behind.

    Parameters
    ----------
    graph
        A pass of a layer whose experts are shared out.
    """
    ways = [_way(graph, index) for index in _dispatches(graph)]
    if not ways:
        return graph
    sorting, by_last = {way.sorting for way in ways}, {way.last: way for way in ways}
    operators: list[Operator] = []
    place: list[int] = []
    added: dict[tuple[str, int], int] = {}
    for index, operator in enumerate(graph.operators):
        if index in sorting:
            added[QUANTISE, index] = len(operators)
            work = VectorWork(QUANTISE, 1, _tokens(graph, index)[1].elements)
            operators.append(Operator(f"{_SENT_CAST}{QUANTISE}_{index}", vector=(work,)))
        place.append(len(operators))
        operators.append(operator)
        if index in by_last:
            added[_WIDEN, index] = len(operators)
            work = VectorWork("multiply", 1, by_last[index].tensors[-1].elements)
            operators.append(Operator(f"{_WIDEN}_{index}", vector=(work,)))
    on_way = {id(tensor): way for way in ways for tensor in way.tensors}
    tensors: list[Tensor] = []
    for tensor in graph.tensors:
        writers = tuple([(place[writer], count) for writer, count in tensor.writers])
        readers = tuple([replace(read, operator=place[read.operator]) for read in tensor.readers])
        moved = replace(tensor, writers=writers, readers=readers)
        way = on_way.get(id(tensor))
        if way is None:
            tensors += _cast_tokens(tensor, moved, added, place)
        elif tensor is way.tensors[-1]:
            widening = added[_WIDEN, way.last]
            tensors.append(_narrow(tensor, writers[0][0], widening))
            tensors.append(replace(moved, writers=((widening, tensor.elements),)))
        else:
            tensors.append(_narrow(tensor, writers[0][0], readers[0].operator))
    return OperatorGraph(tuple(operators), tuple(tensors))


def _dispatches(graph: OperatorGraph) -> Iterator[int]:
    """Return the operators that send tokens to their experts."""
    for index, operator in enumerate(graph.operators):
        if operator.collective is not None and operator.collective.kind == "dispatch":
            yield index


def _way(graph: OperatorGraph, dispatch: int) -> _Way:
    """Return the way of the tokens that an operator sends."""
    written = {writer: tensor for tensor in graph.tensors for writer, _ in tensor.writers}
    (sent,) = [t for t in graph.tensors if any(r.operator == dispatch for r in t.readers)]
    ((sorting, _),) = sent.writers
    last, tensors = dispatch, [sent, written[dispatch]]
    following = tensors[-1].readers[0].operator
    if graph.operators[following].id.startswith("sort_rows"):
        last = following
        tensors.append(written[following])
    return _Way(sorting, last, tuple(tensors))


def _tokens(graph: OperatorGraph, sorting: int) -> tuple[Tensor, TensorRead]:
    """Return the tokens that an operator sorts, and its read of them."""
    ((tokens, read),) = [
        (tensor, read)
        for tensor in graph.tensors
        for read in tensor.readers
        if read.operator == sorting and tensor.element_bytes == BF16.operand_bytes
    ]
    return tokens, read


def _cast_tokens(
    tensor: Tensor, moved: Tensor, added: dict[tuple[str, int], int], place: Sequence[int]
) -> list[Tensor]:
    """Return a tensor whose cast is sorted in its place, and that cast, where there is one."""
    tensors = [moved]
    for read in tensor.readers:
        cast = added.get((QUANTISE, read.operator))
        if cast is None or tensor.element_bytes != BF16.operand_bytes:
            continue
        others = [own for own in tensors[0].readers if own.operator != place[read.operator]]
        readers = sorted([*others, TensorRead(cast, read.elements)], key=lambda own: own.operator)
        tensors[0] = replace(tensors[0], readers=tuple(readers))
        sent = replace(tensor, elements=read.elements, outlives=False)
        tensors.append(_narrow(sent, cast, place[read.operator]))
    return tensors


def _narrow(tensor: Tensor, writer: int, reader: int) -> Tensor:
    """Return a tensor as it is sent, from one operator to another."""
    size, dtype = PRECISIONS[SENT].stored(tensor.elements)
    return Tensor(size, dtype, tensor.kind, ((writer, size),), (TensorRead(reader, size),))


class Arrival(NamedTuple):
    """Tokens that arrive in fp8: what makes them wide again, and how they are before and behind."""

    widening: int
    narrow: Tensor
    wide: Tensor


def arrivals(
    graph: OperatorGraph, precision: PrecisionName, linear: Sequence[int]
) -> tuple[Arrival, ...]:
    """Return what arrives as the operand that products multiply.

    Parameters
    ----------
    graph
        A captured pass of a layer.
    precision
        Of the products.
    linear
        They, see `phaze_opt.workload.casts.linear_products`.
    """
    if precision != SENT:
        return ()
    widening = {i for i, each in enumerate(graph.operators) if each.id.startswith(_WIDEN)}
    narrow = {
        read.operator: tensor
        for tensor in graph.tensors
        for read in tensor.readers
        if read.operator in widening
    }
    return tuple(
        [
            Arrival(writer, narrow[writer], tensor)
            for tensor in graph.tensors
            for writer, _ in tensor.writers
            if writer in widening and operands_of(tensor, linear)
        ]
    )


class ArrivalCasts(Casts):
    """A graph whose products read what arrives, and of which only copies by columns are made.

    Parameters
    ----------
    graph, making, linear
        As of `Casts`.
    arrived
        What arrives, see `arrivals`.
    """

    _named = "arrived_"

    def __init__(
        self,
        graph: OperatorGraph,
        making: Making,
        linear: Sequence[int],
        arrived: Sequence[Arrival],
    ) -> None:
        self._wide = {id(each.wide): each for each in arrived}
        self._arrived = {id(each.narrow): each for each in arrived}
        self._widening = {each.widening: each for each in arrived}
        super().__init__(graph, making, linear)

    def graph(self) -> OperatorGraph:
        """Return the graph with casts behind what arrives."""
        for index, operator in enumerate(self._graph.operators):
            self._place.append(len(self._operators))
            arrival = self._widening.get(index)
            if arrival is None or self._is_read_wide(arrival.wide):
                self._operators.append(operator)
            if arrival is not None and self._has_columns(arrival.wide):
                self._append_cast(arrival.wide)
        tensors = [each for tensor in self._graph.tensors for each in self._rewritten(tensor)]
        return OperatorGraph(tuple(self._operators), tuple(tensors))

    def _reads(self, tensor: Tensor) -> tuple[TensorRead, ...]:
        return operands_of(tensor, self._linear) if id(tensor) in self._wide else ()

    def _by_columns(self, tensor: Tensor) -> list[TensorRead]:
        """Return the reads of the copy by columns of what arrives."""
        return [read for read in self._reads(tensor) if read.operator in self._gradients]

    def _keeps(self, tensor: Tensor) -> bool:
        """Say whether the backward keeps a copy by columns of what arrives."""
        return tensor.kind == "activation" and tensor.outlives and not self._by_columns(tensor)

    def _has_columns(self, tensor: Tensor) -> bool:
        """Say whether there is a copy by columns of what arrives."""
        return bool(self._by_columns(tensor)) or self._keeps(tensor)

    def _is_read_wide(self, tensor: Tensor) -> bool:
        """Say whether anything needs what arrives in 16 bits."""
        return not self._only_cast(tensor) or (tensor.outlives and not self._keeps(tensor))

    def _rewritten(self, tensor: Tensor) -> list[Tensor]:
        """Return a tensor with its readers and writers moved: wide, as it arrives, or another."""
        if id(tensor) in self._wide:
            return self._made(tensor)
        arrival = self._arrived.get(id(tensor))
        if arrival is None:
            return [self._moved(tensor, tensor.readers)]
        wide, size = arrival.wide, tensor.elements
        by_columns = self._by_columns(wide)
        own = list(tensor.readers) if self._is_read_wide(wide) else []
        own += [replace(r, elements=size) for r in self._reads(wide) if r not in by_columns]
        moved = self._moved(tensor, own)
        if not self._has_columns(wide):
            return [moved]
        readers = [*moved.readers, TensorRead(self._place_of_cast[id(wide)], size)]
        return [replace(moved, readers=tuple(sorted(readers, key=lambda r: r.operator)))]

    def _made(self, wide: Tensor) -> list[Tensor]:
        """Return what is made of what arrives: a copy by columns, and what is read in 16 bits."""
        made: list[Tensor] = []
        if self._is_read_wide(wide):
            others = [read for read in wide.readers if read not in self._reads(wide)]
            outlives = wide.outlives and not (self._keeps(wide) and self._only_cast(wide))
            made.append(replace(self._moved(wide, others), outlives=outlives))
        if self._has_columns(wide):
            cast = self._place_of_cast[id(wide)]
            keeps = self._keeps(wide)
            made.append(self._copy(wide, self._by_columns(wide), (cast,), outlives=keeps))
        return made
