"""Kernels of state-space and delta-net mixers as traced operators.

Their sizes travel with them (``sizes``: the fields of `phaze_opt.workload.recurrences.ScanShape` or
`DeltaShape`, in order), and their work stands there under the same names. Tokens are ``(sequence,
batch, heads, elements)``; states, scores and triangular matrices are those of all chunks. What a
backward computes again is marked (``again``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phaze_opt.workload.capture.kernels import differentiate, shape_only
from phaze_opt.workload.recurrences import DeltaShape, ScanShape

_WIDE = torch.float32


@shape_only
def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve every channel with its latest tokens, and activate it (SiLU).

    The weight is ``(channels, tokens)``.
    """
    return x.new_empty(x.shape)


@shape_only
def short_convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of channels, weight and bias; the activation is computed again."""
    biases = weight.new_empty(weight.shape[:1] if bias is not None else (0,))
    return x.new_empty(x.shape), torch.empty_like(weight), biases


def _convolution_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients, none of a bias that there is not."""
    of_x, of_weight, of_bias = short_convolution_backward(gradient, x, weight, bias)
    return of_x, of_weight, None if bias is None else of_bias


differentiate(short_convolution, _convolution_gradients, lambda inputs, _: tuple(inputs))


@shape_only
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm of groups as wide as the weight, and row statistics.

    The gate's SiLU scales what is normalised (Mamba-2), or the result (delta nets).
    """
    rows = (*x.shape[:2], x[0, 0].numel() // weight.numel())
    return x.new_empty(x.shape), x.new_empty(rows, dtype=_WIDE)


@shape_only
def gated_rms_norm_backward(
    gradient: Tensor, x: Tensor, gate: Tensor, weight: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input, the gate and the weight."""
    return x.new_empty(x.shape), gate.new_empty(gate.shape), torch.empty_like(weight)


differentiate(
    gated_rms_norm, gated_rms_norm_backward, lambda inputs, results: (*inputs, results[1])
)


# Mamba-2.


@shape_only
def gated_scan(x: Tensor, gate: Tensor) -> Tensor:
    """Return the result of a scan times the SiLU of its gate, where no norm follows."""
    return x.new_empty(x.shape)


