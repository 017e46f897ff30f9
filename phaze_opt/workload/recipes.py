"""Linear layers in fewer bits: which products of a captured graph run in a recipe, and their casts.

As Transformer Engine trains: all three products of a linear layer, of grouped ones too, multiply
narrow operands with scales and sum in fp32. What stays in 16 bits: the layer with the loss (logits
and head), embeddings, routers and other layers with fewer than 16 outputs, the core of attention,
norms, and everything that is no product.

* With one scale per tensor, that of its largest element (current scaling), a kernel before the
  cast looks for it (``largest``), and neither is part of the kernel that makes the tensor: the
  scale must be known before the first element is cast. Delayed scaling would not need it.
* An operand that the graph makes, or the gradient that arrives, is cast by an operator of its own
  (``quantise``), which reads it once and writes a copy by rows and one by columns, as forward and
  data gradient read one and the weight gradient the other. `fusion` merges it into what makes it.
* The copy by columns is what the backward keeps instead of the input; the result of fused attention
  is kept in 16 bits too, since its own backward reads it.
* Fused attention may multiply in fewer bits too (`narrow_attention`): queries, keys and values, and
  the gradient of the result, are cast before it, and the backward keeps these casts. The result
  leaves the kernel in 16 bits, and the backward reads it so.
* Weights are read as their narrow copies, which are made once per batch
  (`phaze_opt.training.Training.held_bytes`).

Loss of accuracy is not modelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from phaze_opt.precision import (
    BF16,
    PRECISIONS,
    AttentionPrecision,
    Precision,
    PrecisionName,
)
from phaze_opt.workload.graph import (
    Layer,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
    VectorWork,
)

QUANTISE = "quantise"
"""Kind of the vector work of a cast."""

_PER_TENSOR = ("fp8", "int8")
"""Recipes with one scale per tensor."""
_LOSSES = ("cross_entropy", "log_softmax")
_ROUTER = "route"
_LEAST_EDGE = 16
"""Narrow kernels take operands whose edges are multiples of 16; a shorter one is not cast."""


@lru_cache(maxsize=1024)
def quantised(graph: OperatorGraph, precision: PrecisionName, *, stashed: bool) -> OperatorGraph:
    """Return a graph whose linear layers run in a recipe, cached; bf16 changes nothing.

    Parameters
    ----------
    graph
        A captured pass of a layer without the loss, not fused.
    precision
        The recipe.
    stashed
        Whether what comes into the graph was kept as narrow copies: in a backward.
    """
    linear = _linear_products(graph)
    if precision == "bf16" or not linear:
        return graph
    return _Casts(graph, precision, linear, stashed).graph()


@lru_cache(maxsize=1024)
def narrow_attention(
    graph: OperatorGraph, precision: AttentionPrecision, *, stashed: bool
) -> OperatorGraph:
    """Return a graph whose fused attention multiplies in a precision, cached.

    Parameters
    ----------
    graph
        A captured pass of a layer, whose linear layers are not yet in a recipe.
    precision
        Of attention; bf16 changes nothing.
    stashed
        As for `quantised`.
    """
    cores = _attention_cores(graph)
    if precision == "bf16" or not cores:
        return graph
    return _AttentionCasts(graph, precision, cores, stashed).graph()


def attention_stash_change_bytes(
    layer: Layer, precision: AttentionPrecision, recompute: str
) -> int:
    """Return by how much attention in a precision changes what a layer keeps per microbatch."""
    if precision == "bf16" or recompute == "full":
        return 0
    again = layer.selective_recompute if recompute == "selective" else OperatorGraph()
    made = Counter(each.elements for each in again.tensors if each.writers and each.outlives)
    cores, change = frozenset(_attention_cores(layer.backward)), 0
    for tensor in layer.backward.tensors:
        if tensor.writers or not _only_of_attention(tensor, cores):
            continue
        if made[tensor.elements] > 0:
            made[tensor.elements] -= 1
            continue
        change += PRECISIONS[precision].stored(tensor.elements)[0]
        change -= tensor.elements * tensor.element_bytes
    return change


def _attention_cores(graph: OperatorGraph) -> tuple[int, ...]:
    """Return the fused attention cores of a graph."""
    return tuple([i for i, each in enumerate(graph.operators) if each.attention is not None])


def _only_of_attention(tensor: Tensor, cores: frozenset[int]) -> bool:
    """Say whether nothing but fused attention reads a tensor in 16 bits, which is not a sum."""
    readers = {read.operator for read in tensor.readers}
    wide = tensor.kind in ("activation", "gradient") and tensor.element_bytes == BF16.operand_bytes
    return wide and bool(readers) and readers <= cores


def has_loss(layer: Layer) -> bool:
    """Say whether a layer ends in the loss, so that its products stay in 16 bits."""
    kinds = {work.kind for operator in layer.forward.operators for work in operator.vector}
    return not kinds.isdisjoint(_LOSSES)


@lru_cache(maxsize=1024)
def stash_change_bytes(layer: Layer, precision: PrecisionName, recompute: str) -> int:
    """Return by how much a recipe changes what a layer keeps per microbatch; mostly below 0."""
    if precision == "bf16" or recompute == "full" or has_loss(layer):
        return 0
    linear = set(_linear_products(layer.backward))
    again = layer.selective_recompute if recompute == "selective" else OperatorGraph()
    made = Counter(each.elements for each in again.tensors if each.writers and each.outlives)
    attends = any(operator.attention is not None for operator in again.operators)
    change = 0
    for tensor in layer.backward.tensors:
        if tensor.writers or tensor.kind != "activation" or not _operands(tensor, linear):
            continue
        readers = {read.operator for read in tensor.readers}
        of_attention = any(layer.backward.operators[i].attention is not None for i in readers)
        if (attends or not of_attention) and made[tensor.elements] > 0:
            made[tensor.elements] -= 1
            continue
        change += PRECISIONS[precision].stored(tensor.elements)[0]
        if readers <= linear:
            change -= tensor.elements * tensor.element_bytes
    return change


def is_cast(operator: Operator) -> bool:
    """Say whether an operator does nothing but cast."""
    if operator.gemms or not operator.vector:
        return False
    return all(work.kind == QUANTISE for work in operator.vector)


def _linear_products(graph: OperatorGraph) -> tuple[int, ...]:
    """Return the operators that are a product of a linear layer which a recipe casts."""
    weights: set[int] = set()
    routed: set[int] = set()
    for tensor in graph.tensors:
        writers = [writer for writer, _ in tensor.writers]
        readers = [read.operator for read in tensor.readers]
        if tensor.kind == "weight":
            weights.update(read.operator for read in tensor.readers if _is_operand(read))
        elif tensor.kind == "weight_gradient":
            weights.update(writers)
        if any(graph.operators[i].id.startswith(_ROUTER) for i in (*writers, *readers)):
            # Beside the router's own product, none reads or writes what the routing does.
            small = (i for i in (*writers, *readers) if _is_router(graph.operators[i]))
            routed.update(small)
    return tuple(
        [index for index in sorted(weights - routed) if _is_linear(graph.operators[index])]
    )


def _is_router(operator: Operator) -> bool:
    """Say whether an operator beside a routing may be its product: one that is not grouped."""
    return len(operator.gemms) == 1 and operator.gemms[0].batch == 1


def _is_linear(operator: Operator) -> bool:
    """Say whether an operator is one product whose edges are long enough."""
    if len(operator.gemms) != 1 or operator.attention is not None:
        return False
    gemm = operator.gemms[0]
    return min(gemm.m, gemm.n, gemm.k) >= _LEAST_EDGE


def _is_operand(read: TensorRead) -> bool:
    """Say whether a read is of an operand of a product."""
    return read.first_operand or read.second_operand


def _operands(tensor: Tensor, linear: Iterable[int]) -> tuple[TensorRead, ...]:
    """Return the reads of a tensor as an operand of such products."""
    own = set(linear)
    return tuple([read for read in tensor.readers if read.operator in own and _is_operand(read)])


class _Cast(NamedTuple):
    """A cast of a tensor: the operator of the graph before which it stands."""

    before: int
    tensor: Tensor
    reads: tuple[TensorRead, ...]


class _Casts:
    """A graph with its operators moved apart, so that casts stand between them."""

    _named = ""

    def __init__(
        self,
        graph: OperatorGraph,
        precision: PrecisionName,
        linear: Sequence[int],
        stashed: bool,
    ) -> None:
        self._graph, self._name, self._linear = graph, precision, frozenset(linear)
        self._precision: Precision = PRECISIONS[precision]
        self._stashed = stashed
        self._scales_tensors = precision in _PER_TENSOR
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
            self._operators.append(self._narrow(operator) if index in self._linear else operator)
        tensors = [each for tensor in self._graph.tensors for each in self._rewritten(tensor)]
        return OperatorGraph(tuple(self._operators), tuple(tensors))

    def _narrow(self, operator: Operator) -> Operator:
        """Return an operator that multiplies in the precision."""
        gemms = tuple([replace(gemm, precision=self._name) for gemm in operator.gemms])
        return replace(operator, gemms=gemms)

    def _reads(self, tensor: Tensor) -> tuple[TensorRead, ...]:
        """Return the reads of a tensor that are narrow."""
        return _operands(tensor, self._linear)

    def _append_cast(self, tensor: Tensor) -> None:
        """Append the operators that cast a tensor."""
        number = len(self._place_of_cast) + 1
        if self._scales_tensors:
            search = VectorWork("reduce", 1, tensor.elements)
            self._operators.append(Operator(f"{self._named}largest_{number}", vector=(search,)))
        self._place_of_cast[id(tensor)] = len(self._operators)
        work = VectorWork(QUANTISE, 1, tensor.elements)
        self._operators.append(Operator(f"{self._named}{QUANTISE}_{number}", vector=(work,)))

    def _is_narrow(self, tensor: Tensor) -> bool:
        """Say whether narrow copies of a tensor come from outside: of weights, and kept ones."""
        kept = self._stashed and not tensor.writers and tensor.kind == "activation"
        return tensor.kind == "weight" or kept

    def _rewritten(self, tensor: Tensor) -> list[Tensor]:
        """Return a tensor with its readers and writers moved, and its narrow copies."""
        operands = self._reads(tensor)
        others = [read for read in tensor.readers if read not in operands]
        moved = [replace(read, operator=self._place[read.operator]) for read in others]
        writers = tuple([(self._place[writer], elements) for writer, elements in tensor.writers])
        plain = replace(tensor, writers=writers, readers=tuple(moved))
        if not operands:
            return [plain]
        if self._is_narrow(tensor):
            narrow = self._copy(tensor, operands, (), outlives=False)
            return [plain, narrow] if moved or tensor.outlives else [narrow]
        cast = self._place_of_cast[id(tensor)]
        searches = [cast - 1] if self._scales_tensors else []
        read_by = [TensorRead(place, tensor.elements) for place in (*searches, cast)]
        readers = sorted([*moved, *read_by], key=lambda r: r.operator)
        copies, keeps = self._copies(tensor, operands, cast)
        outlives = tensor.outlives and not (keeps and tensor.writers and self._only_cast(tensor))
        scales = [
            Tensor(1, "fp32", tensor.kind, ((place, 1),), (TensorRead(cast, 1),))
            for place in searches
        ]
        return [replace(plain, readers=tuple(readers), outlives=outlives), *scales, *copies]

    def _copies(
        self, tensor: Tensor, operands: Sequence[TensorRead], cast: int
    ) -> tuple[list[Tensor], bool]:
        """Return what a cast writes, and whether that is kept for the backward."""
        by_rows = [read for read in operands if read.operator not in self._gradients]
        by_columns = [read for read in operands if read.operator in self._gradients]
        # In a forward the copy by columns is kept for the backward; attention keeps its own result.
        keeps = tensor.kind == "activation" and not by_columns and tensor.outlives
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


class _AttentionCasts(_Casts):
    """A graph with casts before its fused attention: one copy, which the backward keeps."""

    _named = "attention_"

    def _reads(self, tensor: Tensor) -> tuple[TensorRead, ...]:
        return tensor.readers if _only_of_attention(tensor, self._linear) else ()

    def _copies(
        self, tensor: Tensor, operands: Sequence[TensorRead], cast: int
    ) -> tuple[list[Tensor], bool]:
        keeps = tensor.kind == "activation" and tensor.outlives
        return [self._copy(tensor, operands, (cast,), outlives=keeps)], keeps
