"""The blocks of a transformer as torch modules, split over a tensor-parallel group (Megatron-LM).

Activations are ``(sequence, batch, hidden)``. With sequence parallelism the residual stream holds
each device's share of the sequence. Modules live on the meta device in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    ColumnParallelLinear,
    RowParallelLinear,
    TensorGroup,
    parameter,
)
from phaze_opt.workload.config import TransformerConfig

_GATED = ("swiglu", "geglu")
_NORM_EPSILON = 1e-5


def dropout(x: Tensor, probability: float) -> Tensor:
    """Drop elements; there is no operator where the probability is zero."""
    return functional.dropout(x, probability) if probability else x


class RmsNorm(nn.Module):
    """Root-mean-square normalisation along the last dimension."""

    def __init__(self, size: int, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.weight = parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale."""
        if self.fused:
            return kernels.rms_norm(x, self.weight)[0]
        # As PyTorch's composite rms_norm: statistics and normalised values in fp32.
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _NORM_EPSILON)
        return (wide * scale).type_as(x) * self.weight


def norm_of(config: TransformerConfig, size: int) -> nn.Module:
    """Return the normalisation of a transformer, along the last dimension."""
    if config.norm == "rms_norm":
        return RmsNorm(size, fused=config.kernels == "fused")
    return nn.LayerNorm(size, device="meta", dtype=DTYPE)


