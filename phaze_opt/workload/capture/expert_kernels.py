"""Kernels of a mixture of experts as traced operators: routing, grouped products, activation.

Rows are tokens times the experts of each, sorted by expert. How many each expert gets is data, so
the shapes are those of even routing: without a drop, or of a fixed number of rows for every expert.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phaze_opt.workload.capture.kernels import differentiate, shape_only
from phaze_opt.workload.experts import is_gated


@shape_only
def route(logits: Tensor, top_k: int, scores: str) -> tuple[Tensor, Tensor]:
    """Return the weights of the chosen experts, and which they are, ``(..., top_k)``."""
    shape = (*logits.shape[:-1], top_k)
    weights = logits.new_empty(shape, dtype=torch.float32)
    return weights, logits.new_empty(shape, dtype=torch.int32)


@shape_only
def route_backward(gradient: Tensor, logits: Tensor, chosen: Tensor, scores: str) -> Tensor:
    """Return the gradient of the logits."""
    return torch.empty_like(logits)


differentiate(route, route_backward, lambda inputs, results: (inputs[0], results[1], inputs[2]))


@shape_only
def permute_rows(x: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Copy tokens ``(tokens, hidden)`` to the rows of their experts, so many of all of them."""
    return x.new_empty((count, x.shape[-1]))


@shape_only
def combine_rows(rows: Tensor, chosen: Tensor, count: int) -> Tensor:
    """Sum the rows of every token."""
    return rows.new_empty((chosen.shape[0], rows.shape[-1]))


differentiate(permute_rows, combine_rows, lambda inputs, _: inputs[1:])
differentiate(combine_rows, permute_rows, lambda inputs, _: inputs[1:])


@shape_only
def expert_all_gather(x: Tensor, devices: int) -> Tensor:
    """Collect the tokens of all devices over which each expert is split."""
    return x.new_empty((x.shape[0] * devices, *x.shape[1:]))


@shape_only
def expert_reduce_scatter(x: Tensor, devices: int) -> Tensor:
    """Sum the partial results of these devices; each gets those of its own tokens."""
    return x.new_empty((x.shape[0] // devices, *x.shape[1:]))


differentiate(expert_all_gather, expert_reduce_scatter, lambda inputs, _: inputs[1:])
differentiate(expert_reduce_scatter, expert_all_gather, lambda inputs, _: inputs[1:])


@shape_only
def grouped_product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, tile: int, devices: int, asked: int
) -> Tensor:
    """Multiply the rows of every expert by its weight, ``(experts, outputs, inputs)``.

    The rows of an expert are filled to a multiple of ``tile``; ``devices`` compute the same. The
    model asks for ``asked`` of the rows, the others are empty.
    """
    return rows.new_empty((rows.shape[0], weight.shape[1]))


@shape_only
def grouped_product_data(
    gradient: Tensor, weight: Tensor, tile: int, devices: int, asked: int
) -> Tensor:
    """Return the gradient of the rows."""
    return gradient.new_empty((gradient.shape[0], weight.shape[2]))


@shape_only
def grouped_product_weight(
    gradient: Tensor, rows: Tensor, experts: int, tile: int, devices: int, asked: int
) -> Tensor:
    """Return the gradient of the weights."""
    return gradient.new_empty((experts, gradient.shape[1], rows.shape[1]))


@shape_only
def grouped_bias_gradient(gradient: Tensor, experts: int) -> Tensor:
    """Sum the rows of every expert."""
    return gradient.new_empty((experts, gradient.shape[1]))


def _grouped_product_backward(
    gradient: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tile: int,
    devices: int,
    asked: int,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of rows, weights and biases."""
    experts = weight.shape[0]
    return (
        grouped_product_data(gradient, weight, tile, devices, asked),
        grouped_product_weight(gradient, rows, experts, tile, devices, asked),
        None if bias is None else grouped_bias_gradient(gradient, experts),
    )


differentiate(grouped_product, _grouped_product_backward, lambda inputs, _: tuple(inputs))


@shape_only
def expert_activation(inner: Tensor, weights: Tensor, kind: str) -> Tensor:
    """Apply the activation of the experts, and scale every row by the weight of its expert.

    A gated activation takes gate and value side by side and returns half of the columns. Megatron
    Core scales here too, before the last product, so that the product's result is not stashed.
    """
    return inner.new_empty((inner.shape[0], inner.shape[1] // (2 if is_gated(kind) else 1)))


@shape_only
def expert_activation_backward(
    gradient: Tensor, inner: Tensor, weights: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the inner rows and of the weights."""
    return torch.empty_like(inner), torch.empty_like(weights)


differentiate(expert_activation, expert_activation_backward, lambda inputs, _: tuple(inputs))
