"""Fused kernels that ATen lacks, as traced operators: attention, positions, norm, gate and loss.

Each is one operator per direction, as in real training stacks. Capture runs on meta tensors, so an
operator computes shapes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_STATISTICS_DTYPE = torch.float32


def shape_only(shapes: F) -> F:
    """Register an operator of the namespace ``phaze`` that computes no elements.

    Parameters
    ----------
    shapes
        Named as the operator; returns empty results of the right shapes.
    """
    operator = torch.library.custom_op(f"phaze::{shapes.__name__}", shapes, mutates_args=())
    operator.register_fake(shapes)
    return cast(F, operator)


def differentiate(
    operator: Any,
    backward: Callable[..., Any],
    keep: Callable[[Any, Any], tuple[Any, ...]],
    results: int = 1,
) -> None:
    """Give an operator of `shape_only` its backward.

    Parameters
    ----------
    operator
        The forward.
    backward
        Takes the gradients and the kept values; returns the gradients of the first inputs, or of
        the first one.
    keep
        Takes inputs and result; returns the values that the backward needs, in its order. Tensors
        among them are stashed.
    results
        How many of the first results have a gradient.
    """

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        kept = keep(inputs, output)
        ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in kept))
        ctx.values = [None if isinstance(value, Tensor) else value for value in kept]
        ctx.inputs_count = len(inputs)

    def differentiated(ctx: Any, *gradients_of_results: Tensor) -> tuple[Any, ...]:
        pairs = zip(ctx.saved_tensors, ctx.values, strict=True)
        kept = (value if saved is None else saved for saved, value in pairs)
        result = backward(*gradients_of_results[:results], *kept)
        gradients: tuple[Any, ...] = result if isinstance(result, tuple) else (result,)
        without_gradient: int = ctx.inputs_count - len(gradients)
        return gradients + (None,) * without_gradient

    operator.register_autograd(differentiated, setup_context=save)


@shape_only
def masked_softmax(scores: Tensor, scale: float, causal: bool) -> Tensor:
    """Scale, mask and normalise attention scores in one kernel, as in Megatron-LM.

    The probabilities are all that its backward needs.
    """
    return torch.empty_like(scores)


@shape_only
def masked_softmax_backward(gradient: Tensor, probabilities: Tensor, scale: float) -> Tensor:
    """Return the gradient of the scores."""
    return torch.empty_like(probabilities)


differentiate(masked_softmax, masked_softmax_backward, lambda inputs, y: (y, inputs[1]))


@shape_only
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    window: int,
    softcap: bool,
) -> tuple[Tensor, Tensor]:
    """Return attention whose scores never leave the chip (Dao et al. 2022), and row statistics.

    Tensors are ``(sequence, batch, heads, head size)``; keys and values may have fewer heads. A
    query attends to the latest ``window`` keys (0: to all); a ``softcap`` bounds the scores.
    """
    rows, batch, heads, size = q.shape
    statistics = q.new_empty((batch, heads, rows), dtype=_STATISTICS_DTYPE)
    if v.shape[-1] == size:
        return torch.empty_like(q), statistics
    return q.new_empty((rows, batch, heads, v.shape[-1])), statistics


@shape_only
def flash_attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    statistics: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    window: int,
    softcap: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value.

    The probabilities are computed again from the row statistics: five products, two in the forward.
    """
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


differentiate(
    flash_attention,
    flash_attention_backward,
    lambda inputs, results: (*inputs[:3], *results, *inputs[3:]),
)


@shape_only
def sink_attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, dropout: float, causal: bool, window: int
) -> tuple[Tensor, Tensor]:
    """Return attention whose softmax has one more score per head, a parameter (gpt-oss)."""
    rows, batch, heads, _ = q.shape
    return torch.empty_like(q), q.new_empty((batch, heads, rows), dtype=_STATISTICS_DTYPE)


@shape_only
def sink_attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    statistics: Tensor,
    sinks: Tensor,
    dropout: float,
    causal: bool,
    window: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of query, key, value and sinks."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(sinks)


differentiate(
    sink_attention,
    sink_attention_backward,
    lambda inputs, results: (*inputs[:3], *results, *inputs[3:]),
)


