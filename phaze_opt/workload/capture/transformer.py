"""Capture a named transformer: each distinct layer once, and their places in the model.

A decoder or an encoder is a chain. With an encoder and a decoder (T5) every block of the decoder
reads the encoder's result, and every block reads the bias that its stack's embedding makes of the
relative positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from msgspec import UNSET
from torch import Tensor, nn

from phaze_opt.workload.capture.blocks import Block
from phaze_opt.workload.capture.ends import (
    Classifier,
    Embedding,
    EncoderEnd,
    Head,
    PatchEmbedding,
)
from phaze_opt.workload.capture.experts import RoutedExperts
from phaze_opt.workload.capture.hybrid_blocks import HybridBlock, kind_of
from phaze_opt.workload.capture.layer import capture_layer
from phaze_opt.workload.capture.tensor_parallel import DTYPE, TensorGroup
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant

_WINDOWED = "window_block"


@dataclass(frozen=True)
class _DistinctLayer:
    """A distinct layer as a module with its inputs.

    Attributes
    ----------
    words
        Elements of the word embedding among its parameters, where other layers hold it too.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    words: int = 0


def capture_transformer(
    config: TransformerConfig,
    *,
    tensor_parallel: int,
    microbatch: int,
    sequence_parallel: bool,
    expert_tensor: int = 0,
) -> WorkloadVariant:
    """Capture the distinct layers at one tensor degree and microbatch.

    All blocks that attend to as many tokens share one layer.
    """
    group = TensorGroup(tensor_parallel, sequence_parallel, expert_tensor)
    parts = _parts(config, group, microbatch)
    places = list(_places(config))
    kinds = list(dict.fromkeys(kind for _, kind in places))
    layers = {
        kind: capture_layer(
            kind,
            parts[kind].module,
            parts[kind].inputs,
            tied_parameters=parts[kind].words,
            routed_parameters=_routed_parameters(parts[kind].module),
            expert_groups=_expert_groups(parts[kind].module, config),
        )
        for kind in kinds
    }
    if config.encoder_layers:
        stream = parts["head"].inputs[0]
        edges = _two_stacks(config, stream.numel() * stream.element_size(), layers)
    else:
        edges = tuple(
            (place, place + 1, layers[kind].output_bytes)
            for place, (_, kind) in enumerate(places[:-1])
        )
    return WorkloadVariant(
        tensor_parallel=tensor_parallel,
        microbatch=microbatch,
        sequence_parallel=group.splits_sequence,
        layers=tuple(layers.values()),
        nodes=tuple((name, kinds.index(kind)) for name, kind in places),
        edges=edges,
        expert_tensor=expert_tensor or UNSET,
    )


def count_parameters(config: TransformerConfig, *, active: bool = False) -> int:
    """Return the number of parameters of the whole model; tied weights count once.

    Parameters
    ----------
    config
        The model.
    active
        Whether to count only those that work on a token.
    """
    parts = _parts(config, TensorGroup(), 1)
    sizes = {
        kind: sum(p.numel() for p in part.module.parameters()) - part.words
        for kind, part in parts.items()
    }
    if active and config.experts:
        idle = config.experts.count - config.experts.top_k
        for kind, part in parts.items():
            sizes[kind] -= _routed_parameters(part.module) * idle // config.experts.count
    words = max(part.words for part in parts.values())
    return words + sum(sizes[kind] for _, kind in _places(config))


def _routed_parameters(module: nn.Module) -> int:
    """Return the number of parameters of the routed experts in a module."""
    routed = (part for part in module.modules() if isinstance(part, RoutedExperts))
    return sum(p.numel() for part in routed for p in part.parameters())


def _expert_groups(module: nn.Module, config: TransformerConfig) -> tuple[int, int] | None:
    """Return groups of experts, and of how many a token's are, where a layer has few of many."""
    experts = config.experts
    if not experts or experts.groups == experts.top_groups or not _routed_parameters(module):
        return None
    return experts.groups, experts.top_groups


def _places(config: TransformerConfig) -> Iterator[tuple[str, str]]:
    """Yield the name and the kind of every layer, in order of execution."""
    if config.encoder_layers:
        yield "encoder.embedding", "embedding"
        yield from ((f"encoder.block.{i}", "encoder.block") for i in range(config.encoder_layers))
        yield "encoder.norm", "encoder.norm"
        yield "decoder.embedding", "embedding"
        yield from ((f"decoder.block.{i}", "decoder.block") for i in range(config.layers))
    else:
        yield "embedding", "embedding"
        for i, kind in enumerate(_block_kinds(config)):
            yield f"block.{i}", kind
    yield "head", "head"


