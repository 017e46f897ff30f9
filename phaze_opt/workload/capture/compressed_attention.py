"""Attention to the latest and to compressed tokens as torch modules and traced kernels.

Every device of a tensor-parallel group has a share of the heads. Keys, compressed entries and the
indexer are whole on each of them: entries and indexer are computed on whole sequences, which are
gathered under sequence parallelism; what the indexer learns from is summed over the group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.attention import RmsNorm, norm_of
from phaze_opt.workload.capture.experts import MixtureOfExperts
from phaze_opt.workload.capture.hyper_connections import HyperConnection
from phaze_opt.workload.capture.kernels import differentiate, shape_only
from phaze_opt.workload.capture.sparse_attention import (
    head_product,
    index_keys,
    indexer_gradients,
    rotated_keys,
)
from phaze_opt.workload.capture.tensor_parallel import (
    ColumnParallelLinear,
    RepeatedLinear,
    RowParallelLinear,
    TensorGroup,
    gather_sequence,
    parameter,
)
from phaze_opt.workload.config import TransformerConfig


@shape_only
def compress(values: Tensor, gates: Tensor, bias: Tensor, width: int) -> Tensor:
    """Return an entry of some width for every ``len(bias)`` tokens: what these give, weighed.

    With values twice as wide windows overlap.
    """
    rows, batch, _ = values.shape
    return values.new_empty((rows // len(bias), batch, width))


@shape_only
def compress_backward(
    gradient: Tensor, values: Tensor, gates: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of what tokens give, of their gates and of the positions' bias."""
    return torch.empty_like(values), torch.empty_like(gates), torch.empty_like(bias)


differentiate(compress, compress_backward, lambda inputs, _: tuple(inputs[:3]))


@shape_only
def compressed_attention(
    query: Tensor,
    joint: Tensor,
    sinks: Tensor,
    index_query: Tensor | None,
    index_key: Tensor | None,
    index_weights: Tensor | None,
    chosen: Tensor | None,
    seen: int,
    devices: int,
) -> tuple[Tensor, Tensor]:
    """Return attention of all heads to ``seen`` of the joint keys, and row statistics.

    Of an indexer only the gradients depend on its operands.
    """
    rows, batch, heads, _ = query.shape
    return torch.empty_like(query), query.new_empty((batch, heads, rows), dtype=torch.float32)