@shape_only
def chunked_attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return attention of pieces of ``chunk`` tokens, each to itself only (Llama 4)."""
    rows, batch, heads, _ = q.shape
    return torch.empty_like(q), q.new_empty((batch, heads, rows), dtype=_STATISTICS_DTYPE)


@shape_only
def chunked_attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    statistics: Tensor,
    dropout: float,
    causal: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


differentiate(
    chunked_attention,
    chunked_attention_backward,
    lambda inputs, results: (*inputs[:3], *results, *inputs[3:]),
)


@shape_only
def latent_keys_and_values(
    joint: Tensor, shared: Tensor, table: Tensor, plain: int
) -> tuple[Tensor, Tensor]:
    """Lay out keys and values of all heads, ``(sequence, batch, heads, size)``, in one kernel.

    ``joint`` has the plain part of every key and its value; the ``shared`` part of the keys is
    rotated and copied to all heads.
    """
    keys = joint.new_empty((*joint.shape[:-1], plain + shared.shape[-1]))
    return keys, joint.new_empty((*joint.shape[:-1], joint.shape[-1] - plain))


@shape_only
def latent_keys_and_values_backward(
    keys: Tensor, values: Tensor, table: Tensor, plain: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of what keys and values are made of."""
    joint = keys.new_empty((*keys.shape[:-1], plain + values.shape[-1]))
    return joint, keys.new_empty((*keys.shape[:-2], keys.shape[-1] - plain))


differentiate(
    latent_keys_and_values,
    latent_keys_and_values_backward,
    lambda inputs, _: inputs[2:],
    results=2,
)


@shape_only
def rotary(x: Tensor, table: Tensor, inverse: bool) -> Tensor:
    """Rotate pairs of elements by the angle of their position (Su et al. 2021).

    The backward is the opposite rotation.
    """
    return x.new_empty(x.shape)


differentiate(rotary, rotary, lambda inputs, _: (inputs[1], True))


@shape_only
def gated_activation(first: Tensor, second: Tensor, kind: str) -> Tensor:
    """Return the product of an activation and its gate, as a compiler makes one kernel of both.

    The backward computes the activation again from its operand.
    """
    return torch.empty_like(first)


@shape_only
def gated_activation_backward(
    gradient: Tensor, first: Tensor, second: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both operands."""
    return torch.empty_like(first), torch.empty_like(second)


differentiate(gated_activation, gated_activation_backward, lambda inputs, _: tuple(inputs))


@shape_only
def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the root-mean-square norm (Zhang and Sennrich 2019), and row statistics."""
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=_STATISTICS_DTYPE)


@shape_only
def rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradients of the input and of the weight."""
    return torch.empty_like(x), torch.empty_like(weight)


differentiate(rms_norm, rms_norm_backward, lambda inputs, results: (*inputs, results[1]))


@shape_only
def compiled_rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `rms_norm` does; the gradient of its weight is a kernel of its own."""
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=_STATISTICS_DTYPE)


@shape_only
def compiled_rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, statistics: Tensor
) -> Tensor:
    """Return the gradient of the input, row by row."""
    return torch.empty_like(x)


@shape_only
def rms_norm_weight_gradient(gradient: Tensor, x: Tensor, statistics: Tensor) -> Tensor:
    """Return the gradient of the weight: sums over columns, which no kernel over rows finds."""
    return x.new_empty(x.shape[-1:])


def _compiled_rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor]:
    """Return both gradients, each of its own kernel."""
    of_input = compiled_rms_norm_backward(gradient, x, weight, statistics)
    return of_input, rms_norm_weight_gradient(gradient, x, statistics)


differentiate(
    compiled_rms_norm, _compiled_rms_norm_backward, lambda inputs, results: (*inputs, results[1])
)


@shape_only
def nll_loss_forward(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return PyTorch's loss of every token.

    PyTorch's own operator has an autograd kernel that meta tensors do not reach.
    """
    return log_probabilities.new_empty(log_probabilities.shape[:-1])


@shape_only
def nll_loss_backward(gradient: Tensor, log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of the log-probabilities, which is zero except at the targets."""
    return torch.empty_like(log_probabilities)


differentiate(nll_loss_forward, nll_loss_backward, lambda inputs, _: tuple(inputs))
