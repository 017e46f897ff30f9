"""Casts of a captured graph: the products that multiply narrow operands, and what casts these.

What is cast, and why, stands in `phaze_opt.workload.recipes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from phaze_opt.precision import (
    BF16,
    GRADIENT_PRECISIONS,
    PRECISIONS,
    Dtype,
    Fp8Scaling,
    Precision,
    PrecisionName,
    ProductPrecision,
)
from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead, VectorWork

QUANTISE = "quantise"
"""Kind of the vector work of a cast."""

_PER_TENSOR = ("fp8", "int8")
"""Recipes with one scale per tensor."""
_ROUTER = "route"
_WIDE = ("adapter_product", "stream_product")
"""Beginnings of the names of products that stay in 16 bits: of adapters, of residual streams."""
_NARROW_DTYPE: Dtype = "uint8"
"""Of narrow copies, see `phaze_opt.precision.Precision.stored`."""
_LEAST_EDGE = 16
"""Narrow kernels take operands whose edges are multiples of 16; a shorter one is not cast."""


def is_cast(operator: Operator) -> bool:
    """Say whether an operator does nothing but cast."""
    if operator.gemms or not operator.vector:
        return False
    return all(work.kind == QUANTISE for work in operator.vector)


def linear_products(graph: OperatorGraph) -> tuple[int, ...]:
    """Return the operators that are a product of a linear layer which a recipe casts."""
    routed: set[int] = set()
    for tensor in graph.tensors:
        writers = [writer for writer, _ in tensor.writers]
        readers = [read.operator for read in tensor.readers]
        if any(graph.operators[i].id.startswith(_ROUTER) for i in (*writers, *readers)):
            # Beside the router's own product, none reads or writes what the routing does.
            small = (i for i in (*writers, *readers) if _is_router(graph.operators[i]))
            routed.update(small)
    weighted = sorted(weights_of(graph).keys() - routed)
    return tuple([index for index in weighted if _is_linear(graph.operators[index])])


def weights_of(graph: OperatorGraph) -> dict[int, int]:
    """Return the elements of the weight of every operator that multiplies one, or its gradient."""
    sizes: dict[int, int] = {}
    for tensor in graph.tensors:
        operators: Iterable[int] = ()
        if tensor.kind == "weight":
            operators = (read.operator for read in tensor.readers if _is_operand(read))
        elif tensor.kind == "weight_gradient":
            operators = (writer for writer, _ in tensor.writers)
        sizes.update(dict.fromkeys(operators, tensor.elements))
    return sizes


def _is_router(operator: Operator) -> bool:
    """Say whether an operator beside a routing may be its product: one that is not grouped."""
    return len(operator.gemms) == 1 and operator.gemms[0].batch == 1


def _is_linear(operator: Operator) -> bool:
    """Say whether an operator is one product whose edges are long enough."""
    if len(operator.gemms) != 1 or operator.attention is not None:
        return False
    if operator.id.startswith(_WIDE):
        return False
    gemm = operator.gemms[0]
    return min(gemm.m, gemm.n, gemm.k) >= _LEAST_EDGE


def _is_operand(read: TensorRead) -> bool:
    """Say whether a read is of an operand of a product."""
    return read.first_operand or read.second_operand


def operands_of(tensor: Tensor, linear: Iterable[int]) -> tuple[TensorRead, ...]:
    """Return the reads of a tensor as an operand of such products."""
    own = set(linear)
    return tuple([read for read in tensor.readers if read.operator in own and _is_operand(read)])


def attention_cores(graph: OperatorGraph) -> tuple[int, ...]:
    """Return the fused attention cores of a graph."""
    return tuple([i for i, each in enumerate(graph.operators) if each.attention is not None])


def only_of_attention(tensor: Tensor, cores: frozenset[int]) -> bool:
    """Say whether nothing but fused attention reads a tensor in 16 bits, which is not a sum."""
    readers = {read.operator for read in tensor.readers}
    wide = tensor.kind in ("activation", "gradient") and tensor.element_bytes == BF16.operand_bytes
    return wide and bool(readers) and readers <= cores


class _Cast(NamedTuple):
    """A cast of a tensor: the operator of the graph before which it stands."""

    before: int
    tensor: Tensor
    reads: tuple[TensorRead, ...]


class Making(NamedTuple):
    """How narrow copies are made.

    Attributes
    ----------
    precision
        What is cast to.
    stashed
        Whether what comes into the graph was kept as narrow copies: in a backward.
    scaling, column_copies
        See `phaze_opt.training.Training`; of one scale per tensor of fp8 only.
    """

    precision: PrecisionName
    stashed: bool
    scaling: Fp8Scaling = "current"
    column_copies: bool = True

    @property
    def scales_tensors(self) -> bool:
        """Whether a tensor has one scale."""
        return self.precision in _PER_TENSOR

    @property
    def searches(self) -> bool:
        """Whether a kernel looks for the largest element before the cast."""
        return self.scales_tensors and not (self.precision == "fp8" and self.scaling == "delayed")

    @property
    def has_one_copy(self) -> bool:
        """Whether one copy is read both by rows and by columns."""
        return self.precision == "fp8" and not self.column_copies


class Casts:
    """A graph with its operators moved apart, so that casts stand between them.

    Parameters
    ----------
    graph
        A captured pass of a layer.
    making
        What is cast to, and how.
    linear
        The operators that read narrow operands.
    """

    _named = ""

    def __init__(self, graph: OperatorGraph, making: Making, linear: Sequence[int]) -> None:
        self._graph, self._making, self._linear = graph, making, frozenset(linear)
        self._precision: Precision = PRECISIONS[making.precision]
        self._gradients = {
            writer
            for tensor in graph.tensors
            if tensor.kind == "weight_gradient"
            for writer, _ in tensor.writers
        }
        casts = [
            _Cast(min(read.operator for read in reads), tensor, reads)
            for tensor in graph.tensors
            if (reads := self._reads(tensor)) and not self._is_narrow(tensor)
        ]
        self._casts = sorted(casts, key=lambda cast: cast.before)
        named = f"{self._named}{QUANTISE}_"
        self._earlier = sum(each.id.startswith(named) for each in graph.operators)
        self._place: list[int] = []
        self._place_of_cast: dict[int, int] = {}
        self._operators: list[Operator] = []

    def graph(self) -> OperatorGraph:
        """Return the graph with casts."""
        waiting = list(self._casts)
        for index, operator in enumerate(self._graph.operators):
            while waiting and waiting[0].before == index:
                cast = waiting.pop(0)
                self._append_cast(cast.tensor)
            self._place.append(len(self._operators))
            is_narrow = index in self._linear
            self._operators.append(self._narrow(operator, index) if is_narrow else operator)
        tensors = [each for tensor in self._graph.tensors for each in self._rewritten(tensor)]
        return OperatorGraph(tuple(self._operators), tuple(tensors))

    def _narrow(self, operator: Operator, index: int) -> Operator:
        """Return an operator that multiplies in the precision."""
        own: ProductPrecision = self._making.precision
        if index in self._gradients:
            own = GRADIENT_PRECISIONS.get(self._making.precision, own)
        gemms = tuple([replace(gemm, precision=own) for gemm in operator.gemms])
        return replace(operator, gemms=gemms)

    def _reads(self, tensor: Tensor) -> tuple[TensorRead, ...]:
        """Return the reads of a tensor that are narrow, where it was not gathered so."""
        return () if tensor.dtype == _NARROW_DTYPE else operands_of(tensor, self._linear)

    def _append_cast(self, tensor: Tensor) -> None:
        """Append the operators that cast a tensor."""
        number = self._earlier + len(self._place_of_cast) + 1
        if self._making.searches:
            search = VectorWork("reduce", 1, tensor.elements)
            self._operators.append(Operator(f"{self._named}largest_{number}", vector=(search,)))
            self._append_agreement(number)
        self._place_of_cast[id(tensor)] = len(self._operators)
        work = VectorWork(QUANTISE, 1, tensor.elements)
        self._operators.append(Operator(f"{self._named}{QUANTISE}_{number}", vector=(work,)))

    def _append_agreement(self, number: int) -> None:
        """Append what follows the search of the largest element: nothing on one device."""

    def _is_narrow(self, tensor: Tensor) -> bool:
        """Say whether narrow copies of a tensor come from outside: of weights, and kept ones."""
        kept = self._making.stashed and not tensor.writers and tensor.kind == "activation"
        return tensor.kind == "weight" or kept

    def _rewritten(self, tensor: Tensor) -> list[Tensor]:
        """Return a tensor with its readers and writers moved, and its narrow copies."""
        operands = self._reads(tensor)
        plain = self._moved(tensor, [read for read in tensor.readers if read not in operands])
        moved = plain.readers
        if not operands:
            return [plain]
        if self._is_narrow(tensor):
            narrow = self._copy(tensor, operands, (), outlives=False)
            return [plain, narrow] if moved or tensor.outlives else [narrow]
        cast = self._place_of_cast[id(tensor)]
        searches = [cast - 1] if self._making.searches else []
        read_by = [TensorRead(place, tensor.elements) for place in (*searches, cast)]
        readers = sorted([*moved, *read_by], key=lambda r: r.operator)
        copies, keeps = self._copies(tensor, operands, cast)
        outlives = tensor.outlives and not (keeps and tensor.writers and self._only_cast(tensor))
        scales = [
            Tensor(1, "fp32", tensor.kind, ((place, 1),), (TensorRead(cast, 1),))
            for place in searches
        ]
        return [replace(plain, readers=tuple(readers), outlives=outlives), *scales, *copies]

    def _moved(self, tensor: Tensor, reads: Iterable[TensorRead]) -> Tensor:
        """Return a tensor with its writers and some of its reads at their new places."""
        readers = tuple([replace(read, operator=self._place[read.operator]) for read in reads])
        writers = tuple([(self._place[writer], elements) for writer, elements in tensor.writers])
        return replace(tensor, writers=writers, readers=readers)

    def _copies(
        self, tensor: Tensor, operands: Sequence[TensorRead], cast: int
    ) -> tuple[list[Tensor], bool]:
        """Return what a cast writes, and whether that is kept for the backward."""
        by_rows = [read for read in operands if read.operator not in self._gradients]
        by_columns = [read for read in operands if read.operator in self._gradients]
        # In a forward the copy by columns is kept for the backward; attention keeps its own result.
        keeps = tensor.kind == "activation" and not by_columns and tensor.outlives
        if self._making.has_one_copy:
            return [self._copy(tensor, operands, (cast,), outlives=keeps)], keeps
        copies = [self._copy(tensor, by_rows, (cast,), outlives=False)] if by_rows else []
        if by_columns or keeps:
            copies.append(self._copy(tensor, by_columns, (cast,), outlives=keeps))
        return copies, keeps

    def _only_cast(self, tensor: Tensor) -> bool:
        """Say whether nothing but the cast reads a tensor, in the forward and the backward."""
        by_attention = any(
            self._graph.operators[writer].attention is not None for writer, _ in tensor.writers
        )
        return not by_attention and len(self._reads(tensor)) == len(tensor.readers)

    def _copy(
        self,
        tensor: Tensor,
        reads: Iterable[TensorRead],
        casts: tuple[int, ...],
        *,
        outlives: bool,
    ) -> Tensor:
        """Return a narrow copy of a tensor."""
        size, dtype = self._precision.stored(tensor.elements)
        readers = [
            replace(
                read,
                operator=self._place[read.operator],
                elements=min(self._precision.stored(read.elements)[0], size),
            )
            for read in reads
        ]
        return Tensor(
            size,
            dtype,
            tensor.kind,
            writers=tuple([(cast, size) for cast in casts]),
            readers=tuple(readers),
            outlives=outlives,
        )


class AttentionCasts(Casts):
    """A graph with casts before its fused attention: one copy, which the backward keeps."""

    _named = "attention_"

    def _reads(self, tensor: Tensor) -> tuple[TensorRead, ...]:
        return tensor.readers if only_of_attention(tensor, self._linear) else ()

    def _copies(
        self, tensor: Tensor, operands: Sequence[TensorRead], cast: int
    ) -> tuple[list[Tensor], bool]:
        keeps = tensor.kind == "activation" and tensor.outlives
        return [self._copy(tensor, operands, (cast,), outlives=keeps)], keeps
