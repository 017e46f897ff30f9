"""The gated delta net of a block as a torch module; layouts are those of `blocks`.

One product makes queries, keys, values, gate and the two gates of every head. Heads are divided
over the tensor-parallel group (Megatron Core); queries and keys are copied for every head of the
values. Operands of the delta rule and its inverse triangular matrices are kept; the backward makes
pairs and states again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phaze_opt.workload.capture import recurrence_kernels as rule
from phaze_opt.workload.capture.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    TensorGroup,
    apply,
    parameter,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.recurrences import DELTA_CHUNK


class GatedDeltaNet(nn.Module):
    """A gated delta rule over the tokens of every head, between two products."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        assert config.delta_net
        self.shape, degree = config.delta_net, group.tensor_degree
        shape = self.shape
        self.heads, self.key_heads = shape.heads // degree, shape.key_heads // degree
        keys, values = self.key_heads * shape.key_elements, self.heads * shape.head_elements
        self.widths = [2 * keys + values, values, 2 * self.heads]
        self.input = ColumnParallelLinear(config.hidden, (degree * sum(self.widths),), False, group)
        self.convolution = parameter(2 * keys + values, shape.kernel)
        self.step_bias, self.decay = parameter(self.heads), parameter(self.heads)
        self.norm = parameter(shape.head_elements)
        inner = shape.heads * shape.head_elements
        self.output = RowParallelLinear(inner, config.hidden, False, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens."""
        (projected,) = self.input(x)
        channels, gate, raw = torch.split(projected, self.widths, dim=-1)
        queries, keys, values = self._operands(channels)
        gates, scale = rule.delta_gates(raw, self.step_bias, self.decay)
        tokens, batch = queries.shape[:2]
        sizes = (batch, tokens, self.heads, self.shape.key_elements, self.shape.head_elements)
        own = (*sizes, min(DELTA_CHUNK, tokens))
        mixed = apply(_DeltaRule, queries, keys, values, gates, scale, own)
        normed, _ = rule.gated_rms_norm(mixed.flatten(2), gate, self.norm)
        result: Tensor = self.output(normed)
        return result

    def _operands(self, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of length one, and values, of every head."""
        made = rule.short_convolution(channels, self.convolution, None)
        shape, rows = self.shape, made.shape[:2]
        keys = self.key_heads * shape.key_elements
        widths = [keys, keys, self.heads * shape.head_elements]
        query, key, values = torch.split(made, widths, dim=-1)
        by_head = (*rows, self.key_heads, shape.key_elements)
        query, key = (self._copied(rule.unit_norm(y.view(by_head))[0]) for y in (query, key))
        return query, key, values.view(*rows, self.heads, shape.head_elements)

    def _copied(self, x: Tensor) -> Tensor:
        """Copy heads of keys for every head of the values."""
        rows, batch, heads, size = x.shape
        if heads == self.heads:
            return x
        shape = (rows, batch, heads, self.heads // heads, size)
        return x.unsqueeze(3).expand(shape).reshape(rows, batch, self.heads, size)


class _DeltaRule(torch.autograd.Function):
    """The chunked gated delta rule."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        gates: Tensor,
        scale: Tensor,
        sizes: Sequence[int],
    ) -> Tensor:
        """Return what the rule makes of every token."""
        sums = rule.decay_sums(gates)
        inverse = rule.invert_triangles(rule.delta_scores(keys, sums, scale, sizes), sizes)
        left, written = rule.delta_pairs(keys, values, scale, inverse, sums, False, sizes)
        states, new = rule.delta_states(keys, left, written, sums, False, sizes)
        ctx.sizes = sizes
        ctx.save_for_backward(queries, keys, values, sums, scale, inverse)
        result: Tensor = rule.delta_output(queries, keys, new, states, sums, sizes)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of all but the sizes."""
        queries, keys, values, sums, scale, inverse = ctx.saved_tensors
        sizes = ctx.sizes
        left, written = rule.delta_pairs(keys, values, scale, inverse, sums, True, sizes)
        states, new = rule.delta_states(keys, left, written, sums, True, sizes)
        of_new = rule.delta_values_gradient(gradient, queries, keys, sums, sizes)
        of_states, of_new = rule.delta_states_gradient(
            gradient, of_new, queries, keys, left, sums, sizes
        )
        of_queries, of_keys, of_left, of_sums = rule.delta_operands_gradient(
            gradient, queries, keys, new, left, sums, states, of_new, of_states, sizes
        )
        through, of_values, of_scale, through_sums = rule.delta_pairs_gradient(
            of_left, of_new, keys, values, scale, sums, inverse, sizes
        )
        of_gates = rule.decay_sums(of_sums + through_sums)
        return of_queries, of_keys + through, of_values, of_gates, of_scale, None
