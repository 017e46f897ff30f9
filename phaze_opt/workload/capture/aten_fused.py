"""The work of fused kernels: attention, latent keys, and the parts of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import fx

from phaze_opt.workload.attention import AttentionShape, backward_work, forward_work
from phaze_opt.workload.capture.aten_node import NodeWork, rows_of, value_of
from phaze_opt.workload.experts import (
    grouped_product,
    grouped_weight_gradient,
    is_gated,
    surplus_flops,
)
from phaze_opt.workload.graph import Gemm

_SCORES = {"softmax": ("softmax", "softmax_backward"), "sigmoid": ("sigmoid", "tanh_backward")}
"""Vector work of a router's scores, forward and backward."""

_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "gelu": "gelu", "relu": "relu"}
"""Vector work of the activation of experts, by that of the model."""


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


def _grouped_product(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a product of rows and the weights of experts, or its gradient of the rows.

    The gradient of the rows is the product with turned weights.
    """
    tile, devices = cast(tuple[int, int], node.args[-2:])
    rows, (experts, *sizes) = len(value_of(node.args[0])), value_of(node.args[1]).shape
    outputs, inputs = sizes if len(node.args) == 5 else reversed(sizes)
    weight = experts, outputs, inputs
    return _grouped(node, grouped_product(rows, weight, tile), rows, weight, devices)


def _grouped_product_weight(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradient of the weights of experts."""
    tile, devices = cast(tuple[int, int], node.args[-2:])
    rows, weight = len(value_of(node.args[0])), cast(tuple[int, int, int], value_of(node).shape)
    return _grouped(node, grouped_weight_gradient(rows, weight, tile), rows, weight, devices)


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
    kinds = [_ACTIVATIONS[activation], *["multiply"] * (1 + is_gated(activation))]
    return (NodeWork(vector=tuple(rows_of(kind, result) for kind in kinds)),)


def _expert_activation_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradients of the activation, of its gate and of the weights of the rows."""
    gradient, activation = value_of(node.args[0]), cast(str, node.args[-1])
    kinds = [f"{_ACTIVATIONS[activation]}_backward", "multiply", "reduce"]
    kinds += ["multiply"] * 2 * is_gated(activation)
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


def _adapter_product(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a product of rows and a factor of an adapter, or its gradient of the rows."""
    rows, factor = (value_of(node.args[place]) for place in (0, 1))
    n = value_of(node).shape[-1]
    k = rows.shape[-1]
    factors = cast(tuple[fx.Node, ...], tuple(node.args[:2]))
    assert n * k == factor.numel()
    return (NodeWork(gemms=(Gemm(rows.numel() // k, n, k),), factors=factors),)


def _adapter_product_weight(node: fx.Node) -> tuple[NodeWork, ...]:
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


FUSED: Mapping[str, Callable[[fx.Node], tuple[NodeWork, ...]]] = {
    "phaze::flash_attention": _flash_attention,
    "phaze::flash_attention_backward": _flash_attention_backward,
    "phaze::sink_attention": _flash_attention,
    "phaze::sink_attention_backward": _flash_attention_backward,
    "phaze::latent_keys_and_values": of_operand("rotary", 0),
    "phaze::latent_keys_and_values_backward": of_operand("rotary", 0),
    "phaze::route": _route(0),
    "phaze::route_backward": _route(1),
    "phaze::permute_rows": _permute_rows,
    "phaze::combine_rows": of_operand("reduce", 0),
    "phaze::adapter_product": _adapter_product,
    "phaze::adapter_product_data": _adapter_product,
    "phaze::adapter_product_weight": _adapter_product_weight,
    "phaze::grouped_product": _grouped_product,
    "phaze::grouped_product_data": _grouped_product,
    "phaze::grouped_product_weight": _grouped_product_weight,
    "phaze::gated_activation": _gated_activation,
    "phaze::gated_activation_backward": _gated_activation_backward,
    "phaze::expert_activation": _expert_activation,
    "phaze::expert_activation_backward": _expert_activation_backward,
}
"""Handlers by qualified name."""
