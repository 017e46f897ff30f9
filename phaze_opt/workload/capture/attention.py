"""The attention of a transformer's blocks as torch modules, with its norms.

Heads are split over the tensor-parallel group; layouts are those of `blocks`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    ColumnParallelLinear,
    RepeatedLinear,
    RowParallelLinear,
    TensorGroup,
    gather_sequence,
    parameter,
)
from phaze_opt.workload.config import KernelMaker, TransformerConfig

_NORM_EPSILON = 1e-5


def dropout(x: Tensor, probability: float) -> Tensor:
    """Drop elements; there is no operator where the probability is zero."""
    return functional.dropout(x, probability) if probability else x


class RmsNorm(nn.Module):
    """Root-mean-square normalisation along the last dimension, with weights or ones in place."""

    weight: Tensor

    def __init__(self, size: int, *, made_by: KernelMaker, weighted: bool = True) -> None:
        super().__init__()
        self.made_by = made_by
        if weighted:
            self.weight = parameter(size)
        else:
            self.register_buffer("weight", torch.empty(size, dtype=DTYPE, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale."""
        if self.made_by == "fused":
            return kernels.rms_norm(x, self.weight)[0]
        if self.made_by == "compiled":
            return kernels.compiled_rms_norm(x, self.weight)[0]
        # As PyTorch's composite rms_norm: statistics and normalised values in fp32.
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _NORM_EPSILON)
        return (wide * scale).type_as(x) * self.weight


def norm_of(config: TransformerConfig, size: int) -> nn.Module:
    """Return the normalisation of a transformer, along the last dimension."""
    if config.norm == "rms_norm":
        return RmsNorm(size, made_by=config.kernels)
    affine, bias = config.norm_parameters != "none", not config.norm_parameters
    return nn.LayerNorm(size, elementwise_affine=affine, bias=bias, device="meta", dtype=DTYPE)


