"""The blocks of a transformer as torch modules, split over a tensor-parallel group (Megatron-LM).

Activations are ``(sequence, batch, hidden)``. With sequence parallelism the residual stream holds
each device's share of the sequence. Modules live on the meta device in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from phaze_opt.workload.capture.attention import (
    Attention,
    CrossAttention,
    LatentAttention,
    dropout,
    norm_of,
)
from phaze_opt.workload.capture.experts import MixtureOfExperts
from phaze_opt.workload.capture.feed_forward import FeedForward
from phaze_opt.workload.capture.sparse_attention import SparseLatentAttention
from phaze_opt.workload.capture.tensor_parallel import TensorGroup
from phaze_opt.workload.config import TransformerConfig


class Block(nn.Module):
    """One transformer block.

    It attends to an encoder too where it ``crosses``, has experts where it is ``routed``, and
    queries and keys with rotary positions only where it ``rotates``.
    """

    def __init__(
        self,
        config: TransformerConfig,
        group: TensorGroup,
        *,
        window: int = 0,
        crosses: bool = False,
        routed: bool = False,
        rotates: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        before = config.norm_position != "output"
        self.attention_norm = self._norm(before)
        self.attention: nn.Module
        if config.indexer:
            self.attention = SparseLatentAttention(config, group)
        elif config.latent:
            self.attention = LatentAttention(config, group, window)
        else:
            self.attention = Attention(config, group, window, rotates=rotates)
        self.feed_forward_norm = self._norm(before and config.residual != "parallel_shared_norm")
        network = MixtureOfExperts if routed else FeedForward
        self.feed_forward = network(config, group)
        self.cross_norm = self._norm(crosses)
        self.cross_attention = CrossAttention(config, group) if crosses else None
        after = config.norm_position in ("both", "output")
        self.after_attention = self._norm(after)
        self.after_feed_forward = self._norm(after)

    def _norm(self, wanted: bool) -> nn.Module | None:
        """Return a norm of the residual stream, where it is wanted."""
        return norm_of(self.config, self.config.hidden) if wanted else None

    def forward(
        self, x: Tensor, position_bias: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        """Add attention, then the feed-forward network, to the residual stream.

        Parallel sub-layers each sum over the group, as two sub-layers in sequence do.
        """
        attend = partial(self.attention, position_bias=position_bias)
        if self.config.residual != "sequential":
            normed = x if self.attention_norm is None else self.attention_norm(x)
            attended = dropout(attend(normed), self.config.dropout)
            second = normed if self.feed_forward_norm is None else self.feed_forward_norm(x)
            return x + attended + dropout(self.feed_forward(second), self.config.dropout)
        x = self._sublayer(x, attend, self.attention_norm, self.after_attention)
        if self.cross_attention is not None:
            cross = partial(self.cross_attention, memory=memory)
            x = self._sublayer(x, cross, self.cross_norm, None)
        return self._sublayer(x, self.feed_forward, self.feed_forward_norm, self.after_feed_forward)

    def _sublayer(
        self,
        x: Tensor,
        sublayer: Callable[[Tensor], Tensor],
        norm: nn.Module | None,
        after: nn.Module | None,
    ) -> Tensor:
        """Apply a sub-layer with dropout, residual and its norm before, after or both."""
        post = self.config.norm_position == "post"
        result = sublayer(x if norm is None or post else norm(x))
        if after is not None:
            result = after(result)
        total: Tensor = x + dropout(result, self.config.dropout)
        return norm(total) if norm is not None and post else total
