"""The work of fused kernels: attention, latent keys, parts of a mixture of experts, recurrences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, fx

from phaze_opt.workload.attention import AttentionShape, backward_work, forward_work
from phaze_opt.workload.capture.aten_node import NodeWork, name_of, rows_of, value_of
from phaze_opt.workload.experts import (
    grouped_product,
    grouped_weight_gradient,
    is_gated,
    surplus_flops,
)
from phaze_opt.workload.graph import Gemm, VectorWork
from phaze_opt.workload.recurrences import SCAN_KERNELS, DeltaShape, KernelWork, ScanShape
from phaze_opt.workload.sparse_attention import (
    chosen_shape,
    index_backward_work,
    index_shape,
    index_work,
    target_work,
)

_SCORES = {"softmax": ("softmax", "softmax_backward"), "sigmoid": ("sigmoid", "tanh_backward")}
"""Vector work of a router's scores, forward and backward."""

_ACTIVATIONS = {
    **{"swiglu": "silu", "geglu": "gelu", "gelu": "gelu", "relu": "relu", "relu2": "relu"}
}
"""Vector work of the activation of experts, by that of the model; a square comes to relu2."""


def _flash_attention(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the forward of a fused attention core, whose last argument may be a soft cap."""
    query, key, value, _, dropout, causal, window, *softcap = node.args
    shape = _attention_shape((query, key, value), bool(causal), cast(int, window))
    gemms, vector = forward_work(shape, dropout=bool(dropout), softcap=any(softcap))
    return (NodeWork(gemms=gemms, vector=vector, attention=shape.scores),)


def _flash_attention_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the backward of a fused attention core."""
    _, query, key, value, _, _, _, dropout, causal, window, *softcap = node.args
    shape = _attention_shape((query, key, value), bool(causal), cast(int, window))
    gemms, vector = backward_work(shape, dropout=bool(dropout), softcap=any(softcap))
    return (NodeWork(gemms=gemms, vector=vector, attention=shape.scores),)


def _attention_shape(operands: tuple[Any, ...], causal: bool, window: int) -> AttentionShape:
    """Return the sizes of fused attention of ``(sequence, batch, heads, head size)`` tensors."""
    query, key, value = map(value_of, operands)
    queries, batch, heads, head_dim = query.shape
    keys, _, kv_heads, _ = key.shape
    width = value.shape[-1] if value.shape[-1] != head_dim else 0
    return AttentionShape(batch, queries, keys, heads, kv_heads, head_dim, causal, window, width)


def _chunked_attention(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return fused attention of pieces of the sequence: as many more samples, each shorter."""
    forward = name_of(node).endswith("chunked_attention")
    operands = node.args[:3] if forward else node.args[1:4]
    dropout, causal, chunk = node.args[-3:]
    whole = _attention_shape(operands, bool(causal), 0)
    tokens = cast(int, chunk)
    pieces = whole.batch * whole.queries // tokens
    shape = replace(whole, batch=pieces, queries=tokens, keys=tokens)
    gemms, vector = (forward_work if forward else backward_work)(shape, dropout=bool(dropout))
    return (NodeWork(gemms=gemms, vector=vector, attention=shape.scores),)


def _head_product(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a product of every head with a weight of its own, or its gradient of the heads."""
    heads, weight = value_of(node.args[0]), value_of(node.args[1])
    count, *sizes = weight.shape
    inputs, outputs = heads.shape[-1], value_of(node).shape[-1]
    assert sorted(sizes) == sorted((inputs, outputs))
    gemm = Gemm(m=heads.numel() // (count * inputs), n=outputs, k=inputs, batch=count)
    return (NodeWork(gemms=(gemm,), factors=cast(tuple[fx.Node, ...], tuple(node.args))),)


def _head_product_weight(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradient of the weights of heads."""
    gradient, (count, outputs, inputs) = value_of(node.args[0]), value_of(node).shape
    rows = gradient.numel() // (count * outputs)
    gemm = Gemm(m=outputs, n=inputs, k=rows, batch=count)
    return (NodeWork(gemms=(gemm,), factors=cast(tuple[fx.Node, ...], tuple(node.args))),)


def _sparse_attention(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return attention to chosen keys, forward or backward, or what an indexer learns from it."""
    kind = name_of(node).rpartition("::")[2]
    first = 1 if kind.endswith("backward") else 0
    query, joint = (value_of(each) for each in node.args[first : first + 2])
    rows, batch, heads, size = query.shape
    chosen = value_of(node.args[5] if kind != "index_target" else node.args[3])
    width = value_of(node.args[first + 2]).shape[-1] if first else 0
    width = cast(int, node.args[6]) if kind == "sparse_attention" else width
    whole = AttentionShape(batch, rows, joint.shape[0], heads, 1, size, True, value_dim=width)
    shape = chosen_shape(whole, chosen.shape[-1])
    if kind == "index_target":
        gemms, vector, scores = target_work(shape)
    else:
        gemms, vector = (backward_work if first else forward_work)(shape)
        scores = shape.scores
    # The operands of the indexer only pass through to its gradients.
    operands = (*node.args[:2], node.args[5]) if kind == "sparse_attention" else None
    return (NodeWork(gemms, vector, attention=scores, operands=cast(Any, operands)),)


def _index(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return an indexer's scores and choice, or its gradients; several devices do the same."""
    backward = name_of(node).endswith("backward")
    query, devices = value_of(node.args[1 if backward else 0]), cast(int, node.args[-1])
    keys = len(value_of(node.args[2 if backward else 1]))
    rows, batch, heads, width = query.shape
    shape = index_shape(batch, rows, heads, width, keys)
    if backward:
        chosen = value_of(node.args[4]).shape[-1]
        gemms, vector, scores = index_backward_work(chosen_shape(shape, chosen))
    else:
        gemms, vector, scores = index_work(shape)
    flops = sum(gemm.flops for gemm in gemms)
    surplus = flops - flops // devices
    return (NodeWork(gemms, vector, attention=scores, surplus_flops=surplus),)


def _grouped_product(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a product of rows and the weights of experts, or its gradient of the rows.

    The gradient of the rows is the product with turned weights.
    """
    tile, devices, asked = cast(tuple[int, int, int], node.args[-3:])
    rows, (experts, *sizes) = len(value_of(node.args[0])), value_of(node.args[1]).shape
    outputs, inputs = sizes if len(node.args) == 6 else reversed(sizes)
    weight = experts, outputs, inputs
    return _grouped(node, grouped_product(rows, weight, tile), asked, weight, devices)


def _grouped_product_weight(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradient of the weights of experts."""
    tile, devices, asked = cast(tuple[int, int, int], node.args[-3:])
    rows, weight = len(value_of(node.args[0])), cast(tuple[int, int, int], value_of(node).shape)
    return _grouped(node, grouped_weight_gradient(rows, weight, tile), asked, weight, devices)


def _grouped(
    node: fx.Node, gemm: Gemm, rows: int, weight: tuple[int, int, int], devices: int
) -> tuple[NodeWork, ...]:
    """Return the work of a grouped product, whose operands are the first two arguments."""
    factors = cast(tuple[fx.Node, ...], tuple(node.args[:2]))
    surplus = surplus_flops(gemm, rows, weight, devices)
    return (NodeWork(gemms=(gemm,), factors=factors, surplus_flops=surplus),)


def _route(direction: int) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of a router's weights: scores of all experts, of which it takes some."""

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        kind = _SCORES[cast(str, node.args[-1])][direction]
        logits = value_of(node.args[direction])
        choice = (rows_of("reduce", logits),) if direction == 0 else ()
        return (NodeWork(vector=(rows_of(kind, logits), *choice)),)

    return handle


def _expert_activation(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the activation of experts: with its gate, and the weight of every row."""
    result, activation = value_of(node), cast(str, node.args[-1])
    products = 1 + is_gated(activation) + (activation == "relu2")
    kinds = [_ACTIVATIONS[activation], *["multiply"] * products]
    return (NodeWork(vector=tuple(rows_of(kind, result) for kind in kinds)),)


def _expert_activation_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradients of the activation, of its gate and of the weights of the rows."""
    gradient, activation = value_of(node.args[0]), cast(str, node.args[-1])
    kinds = [f"{_ACTIVATIONS[activation]}_backward", "multiply", "reduce"]
    kinds += ["multiply"] * (2 * is_gated(activation) + (activation == "relu2"))
    return (NodeWork(vector=tuple(rows_of(kind, gradient) for kind in kinds)),)


def _gated_activation(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return an activation times its gate."""
    result, activation = value_of(node), cast(str, node.args[-1])
    return (
        NodeWork(vector=tuple(rows_of(k, result) for k in (_ACTIVATIONS[activation], "multiply"))),
    )


def _gated_activation_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradients of an activation, which is computed again, and of its gate."""
    gradient, activation = value_of(node.args[0]), _ACTIVATIONS[cast(str, node.args[-1])]
    kinds = (activation, "multiply", "multiply", f"{activation}_backward")
    return (NodeWork(vector=tuple(rows_of(kind, gradient) for kind in kinds)),)


def adapter_product(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a product of rows and a factor of an adapter, or its gradient of the rows."""
    rows, factor = (value_of(node.args[place]) for place in (0, 1))
    n = value_of(node).shape[-1]
    k = rows.shape[-1]
    factors = cast(tuple[fx.Node, ...], tuple(node.args[:2]))
    assert n * k == factor.numel()
    return (NodeWork(gemms=(Gemm(rows.numel() // k, n, k),), factors=factors),)


def adapter_product_weight(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradient of a factor of an adapter."""
    gradient, (m, n) = value_of(node.args[0]), value_of(node).shape
    factors = cast(tuple[fx.Node, ...], tuple(node.args[:2]))
    return (NodeWork(gemms=(Gemm(m, n, gradient.numel() // m),), factors=factors),)


def of_operand(kind: str, index: int) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of vector work with the shape of one operand."""

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        return (NodeWork(vector=(rows_of(kind, value_of(node.args[index])),)),)

    return handle


def _permute_rows(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a copy of tokens to the rows of their experts."""
    return (NodeWork(vector=(rows_of("gather", value_of(node)),)),)


def _chunked(
    shape: type[ScanShape] | type[DeltaShape], kernel: str
) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of a kernel of a recurrence, whose last argument are its sizes.

    What does not overlap its products is a piece of its own.
    """

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        own: KernelWork = getattr(shape(*cast(Sequence[int], node.args[-1])), kernel)()
        again = node.args[-2] is True
        surplus = sum(gemm.flops for gemm in own.gemms) if again else own.surplus_flops
        whole = NodeWork(own.gemms, own.vector, surplus_flops=surplus)
        if not own.apart:
            return (whole,)
        return NodeWork(vector=own.apart, operands=(), results=(), suffix="_decay"), whole

    return handle


def _on_channels(x: Tensor, weight: Tensor, *kinds: str) -> tuple[VectorWork, ...]:
    """Return a convolution of channels with a few tokens each, and what follows it."""
    rows = rows_of("reduce", x)
    convolved = VectorWork("reduce", rows.rows, rows.columns * weight.shape[-1])
    return (convolved, *(rows_of(kind, x) for kind in kinds))


def _short_convolution(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a convolution of channels, and its activation."""
    x, weight = map(value_of, node.args[:2])
    return (NodeWork(vector=_on_channels(x, weight, "silu")),)


def _convolution_gradients(operands: int) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of the backward of a convolution, by how many operands it reads.

    It convolves again for the activation, once more for the channels, and sums for the weight.
    """

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        read = [each for each in node.args[:operands] if isinstance(each, fx.Node)]
        x, weight = map(value_of, node.args[operands - 3 : operands - 1])
        convolved, activated = _on_channels(x, weight, "silu_backward")
        vector = (convolved, activated, convolved, convolved)
        return (NodeWork(vector=vector, operands=tuple(read)),)

    return handle


def _gated_norm(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a norm of groups, and the activation of its gate."""
    return (NodeWork(vector=_on_groups(node.args[0], node.args[2], "silu", "multiply")),)


def _gated_norm_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradients of a norm of groups, of its gate and its weight."""
    kinds = ("silu_backward", "multiply", "multiply")
    vector = _on_groups(node.args[1], node.args[3], *kinds, norm="rms_norm_backward")
    return (NodeWork(vector=vector),)


def _on_groups(x: Any, weight: Any, *kinds: str, norm: str = "rms_norm") -> tuple[VectorWork, ...]:
    """Return a norm of groups as wide as a weight, and work on the same elements."""
    elements, columns = value_of(x).numel(), value_of(weight).numel()
    return tuple([VectorWork(kind, elements // columns, columns) for kind in (norm, *kinds)])


def on_elements(*kinds: str, place: int = 0) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of vector work on the elements of an operand."""

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        operand = value_of(node.args[place])
        return (NodeWork(vector=tuple(rows_of(kind, operand) for kind in kinds)),)

    return handle


_SCAN = (*sorted(SCAN_KERNELS), "step_sizes", "step_sizes_backward")
_DELTA = (
    *("delta_scores", "invert_triangles", "delta_pairs", "delta_states", "delta_output"),
    *("delta_values_gradient", "delta_states_gradient", "delta_operands_gradient"),
    "delta_pairs_gradient",
)
"""Kernels of `phaze_opt.workload.recurrences`."""

FUSED: Mapping[str, Callable[[fx.Node], tuple[NodeWork, ...]]] = {
    **{f"phaze::{kernel}": _chunked(ScanShape, kernel) for kernel in _SCAN},
    **{f"phaze::{kernel}": _chunked(DeltaShape, kernel) for kernel in _DELTA},
    "phaze::short_convolution": _short_convolution,
    "phaze::short_convolution_backward": _convolution_gradients(4),
    "phaze::mixed_channels_backward": _convolution_gradients(6),
    "phaze::delta_gates": on_elements("exponential", "sigmoid"),
    "phaze::delta_gates_backward": on_elements("exponential", "tanh_backward", "reduce", place=2),
    "phaze::gated_scan": on_elements("silu", "multiply"),
    "phaze::gated_scan_backward": on_elements("silu", "multiply", "multiply", "silu_backward"),
    "phaze::gated_rms_norm": _gated_norm,
    "phaze::gated_rms_norm_backward": _gated_norm_backward,
    "phaze::flash_attention": _flash_attention,
    "phaze::flash_attention_backward": _flash_attention_backward,
    "phaze::sink_attention": _flash_attention,
    "phaze::sink_attention_backward": _flash_attention_backward,
    "phaze::chunked_attention": _chunked_attention,
    "phaze::chunked_attention_backward": _chunked_attention,
    "phaze::head_product": _head_product,
    "phaze::head_product_data": _head_product,
    "phaze::head_product_weight": _head_product_weight,
    "phaze::index_keys": _index,
    "phaze::index_backward": _index,
    "phaze::index_target": _sparse_attention,
    "phaze::sparse_attention": _sparse_attention,
    "phaze::sparse_attention_backward": _sparse_attention,
    "phaze::latent_keys_and_values": of_operand("rotary", 0),
    "phaze::latent_keys_and_values_backward": of_operand("rotary", 0),
    "phaze::route": _route(0),
    "phaze::route_backward": _route(1),
    "phaze::permute_rows": _permute_rows,
    "phaze::combine_rows": of_operand("reduce", 0),
    "phaze::adapter_product": adapter_product,
    "phaze::adapter_product_data": adapter_product,
    "phaze::adapter_product_weight": adapter_product_weight,
    "phaze::grouped_product": _grouped_product,
    "phaze::grouped_product_data": _grouped_product,
    "phaze::grouped_product_weight": _grouped_product_weight,
    "phaze::gated_activation": _gated_activation,
    "phaze::gated_activation_backward": _gated_activation_backward,
    "phaze::expert_activation": _expert_activation,
    "phaze::expert_activation_backward": _expert_activation_backward,
}
"""Handlers by qualified name."""