class AttentionCore(nn.Module):
    """The heads of an attention on one device, after their projections and before the last one."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.config = config
        self.heads = config.heads // group.tensor_degree
        self.kv_heads = config.key_value_heads // group.tensor_degree
        self.sinks = parameter(self.heads) if config.sinks else None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: int = 0) -> Tensor:
        """Attend with heads as ``(sequence, batch, local heads, head size)``, as one kernel."""
        config = self.config
        dropped, causal, softcap = config.attention_dropout, config.causal, config.attention_softcap
        if self.sinks is not None:
            context, _ = kernels.sink_attention(
                query, key, value, self.sinks, dropped, causal, window
            )
            return context
        if config.chunked and window:
            context, _ = kernels.chunked_attention(query, key, value, dropped, causal, window)
            return context
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
        return context.transpose(0, 1).reshape(rows, batch, self.heads, value.shape[-1])

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


class Attention(AttentionCore):
    """Self-attention with the heads split over the group.

    Without rotary positions the three projections are one product, and query, key and value are
    views of its result. Rotary positions make new queries and keys, so three products keep less;
    where keys alone have no bias they are three, too.
    A block may leave the rotation out.
    """

    table: Tensor

    def __init__(
        self,
        config: TransformerConfig,
        group: TensorGroup,
        window: int = 0,
        *,
        rotates: bool = True,
    ) -> None:
        super().__init__(config, group)
        self.window, self.rotates = window, rotates and config.positions == "rotary"
        kv = config.key_value_heads * config.head_size
        context = config.heads * config.head_size
        outputs: tuple[int, ...] = (context, kv, kv, *((context,) if config.output_gate else ()))
        bias = _either(config.query_key_value_bias, config.bias)
        biases: bool | tuple[bool, ...] = bias
        if config.key_bias is False:
            biases = (bias, False, *([bias] * (len(outputs) - 2)))
        elif config.positions != "rotary":
            outputs = (sum(outputs),)
        if config.positions == "rotary":
            # Sine and cosine of every pair, as two numbers or as a complex one.
            shape, dtype = (config.sequence, config.rotary_size), torch.float32
            if config.kernels != "fused":
                shape, dtype = (config.sequence, config.rotary_size // 2), torch.complex64
            self.register_buffer("table", torch.empty(shape, dtype=dtype, device="meta"))
        rank = config.adapter_rank("linear_qkv")
        self.query_key_value = ColumnParallelLinear(config.hidden, outputs, biases, group, rank)
        self.head_norms = nn.ModuleList(self._head_norms())
        bias = _either(config.projection_bias, config.bias)
        rank = config.adapter_rank("linear_proj")
        self.projection = RowParallelLinear(context, config.hidden, bias, group, rank)

    def forward(self, x: Tensor, position_bias: Tensor | None = None) -> Tensor:
        """Return the projected context; relative positions are a bias of the scores."""
        projected = self.query_key_value(x)
        gate = projected[3] if self.config.output_gate else None
        query, key, value = self._query_key_value(projected[:3])
        if self.config.attention == "flash":
            context = self.attend(query, key, value, self.window)
        else:
            context = self.attend_through_memory(query, key, value, position_bias)
        context = context.reshape(*context.shape[:2], -1)
        if gate is not None:
            context = context * torch.sigmoid(gate)
        result: Tensor = self.projection(context)
        return result

    def _query_key_value(self, projected: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value as ``(sequence, batch, local heads, head size)``."""
        size = self.config.head_size
        if len(projected) == 3:
            query, key, value = (y.view(*y.shape[:2], -1, size) for y in projected)
            query, key = self._normalised(query, key)
            if self.config.kernels != "fused":
                if self.rotates:
                    query, key = (self._rotate(y) for y in (query, key))
                return query, self.share(key), self.share(value)
            if self.rotates:
                query, key = (kernels.rotary(y, self.table, False) for y in (query, key))
            return query, key, value
        (joint,) = projected
        # The heads of a group lie together: its queries, then its key, then its value.
        joint = joint.view(*joint.shape[:2], self.kv_heads, -1)
        queries = self.heads // self.kv_heads
        query, key, value = torch.split(joint, [queries * size, size, size], dim=-1)
        if queries > 1:
            query = query.reshape(*query.shape[:2], self.heads, size)
        query, key = self._normalised(query, key)
        return query, key, value

    def _normalised(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise the heads of queries and keys, where the model does."""
        if not len(self.head_norms):
            return query, key
        if self.config.head_norm == "whole":
            pairs = zip(self.head_norms, (query, key), strict=True)
            query, key = (norm(x.flatten(2)).view(x.shape) for norm, x in pairs)
            return query, key
        return self.head_norms[0](query), self.head_norms[1](key)

    def _head_norms(self) -> list[nn.Module]:
        """Return the norms of queries and keys."""
        config = self.config
        if not config.query_key_norm:
            return []
        if config.head_norm == "unweighted":
            if not self.rotates:
                return []
            made_by = config.kernels
            return [RmsNorm(config.head_size, made_by=made_by, weighted=False) for _ in range(2)]
        heads = (self.heads, self.kv_heads) if config.head_norm == "whole" else (1, 1)
        return [norm_of(config, count * config.head_size) for count in heads]

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs as complex numbers in fp32 (Llama's reference code)."""
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * self.table.view(x.shape[0], 1, 1, -1))
        return turned.flatten(3).type_as(x)


