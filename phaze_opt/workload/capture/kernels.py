"""Fused kernels that ATen lacks, as traced operators: attention, rotary positions, norm and loss.

Each is one operator per direction, as in real training stacks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phaze_opt.workload.capture.collectives import all_reduce
from phaze_opt.workload.capture.shape_operators import apply, shape_only

ROW_STATISTICS_DTYPE = torch.float32


def _masked_softmax(x: Tensor, scale: float, causal: bool) -> Tensor:
    return torch.empty_like(x)


def _masked_softmax_backward(gradient: Tensor, y: Tensor, scale: float) -> Tensor:
    return torch.empty_like(y)


masked_softmax = shape_only("masked_softmax", _masked_softmax)
masked_softmax_backward = shape_only("masked_softmax_backward", _masked_softmax_backward)


class _MaskedSoftmax(torch.autograd.Function):
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
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool
) -> tuple[Tensor, Tensor]:
    rows, batch, heads, _ = q.shape
    statistics = q.new_empty((batch, heads, rows), dtype=ROW_STATISTICS_DTYPE)
    return torch.empty_like(q), statistics


def _flash_attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    statistics: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


flash_attention = shape_only("flash_attention", _flash_attention)
flash_attention_backward = shape_only("flash_attention_backward", _flash_attention_backward)


class _FlashAttention(torch.autograd.Function):
    """Attention whose scores never leave the chip (Dao et al. 2022).

    Tensors are ``(sequence, batch, heads, head size)``; keys and values may have fewer heads. The
    backward recomputes the probabilities from the saved row statistics: five products against two.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        dropout: float,
        causal: bool,
    ) -> Any:
        """Return the attention's result."""
        out, statistics = flash_attention(q, k, v, mask, dropout, causal)
        ctx.save_for_backward(q, k, v, out, statistics, mask)
        ctx.options = (dropout, causal)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return gradients of query, key and value."""
        gradients = flash_attention_backward(gradient, *ctx.saved_tensors, *ctx.options)
        return *gradients, None, None, None


def _rotary(x: Tensor, table: Tensor, inverse: bool) -> Tensor:
    return x.new_empty(x.shape)


rotary = shape_only("rotary", _rotary)


class _Rotary(torch.autograd.Function):
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


def _rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=ROW_STATISTICS_DTYPE)


def _rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


rms_norm = shape_only("rms_norm", _rms_norm)
rms_norm_backward = shape_only("rms_norm_backward", _rms_norm_backward)


class _RootMeanSquareNorm(torch.autograd.Function):
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


cross_entropy = shape_only("cross_entropy", _cross_entropy)
cross_entropy_backward = shape_only("cross_entropy_backward", _cross_entropy_backward)


class _VocabularyParallelCrossEntropy(torch.autograd.Function):
    """Cross-entropy of fp32 logits whose vocabulary is split over ``width`` devices.

    One pass finds each row's maximum, sum of exponentials and predicted logit; three small
    all-reduces complete them over the group, as in Megatron-LM. The logits are kept for the
    backward.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, width: int) -> Any:
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


def _nll_loss_forward(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    return log_probabilities.new_empty(log_probabilities.shape[:-1])


def _nll_loss_backward(gradient: Tensor, log_probabilities: Tensor, targets: Tensor) -> Tensor:
    return torch.empty_like(log_probabilities)


nll_loss_forward = shape_only("nll_loss_forward", _nll_loss_forward)
nll_loss_backward = shape_only("nll_loss_backward", _nll_loss_backward)


class _NegativeLogLikelihood(torch.autograd.Function):
    """PyTorch's loss of log-probabilities, whose own autograd kernel meta tensors do not reach."""

    @staticmethod
    def forward(ctx: Any, log_probabilities: Tensor, targets: Tensor) -> Any:
        """Return the loss of every token."""
        ctx.save_for_backward(log_probabilities, targets)
        return nll_loss_forward(log_probabilities, targets)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of the log-probabilities: zero but for the targets."""
        return nll_loss_backward(gradient, *ctx.saved_tensors), None


def softmax_of_scores(scores: Tensor, scale: float, causal: bool) -> Tensor:
    """Return attention probabilities of unscaled scores."""
    result: Tensor = apply(_MaskedSoftmax, scores, scale, causal)
    return result


def attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, mask: Tensor | None = None
) -> Tensor:
    """Return fused attention of ``(sequence, batch, heads, head size)`` tensors."""
    result: Tensor = apply(_FlashAttention, q, k, v, mask, dropout, causal)
    return result


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Return queries or keys with rotary positions."""
    result: Tensor = apply(_Rotary, x, table)
    return result


def root_mean_square_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the normalised input."""
    result: Tensor = apply(_RootMeanSquareNorm, x, weight)
    return result


def token_losses(logits: Tensor, targets: Tensor, width: int) -> Tensor:
    """Return the cross-entropy of every token; the vocabulary is split over ``width`` devices.

    On one device it is PyTorch's: the log-probabilities are kept, and their gradient lies beside
    that of the logits.
    """
    result: Tensor
    if width == 1:
        result = apply(_NegativeLogLikelihood, torch.log_softmax(logits, -1), targets)
    else:
        result = apply(_VocabularyParallelCrossEntropy, logits, targets, width)
    return result
