"""Linear layers in fewer bits: which products of a captured graph run in a recipe, and their casts.

As Transformer Engine trains: all three products of a linear layer, of grouped ones too, multiply
narrow operands with scales and sum in fp32. What stays in 16 bits: the layer with the loss (logits
and head), embeddings, routers and other layers with fewer than 16 outputs, the core of attention,
norms, and everything that is no product.

* With one scale per tensor, that of its largest element (current scaling), a kernel before the
  cast looks for it (``largest``), and neither is part of the kernel that makes the tensor: the
  scale must be known before the first element is cast. With scales of steps before (delayed
  scaling) the cast finds the largest element for the next step while it reads the tensor once.
* With one scale per tensor, the copy by rows serves as that by columns too on chips whose products
  read fp8 in every layout (Blackwell); then each tensor has one narrow copy. Others (Hopper) need
  a transposed one. (``is_non_tn_fp8_gemm_supported`` of Transformer Engine, and its page on
  performance considerations.)
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
* With sequence parallelism narrow copies are gathered (`phaze_opt.workload.narrow_gathers`), and
  tokens may go to their experts so (`phaze_opt.workload.narrow_dispatch`).

Loss of accuracy is not modelled.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from phaze_opt.precision import PRECISIONS, AttentionPrecision, Fp8Scaling, PrecisionName
from phaze_opt.workload.casts import (
    AttentionCasts,
    Casts,
    Making,
    attention_cores,
    linear_products,
    only_of_attention,
    operands_of,
    weights_of,
)
from phaze_opt.workload.graph import Layer, OperatorGraph
from phaze_opt.workload.narrow_dispatch import ArrivalCasts, arrivals
from phaze_opt.workload.narrow_gathers import GatherCasts, narrow_gathers, only_gathered

_LOSSES = ("cross_entropy", "log_softmax")

WeightPrecisions = tuple[tuple[int, PrecisionName], ...]
"""Elements of weights, and what their products multiply in, see `linear_precisions`."""


@lru_cache(maxsize=1024)
def quantised(
    graph: OperatorGraph,
    precision: PrecisionName,
    *,
    stashed: bool,
    scaling: Fp8Scaling = "current",
    column_copies: bool = True,
    others: WeightPrecisions = (),
) -> OperatorGraph:
    """Return a graph whose linear layers run in a recipe, cached; bf16 changes nothing.

    Parameters
    ----------
    graph
        A captured pass of a layer without the loss, not fused.
    precision
        The recipe.
    stashed
        Whether what comes into the graph was kept as narrow copies: in a backward.
    scaling, column_copies
        See `phaze_opt.training.Training`: of the recipe with one scale per tensor of fp8.
    others
        Linear layers that run in another one.
    """
    for name in _narrow_products(graph, precision, others):
        making = Making(name, stashed, scaling, column_copies)
        linear = _narrow_products(graph, precision, others)[name]
        gathers = narrow_gathers(graph, name, linear)
        if gathers:
            graph = GatherCasts(graph, making, linear, gathers).graph()
            linear = _narrow_products(graph, precision, others)[name]
        arrived = arrivals(graph, name, linear)
        if arrived:
            graph = ArrivalCasts(graph, making, linear, arrived).graph()
            linear = _narrow_products(graph, precision, others)[name]
        graph = Casts(graph, making, linear).graph()
    return graph


def _narrow_products(
    graph: OperatorGraph, precision: PrecisionName, others: WeightPrecisions
) -> dict[PrecisionName, tuple[int, ...]]:
    """Return the products that are to be narrow and are not yet, by what they multiply in."""
    if precision == "bf16":
        return {}
    of_others = dict(others)
    sizes = weights_of(graph) if others else {}
    found: dict[PrecisionName, list[int]] = {}
    for index in linear_products(graph):
        name = of_others.get(sizes.get(index, 0), precision)
        if name != "bf16" and graph.operators[index].gemms[0].precision == "bf16":
            found.setdefault(name, []).append(index)
    return {name: tuple(found[name]) for name in sorted(found)}


@lru_cache(maxsize=1024)
def narrow_elements(
    graph: OperatorGraph, precision: PrecisionName, others: WeightPrecisions = ()
) -> int:
    """Count the elements of the weights that narrow products of a forward multiply.

    The parameters are those of `quantised`.
    """
    found = _narrow_products(graph, precision, others)
    linear = {index for products in found.values() for index in products}
    weights = [tensor for tensor in graph.tensors if tensor.kind == "weight"]
    return sum([each.elements for each in weights if operands_of(each, linear)])


@lru_cache(maxsize=1024)
def narrow_attention(
    graph: OperatorGraph,
    precision: AttentionPrecision,
    *,
    stashed: bool,
    scaling: Fp8Scaling = "current",
) -> OperatorGraph:
    """Return a graph whose fused attention multiplies in a precision, cached.

    Parameters
    ----------
    graph
        A captured pass of a layer, whose linear layers are not yet in a recipe.
    precision
        Of attention; bf16 changes nothing.
    stashed, scaling
        As for `quantised`.
    """
    cores = attention_cores(graph)
    if precision == "bf16" or not cores:
        return graph
    return AttentionCasts(graph, Making(precision, stashed, scaling), cores).graph()


def attention_stash_change_bytes(
    layer: Layer, precision: AttentionPrecision, recompute: str
) -> int:
    """Return by how much attention in a precision changes what a layer keeps per microbatch."""
    if precision == "bf16" or recompute == "full":
        return 0
    again = layer.selective_recompute if recompute == "selective" else OperatorGraph()
    made = Counter(each.elements for each in again.tensors if each.writers and each.outlives)
    cores, change = frozenset(attention_cores(layer.backward)), 0
    for tensor in layer.backward.tensors:
        if tensor.writers or not only_of_attention(tensor, cores):
            continue
        if made[tensor.elements] > 0:
            made[tensor.elements] -= 1
            continue
        change += PRECISIONS[precision].stored(tensor.elements)[0]
        change -= tensor.elements * tensor.element_bytes
    return change


def has_loss(layer: Layer) -> bool:
    """Say whether a layer ends in the loss, so that its products stay in 16 bits."""
    kinds = {work.kind for operator in layer.forward.operators for work in operator.vector}
    return not kinds.isdisjoint(_LOSSES)


@lru_cache(maxsize=1024)
def stash_change_bytes(
    layer: Layer, precision: PrecisionName, recompute: str, others: WeightPrecisions = ()
) -> int:
    """Return by how much a recipe changes what a layer keeps per microbatch; mostly below 0.

    The parameters are those of `quantised`.
    """
    narrow = _narrow_products(layer.backward, precision, others)
    if not narrow or recompute == "full":
        return 0
    linear = {index for products in narrow.values() for index in products}
    gathers = {
        name: {each.operator for each in narrow_gathers(layer.backward, name, products)}
        for name, products in narrow.items()
    }
    again = layer.selective_recompute if recompute == "selective" else OperatorGraph()
    made = Counter(each.elements for each in again.tensors if each.writers and each.outlives)
    attends = any(operator.attention is not None for operator in again.operators)
    change = 0
    for tensor in layer.backward.tensors:
        if tensor.writers or tensor.kind != "activation":
            continue
        readers = {read.operator for read in tensor.readers}
        gathered = [name for name, own in gathers.items() if only_gathered(tensor, own)]
        copies = gathered or [name for name in narrow if operands_of(tensor, narrow[name])]
        if not copies:
            continue
        of_attention = any(layer.backward.operators[i].attention is not None for i in readers)
        if (attends or not of_attention) and made[tensor.elements] > 0:
            made[tensor.elements] -= 1
            continue
        change += sum(PRECISIONS[name].stored(tensor.elements)[0] for name in copies)
        if gathered or readers <= linear:
            change -= tensor.elements * tensor.element_bytes
    return change