@shape_only
def gated_scan_backward(gradient: Tensor, x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of both; the activation is computed again."""
    return x.new_empty(x.shape), gate.new_empty(gate.shape)


@shape_only
def step_sizes(
    raw: Tensor, bias: Tensor, decay: Tensor, again: bool, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the steps of all tokens, and the sums of their decay along a chunk."""
    return raw.new_empty(raw.shape, dtype=_WIDE), raw.new_empty(raw.shape, dtype=_WIDE)


@shape_only
def step_sizes_backward(
    of_sums: Sequence[Tensor],
    of_steps: Tensor,
    raw: Tensor,
    bias: Tensor,
    decay: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the raw steps, their bias and the decay."""
    return raw.new_empty(raw.shape), torch.empty_like(bias), torch.empty_like(decay)


def _states(x: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return states of all chunks."""
    shape = ScanShape(*sizes)
    return x.new_empty((shape.chunks, shape.heads, shape.width, shape.state), dtype=dtype)


def _scores(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return scores of all chunks."""
    shape = ScanShape(*sizes)
    return x.new_empty((shape.chunks, shape.groups, shape.chunk, shape.chunk), dtype=_WIDE)


@shape_only
def chunk_states(
    x: Tensor, keys: Tensor, steps: Tensor, sums: Tensor, again: bool, sizes: Sequence[int]
) -> Tensor:
    """Return what every chunk adds to the state, in fp32."""
    return _states(x, sizes, _WIDE)


@shape_only
def pass_states(states: Tensor, sums: Tensor, again: bool, sizes: Sequence[int]) -> Tensor:
    """Return the states before every chunk: in 16 bits, but in fp32 where a backward uses them."""
    return states.new_empty(states.shape, dtype=_WIDE if again else torch.bfloat16)


@shape_only
def chunk_scores(queries: Tensor, keys: Tensor, again: bool, sizes: Sequence[int]) -> Tensor:
    """Return the scores of the tokens of every chunk, in fp32."""
    return _scores(queries, sizes)


@shape_only
def chunk_scan(
    scores: Tensor,
    x: Tensor,
    steps: Tensor,
    sums: Tensor,
    queries: Tensor,
    states: Tensor,
    skip: Tensor,
    sizes: Sequence[int],
) -> Tensor:
    """Return what scores, states and the skip connection make of every token."""
    return x.new_empty(x.shape)


@shape_only
def chunk_states_gradient(
    gradient: Tensor, queries: Tensor, sums: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Return the gradient of the states before every chunk, in fp32."""
    return _states(gradient, sizes, _WIDE)


@shape_only
def pass_states_backward(
    of_states: Tensor, states: Tensor, sums: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of what chunks add, and the states, in 16 bits; that of the decay."""
    narrow = [x.new_empty(x.shape, dtype=torch.bfloat16) for x in (of_states, states)]
    return narrow[0], narrow[1], states.new_empty(states.shape[:2])


@shape_only
def chunk_inputs_gradient(
    gradient: Tensor,
    x: Tensor,
    steps: Tensor,
    sums: Tensor,
    keys: Tensor,
    scores: Tensor,
    of_states: Tensor,
    skip: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the inputs, of the steps, and of the skip by chunk."""
    by_chunk = of_states.new_empty(of_states.shape[:2], dtype=_WIDE)
    return x.new_empty(x.shape), torch.empty_like(steps), by_chunk


@shape_only
def chunk_keys_gradient(
    x: Tensor, steps: Tensor, sums: Tensor, of_states: Tensor, keys: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the keys by the states, in fp32, and of the sums of decay."""
    return keys.new_empty(keys.shape, dtype=_WIDE), torch.empty_like(sums)


@shape_only
def chunk_queries_gradient(
    gradient: Tensor, sums: Tensor, states: Tensor, queries: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the queries by the states, in fp32, and of the sums of decay."""
    return queries.new_empty(queries.shape, dtype=_WIDE), torch.empty_like(sums)


@shape_only
def chunk_scores_gradient(
    gradient: Tensor, x: Tensor, steps: Tensor, sums: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Return the gradient of the scores."""
    return _scores(x, sizes)


@shape_only
def scores_gradient(
    of_scores: Tensor, others: Tensor, added: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Return the gradient of keys, or of queries, by the scores and by what is added."""
    return others.new_empty(others.shape)


@shape_only
def chunk_decay_gradient(
    gradient: Tensor,
    x: Tensor,
    steps: Tensor,
    sums: Tensor,
    scores: Tensor,
    sizes: Sequence[int],
) -> Tensor:
    """Return the gradient of the sums of decay by the scores."""
    return torch.empty_like(sums)


@shape_only
def mixed_channels_backward(
    of_x: Tensor,
    of_keys: Tensor,
    of_queries: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    beside: Sequence[Tensor],
    columns: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `short_convolution_backward` does, in the gradient of all projected columns.

    It takes in those ``beside`` the channels, which the kernels before it have made.
    """
    biases = weight.new_empty(weight.shape[:1] if bias is not None else (0,))
    return x.new_empty((*x.shape[:2], columns)), torch.empty_like(weight), biases


# Gated delta nets.


@shape_only
def unit_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of length one, and row statistics."""
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=_WIDE)


@shape_only
def unit_norm_backward(gradient: Tensor, result: Tensor, statistics: Tensor) -> Tensor:
    """Return the gradient of the rows."""
    return torch.empty_like(result)


differentiate(unit_norm, unit_norm_backward, lambda _, results: tuple(results))


@shape_only
def delta_gates(raw: Tensor, bias: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithm of the decay, and the scale of what is written, of every token."""
    shape = (*raw.shape[:2], bias.numel())
    return raw.new_empty(shape, dtype=_WIDE), raw.new_empty(shape)


@shape_only
def delta_gates_backward(
    of_decay: Tensor, of_scale: Tensor, raw: Tensor, bias: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the raw gates, their bias and the decay."""
    return raw.new_empty(raw.shape), torch.empty_like(bias), torch.empty_like(decay)


differentiate(delta_gates, delta_gates_backward, lambda inputs, _: tuple(inputs), results=2)


def _triangles(keys: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return triangular matrices of all chunks."""
    shape = DeltaShape(*sizes)
    chunk = shape.chunk
    return keys.new_empty((shape.sequences, shape.chunks, chunk, chunk), dtype=dtype)


def _delta_states(keys: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return states of all chunks."""
    shape = DeltaShape(*sizes)
    return keys.new_empty((shape.sequences, shape.chunks, shape.key, shape.value))


@shape_only
def decay_sums(gates: Tensor) -> Tensor:
    """Return sums of the decay along a chunk; the backward sums the other way."""
    return torch.empty_like(gates)


@shape_only
def delta_scores(keys: Tensor, sums: Tensor, scale: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the scores of the keys of a chunk, in fp32."""
    return _triangles(keys, sizes, _WIDE)


@shape_only
def invert_triangles(scores: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return inverse triangular matrices, in 16 bits."""
    return _triangles(scores, sizes, torch.bfloat16)


@shape_only
def delta_pairs(
    keys: Tensor,
    values: Tensor,
    scale: Tensor,
    inverse: Tensor,
    sums: Tensor,
    again: bool,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return keys and values as a chunk leaves them to the state."""
    return keys.new_empty(keys.shape), values.new_empty(values.shape)


@shape_only
def delta_states(
    keys: Tensor,
    left: Tensor,
    written: Tensor,
    sums: Tensor,
    again: bool,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return the states before every chunk, and the values that are new to them."""
    return _delta_states(keys, sizes), torch.empty_like(written)


@shape_only
def delta_output(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    states: Tensor,
    sums: Tensor,
    sizes: Sequence[int],
) -> Tensor:
    """Return what scores and states make of every token."""
    return torch.empty_like(values)


@shape_only
def delta_values_gradient(
    gradient: Tensor, queries: Tensor, keys: Tensor, sums: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Return the gradient of new values by the scores."""
    return gradient.new_empty(gradient.shape)


@shape_only
def delta_states_gradient(
    gradient: Tensor,
    of_values: Tensor,
    queries: Tensor,
    keys: Tensor,
    left: Tensor,
    sums: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the states, and of new values by scores and states."""
    return _delta_states(keys, sizes), torch.empty_like(of_values)


@shape_only
def delta_operands_gradient(
    gradient: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    left: Tensor,
    sums: Tensor,
    states: Tensor,
    of_values: Tensor,
    of_states: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, keys left to the state, and sums of decay."""
    same = [x.new_empty(x.shape) for x in (queries, keys, left)]
    return same[0], same[1], same[2], torch.empty_like(sums)


@shape_only
def delta_pairs_gradient(
    of_left: Tensor,
    of_values: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: Tensor,
    sums: Tensor,
    inverse: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of keys, values, scale and sums of decay by the pairs."""
    same = [x.new_empty(x.shape) for x in (keys, values, scale)]
    return same[0], same[1], same[2], torch.empty_like(sums)
