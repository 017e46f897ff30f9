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
* With sequence parallelism a device casts its share of the tokens, and the narrow copy is gathered,
  where nothing but narrow products reads what is gathered (`_GATHERED`). One scale per tensor is
  that of the whole tensor: devices reduce their largest elements first. The copy by rows is
  gathered for a forward or a data gradient, the one by columns for a weight gradient, since
  elements of the two are scaled by other blocks; with one scale per tensor the same copy serves
  both. What is stored transposed is put in order behind the gather (`_REORDERED`). Sums over
  devices (reduce-scatter, all-reduce) stay in 16 bits.

Loss of accuracy is not modelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from phaze_opt.precision import (
    BF16,
    ELEMENT_BYTES,
    PRECISIONS,
    AttentionPrecision,
    Dtype,
    Precision,
    PrecisionName,
)
from phaze_opt.workload.graph import (
    Collective,
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
_GATHERED = ("fp8", "fp8-block", "mxfp8", "nvfp4")
"""Recipes whose gathers move narrow operands: those of Transformer Engine
(``gather_along_first_dim`` of ``transformer_engine/pytorch/distributed.py``). torchao casts before
the gather with one scale per tensor only (``PrepareFloat8ModuleInput``), not with one per row."""
_REORDERED = ("fp8", "fp8-block", "nvfp4")
"""Recipes whose operands of a weight gradient are stored transposed, which a gather along tokens
leaves in pieces; mxfp8 stores both copies by rows."""
_LOSSES = ("cross_entropy", "log_softmax")
_ROUTER = "route"
_REORDER = "reorder"
_OF_COLUMNS = "all_gather_columns"
"""Name of a gather of features, not of tokens: no part of sequence parallelism."""
_NARROW_DTYPE: Dtype = "uint8"
"""Of narrow copies, see `phaze_opt.precision.Precision.stored`."""
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
    gathers = _narrow_gathers(graph, precision, linear)
    if gathers:
        graph = _GatherCasts(graph, precision, linear, stashed, gathers).graph()
        linear = _linear_products(graph)
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
    gathers = {each.operator for each in _narrow_gathers(layer.backward, precision, linear)}
    again = layer.selective_recompute if recompute == "selective" else OperatorGraph()
    made = Counter(each.elements for each in again.tensors if each.writers and each.outlives)
    attends = any(operator.attention is not None for operator in again.operators)
    change = 0
    for tensor in layer.backward.tensors:
        if tensor.writers or tensor.kind != "activation":
            continue
        readers = {read.operator for read in tensor.readers}
        gathered = _only_gathered(tensor, gathers)
        if not gathered and not _operands(tensor, linear):
            continue
        of_attention = any(layer.backward.operators[i].attention is not None for i in readers)
        if (attends or not of_attention) and made[tensor.elements] > 0:
            made[tensor.elements] -= 1
            continue
        change += PRECISIONS[precision].stored(tensor.elements)[0]
        if gathered or readers <= linear:
            change -= tensor.elements * tensor.element_bytes
    return change


def is_cast(operator: Operator) -> bool:
    """Say whether an operator does nothing but cast."""
    if operator.gemms or not operator.vector:
        return False
    return all(work.kind == QUANTISE for work in operator.vector)


def is_reordering(operator: Operator) -> bool:
    """Say whether an operator does nothing but put in order what was gathered in fewer bits."""
    return operator.id.startswith(_REORDER) and not operator.gemms


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


class _Gather(NamedTuple):
    """A gather of tokens that moves narrow operands: what goes in and what comes out."""

    operator: int
    shard: Tensor
    whole: Tensor


def _narrow_gathers(
    graph: OperatorGraph, precision: PrecisionName, linear: Iterable[int]
) -> tuple[_Gather, ...]:
    """Return the gathers whose results nothing but such products reads."""
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
            _Gather(operator, shards[operator], tensor)
            for tensor in graph.tensors
            for operator, _ in tensor.writers
            if operator in gathers
            and tensor.element_bytes == BF16.operand_bytes
            and tensor.readers
            and not tensor.outlives
            and len(_operands(tensor, linear)) == len(tensor.readers)
        ]
    )


def _only_gathered(tensor: Tensor, gathers: Container[int]) -> bool:
    """Say whether nothing but gathers of narrow operands reads a tensor."""
    return bool(tensor.readers) and all(read.operator in gathers for read in tensor.readers)


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
        """Return the reads of a tensor that are narrow, where it was not gathered so."""
        return () if tensor.dtype == _NARROW_DTYPE else _operands(tensor, self._linear)

    def _append_cast(self, tensor: Tensor) -> None:
        """Append the operators that cast a tensor."""
        number = len(self._place_of_cast) + 1
        if self._scales_tensors:
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