@shape_only
def compressed_attention_backward(
    gradient: Tensor,
    query: Tensor,
    joint: Tensor,
    sinks: Tensor,
    out: Tensor,
    statistics: Tensor,
    chosen: Tensor | None,
    seen: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, of keys and values, and of sinks."""
    return torch.empty_like(query), torch.empty_like(joint), torch.empty_like(sinks)


def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    joint: Tensor,
    sinks: Tensor,
    out: Tensor,
    statistics: Tensor,
    chosen: Tensor | None,
    seen: int,
    devices: int,
    *indexer: Tensor,
) -> tuple[Any, ...]:
    """Return the gradients of the attention, and those that an indexer learns from."""
    own = compressed_attention_backward(
        gradient, query, joint, sinks, out, statistics, chosen, seen
    )
    if chosen is None:
        return tuple(own)
    operands = indexer[0], indexer[1], indexer[2]
    return (*own, *indexer_gradients(query, joint, statistics, chosen, operands, devices))


differentiate(
    compressed_attention,
    _attention_backward,
    lambda inputs, results: (*inputs[:3], *results, *inputs[6:], *inputs[3:6]),
)


class Compressor(nn.Module):
    """Makes entries of whole sequences; every device does the same."""

    def __init__(
        self, config: TransformerConfig, ratio: int, width: int, group: TensorGroup
    ) -> None:
        super().__init__()
        assert config.compressed
        self.width = width
        wide = width * (2 if ratio == config.compressed.chosen_ratio else 1)
        same = TensorGroup(group.tensor_degree)
        self.values = RepeatedLinear(config.hidden, wide, False, same)
        self.gates = RepeatedLinear(config.hidden, wide, False, same)
        self.bias = parameter(ratio, wide)
        self.norm = norm_of(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the entries, ``(entries, batch, width)``."""
        entries = compress(self.values(x), self.gates(x), self.bias, self.width)
        normed: Tensor = self.norm(entries)
        return normed


class EntryIndexer(nn.Module):
    """Chooses entries by compressed keys of its own; it gives no gradient to its inputs."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        assert config.compressed
        shape = config.compressed
        self.shape, self.group = shape.indexer, group
        same = TensorGroup(group.tensor_degree)
        self.query = RepeatedLinear(
            shape.query_rank, self.shape.heads * self.shape.width, False, same
        )
        self.keys = Compressor(config, shape.chosen_ratio, self.shape.width, group)
        self.weights = RepeatedLinear(config.hidden, self.shape.heads, False, same)

    def forward(self, x: Tensor, vectors: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        """Return its queries, keys and weights of heads, and the entries that it chooses."""
        x, vectors = x.detach(), gather_sequence(vectors.detach(), self.group).detach()
        query = self.query(vectors).view(*x.shape[:2], self.shape.heads, self.shape.width)
        query, weights = kernels.rotary(query, table, False), self.weights(x)
        keys = rotated_keys(self.keys(x), table)
        chosen = index_keys(query, keys, weights, self.shape.top_k, self.group.tensor_degree)
        return query, keys, weights, chosen


class CompressedKeyAttention(nn.Module):
    """The attention of a layer of some compression ratio."""

    table: Tensor

    def __init__(self, config: TransformerConfig, group: TensorGroup, ratio: int) -> None:
        super().__init__()
        assert config.compressed
        shape, hidden, size = config.compressed, config.hidden, config.head_size
        self.shape, self.group, self.size = shape, group, size
        self.heads = config.heads // group.tensor_degree
        self.groups = shape.groups // group.tensor_degree
        self.query_down = RepeatedLinear(hidden, shape.query_rank, False, group)
        self.query_norm = norm_of(config, shape.query_rank)
        self.query_up = ColumnParallelLinear(shape.query_rank, (config.heads * size,), False, group)
        self.head_norm = RmsNorm(size, made_by=config.kernels, weighted=False)
        self.key_value = RepeatedLinear(hidden, size, False, group)
        self.key_norm = norm_of(config, size)
        self.sinks = parameter(self.heads)
        self.compressor = Compressor(config, ratio, size, group) if ratio else None
        self.indexer = EntryIndexer(config, group) if ratio == shape.chosen_ratio else None
        table = torch.empty((config.sequence, shape.rotary), dtype=torch.float32, device="meta")
        self.register_buffer("table", table)
        inputs = self.heads // self.groups * size
        self.group_projection = parameter(self.groups, shape.output_rank, inputs)
        width = shape.groups * shape.output_rank
        self.projection = RowParallelLinear(width, hidden, False, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected context."""
        vectors = self.query_norm(self.query_down(x))
        (query,) = self.query_up(vectors)
        query = self.head_norm(query.view(*query.shape[:2], self.heads, self.size))
        query = kernels.rotary(query, self.table, False)
        joint = gather_sequence(self.key_norm(self.key_value(x)), self.group)
        joint, entries = rotated_keys(joint, self.table), 0
        chooses: tuple[Tensor | None, ...] = (None,) * 4
        if self.compressor is not None:
            whole = gather_sequence(x, self.group)
            made = rotated_keys(self.compressor(whole), self.table)
            joint, entries = torch.cat([joint, made]), len(made)
            if self.indexer is not None:
                chooses = self.indexer(whole, vectors, self.table)
                entries = min(self.shape.indexer.top_k, entries)
        seen = min(self.shape.window, len(query)) + entries
        devices = self.group.tensor_degree
        index_query, index_key, weights, chosen = chooses
        context, _ = compressed_attention(
            query, joint, self.sinks, index_query, index_key, weights, chosen, seen, devices
        )
        context = kernels.rotary(context, self.table, True)
        groups = context.reshape(*context.shape[:2], self.groups, -1)
        short = head_product(groups, self.group_projection)
        projected: Tensor = self.projection(short.reshape(*short.shape[:2], -1))
        return projected


class CompressedBlock(nn.Module):
    """A block of such attention and of experts, each between hyper-connections."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, ratio: int) -> None:
        super().__init__()
        self.attention_streams = HyperConnection(config, group, expands=True)
        self.expert_streams = HyperConnection(config, group, expands=True)
        self.attention_norm = norm_of(config, config.hidden)
        self.attention = CompressedKeyAttention(config, group, ratio)
        self.expert_norm = norm_of(config, config.hidden)
        self.experts = MixtureOfExperts(config, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the streams behind both sub-layers."""
        collapsed, raw = self.attention_streams(x)
        attended = self.attention(self.attention_norm(collapsed))
        x = self.attention_streams.expanded(x, attended, raw)
        collapsed, raw = self.expert_streams(x)
        return self.expert_streams.expanded(x, self.experts(self.expert_norm(collapsed)), raw)
