"""The feed-forward network of a transformer's block; layouts are those of `blocks`."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.attention import dropout
from phaze_opt.workload.capture.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    TensorGroup,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.experts import is_gated


class FeedForward(nn.Module):
    """Feed-forward network with its inner width, the model's or another, split over the group."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, width: int = 0) -> None:
        super().__init__()
        self.activation, self.inner_dropout = config.activation, config.inner_dropout
        self.compiled = config.kernels == "compiled"
        inner = width or config.inner
        outputs = (inner,) * (2 if is_gated(config.activation) else 1)
        first, last = (config.adapter_rank(name) for name in ("linear_fc1", "linear_fc2"))
        self.up = ColumnParallelLinear(config.hidden, outputs, config.bias, group, first)
        self.down = RowParallelLinear(inner, config.hidden, config.bias, group, last)

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's result."""
        inner = self._activated(*self.up(x))
        result: Tensor = self.down(dropout(inner, self.inner_dropout))
        return result

    def _activated(self, first: Tensor, *gated: Tensor) -> Tensor:
        """Return the activation, times its gate where it has one."""
        if self.compiled and gated:
            return kernels.gated_activation(first, gated[0], self.activation)
        if self.activation == "swiglu":
            inner = functional.silu(first)
        elif self.activation == "relu":
            inner = functional.relu(first)
        elif self.activation == "relu2":
            inner = functional.relu(first).square()
        else:
            inner = functional.gelu(first, approximate="tanh")
        for activation in gated:
            inner = inner * activation
        return inner