class _AttentionCore(nn.Module):
    """The heads of an attention on one device, after their projections and before the last one."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.config = config
        self.heads = config.heads // group.tensor_degree
        self.kv_heads = config.key_value_heads // group.tensor_degree

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: int = 0) -> Tensor:
        """Attend with heads as ``(sequence, batch, local heads, head size)``, as one kernel."""
        config = self.config
        dropped, causal, softcap = config.attention_dropout, config.causal, config.attention_softcap
        context, _ = kernels.flash_attention(
            query, key, value, None, dropped, causal, window, bool(softcap)
        )
        return context

    def attend_through_memory(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Attend through scores in memory; ``bias`` ``(local heads, queries, keys)`` is added."""
        rows, batch, _, size = query.shape
        query, key, value = (self._per_head(y) for y in (query, key, value))
        scores = torch.bmm(query, key.transpose(1, 2))
        if bias is not None:
            scores = (scores.view(batch, self.heads, *scores.shape[1:]) + bias).flatten(0, 1)
        if self.config.attention_softcap:
            scores = torch.tanh(scores)  # its scale is part of the softmax kernel's
        probabilities = kernels.masked_softmax(scores, size**-0.5, self.config.causal)
        probabilities = dropout(probabilities, self.config.attention_dropout)
        context = torch.bmm(probabilities, value)
        return context.transpose(0, 1).reshape(rows, batch, self.heads, size)

    def share(self, x: Tensor) -> Tensor:
        """Copy shared heads, ``(sequence, batch, heads, head size)``, for every query head."""
        rows, batch, heads, size = x.shape
        if heads == self.heads:
            return x
        shape = (rows, batch, heads, self.heads // heads, size)
        return x.unsqueeze(3).expand(shape).reshape(rows, batch, self.heads, size)

    def _per_head(self, x: Tensor) -> Tensor:
        """Bring heads first, ``(batch · heads, sequence, head size)``; repeat shared heads."""
        return self.share(x).flatten(1, 2).transpose(0, 1)


class Attention(_AttentionCore):
    """Self-attention with the heads split over the group.

    Without rotary positions the three projections are one product, and query, key and value are
    views of its result. Rotary positions make new queries and keys, so three products keep less.
    """

    table: Tensor

    def __init__(self, config: TransformerConfig, group: TensorGroup, window: int = 0) -> None:
        super().__init__(config, group)
        self.window = window
        kv = config.key_value_heads * config.head_size
        context = config.heads * config.head_size
        outputs: tuple[int, ...] = (context, kv, kv)
        if config.positions != "rotary":
            outputs = (sum(outputs),)
        else:
            # Sine and cosine of every pair, as two numbers or as a complex one.
            shape, dtype = (config.sequence, config.rotary_size), torch.float32
            if config.kernels == "framework":
                shape, dtype = (config.sequence, config.rotary_size // 2), torch.complex64
            self.register_buffer("table", torch.empty(shape, dtype=dtype, device="meta"))
        bias = _either(config.query_key_value_bias, config.bias)
        self.query_key_value = ColumnParallelLinear(config.hidden, outputs, bias, group)
        norms = 2 if config.query_key_norm else 0
        self.head_norms = nn.ModuleList(norm_of(config, config.head_size) for _ in range(norms))
        bias = _either(config.projection_bias, config.bias)
        self.projection = RowParallelLinear(context, config.hidden, bias, group)

    def forward(self, x: Tensor, position_bias: Tensor | None = None) -> Tensor:
        """Return the projected context; relative positions are a bias of the scores."""
        query, key, value = self._query_key_value(x)
        if self.config.attention == "flash":
            context = self.attend(query, key, value, self.window)
        else:
            context = self.attend_through_memory(query, key, value, position_bias)
        projected: Tensor = self.projection(context.reshape(*context.shape[:2], -1))
        return projected

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value as ``(sequence, batch, local heads, head size)``."""
        size, projected = self.config.head_size, self.query_key_value(x)
        if len(projected) == 3:
            query, key, value = (y.view(*y.shape[:2], -1, size) for y in projected)
            query, key = self._normalised(query, key)
            if self.config.kernels == "framework":
                query, key = (self._rotate(y) for y in (query, key))
                return query, self.share(key), self.share(value)
            query, key = (kernels.rotary(y, self.table, False) for y in (query, key))
            return query, key, value
        (joint,) = projected
        # The heads of a group lie together: its queries, then its key, then its value.
        joint = joint.view(*joint.shape[:2], self.kv_heads, -1)
        queries = self.heads // self.kv_heads
        query, key, value = joint.split([queries * size, size, size], dim=-1)
        if queries > 1:
            query = query.reshape(*query.shape[:2], self.heads, size)
        query, key = self._normalised(query, key)
        return query, key, value

    def _normalised(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise the heads of queries and keys, where the model does."""
        if not len(self.head_norms):
            return query, key
        return self.head_norms[0](query), self.head_norms[1](key)

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs as complex numbers in fp32 (Llama's reference code)."""
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * self.table.view(x.shape[0], 1, 1, -1))
        return turned.flatten(3).type_as(x)


class CrossAttention(_AttentionCore):
    """Attention of a decoder to the result of its encoder, through scores in memory."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__(replace(config, causal=False), group)
        context = config.heads * config.head_size
        kv = config.key_value_heads * config.head_size
        self.query = ColumnParallelLinear(config.hidden, (context,), config.bias, group)
        self.key_value = ColumnParallelLinear(config.hidden, (2 * kv,), config.bias, group)
        self.projection = RowParallelLinear(context, config.hidden, config.bias, group)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return the projected context."""
        size = self.config.head_size
        (query,), (joint,) = self.query(x), self.key_value(memory)
        key, value = joint.view(*joint.shape[:2], self.kv_heads, -1).split(size, dim=-1)
        query = query.view(*query.shape[:2], self.heads, size)
        context = self.attend_through_memory(query, key, value)
        projected: Tensor = self.projection(context.reshape(*context.shape[:2], -1))
        return projected


def _either(value: bool | None, default: bool) -> bool:
    """Return a value that may be left to a default."""
    return default if value is None else value


class FeedForward(nn.Module):
    """Feed-forward network with its inner width split over the group."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.activation, self.inner_dropout = config.activation, config.inner_dropout
        outputs = (config.inner,) * (2 if config.activation in _GATED else 1)
        self.up = ColumnParallelLinear(config.hidden, outputs, config.bias, group)
        self.down = RowParallelLinear(config.inner, config.hidden, config.bias, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's result."""
        first, *gated = self.up(x)
        if self.activation == "swiglu":
            inner = functional.silu(first)
        elif self.activation == "relu":
            inner = functional.relu(first)
        else:
            inner = functional.gelu(first, approximate="tanh")
        for activation in gated:
            inner = inner * activation
        result: Tensor = self.down(dropout(inner, self.inner_dropout))
        return result


class Block(nn.Module):
    """One transformer block, of a decoder that attends to an encoder too where it ``crosses``."""

    def __init__(
        self,
        config: TransformerConfig,
        group: TensorGroup,
        *,
        window: int = 0,
        crosses: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = norm_of(config, config.hidden)
        self.attention = Attention(config, group, window)
        self.feed_forward_norm = self._norm(config.residual != "parallel_shared_norm")
        self.feed_forward = FeedForward(config, group)
        self.cross_norm = self._norm(crosses)
        self.cross_attention = CrossAttention(config, group) if crosses else None
        self.after_attention = self._norm(config.norm_position == "both")
        self.after_feed_forward = self._norm(config.norm_position == "both")

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
            normed = self.attention_norm(x)
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
        assert norm is not None  # only parallel sub-layers share one
        pre = self.config.norm_position != "post"
        result = sublayer(norm(x) if pre else x)
        if after is not None:
            result = after(result)
        total: Tensor = x + dropout(result, self.config.dropout)
        return total if pre else norm(total)
