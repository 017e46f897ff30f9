"""Gathers of tokens that move operands in the bits of a recipe.

With sequence parallelism a device casts its share of the tokens, and the narrow copy is gathered,
where nothing but narrow products reads what is gathered (`_GATHERED`). One scale per tensor is that
of the whole tensor: devices reduce their largest elements first. The copy by rows is gathered for a
forward or a data gradient, the one by columns for a weight gradient, since elements of the two are
scaled by other blocks; with one scale per tensor the same copy serves both. What is stored
transposed is put in order behind the gather (`_REORDERED`), unless products read fp8 in every
layout. Sums over devices (reduce-scatter, all-reduce) stay in 16 bits.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from phaze_opt.precision import BF16, ELEMENT_BYTES, PrecisionName
from phaze_opt.workload.casts import Casts, Making, operands_of
from phaze_opt.workload.graph import (
    Collective,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
    VectorWork,
)

_GATHERED = ("fp8", "fp8-block", "mxfp8", "nvfp4")
"""Recipes whose gathers move narrow operands: those of Transformer Engine
(``gather_along_first_dim`` of ``transformer_engine/pytorch/distributed.py``). torchao casts before
the gather with one scale per tensor only (``PrepareFloat8ModuleInput``), not with one per row."""
_REORDERED = ("fp8", "fp8-block", "nvfp4")
"""Recipes whose operands of a weight gradient are stored transposed, which a gather along tokens
leaves in pieces; mxfp8 stores both copies by rows."""
_REORDER = "reorder"
_OF_COLUMNS = "all_gather_columns"
"""Name of a gather of features, not of tokens: no part of sequence parallelism."""


def is_reordering(operator: Operator) -> bool:
    """Say whether an operator does nothing but put in order what was gathered in fewer bits."""
    return operator.id.startswith(_REORDER) and not operator.gemms


class Gather(NamedTuple):
    """A gather of tokens that moves narrow operands.

    Attributes
    ----------
    operator
        Its place in the graph.
    shard, whole
        What goes in, of the tokens of a device, and what comes out, of all tokens.
    """

    operator: int
    shard: Tensor
    whole: Tensor


def narrow_gathers(
    graph: OperatorGraph, precision: PrecisionName, linear: Iterable[int]
) -> tuple[Gather, ...]:
    """Return the gathers whose results nothing but narrow products reads.

    Parameters
    ----------
    graph
        A captured pass of a layer.
    precision
        The recipe.
    linear
        The products that multiply in it, see `phaze_opt.workload.casts.linear_products`.
    """
    if precision not in _GATHERED:
        return ()
    gathers = {
        index
        for index, operator in enumerate(graph.operators)
        if operator.collective is not None
        and operator.collective.kind == "all_gather"
        and operator.collective.is_tensor_parallel
        and not operator.id.startswith(_OF_COLUMNS)
    }
    shards = {
        read.operator: tensor
        for tensor in graph.tensors
        for read in tensor.readers
        if read.operator in gathers
    }
    return tuple(
        [
            Gather(operator, shards[operator], tensor)
            for tensor in graph.tensors
            for operator, _ in tensor.writers
            if operator in gathers
            and tensor.element_bytes == BF16.operand_bytes
            and tensor.readers
            and not tensor.outlives
            and len(operands_of(tensor, linear)) == len(tensor.readers)
        ]
    )


def only_gathered(tensor: Tensor, gathers: Container[int]) -> bool:
    """Say whether nothing but gathers of narrow operands reads a tensor."""
    return bool(tensor.readers) and all(read.operator in gathers for read in tensor.readers)


class _GatheredCopy(NamedTuple):
    """A narrow copy that is gathered: what reads it, and where it is received and put in order."""

    gather: Gather
    by_rows: tuple[TensorRead, ...]
    by_columns: tuple[TensorRead, ...]
    place: int
    reordered: int | None


class GatherCasts(Casts):
    """A graph whose gathers of tokens move narrow copies, cast from the shards.

    Parameters
    ----------
    graph, making, linear
        As of `Casts`.
    gathers
        Those that do so.
    """

    _named = "gathered_"

    def __init__(
        self,
        graph: OperatorGraph,
        making: Making,
        linear: Sequence[int],
        gathers: Sequence[Gather],
    ) -> None:
        super().__init__(graph, making, linear)
        self._gathers = {each.operator: each for each in gathers}
        self._gathered = {id(each.whole) for each in gathers}
        self._copied: list[_GatheredCopy] = []

    def graph(self) -> OperatorGraph:
        """Return the graph with casts before its gathers."""
        for index, operator in enumerate(self._graph.operators):
            if index in self._gathers:
                self._append_gather(operator, self._gathers[index])
                self._place.append(len(self._operators) - 1)
                continue
            self._place.append(len(self._operators))
            self._operators.append(operator)
        tensors = [each for tensor in self._graph.tensors for each in self._rewritten(tensor)]
        tensors += [each for copy in self._copied for each in self._sent(copy)]
        return OperatorGraph(tuple(self._operators), tuple(tensors))

    def _reads(self, tensor: Tensor) -> tuple[TensorRead, ...]:
        return ()

    def _append_agreement(self, number: int) -> None:
        """Append the reduction of the largest elements of all shards."""
        reduction = Collective("all_reduce", ELEMENT_BYTES["fp32"])
        self._operators.append(
            Operator(f"{self._named}largest_of_all_{number}", collective=reduction)
        )

    @property
    def _is_stored_transposed(self) -> bool:
        """Whether what weight gradients read is stored transposed."""
        return self._making.precision in _REORDERED and not self._making.has_one_copy

    def _is_kept(self, shard: Tensor) -> bool:
        """Say whether the forward kept a narrow copy of a shard, and nothing in 16 bits."""
        kept = self._making.stashed and not shard.writers and shard.kind == "activation"
        return kept and only_gathered(shard, self._gathers)

    def _keeps(self, shard: Tensor) -> bool:
        """Say whether a forward keeps a narrow copy of a shard, and nothing in 16 bits."""
        made = bool(shard.writers) and shard.kind == "activation" and shard.outlives
        return made and only_gathered(shard, self._gathers)

    def _append_gather(self, operator: Operator, gather: Gather) -> None:
        """Append the gathers of the copies that products read, and the cast before them."""
        if not self._is_kept(gather.shard):
            self._append_cast(gather.shard)
        reads = gather.whole.readers
        by_columns = tuple([read for read in reads if read.operator in self._gradients])
        by_rows = tuple([read for read in reads if read not in by_columns])
        if self._making.scales_tensors:
            pairs = [(by_rows, by_columns)]
        else:
            pairs = [(by_rows, ()), ((), by_columns)]
        size = self._precision.stored(gather.whole.elements)[0]
        sent = replace(operator.collective, size_bytes=size) if operator.collective else None
        for rows, columns in pairs:
            if not (rows or columns):
                continue
            name = operator.id if rows or not by_rows else f"{operator.id}_by_columns"
            place = len(self._operators)
            self._operators.append(replace(operator, id=name, collective=sent))
            reordered = None
            if columns and self._is_stored_transposed:
                reordered = place + 1
                work = VectorWork("copy", 1, size)
                self._operators.append(Operator(f"{_REORDER}_{name}", vector=(work,)))
            self._copied.append(_GatheredCopy(gather, rows, columns, place, reordered))

    def _rewritten(self, tensor: Tensor) -> list[Tensor]:
        """Return a tensor that is no longer gathered, with its scale where it is cast."""
        if id(tensor) in self._gathered:
            return []
        wide = [read for read in tensor.readers if read.operator not in self._gathers]
        plain = self._moved(tensor, wide)
        if len(wide) == len(tensor.readers):
            return [plain]
        if self._is_kept(tensor):
            return [plain] if tensor.outlives else []
        cast = self._place_of_cast[id(tensor)]
        searches = [cast - 2] if self._making.searches else []
        read_by = [TensorRead(place, tensor.elements) for place in (*searches, cast)]
        readers = sorted([*plain.readers, *read_by], key=lambda read: read.operator)
        scales = [
            Tensor(1, "fp32", tensor.kind, ((place, 1),), (TensorRead(place + 1, 1),))
            for search in searches
            for place in (search, search + 1)
        ]
        outlives = tensor.outlives and not self._keeps(tensor)
        by_columns = [] if self._making.scales_tensors or not self._keeps(tensor) else [cast]
        kept = [self._copy(tensor, (), (place,), outlives=True) for place in by_columns]
        return [replace(plain, readers=tuple(readers), outlives=outlives), *scales, *kept]

    def _sent(self, copied: _GatheredCopy) -> list[Tensor]:
        """Return a narrow copy of a shard, what is gathered of it, and that put in order."""
        shard, whole = copied.gather.shard, copied.gather.whole
        casts = () if self._is_kept(shard) else (self._place_of_cast[id(shard)],)
        keeps = self._making.scales_tensors and self._keeps(shard)
        sent = self._copy(shard, (), casts, outlives=keeps)
        sent = replace(sent, readers=(TensorRead(copied.place, sent.elements),))
        if copied.reordered is None:
            reads = (*copied.by_rows, *copied.by_columns)
            return [sent, self._copy(whole, reads, (copied.place,), outlives=False)]
        received = self._copy(whole, copied.by_rows, (copied.place,), outlives=False)
        reordering = TensorRead(copied.reordered, received.elements)
        return [
            sent,
            replace(received, readers=(reordering, *received.readers)),
            self._copy(whole, copied.by_columns, (copied.reordered,), outlives=False),
        ]
