"""Capture a named transformer: each distinct layer once, and their places in the model.

A decoder or an encoder is a chain. With an encoder and a decoder (T5) every block of the decoder
reads the encoder's result, and every block reads the bias that its stack's embedding makes of the
relative positions. Layers that predict further ahead stand between the last block and the head,
which reads what all of them, and the last block, give. Speech or images beside text are put
together in `towers`, diffusion transformers in `diffusion`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from msgspec import UNSET
from torch import Tensor, nn

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.assembly import (
    Assembly,
    DistinctLayer,
    activation,
    whole_numbers,
)
from phaze_opt.workload.capture.blocks import Block
from phaze_opt.workload.capture.compressed_attention import CompressedBlock
from phaze_opt.workload.capture.diffusion import diffusion_transformer
from phaze_opt.workload.capture.ends import (
    Classifier,
    Embedding,
    EncoderEnd,
    Head,
    PatchEmbedding,
    PredictionLayer,
)
from phaze_opt.workload.capture.experts import RoutedExperts
from phaze_opt.workload.capture.hybrid_blocks import HybridBlock, kind_of
from phaze_opt.workload.capture.images_in_text import with_images
from phaze_opt.workload.capture.layer import capture_layer
from phaze_opt.workload.capture.tensor_parallel import DTYPE, TensorGroup
from phaze_opt.workload.capture.tiled_images import with_tiled_images
from phaze_opt.workload.capture.towers import images_and_text, speech_and_text
from phaze_opt.workload.capture.video import video_transformer
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.trained import LayerRole, role_names, roles_of

_WINDOWED, _CHOSEN, _COMPRESSED = "window_block", "sparse_block", "compressed_block"
_PREDICTION = "prediction_layer"


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
    if config.trained:
        return _partly_frozen(config, group, microbatch)
    assembly = _assembly(config, group, microbatch)
    parts, places = assembly.parts, assembly.places
    kinds = list(dict.fromkeys(kind for _, kind in places))
    layers = {kind: _capture(kind, parts[kind], config) for kind in kinds}
    if config.encoder_layers:
        stream = parts["head"].inputs[0]
        edges = _two_stacks(config, stream.numel() * stream.element_size(), layers)
    else:
        edges = tuple(
            (source, reader, layers[places[source][1]].output_bytes)
            for source, reader in assembly.edges
        )
    return WorkloadVariant(
        tensor_parallel=tensor_parallel,
        microbatch=microbatch,
        sequence_parallel=group.splits_sequence,
        layers=tuple(layers.values()),
        nodes=tuple((name, kinds.index(kind)) for name, kind in places),
        edges=edges,
        expert_tensor=expert_tensor or UNSET,
        whole_memory=True if config.diffusion and config.diffusion.crosses else UNSET,
    )


def _capture(kind: str, part: DistinctLayer, config: TransformerConfig) -> Layer:
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
    config: TransformerConfig, group: TensorGroup, microbatch: int
) -> WorkloadVariant:
    """Capture a chain of which not all is trained: equal layers with equal roles share one."""
    assert config.trained
    parts = _parts(config, group, microbatch)
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
    roles: Sequence[tuple[str, LayerRole]], parts: dict[str, DistinctLayer]
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
    assembly = _assembly(config, TensorGroup(), 1)
    parts = assembly.parts
    sizes = {
        kind: sum(p.numel() for p in part.module.parameters()) - part.words
        for kind, part in parts.items()
    }
    if active and config.experts:
        idle = config.experts.count - config.experts.top_k
        for kind, part in parts.items():
            sizes[kind] -= _routed_parameters(part.module) * idle // config.experts.count
    words = max(part.words for part in parts.values())
    return words + sum(sizes[kind] for _, kind in assembly.places)


def _assembly(config: TransformerConfig, group: TensorGroup, microbatch: int) -> Assembly:
    """Return the layers of a model and how they stand together."""
    if config.encoder:
        return speech_and_text(config, group, microbatch)
    if config.images and not config.projector:
        return images_and_text(config, group, microbatch)
    if config.diffusion:
        whole = video_transformer if config.diffusion.crosses else diffusion_transformer
        return whole(config, group, microbatch)
    places = tuple(_places(config))
    last = len(places) - 1
    # What follows the last block, and it, is read by the head too.
    edges = tuple(
        (place, reader)
        for place in range(last)
        for reader in dict.fromkeys((place + 1, last if place >= config.layers else place + 1))
    )
    text = Assembly(_parts(config, group, microbatch), places, edges)
    if not config.projector:
        return text
    join = with_tiled_images if config.projector.tiles else with_images
    return join(text, config, group, microbatch)


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
        for i in range(config.prediction_layers or 0):
            yield f"{_PREDICTION}.{i}", _PREDICTION
    yield "head", "head"


def _block_kinds(config: TransformerConfig) -> list[str]:
    """Return the kind of every block."""
    if config.pattern:
        return [kind_of(sublayers) for sublayers in config.blocks]
    if config.compressed:
        return [_compressed_kind(ratio, config) for ratio in config.compressed.ratios]
    return [_block_kind(*shape, config) for shape in _block_shapes(config)]


def _compressed_kind(ratio: int, config: TransformerConfig) -> str:
    """Name a block by whether it sees compressed tokens, and chooses among them."""
    if not ratio:
        return _WINDOWED
    chooses = config.compressed and ratio == config.compressed.chosen_ratio
    return _CHOSEN if chooses else f"{_COMPRESSED}_{ratio}"


def _block_shapes(config: TransformerConfig) -> tuple[tuple[int, bool, bool], ...]:
    """Return window, presence of experts and of a rotation of every block."""
    shapes = zip(config.block_windows, config.routed_blocks, config.rotated_blocks, strict=True)
    return tuple(shapes)


def _block_kind(window: int, routed: bool, rotates: bool, config: TransformerConfig) -> str:
    """Name a block.

    Some models have blocks that attend to all tokens, and to a window of them; blocks with experts,
    and without; with rotary positions, and without.
    """
    windows = set(config.block_windows)
    kind = "" if routed == any(config.routed_blocks) else "dense_"
    kind += "" if rotates == any(config.rotated_blocks) else "unrotated_"
    if len(windows) == 1 or not window:
        return f"{kind}block"
    return f"{kind}{_WINDOWED}" if len(windows - {0}) == 1 else f"{kind}{_WINDOWED}_{window}"


def _parts(
    config: TransformerConfig, group: TensorGroup, microbatch: int
) -> dict[str, DistinctLayer]:
    """Return the distinct layers by kind."""
    rows = config.sequence // (group.tensor_degree if group.splits_sequence else 1)
    streams = config.compressed.streams if config.compressed else 1
    stream = activation(rows, microbatch, streams * config.hidden)
    collapsed = activation(rows, microbatch, config.hidden)
    tokens = whole_numbers(config.sequence, microbatch)
    local = whole_numbers(rows, microbatch)
    if config.patch_size:
        image = (microbatch, config.channels, config.image_size, config.image_size)
        images, labels = torch.empty(image, dtype=DTYPE, device="meta"), tokens[0]
        ends = {
            "embedding": DistinctLayer(PatchEmbedding(config), (images,)),
            "head": DistinctLayer(Classifier(config), (stream, labels)),
        }
    else:
        embedding, head = Embedding(config, group), Head(config, group)
        words = embedding.words.numel()
        shared = words if config.tied or config.encoder_layers or config.prediction_layers else 0
        given = (tokens, local) if config.token_types else (tokens,)
        ends = {
            "embedding": DistinctLayer(embedding, given, shared),
            "head": DistinctLayer(
                head, (stream, tokens, *_ahead(config, collapsed)), words if config.tied else 0
            ),
        }
        if config.prediction_layers:
            predict = PredictionLayer(config, group, _prediction_block(config, group))
            ends[_PREDICTION] = DistinctLayer(predict, (stream, tokens), words)
    if config.encoder_layers:
        bias = activation(config.heads // group.tensor_degree, config.sequence, config.sequence)
        encoder = Block(replace(config, causal=False), group)
        decoder = Block(config, group, crosses=True)
        memory = stream.detach().requires_grad_()
        return ends | {
            "encoder.block": DistinctLayer(encoder, (stream, bias)),
            "encoder.norm": DistinctLayer(EncoderEnd(config), (stream,)),
            "decoder.block": DistinctLayer(decoder, (stream, bias, memory)),
        }
    if config.compressed:
        return ends | {
            _compressed_kind(ratio, config): DistinctLayer(
                CompressedBlock(config, group, ratio), (stream,)
            )
            for ratio in dict.fromkeys(config.compressed.ratios)
        }
    if config.pattern:
        return ends | {
            kind_of(sublayers): DistinctLayer(HybridBlock(config, group, sublayers), (stream,))
            for sublayers in dict.fromkeys(config.blocks)
        }
    return ends | {
        _block_kind(window, routed, rotates, config): DistinctLayer(
            Block(config, group, window=window, routed=routed, rotates=rotates), (stream,)
        )
        for window, routed, rotates in dict.fromkeys(_block_shapes(config))
    }


def _prediction_block(config: TransformerConfig, group: TensorGroup) -> nn.Module:
    """Return the block of a layer that predicts further ahead."""
    if config.pattern:
        return HybridBlock(config, group, config.prediction_block)
    if config.compressed:
        return CompressedBlock(config, group, 0)
    window, routed, rotates = _block_shapes(config)[-1]
    return Block(config, group, window=window, routed=routed, rotates=rotates)


def _ahead(config: TransformerConfig, stream: Tensor) -> tuple[Tensor, ...]:
    """Return the streams of layers that predict further ahead, as inputs of the head."""
    count = config.prediction_layers or 0
    return tuple(stream.detach().requires_grad_() for _ in range(count))


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