class CrossAttention(AttentionCore):
    """Attention of a decoder to the result of its encoder, which may have another length.

    That result may be whole on every device (``memory_group``) where the sequence is split.
    """

    def __init__(
        self,
        config: TransformerConfig,
        group: TensorGroup,
        memory_group: TensorGroup | None = None,
    ) -> None:
        super().__init__(replace(config, causal=False), group)
        context = config.heads * config.head_size
        kv = config.key_value_heads * config.head_size
        self.query = ColumnParallelLinear(config.hidden, (context,), config.bias, group)
        # One product of keys and values, or two where keys alone have no bias.
        outputs: tuple[int, ...] = (2 * kv,)
        biases: bool | tuple[bool, ...] = config.bias
        if config.key_bias is False:
            outputs, biases = (kv, kv), (False, config.bias)
        self.key_value = ColumnParallelLinear(config.hidden, outputs, biases, memory_group or group)
        self.is_whole = config.head_norm == "whole"
        counts: tuple[int, ...] = ()
        if config.query_key_norm:
            counts = (self.heads, self.kv_heads) if self.is_whole else (1, 1)
        self.norms = nn.ModuleList(norm_of(config, count * config.head_size) for count in counts)
        self.projection = RowParallelLinear(context, config.hidden, config.bias, group)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return the projected context."""
        size = self.config.head_size
        (query,), joint = self.query(x), self.key_value(memory)
        joint = [each.view(*each.shape[:2], self.kv_heads, -1) for each in joint]
        key, value = joint if len(joint) == 2 else joint[0].split(size, dim=-1)
        query = query.view(*query.shape[:2], self.heads, size)
        if len(self.norms):
            pairs = zip(self.norms, (query, key), strict=True)
            query, key = (
                norm(y.flatten(2)).view(y.shape) if self.is_whole else norm(y) for norm, y in pairs
            )
        if self.config.attention == "flash":
            context = self.attend(query, key, value)
        else:
            context = self.attend_through_memory(query, key, value)
        projected: Tensor = self.projection(context.reshape(*context.shape[:2], -1))
        return projected


class LatentAttention(AttentionCore):
    """Multi-head latent attention (DeepSeek-V2, Liu et al. 2024, section 2.1).

    The products that make the short vectors are repeated by every device of the group, on its share
    of the sequence under sequence parallelism; those that make the heads are split (Megatron Core).
    """

    table: Tensor

    def __init__(self, config: TransformerConfig, group: TensorGroup, window: int = 0) -> None:
        super().__init__(config, group)
        assert config.latent
        self.group, self.window, self.shape = group, window, config.latent
        shape, hidden, bias = config.latent, config.hidden, config.bias
        queries = (config.heads * shape.width,)
        rank = shape.query_rank
        self.query_down = RepeatedLinear(hidden, rank, bias, group) if rank else None
        self.query_norm = norm_of(config, rank) if rank else None
        self.query_up = ColumnParallelLinear(rank or hidden, queries, bias, group)
        self.joint_down = RepeatedLinear(hidden, shape.kv_rank + shape.rotary, bias, group)
        self.joint_norm = norm_of(config, shape.kv_rank)
        joint = (config.heads * (shape.plain + shape.value),)
        self.joint_up = ColumnParallelLinear(shape.kv_rank, joint, bias, group)
        table = torch.empty((config.sequence, shape.rotary), dtype=torch.float32, device="meta")
        self.register_buffer("table", table)
        self.projection = RowParallelLinear(
            config.heads * shape.value, hidden, _either(config.projection_bias, bias), group
        )

    def forward(self, x: Tensor, position_bias: Tensor | None = None) -> Tensor:
        """Return the projected context."""
        (query,) = self.query_up(self._query_vectors(x))
        query = query.view(*query.shape[:2], self.heads, self.shape.width)
        query = kernels.rotary(query, self.table, False)
        vectors, rotary = self.joint_down(x).split([self.shape.kv_rank, self.shape.rotary], dim=-1)
        (joint,) = self.joint_up(self.joint_norm(vectors))
        joint = joint.view(*joint.shape[:2], self.heads, -1)
        key, value = kernels.latent_keys_and_values(
            joint, gather_sequence(rotary, self.group), self.table, self.shape.plain
        )
        if self.config.attention == "flash":
            context = self.attend(query, key, value, self.window)
        else:
            context = self.attend_through_memory(query, key, value)
        projected: Tensor = self.projection(context.reshape(*context.shape[:2], -1))
        return projected

    def _query_vectors(self, x: Tensor) -> Tensor:
        """Return what queries are made of."""
        if self.query_down is None or self.query_norm is None:
            return x
        vectors: Tensor = self.query_norm(self.query_down(x))
        return vectors


def _either(value: bool | None, default: bool) -> bool:
    """Return a value that may be left to a default."""
    return default if value is None else value
