"""Capture a named transformer: each distinct layer once, and their places in the model.

A decoder or an encoder is a chain. With an encoder and a decoder (T5) every block of the decoder
reads the encoder's result, and every block reads the bias that its stack's embedding makes of the
relative positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from msgspec import UNSET
from torch import Tensor, nn

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.blocks import Block
from phaze_opt.workload.capture.ends import (
    Classifier,
    Embedding,
    EncoderEnd,
    Head,
    PatchEmbedding,
)
from phaze_opt.workload.capture.experts import RoutedExperts
from phaze_opt.workload.capture.layer import capture_layer
from phaze_opt.workload.capture.tensor_parallel import DTYPE, TensorGroup
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.trained import LayerRole, role_names, roles_of

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
) -> WorkloadVariant:
    """Capture the distinct layers at one tensor degree and microbatch.

    All blocks that attend to as many tokens share one layer.
    """
    group = TensorGroup(tensor_parallel, sequence_parallel)
    parts = _parts(config, group, microbatch)
    if config.trained:
        return _partly_frozen(config, group, microbatch, parts)
    places = list(_places(config))
    kinds = list(dict.fromkeys(kind for _, kind in places))
    layers = {kind: _capture(kind, parts[kind], config) for kind in kinds}
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
    )


def _capture(kind: str, part: _DistinctLayer, config: TransformerConfig) -> Layer:
    """Capture a distinct layer."""
    return capture_layer(
        kind,
        part.module,
        part.inputs,
        tied_parameters=part.words,
        routed_parameters=_routed_parameters(part.module),
        expert_groups=_expert_groups(part.module, config),
    )


def _partly_frozen(
    config: TransformerConfig,
    group: TensorGroup,
    microbatch: int,
    parts: dict[str, _DistinctLayer],
) -> WorkloadVariant:
    """Capture a chain of which not all is trained: equal layers with equal roles share one."""
    assert config.trained
    names = {
        kind: [name for name, _ in part.module.named_parameters()] for kind, part in parts.items()
    }
    roles = roles_of(config.trained, [(*place, names[place[1]]) for place in _places(config)])
    _refuse_half_tied(roles, parts)
    distinct = list(dict.fromkeys(role for _, role in roles))
    called = dict(zip(distinct, role_names(distinct, [role for _, role in roles]), strict=True))
    layers: dict[LayerRole, Layer] = {}
    for role in distinct:
        part = parts[role.kind]
        for name, parameter in part.module.named_parameters():
            parameter.requires_grad_(name not in role.frozen)
        if not role.is_first:
            inputs = part.inputs
        else:
            inputs = tuple(tensor.detach() for tensor in part.inputs)
        layer = _capture(role.kind, replace(part, inputs=inputs), config)
        is_tied_frozen = part.words > 0 and _words_of(role.kind) in role.frozen
        layers[role] = replace(
            layer,
            name=called[role],
            frozen_tied_parameters=part.words if is_tied_frozen else UNSET,
        )
    return WorkloadVariant(
        tensor_parallel=group.tensor_degree,
        microbatch=microbatch,
        sequence_parallel=group.splits_sequence,
        layers=tuple(layers.values()),
        nodes=tuple((name, distinct.index(role)) for name, role in roles),
        edges=tuple(
            (place, place + 1, layers[role].output_bytes)
            for place, (_, role) in enumerate(roles[:-1])
        ),
    )


def _words_of(kind: str) -> str:
    """Return the name of the word embedding in a layer that holds it."""
    return "words" if kind == "embedding" else "vocabulary.weights.0"


def _refuse_half_tied(
    roles: Sequence[tuple[str, LayerRole]], parts: dict[str, _DistinctLayer]
) -> None:
    """Refuse a tied weight that is frozen in one of the layers that hold it."""
    holding = [(name, role) for name, role in roles if parts[role.kind].words]
    tied = {f"{name}.{_words_of(role.kind)}": role for name, role in holding}
    frozen = [name for name, role in tied.items() if name.partition(".")[2] in role.frozen]
    if frozen and len(frozen) < len(tied):
        trained = next(name for name in tied if name not in frozen)
        raise InputError(
            f"frozen names {frozen[0]}, but {trained} is the same weight; freeze both or neither."
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
        for i, shape in enumerate(_block_shapes(config)):
            yield f"block.{i}", _block_kind(*shape, config)
    yield "head", "head"


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
