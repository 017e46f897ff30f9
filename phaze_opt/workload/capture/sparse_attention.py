"""Latent attention with an indexer as torch modules and traced kernels (DeepSeek-V3.2).

Every device of a tensor-parallel group has a share of the attention's heads. The indexer is whole
on each of them and computes the same, on whole sequences that are gathered under sequence
parallelism, as in Megatron-Core; what it learns from is summed over the group.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.attention import norm_of
from phaze_opt.workload.capture.kernels import differentiate, shape_only
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    ColumnParallelLinear,
    RepeatedLinear,
    RowParallelLinear,
    TensorGroup,
    all_reduce,
    gather_sequence,
    parameter,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.sparse_attention import Indexer as IndexerShape


@shape_only
def head_product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply every head, ``(sequence, batch, heads, inputs)``, by a weight of its own.

    Weights are ``(heads, outputs, inputs)``.
    """
    return x.new_empty((*x.shape[:-1], weight.shape[1]))


@shape_only
def head_product_data(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the heads."""
    return gradient.new_empty((*gradient.shape[:-1], weight.shape[2]))


@shape_only
def head_product_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the weights."""
    return x.new_empty((x.shape[2], gradient.shape[-1], x.shape[-1]))


def _head_product_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients, each of its own product."""
    return head_product_data(gradient, weight), head_product_weight(gradient, x)


differentiate(head_product, _head_product_backward, lambda inputs, _: tuple(inputs))


@shape_only
def index_keys(query: Tensor, key: Tensor, weights: Tensor, top_k: int, devices: int) -> Tensor:
    """Return the chosen keys of every query, ``(sequence, batch, keys)``; no gradient.

    The query is ``(sequence, batch, heads, width)``, the key without heads, the weights without
    width. ``devices`` compute the same.
    """
    rows, batch, *_ = query.shape
    return query.new_empty((rows, batch, min(top_k, rows)), dtype=torch.int32)


@shape_only
def sparse_attention(
    query: Tensor,
    joint: Tensor,
    index_query: Tensor,
    index_key: Tensor,
    index_weights: Tensor,
    chosen: Tensor,
    width: int,
    devices: int,
) -> tuple[Tensor, Tensor]:
    """Return attention of ``(sequence, batch, heads, size)`` to chosen keys, and row statistics.

    All heads share the ``joint`` keys, whose first ``width`` elements are the values too. Of the
    indexer only the gradients depend on its operands.
    """
    rows, batch, heads, _ = query.shape
    statistics = query.new_empty((batch, heads, rows), dtype=torch.float32)
    return query.new_empty((rows, batch, heads, width)), statistics


@shape_only
def sparse_attention_backward(
    gradient: Tensor,
    query: Tensor,
    joint: Tensor,
    out: Tensor,
    statistics: Tensor,
    chosen: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return gradients of queries and of keys and values."""
    return torch.empty_like(query), torch.empty_like(joint)


@shape_only
def index_target(query: Tensor, joint: Tensor, statistics: Tensor, chosen: Tensor) -> Tensor:
    """Return the probabilities of the chosen keys, summed over the heads of a device."""
    return query.new_empty(chosen.shape, dtype=torch.float32)


@shape_only
def index_backward(
    target: Tensor, query: Tensor, key: Tensor, weights: Tensor, chosen: Tensor, devices: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of an indexer's queries, keys and weights, from the chosen keys."""
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(weights)


def _sparse_attention_backward(
    gradient: Tensor,
    query: Tensor,
    joint: Tensor,
    out: Tensor,
    statistics: Tensor,
    index_query: Tensor,
    index_key: Tensor,
    index_weights: Tensor,
    chosen: Tensor,
    devices: int,
) -> tuple[Tensor, ...]:
    """Return the gradients of the attention, and those that the indexer learns from."""
    own = sparse_attention_backward(gradient, query, joint, out, statistics, chosen)
    indexer = index_query, index_key, index_weights
    return (*own, *indexer_gradients(query, joint, statistics, chosen, indexer, devices))


def indexer_gradients(
    query: Tensor,
    joint: Tensor,
    statistics: Tensor,
    chosen: Tensor,
    indexer: tuple[Tensor, Tensor, Tensor],
    devices: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what an indexer learns from the attention to the keys that it chose.

    Parameters
    ----------
    query, joint, statistics
        Of the attention: queries of a device's heads, all keys, and the statistics of its rows.
    chosen
        The keys of every query.
    indexer
        Its queries, keys and weights of heads.
    devices
        Over which the heads of the attention are split; each does the same for the indexer.

    Returns
    -------
        The gradients of the indexer's queries, keys and weights of heads.
    """
    target = index_target(query, joint, statistics, chosen)
    target = all_reduce(target) if devices > 1 else target
    gradients: tuple[Tensor, Tensor, Tensor] = index_backward(target, *indexer, chosen, devices)
    return gradients


differentiate(
    sparse_attention,
    _sparse_attention_backward,
    lambda inputs, results: (*inputs[:2], *results, *inputs[2:6], inputs[7]),
)


def rotated_keys(keys: Tensor, table: Tensor) -> Tensor:
    """Rotate keys of one head, ``(sequence, batch, size)``, by the angles of a table.

    The kernel leaves elements beyond the table's width alone.
    """
    return kernels.rotary(keys.unsqueeze(2), table, False).squeeze(2)


class Indexer(nn.Module):
    """Chooses keys; it is whole on every device, and gives no gradient to its inputs."""

    table: Tensor

    def __init__(
        self, config: TransformerConfig, shape: IndexerShape, inputs: int, group: TensorGroup
    ) -> None:
        super().__init__()
        self.shape, self.group = shape, group
        # On whole sequences, so that all devices compute the same under sequence parallelism too.
        same = TensorGroup(group.tensor_degree)
        self.query = RepeatedLinear(inputs, shape.heads * shape.width, False, same)
        self.key = RepeatedLinear(config.hidden, shape.width, False, same)
        self.key_norm = nn.LayerNorm(shape.width, device="meta", dtype=DTYPE)
        self.weights = RepeatedLinear(config.hidden, shape.heads, False, same)
        table = torch.empty((config.sequence, config.rotary_size), dtype=torch.float32)
        self.register_buffer("table", table.to("meta"))

    def forward(self, x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return its queries, keys and weights of heads, and the keys that it chooses."""
        x, vectors = (gather_sequence(y.detach(), self.group).detach() for y in (x, vectors))
        query = self.query(vectors).view(*x.shape[:2], self.shape.heads, self.shape.width)
        query = kernels.rotary(query, self.table, False)
        key = rotated_keys(self.key_norm(self.key(x)), self.table)
        weights = self.weights(x)
        chosen = index_keys(query, key, weights, self.shape.top_k, self.group.tensor_degree)
        return query, key, weights, chosen


class SparseLatentAttention(nn.Module):
    """Latent attention whose heads share keys and values, the short vectors themselves.

    What makes keys and values of them is applied to queries and results, head by head (Liu et al.
    2024, section 2.1.2).
    """

    table: Tensor

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        assert config.latent and config.indexer
        shape, hidden, bias = config.latent, config.hidden, config.bias
        self.config, self.group, self.shape = config, group, shape
        self.heads = config.heads // group.tensor_degree
        rank = shape.query_rank
        self.query_down = RepeatedLinear(hidden, rank, bias, group) if rank else None
        self.query_norm = norm_of(config, rank) if rank else None
        queries = (config.heads * shape.width,)
        self.query_up = ColumnParallelLinear(rank or hidden, queries, bias, group)
        self.joint_down = RepeatedLinear(hidden, shape.kv_rank + shape.rotary, bias, group)
        self.joint_norm = norm_of(config, shape.kv_rank)
        self.key_up = parameter(self.heads, shape.kv_rank, shape.plain)
        self.value_up = parameter(self.heads, shape.value, shape.kv_rank)
        self.indexer = Indexer(config, config.indexer, rank or hidden, group)
        table = torch.empty((config.sequence, shape.rotary), dtype=torch.float32, device="meta")
        self.register_buffer("table", table)
        self.projection = RowParallelLinear(config.heads * shape.value, hidden, bias, group)

    def forward(self, x: Tensor, position_bias: Tensor | None = None) -> Tensor:
        """Return the projected context."""
        vectors = x
        if self.query_down is not None and self.query_norm is not None:
            vectors = self.query_norm(self.query_down(x))
        index_query, index_key, weights, chosen = self.indexer(x, vectors)
        (query,) = self.query_up(vectors)
        query = query.view(*query.shape[:2], self.heads, self.shape.width)
        plain, rotary = query.split([self.shape.plain, self.shape.rotary], dim=-1)
        rotated = kernels.rotary(rotary, self.table, False)
        query = torch.cat([head_product(plain, self.key_up), rotated], dim=-1)
        short, rotary = self.joint_down(x).split([self.shape.kv_rank, self.shape.rotary], dim=-1)
        short = self.joint_norm(short)
        joint = gather_sequence(torch.cat([short, rotary], dim=-1), self.group)
        # Where they are whole.
        joint = rotated_keys(joint, self.table)
        context, _ = sparse_attention(
            *(query, joint, index_query, index_key, weights, chosen),
            *(self.shape.kv_rank, self.group.tensor_degree),
        )
        context = head_product(context, self.value_up)
        projected: Tensor = self.projection(context.reshape(*context.shape[:2], -1))
        return projected
