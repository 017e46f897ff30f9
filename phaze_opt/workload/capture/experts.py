"""The experts of a transformer's block as torch modules; layouts are those of `blocks`.

Every device of the tensor-parallel group has a share of the inner width of all experts, and
computes its part of the results of all tokens of the group, which are summed as those of a dense
network. Under sequence parallelism each device routes its own tokens and gathers those of the
others, with what their routers chose. The sorted rows are stashed, so that the backward does not
gather again. Latent experts get their tokens through a product that every device repeats, and give
the sum of their results through another one.

Where each expert is split over other devices than that group (``TensorGroup.expert_tensor``), which
then has tokens of its own on every device, these gather the tokens of one another in the same way:
before they send them to the devices of their experts. Megatron Core gathers behind that, the rows
instead of the tokens; over one device there is nothing to gather, and both are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phaze_opt.workload.capture import expert_kernels
from phaze_opt.workload.capture.feed_forward import FeedForward
from phaze_opt.workload.capture.tensor_parallel import (
    RepeatedLinear,
    TensorGroup,
    gather_sequence,
    parameter,
    sum_over_group,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.experts import TILE_ROWS, Experts, is_gated


class RoutedExperts(nn.Module):
    """The weights of the routed experts, and what they compute for rows sorted by expert."""

    def __init__(self, config: TransformerConfig, experts: Experts, group: TensorGroup) -> None:
        super().__init__()
        self.activation = config.activation
        devices = group.expert_tensor or group.tensor_degree
        inner = experts.feed_forward // devices
        hidden = experts.latent or config.hidden
        outputs = inner * (2 if is_gated(config.activation) else 1)
        self.up = parameter(experts.count, outputs, hidden)
        self.up_bias = parameter(experts.count, outputs) if experts.bias else None
        self.down = parameter(experts.count, hidden, inner)
        self.down_bias = parameter(experts.count, hidden) if experts.bias else None

    def forward(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted results of all rows, of which there is one at most per weight."""
        asked = min(len(rows), weights.numel())
        inner = expert_kernels.grouped_product(rows, self.up, self.up_bias, TILE_ROWS, 1, asked)
        inner = expert_kernels.expert_activation(inner, weights, self.activation)
        return expert_kernels.grouped_product(inner, self.down, self.down_bias, TILE_ROWS, 1, asked)


class MixtureOfExperts(nn.Module):
    """A router, routed experts, and experts that work on every token."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        assert config.experts
        self.group, self.shape, hidden = group, config.experts, config.hidden
        self.router = RepeatedLinear(hidden, self.shape.count, self.shape.router_bias, group)
        self.experts = RoutedExperts(config, self.shape, group)
        self.to_latent, self.from_latent = None, None
        if self.shape.latent:
            widths = hidden, self.shape.latent
            self.to_latent = RepeatedLinear(*widths, config.bias, group)
            self.from_latent = RepeatedLinear(*widths[::-1], config.bias, group)
        shared = self.shape.shared
        self.shared = FeedForward(config, group, shared) if shared else None
        self.shared_gate = None
        if self.shape.shared_gate:
            self.shared_gate = RepeatedLinear(hidden, 1, False, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of what the chosen and the shared experts make of every token."""
        result = self._routed(x)
        if self.shared is None:
            return result
        shared: Tensor = self.shared(x)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return result + shared

    def _routed(self, x: Tensor) -> Tensor:
        """Route tokens, compute the rows of all experts and sum them by token."""
        weights, chosen = expert_kernels.route(self.router(x), self.shape.top_k, self.shape.scores)
        sent = x if self.to_latent is None else self.to_latent(x)
        tokens, weights, chosen = (self._gathered(y) for y in (sent, weights, chosen))
        of_tokens = chosen.flatten(0, 1)
        count = self.shape.rows(of_tokens.numel())
        rows = expert_kernels.permute_rows(tokens.flatten(0, 1), of_tokens, count)
        rows = self.experts(rows, weights.flatten(0, 1))
        partial = expert_kernels.combine_rows(rows, of_tokens, count)
        result = self._summed(partial.view(tokens.shape))
        return result if self.from_latent is None else self.from_latent(result)

    def _gathered(self, x: Tensor) -> Tensor:
        """Return what all devices that split an expert have of a tensor."""
        devices = self.group.expert_tensor
        if devices == 0:
            return gather_sequence(x, self.group)
        return x if devices == 1 else expert_kernels.expert_all_gather(x, devices)

    def _summed(self, partial: Tensor) -> Tensor:
        """Sum what these devices computed, each of which gets that of its own tokens."""
        devices = self.group.expert_tensor
        if devices == 0:
            return sum_over_group(partial, self.group)
        return partial if devices == 1 else expert_kernels.expert_reduce_scatter(partial, devices)