class _GatherCasts(_Casts):
    """A graph whose gathers of tokens move narrow copies, cast from the shards."""

    _named = "gathered_"

    def __init__(
        self,
        graph: OperatorGraph,
        precision: PrecisionName,
        linear: Sequence[int],
        stashed: bool,
        gathers: Sequence[_Gather],
    ) -> None:
        super().__init__(graph, precision, linear, stashed)
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
        tensors += [each for copy in self._copied for each in self._moved(copy)]
        return OperatorGraph(tuple(self._operators), tuple(tensors))

    def _reads(self, tensor: Tensor) -> tuple[TensorRead, ...]:
        return ()

    def _append_agreement(self, number: int) -> None:
        """Append the reduction of the largest elements of all shards."""
        reduction = Collective("all_reduce", ELEMENT_BYTES["fp32"])
        self._operators.append(
            Operator(f"{self._named}largest_of_all_{number}", collective=reduction)
        )

    def _is_kept(self, shard: Tensor) -> bool:
        """Say whether the forward kept a narrow copy of a shard, and nothing in 16 bits."""
        kept = self._stashed and not shard.writers and shard.kind == "activation"
        return kept and _only_gathered(shard, self._gathers)

    def _keeps(self, shard: Tensor) -> bool:
        """Say whether a forward keeps a narrow copy of a shard, and nothing in 16 bits."""
        made = bool(shard.writers) and shard.kind == "activation" and shard.outlives
        return made and _only_gathered(shard, self._gathers)

    def _append_gather(self, operator: Operator, gather: _Gather) -> None:
        """Append the gathers of the copies that products read, and the cast before them."""
        if not self._is_kept(gather.shard):
            self._append_cast(gather.shard)
        reads = gather.whole.readers
        by_columns = tuple([read for read in reads if read.operator in self._gradients])
        by_rows = tuple([read for read in reads if read not in by_columns])
        if self._scales_tensors:
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
            if columns and self._name in _REORDERED:
                reordered = place + 1
                work = VectorWork("copy", 1, size)
                self._operators.append(Operator(f"{_REORDER}_{name}", vector=(work,)))
            self._copied.append(_GatheredCopy(gather, rows, columns, place, reordered))

    def _rewritten(self, tensor: Tensor) -> list[Tensor]:
        """Return a tensor that is no longer gathered, with its scale where it is cast."""
        if id(tensor) in self._gathered:
            return []
        wide = [read for read in tensor.readers if read.operator not in self._gathers]
        moved = [replace(read, operator=self._place[read.operator]) for read in wide]
        writers = tuple([(self._place[writer], elements) for writer, elements in tensor.writers])
        plain = replace(tensor, writers=writers, readers=tuple(moved))
        if len(wide) == len(tensor.readers):
            return [plain]
        if self._is_kept(tensor):
            return [plain] if tensor.outlives else []
        cast = self._place_of_cast[id(tensor)]
        searches = [cast - 2] if self._scales_tensors else []
        read_by = [TensorRead(place, tensor.elements) for place in (*searches, cast)]
        readers = sorted([*moved, *read_by], key=lambda read: read.operator)
        scales = [
            Tensor(1, "fp32", tensor.kind, ((place, 1),), (TensorRead(place + 1, 1),))
            for search in searches
            for place in (search, search + 1)
        ]
        outlives = tensor.outlives and not self._keeps(tensor)
        by_columns = [] if self._scales_tensors or not self._keeps(tensor) else [cast]
        kept = [self._copy(tensor, (), (place,), outlives=True) for place in by_columns]
        return [replace(plain, readers=tuple(readers), outlives=outlives), *scales, *kept]

    def _moved(self, copied: _GatheredCopy) -> list[Tensor]:
        """Return a narrow copy of a shard, what is gathered of it, and that put in order."""
        shard, whole = copied.gather.shard, copied.gather.whole
        casts = () if self._is_kept(shard) else (self._place_of_cast[id(shard)],)
        keeps = self._scales_tensors and self._keeps(shard)
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


class _GatheredCopy(NamedTuple):
    """A narrow copy that is gathered: what reads it, and where it is received and put in order."""

    gather: _Gather
    by_rows: tuple[TensorRead, ...]
    by_columns: tuple[TensorRead, ...]
    place: int
    reordered: int | None
