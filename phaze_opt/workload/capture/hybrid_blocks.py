"""The blocks of a pattern of sub-layers as torch modules; layouts are those of `blocks`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from phaze_opt.workload.capture.attention import Attention, LatentAttention, dropout, norm_of
from phaze_opt.workload.capture.delta_net import GatedDeltaNet
from phaze_opt.workload.capture.experts import MixtureOfExperts
from phaze_opt.workload.capture.feed_forward import FeedForward
from phaze_opt.workload.capture.state_space import StateSpaceMixer
from phaze_opt.workload.capture.tensor_parallel import TensorGroup
from phaze_opt.workload.config import TransformerConfig

_NAMES = {
    "*": "attention",
    "M": "state_space",
    "D": "delta",
    "H": "parallel",
    "-": "feed_forward",
    "E": "expert",
}
"""Of sub-layers, by their letter in a pattern."""


def kind_of(sublayers: str) -> str:
    """Name a block by its sub-layers."""
    return "_".join([*(_NAMES[letter] for letter in sublayers), "block"])


class HybridBlock(nn.Module):
    """Sub-layers one after another, each behind a norm and added to the residual stream."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, sublayers: str) -> None:
        super().__init__()
        self.probability = config.dropout
        self.norms = nn.ModuleList(norm_of(config, config.hidden) for _ in sublayers)
        self.mixers = nn.ModuleList(_MIXERS[letter](config, group) for letter in sublayers)

    def forward(self, x: Tensor) -> Tensor:
        """Add every sub-layer to the residual stream."""
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + dropout(mixer(norm(x)), self.probability)
        return x


class ParallelMixers(nn.Module):
    """Attention and a state-space mixer of the same input, whose results are added (Falcon-H1)."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.attention, self.state_space = Attention(config, group), StateSpaceMixer(config, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        attended: Tensor = self.attention(x)
        scanned: Tensor = self.state_space(x)
        return attended + scanned


def _attention(config: TransformerConfig, group: TensorGroup) -> nn.Module:
    """Return attention, by short vectors where the model has them."""
    return LatentAttention(config, group) if config.latent else Attention(config, group)


_MIXERS: dict[str, Callable[[TransformerConfig, TensorGroup], nn.Module]] = {
    "*": _attention,
    "M": StateSpaceMixer,
    "D": GatedDeltaNet,
    "H": ParallelMixers,
    "-": FeedForward,
    "E": MixtureOfExperts,
}
