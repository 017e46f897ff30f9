"""Capture the layers of a `TransformerConfig` at one width and microbatch."""

from __future__ import annotations

import torch
from torch import Tensor

from phaze_opt.workload.capture.layer import capture_layer
from phaze_opt.workload.capture.transformer import DTYPE, Block, Embedding, Group, Head
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant


def capture_transformer(
    config: TransformerConfig,
    *,
    tensor_parallel: int,
    microbatch: int,
    sequence_parallel: bool,
) -> WorkloadVariant:
    """Capture embedding, one block and head; all blocks share one layer."""
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
    """Return the parameters of the whole model on one device, tied weights once."""
    group = Group()
    embedding = Embedding(config, group)
    blocks, ends = Block(config, group), (embedding, Head(config, group))
    total = sum(p.numel() for module in ends for p in module.parameters())
    total += config.layers * sum(p.numel() for p in blocks.parameters())
    return total - (embedding.words.numel() if config.tied else 0)
