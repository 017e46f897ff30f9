"""Transformer layers as torch modules, split over a tensor-parallel group as Megatron-LM does.

Activations are ``(sequence, batch, hidden)``. With sequence parallelism the residual stream holds
each device's share of the sequence. Modules live on the meta device in bf16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.layer import capture_layer
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    ColumnParallelLinear,
    Group,
    RowParallelLinear,
    parameter,
    sum_over_group,
    token_losses,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant

_NORM_EPSILON = 1e-5


def _dropout(x: Tensor, probability: float) -> Tensor:
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


def _norm(config: TransformerConfig, size: int) -> nn.Module:
    """Return the normalisation of a transformer, along the last dimension."""
    if config.norm == "rms_norm":
        return RmsNorm(size, fused=config.kernels == "fused")
    return nn.LayerNorm(size, device="meta", dtype=DTYPE)


def _whole_linear(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer that is whole on every device."""
    return nn.Linear(inputs, outputs, bias, device="meta", dtype=DTYPE)


class Attention(nn.Module):
    """Self-attention with the heads split over the group.

    Without rotary positions the three projections are one product, and query, key and value are
    views of its result. Rotary positions make new queries and keys, so three products keep less.
    """

    table: Tensor

    def __init__(self, config: TransformerConfig, group: Group) -> None:
        super().__init__()
        self.config = config
        self.heads = config.heads // group.width
        self.kv_heads = config.key_value_heads // group.width
        kv = config.key_value_heads * config.head_size
        context = config.heads * config.head_size
        outputs: tuple[int, ...] = (context, kv, kv)
        if config.positions != "rotary":
            outputs = (sum(outputs),)
        else:
            # Sine and cosine of every pair, as two numbers or as a complex one.
            shape, dtype = (config.sequence, config.head_size), torch.float32
            if config.kernels == "framework":
                shape, dtype = (config.sequence, config.head_size // 2), torch.complex64
            self.register_buffer("table", torch.empty(shape, dtype=dtype, device="meta"))
        self.query_key_value = ColumnParallelLinear(config.hidden, outputs, config.bias, group)
        self.projection = RowParallelLinear(context, config.hidden, config.bias, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected context."""
        query, key, value = self._query_key_value(x)
        if self.config.attention == "flash":
            dropout, causal = self.config.attention_dropout, self.config.causal
            context, _ = kernels.flash_attention(query, key, value, None, dropout, causal)
        else:
            context = self._eager(query, key, value)
        projected: Tensor = self.projection(context.reshape(*context.shape[:2], -1))
        return projected

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value as ``(sequence, batch, local heads, head size)``."""
        size, projected = self.config.head_size, self.query_key_value(x)
        if len(projected) == 3:
            query, key, value = (y.view(*y.shape[:2], -1, size) for y in projected)
            if self.config.kernels == "framework":
                query, key = (self._rotate(y) for y in (query, key))
                return query, self._share(key), self._share(value)
            query, key = (kernels.rotary(y, self.table, False) for y in (query, key))
            return query, key, value
        (joint,) = projected
        # The heads of a group lie together: its queries, then its key, then its value.
        joint = joint.view(*joint.shape[:2], self.kv_heads, -1)
        queries = self.heads // self.kv_heads
        query, key, value = joint.split([queries * size, size, size], dim=-1)
        if queries > 1:
            query = query.reshape(*query.shape[:2], self.heads, size)
        return query, key, value

    def _eager(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend through scores in memory."""
        rows, batch, _, size = query.shape
        query, key, value = (self._per_head(y) for y in (query, key, value))
        scores = torch.bmm(query, key.transpose(1, 2))
        probabilities = kernels.masked_softmax(scores, size**-0.5, self.config.causal)
        probabilities = _dropout(probabilities, self.config.attention_dropout)
        context = torch.bmm(probabilities, value)
        return context.transpose(0, 1).reshape(rows, batch, self.heads, size)

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs as complex numbers in fp32 (Llama's reference code)."""
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * self.table.view(x.shape[0], 1, 1, -1))
        return turned.flatten(3).type_as(x)

    def _share(self, x: Tensor) -> Tensor:
        """Copy shared heads, ``(sequence, batch, heads, head size)``, for every query head."""
        rows, batch, heads, size = x.shape
        if heads == self.heads:
            return x
        shape = (rows, batch, heads, self.heads // heads, size)
        return x.unsqueeze(3).expand(shape).reshape(rows, batch, self.heads, size)

    def _per_head(self, x: Tensor) -> Tensor:
        """Bring heads first, ``(batch · heads, sequence, head size)``; repeat shared heads."""
        return self._share(x).flatten(1, 2).transpose(0, 1)


class FeedForward(nn.Module):
    """Feed-forward network with its inner width split over the group."""

    def __init__(self, config: TransformerConfig, group: Group) -> None:
        super().__init__()
        self.activation = config.activation
        outputs = (config.inner,) * (2 if config.activation == "swiglu" else 1)
        self.up = ColumnParallelLinear(config.hidden, outputs, config.bias, group)
        self.down = RowParallelLinear(config.inner, config.hidden, config.bias, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's result."""
        first, *gated = self.up(x)
        if self.activation == "swiglu":
            inner = functional.silu(first) * gated[0]
        elif self.activation == "relu":
            inner = functional.relu(first)
        else:
            inner = functional.gelu(first, approximate="tanh")
        result: Tensor = self.down(inner)
        return result


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, config: TransformerConfig, group: Group) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = _norm(config, config.hidden)
        self.attention = Attention(config, group)
        self.feed_forward_norm = _norm(config, config.hidden)
        self.feed_forward = FeedForward(config, group)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the feed-forward network, to the residual stream."""
        x = self._sublayer(x, self.attention, self.attention_norm)
        return self._sublayer(x, self.feed_forward, self.feed_forward_norm)

    def _sublayer(self, x: Tensor, module: nn.Module, norm: nn.Module) -> Tensor:
        """Apply a sub-layer with dropout, residual and its norm before or after."""
        pre = self.config.norm_position == "pre"
        result = _dropout(module(norm(x) if pre else x), self.config.dropout)
        total: Tensor = x + result
        return total if pre else norm(total)


class Embedding(nn.Module):
    """Word, position and segment embeddings; the vocabulary is split over the group."""

    position_ids: Tensor

    def __init__(self, config: TransformerConfig, group: Group) -> None:
        super().__init__()
        self.config, self.group = config, group
        self.local_rows = config.padded_vocabulary(group.width) // group.width
        self.words = parameter(self.local_rows, config.embedding_width)
        rows = config.position_table_rows
        self.positions = parameter(rows, config.hidden) if rows else None
        local = config.sequence // (group.width if group.splits_sequence else 1)
        ids = torch.empty((local, 1), dtype=torch.int64, device="meta")
        self.register_buffer("position_ids", ids)
        types = config.token_types
        self.types = parameter(types, config.hidden) if types else None
        width, hidden = config.embedding_width, config.hidden
        self.project = _whole_linear(width, hidden, bias=False) if width != hidden else None
        self.norm = _norm(config, config.hidden) if config.embedding_norm else None

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the residual stream of the (local share of the) sequence."""
        x = self._words(tokens)
        if self.project is not None:
            x = self.project(x)
        if self.positions is not None:
            x = x + functional.embedding(self.position_ids, self.positions)
        if self.types is not None and types is not None:
            x = x + functional.embedding(types, self.types)
        if self.norm is not None:
            x = self.norm(x)
        return _dropout(x, self.config.dropout)

    def _words(self, tokens: Tensor) -> Tensor:
        """Look words up; a device returns zeros for words of other devices."""
        if self.group.width == 1:
            return functional.embedding(tokens, self.words)
        elsewhere = tokens >= self.local_rows
        local = tokens.masked_fill(elsewhere, 0)
        found = functional.embedding(local, self.words)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return sum_over_group(found, self.group)


class Head(nn.Module):
    """Last norm, vocabulary projection and loss; the vocabulary is split over the group.

    The loss is computed from fp32 logits, as in Megatron-LM.
    """

    def __init__(self, config: TransformerConfig, group: Group) -> None:
        super().__init__()
        self.group = group
        hidden, embedding = config.hidden, config.embedding_width
        masked = config.head == "masked_language_model"
        self.norm = _norm(config, hidden) if config.final_norm else None
        self.project = _whole_linear(hidden, embedding, bias=False) if embedding != hidden else None
        self.dense = _whole_linear(embedding, embedding, bias=True) if masked else None
        self.dense_norm = _norm(config, embedding) if masked else None
        rows = config.padded_vocabulary(group.width)
        self.vocabulary = ColumnParallelLinear(embedding, (rows,), masked, group)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over all tokens."""
        if self.norm is not None:
            x = self.norm(x)
        if self.project is not None:
            x = self.project(x)
        if self.dense is not None and self.dense_norm is not None:
            x = self.dense_norm(functional.gelu(self.dense(x), approximate="tanh"))
        (logits,) = self.vocabulary(x)
        return token_losses(logits.float(), targets, self.group).mean()


def capture_transformer(
    config: TransformerConfig,
    *,
    tensor_parallel: int,
    microbatch: int,
    sequence_parallel: bool,
) -> WorkloadVariant:
    """Capture embedding, one block and head at one width and microbatch.

    All blocks share one layer.
    """
    group = Group(tensor_parallel, sequence_parallel)
    layers = _layers(config, group, microbatch)
    names = ["embedding", *(f"block.{i}" for i in range(config.layers)), "head"]
    kinds = [0, *([1] * config.layers), 2]
    return WorkloadVariant(
        tensor_parallel=tensor_parallel,
        microbatch=microbatch,
        sequence_parallel=group.splits_sequence,
        layers=layers,
        nodes=tuple(zip(names, kinds, strict=True)),
        edges=tuple((i, i + 1, layers[kinds[i]].output_bytes) for i in range(len(names) - 1)),
    )


def _layers(config: TransformerConfig, group: Group, microbatch: int) -> tuple[Layer, ...]:
    """Capture the three distinct layers."""
    rows = config.sequence // (group.width if group.splits_sequence else 1)
    stream = torch.empty(
        (rows, microbatch, config.hidden), dtype=DTYPE, device="meta", requires_grad=True
    )
    tokens = torch.empty((config.sequence, microbatch), dtype=torch.int64, device="meta")
    local = torch.empty((rows, microbatch), dtype=torch.int64, device="meta")
    words: list[Tensor] = [tokens, local] if config.token_types else [tokens]
    embedding, head = Embedding(config, group), Head(config, group)
    tied = embedding.words.numel() if config.tied else 0
    return (
        capture_layer("embedding", embedding, words, tied_parameters=tied),
        capture_layer("block", Block(config, group), [stream]),
        capture_layer("head", head, [stream, tokens], tied_parameters=tied),
    )


def count_parameters(config: TransformerConfig) -> int:
    """Return the number of parameters of the whole model; tied weights count once."""
    group = Group()
    embedding = Embedding(config, group)
    blocks, ends = Block(config, group), (embedding, Head(config, group))
    total = sum(p.numel() for module in ends for p in module.parameters())
    total += config.layers * sum(p.numel() for p in blocks.parameters())
    return total - (embedding.words.numel() if config.tied else 0)
