"""Operators that ATen lacks: collectives, fused attention, norms and loss, as traced by capture.

They have shapes but no arithmetic: capture runs on meta tensors, where only shapes matter. Each has
one operator per direction, as the fused kernels of real training stacks have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ROW_STATISTICS_DTYPE = torch.float32


def _shape_only(name: str, fake: Callable[..., Any]) -> Any:
    """Register an operator that exists only as shapes and return its callable."""
    operator: Any = torch.library.custom_op(f"phaze::{name}", fake, mutates_args=())
    operator.register_fake(fake)
    return operator


# --- Collectives of one tensor-parallel group; the sequence is dimension 0 ---------------------


def _all_reduce(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _reduce_scatter(x: Tensor, width: int) -> Tensor:
    return x.new_empty((x.shape[0] // width, *x.shape[1:]))


def _all_gather(x: Tensor, width: int) -> Tensor:
    return x.new_empty((x.shape[0] * width, *x.shape[1:]))


all_reduce = _shape_only("all_reduce", _all_reduce)
reduce_scatter = _shape_only("reduce_scatter", _reduce_scatter)
all_gather = _shape_only("all_gather", _all_gather)


class CopyToGroup(torch.autograd.Function):
    """Identity forward, all-reduce backward (``f`` of Megatron-LM, Shoeybi et al. 2019)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Every device already holds the input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Sum the partial gradients of the devices."""
        return all_reduce(gradient)


class ReduceFromGroup(torch.autograd.Function):
    """All-reduce forward, identity backward (``g`` of Megatron-LM)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        """Sum the partial results of the devices."""
        return all_reduce(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Every device needs the whole gradient."""
        return gradient.view_as(gradient)


class ScatterToSequence(torch.autograd.Function):
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


class GatheredLinear(torch.autograd.Function):
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


# --- Attention --------------------------------------------------------------------------------


def _masked_softmax(x: Tensor, scale: float, causal: bool) -> Tensor:
    return torch.empty_like(x)


def _masked_softmax_backward(gradient: Tensor, y: Tensor, scale: float) -> Tensor:
    return torch.empty_like(y)


masked_softmax = _shape_only("masked_softmax", _masked_softmax)
masked_softmax_backward = _shape_only("masked_softmax_backward", _masked_softmax_backward)


class MaskedSoftmax(torch.autograd.Function):
    """Scale, mask and softmax along the last dimension in one kernel, as Megatron-LM has it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: float, causal: bool) -> Any:
        """Return probabilities, which are all that the backward needs."""
        probabilities = masked_softmax(scores, scale, causal)
        ctx.scale = scale
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of the scores."""
        (probabilities,) = ctx.saved_tensors
        return masked_softmax_backward(gradient, probabilities, ctx.scale), None, None


def _flash_attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool
) -> tuple[Tensor, Tensor]:
    rows, batch, heads, _ = q.shape
    statistics = q.new_empty((batch, heads, rows), dtype=ROW_STATISTICS_DTYPE)
    return q.new_empty(q.shape), statistics


def _flash_attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    statistics: Tensor,
    dropout: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


flash_attention = _shape_only("flash_attention", _flash_attention)
flash_attention_backward = _shape_only("flash_attention_backward", _flash_attention_backward)


class FlashAttention(torch.autograd.Function):
    """Attention whose scores never leave the chip (Dao et al. 2022).

    Tensors are ``(sequence, batch, heads, head size)``; keys and values may have fewer heads. The
    backward recomputes the probabilities from the saved row statistics: five products against two.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool) -> Any:
        """Return the attention's result."""
        out, statistics = flash_attention(q, k, v, dropout, causal)
        ctx.save_for_backward(q, k, v, out, statistics)
        ctx.options = (dropout, causal)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return gradients of query, key and value."""
        return *flash_attention_backward(gradient, *ctx.saved_tensors, *ctx.options), None, None


def _rotary(x: Tensor, table: Tensor, inverse: bool) -> Tensor:
    return x.new_empty(x.shape)


rotary = _shape_only("rotary", _rotary)


class Rotary(torch.autograd.Function):
    """Rotary position embedding (Su et al. 2021); its backward is the opposite rotation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Any:
        """Rotate pairs of elements by the angle of their position."""
        ctx.save_for_backward(table)
        return rotary(x, table, False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Rotate the gradient back."""
        (table,) = ctx.saved_tensors
        return rotary(gradient, table, True), None


# --- Normalisation and loss -------------------------------------------------------------------


def _rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=ROW_STATISTICS_DTYPE)


def _rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


rms_norm = _shape_only("rms_norm", _rms_norm)
rms_norm_backward = _shape_only("rms_norm_backward", _rms_norm_backward)


class RootMeanSquareNorm(torch.autograd.Function):
    """Root-mean-square normalisation (Zhang and Sennrich 2019) as one kernel each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
        """Normalise along the last dimension."""
        y, statistics = rms_norm(x, weight)
        ctx.save_for_backward(x, weight, statistics)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return gradients of the input and of the weight."""
        return rms_norm_backward(gradient, *ctx.saved_tensors)


def _cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.shape[:-1]
    return logits.new_empty(rows), logits.new_empty(rows), logits.new_empty(rows)


def _cross_entropy_backward(
    gradient: Tensor, logits: Tensor, targets: Tensor, log_sum: Tensor
) -> Tensor:
    return torch.empty_like(logits)


cross_entropy = _shape_only("cross_entropy", _cross_entropy)
cross_entropy_backward = _shape_only("cross_entropy_backward", _cross_entropy_backward)


class VocabularyParallelCrossEntropy(torch.autograd.Function):
    """Cross-entropy of fp32 logits whose vocabulary is split over ``width`` devices.

    One pass finds each row's maximum, sum of exponentials and predicted logit; three small
    all-reduces complete them over the group, as in Megatron-LM. The logits are kept for the
    backward.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, width: int) -> Tensor:
        """Return the loss of every token."""
        largest, total, predicted = cross_entropy(logits, targets)
        if width > 1:
            local, largest = largest, all_reduce(largest)
            total = all_reduce(total * torch.exp(local - largest))
            predicted = all_reduce(predicted)
        log_sum = torch.log(total) + largest
        ctx.save_for_backward(logits, targets, log_sum)
        return log_sum - predicted

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of the local logits."""
        return cross_entropy_backward(gradient, *ctx.saved_tensors), None, None
