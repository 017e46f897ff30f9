"""Communication of a tensor-parallel group as traced operators, with its gradients.

The sequence is dimension 0 of every activation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phaze_opt.workload.capture.shape_operators import apply, shape_only


def _all_reduce(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _reduce_scatter(x: Tensor, width: int) -> Tensor:
    return x.new_empty((x.shape[0] // width, *x.shape[1:]))


def _all_gather(x: Tensor, width: int) -> Tensor:
    return x.new_empty((x.shape[0] * width, *x.shape[1:]))


all_reduce = shape_only("all_reduce", _all_reduce)
reduce_scatter = shape_only("reduce_scatter", _reduce_scatter)
all_gather = shape_only("all_gather", _all_gather)


class _CopyToGroup(torch.autograd.Function):
    """Identity forward, all-reduce backward (``f`` of Megatron-LM, Shoeybi et al. 2019)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Every device already holds the input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Sum the partial gradients of the devices."""
        return all_reduce(gradient)


class _ReduceFromGroup(torch.autograd.Function):
    """All-reduce forward, identity backward (``g`` of Megatron-LM)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        """Sum the partial results of the devices."""
        return all_reduce(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Every device needs the whole gradient."""
        return gradient.view_as(gradient)


class _ScatterToSequence(torch.autograd.Function):
    """Reduce-scatter along the sequence forward, all-gather backward (Korthikanti et al. 2022)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int) -> Any:
        """Sum the partial results; each device keeps its share of the sequence."""
        ctx.width = width
        return reduce_scatter(x, width)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Collect the gradient of the whole sequence."""
        return all_gather(gradient, ctx.width), None


class _GatheredLinear(torch.autograd.Function):
    """Column-parallel linear layers of one input that is split along the sequence.

    Only the shard is kept for the backward, which gathers it again for the weight gradients
    (Korthikanti et al. 2022, section 4.2.2).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, *weights_and_biases: Tensor | None) -> Any:
        """Gather the sequence once and multiply it by every weight."""
        half = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:half], weights_and_biases[half:]
        ctx.width = width
        ctx.with_bias = [bias is not None for bias in biases]
        ctx.save_for_backward(x, *weights)
        whole = all_gather(x, width)
        return tuple(
            torch.nn.functional.linear(whole, weight, bias)
            for weight, bias in zip(weights, biases, strict=True)
            if weight is not None
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return gradients of the shard, of the weights and of the biases."""
        x, *weights = ctx.saved_tensors
        flat = [gradient.reshape(-1, gradient.shape[-1]) for gradient in gradients]
        products = [g.mm(weight) for g, weight in zip(flat, weights, strict=True)]
        whole = all_gather(x, ctx.width)
        partial = products[0]
        for product in products[1:]:
            partial = partial + product
        shard = reduce_scatter(partial.view(whole.shape), ctx.width)
        rows = whole.view(-1, whole.shape[-1])
        weight_gradients = [g.t().mm(rows) for g in flat]
        bias_gradients = [
            g.sum(0) if wanted else None for g, wanted in zip(flat, ctx.with_bias, strict=True)
        ]
        return shard, None, *weight_gradients, *bias_gradients


def copy_to_group(x: Tensor) -> Tensor:
    """Hand an input that every device holds to a split layer; its gradient is summed."""
    result: Tensor = apply(_CopyToGroup, x)
    return result


def reduce_from_group(x: Tensor) -> Tensor:
    """Sum partial results over the group; every device gets the sum."""
    result: Tensor = apply(_ReduceFromGroup, x)
    return result


def scatter_to_sequence(x: Tensor, width: int) -> Tensor:
    """Sum partial results over the group; every device gets its share of the sequence."""
    result: Tensor = apply(_ScatterToSequence, x, width)
    return result


def gathered_linear(
    x: Tensor, width: int, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Multiply a sequence that is split over the group by several weights' local columns."""
    return tuple(apply(_GatheredLinear, x, width, *weights, *biases))
