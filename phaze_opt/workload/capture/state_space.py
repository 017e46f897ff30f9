"""The Mamba-2 mixer of a block as a torch module; layouts are those of `blocks`.

One product makes gate, channels and steps; the channels are inputs, keys and queries (z, x, B, C
and dt in the paper). Heads, and the groups that share keys and queries, are divided over the
tensor-parallel group, as in Megatron Core's Mamba mixer, so that nothing is sent but around the
first and the last product. What was projected and the result of the scan are kept; the backward
computes all between them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phaze_opt.workload.capture import recurrence_kernels as scan
from phaze_opt.workload.capture.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    TensorGroup,
    apply,
    parameter,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.recurrences import ScanShape


class StateSpaceMixer(nn.Module):
    """A scan over the tokens of every head, between two products."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        assert config.state_space
        self.shape, degree = config.state_space, group.tensor_degree
        shape, hidden = self.shape, config.hidden
        self.heads, self.groups = shape.heads // degree, shape.groups // degree
        inner = self.heads * shape.head_elements
        channels = inner + 2 * self.groups * shape.state
        columns = degree * (inner + channels + self.heads)
        self.input = ColumnParallelLinear(hidden, (columns,), shape.bias, group)
        self.convolution = parameter(channels, shape.kernel)
        self.convolution_bias = parameter(channels) if shape.convolution_bias else None
        self.step_bias, self.decay, self.skip = (parameter(self.heads) for _ in range(3))
        self.norm = parameter(inner) if shape.norm else None
        self.output = RowParallelLinear(shape.inner, hidden, shape.bias, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens."""
        (projected,) = self.input(x)
        tokens, batch, _ = projected.shape
        shape = self.shape
        sizes = (batch, tokens, self.heads, self.groups, shape.head_elements, shape.state)
        own = (*sizes, min(shape.chunk, tokens))
        weights = (self.convolution, self.convolution_bias, self.step_bias, self.decay, self.skip)
        mixed: Tensor = self.output(apply(_Scan, projected, *weights, self.norm, own))
        return mixed


class _Columns(NamedTuple):
    """What a mixer projects its input to, and what the convolution makes of the channels."""

    gate: Tensor
    channels: Tensor
    steps: Tensor

    def convolved(
        self, weight: Tensor, bias: Tensor | None, shape: ScanShape
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, keys and queries, by head and by group."""
        made = scan.short_convolution(self.channels, weight, bias)
        shared = shape.groups * shape.state
        widths = [shape.heads * shape.width, shared, shared]
        x, keys, queries = torch.split(made, widths, dim=-1)
        rows = made.shape[:2]
        by_group = (*rows, shape.groups, shape.state)
        x = x.view(*rows, shape.heads, shape.width)
        return x, keys.view(by_group), queries.view(by_group)


def _split(projected: Tensor, shape: ScanShape) -> _Columns:
    """Return the parts of what was projected."""
    inner = shape.heads * shape.width
    widths = [inner, inner + 2 * shape.groups * shape.state, shape.heads]
    return _Columns(*torch.split(projected, widths, dim=-1))


class _Scan(torch.autograd.Function):
    """From what was projected to the gated result: convolution, scan, and norm with its gate."""

    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        step_bias: Tensor,
        decay: Tensor,
        skip: Tensor,
        norm: Tensor | None,
        sizes: Sequence[int],
    ) -> Tensor:
        """Return the gated result of all heads."""
        shape = ScanShape(*sizes)
        columns = _split(projected, shape)
        x, keys, queries = columns.convolved(weight, bias, shape)
        steps, sums = scan.step_sizes(columns.steps, step_bias, decay, False, sizes)
        added = scan.chunk_states(x, keys, steps, sums, False, sizes)
        states = scan.pass_states(added, sums, False, sizes)
        scores = scan.chunk_scores(queries, keys, False, sizes)
        y = scan.chunk_scan(scores, x, steps, sums, queries, states, skip, sizes).flatten(2)
        statistics, result = None, None
        if norm is None:
            result = scan.gated_scan(y, columns.gate)
        else:
            result, statistics = scan.gated_rms_norm(y, columns.gate, norm)
        ctx.sizes = sizes
        ctx.save_for_backward(projected, weight, bias, step_bias, decay, skip, norm, y, statistics)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of all but the sizes."""
        projected, weight, bias, step_bias, decay, skip, norm, y, statistics = ctx.saved_tensors
        sizes, of_norm = ctx.sizes, None
        shape = ScanShape(*sizes)
        columns = _split(projected, shape)
        if norm is None:
            of_y, of_gate = scan.gated_scan_backward(gradient, y, columns.gate)
        else:
            of_y, of_gate, of_norm = scan.gated_rms_norm_backward(
                gradient, y, columns.gate, norm, statistics
            )
        x, keys, queries = columns.convolved(weight, bias, shape)
        of_y = of_y.view(x.shape)
        steps, sums = scan.step_sizes(columns.steps, step_bias, decay, True, sizes)
        scores = scan.chunk_scores(queries, keys, True, sizes)
        added = scan.chunk_states(x, keys, steps, sums, True, sizes)
        states = scan.pass_states(added, sums, True, sizes)
        of_states = scan.chunk_states_gradient(of_y, queries, sums, sizes)
        of_states, states, of_passed = scan.pass_states_backward(of_states, states, sums, sizes)
        of_x, of_steps, of_skip = scan.chunk_inputs_gradient(
            of_y, x, steps, sums, keys, scores, of_states, skip, sizes
        )
        of_keys, by_keys = scan.chunk_keys_gradient(x, steps, sums, of_states, keys, sizes)
        of_queries, by_queries = scan.chunk_queries_gradient(of_y, sums, states, queries, sizes)
        of_scores = scan.chunk_scores_gradient(of_y, x, steps, sums, sizes)
        of_keys = scan.scores_gradient(of_scores, queries, of_keys, sizes)
        of_queries = scan.scores_gradient(of_scores, keys, of_queries, sizes)
        by_scores = scan.chunk_decay_gradient(of_y, x, steps, sums, scores, sizes)
        of_raw, of_step_bias, of_decay = scan.step_sizes_backward(
            [of_passed, by_keys, by_queries, by_scores],
            of_steps, columns.steps, step_bias, decay, sizes,
        )  # fmt: skip
        of_projected, of_weight, of_bias = scan.mixed_channels_backward(
            of_x, of_keys, of_queries, columns.channels, weight, bias,
            [of_gate, of_raw], projected.shape[-1],
        )  # fmt: skip
        return (
            of_projected,
            of_weight,
            None if bias is None else of_bias,
            of_step_bias,
            of_decay,
            of_skip.sum(0).to(skip.dtype),
            of_norm,
            None,
        )