def _block_kinds(config: TransformerConfig) -> list[str]:
    """Return the kind of every block."""
    if config.pattern:
        return [kind_of(sublayers) for sublayers in config.blocks]
    return [_block_kind(*shape, config) for shape in _block_shapes(config)]


def _block_shapes(config: TransformerConfig) -> tuple[tuple[int, bool], ...]:
    """Return window and presence of experts of every block."""
    return tuple(zip(config.block_windows, config.routed_blocks, strict=True))


def _block_kind(window: int, routed: bool, config: TransformerConfig) -> str:
    """Name a block.

    Some models have blocks that attend to all tokens, and to a window of them; blocks with experts,
    and without.
    """
    windows = set(config.block_windows)
    dense = "" if routed == any(config.routed_blocks) else "dense_"
    if len(windows) == 1 or not window:
        return f"{dense}block"
    return f"{dense}{_WINDOWED}" if len(windows - {0}) == 1 else f"{dense}{_WINDOWED}_{window}"


def _parts(
    config: TransformerConfig, group: TensorGroup, microbatch: int
) -> dict[str, _DistinctLayer]:
    """Return the distinct layers by kind."""
    rows = config.sequence // (group.tensor_degree if group.splits_sequence else 1)
    stream = _meta(rows, microbatch, config.hidden)
    tokens = torch.empty((config.sequence, microbatch), dtype=torch.int64, device="meta")
    local = torch.empty((rows, microbatch), dtype=torch.int64, device="meta")
    if config.patch_size:
        image = (microbatch, config.channels, config.image_size, config.image_size)
        images, labels = torch.empty(image, dtype=DTYPE, device="meta"), tokens[0]
        ends = {
            "embedding": _DistinctLayer(PatchEmbedding(config), (images,)),
            "head": _DistinctLayer(Classifier(config), (stream, labels)),
        }
    else:
        embedding, head = Embedding(config, group), Head(config, group)
        words = embedding.words.numel()
        shared = words if config.tied or config.encoder_layers else 0
        given = (tokens, local) if config.token_types else (tokens,)
        ends = {
            "embedding": _DistinctLayer(embedding, given, shared),
            "head": _DistinctLayer(head, (stream, tokens), words if config.tied else 0),
        }
    if config.encoder_layers:
        bias = _meta(config.heads // group.tensor_degree, config.sequence, config.sequence)
        encoder = Block(replace(config, causal=False), group)
        decoder = Block(config, group, crosses=True)
        memory = stream.detach().requires_grad_()
        return ends | {
            "encoder.block": _DistinctLayer(encoder, (stream, bias)),
            "encoder.norm": _DistinctLayer(EncoderEnd(config), (stream,)),
            "decoder.block": _DistinctLayer(decoder, (stream, bias, memory)),
        }
    if config.pattern:
        return ends | {
            kind_of(sublayers): _DistinctLayer(HybridBlock(config, group, sublayers), (stream,))
            for sublayers in dict.fromkeys(config.blocks)
        }
    return ends | {
        _block_kind(window, routed, config): _DistinctLayer(
            Block(config, group, window=window, routed=routed), (stream,)
        )
        for window, routed in dict.fromkeys(_block_shapes(config))
    }


def _meta(*shape: int) -> Tensor:
    """Return an activation without memory."""
    return torch.empty(shape, dtype=DTYPE, device="meta", requires_grad=True)


def _two_stacks(
    config: TransformerConfig, stream_bytes: int, layers: dict[str, Layer]
) -> tuple[tuple[int, int, int], ...]:
    """Return the edges of an encoder and a decoder (see the module)."""
    bias_bytes = layers["embedding"].output_bytes - stream_bytes
    end = config.encoder_layers + 1  # the place of the encoder's last norm
    sizes = {(place, place + 1): stream_bytes for place in range(end + 1 + config.layers + 1)}
    del sizes[end, end + 1]  # the decoder's embedding reads tokens only
    for first, count in ((0, config.encoder_layers), (end + 1, config.layers)):
        for block in range(first + 1, first + 1 + count):
            sizes[first, block] = sizes.get((first, block), 0) + bias_bytes
    for block in range(end + 2, end + 2 + config.layers):
        sizes[end, block] = stream_bytes
    return tuple(
        (source, destination, size) for (source, destination), size in sorted(sizes.items())
    )
