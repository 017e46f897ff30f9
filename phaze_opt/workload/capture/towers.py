"""Models of two stacks of different inputs: speech that text attends to, images beside text.

* Speech and text (Whisper, Radford et al. 2022): two convolutions make frames of a spectrogram the
  tokens of an encoder, and every block of the decoder attends to its result.
* Images and text (CLIP, Radford et al. 2021; SigLIP, Zhai et al. 2023): two encoders side by side,
  whose results are compared within the microbatch of a device. The text tower follows the image
  tower; the head reads both.

Convolutions, patches, projections and the comparison are whole on every device of a tensor-parallel
group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture.assembly import (
    Assembly,
    DistinctLayer,
    activation,
    whole_numbers,
)
from phaze_opt.workload.capture.attention import CrossAttention, norm_of
from phaze_opt.workload.capture.blocks import Block
from phaze_opt.workload.capture.ends import Embedding, EncoderEnd, Head, PatchEmbedding
from phaze_opt.workload.capture.feed_forward import FeedForward
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    TensorGroup,
    gather_sequence,
    parameter,
    token_losses,
)
from phaze_opt.workload.config import TransformerConfig


class SpeechEmbedding(nn.Module):
    """Frames of a spectrogram as tokens: two convolutions, the second of which takes every other.

    The positions of the frames are sines, which are no parameters.
    """

    positions: Tensor

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.rows = _rows(config, group)
        self.first = _convolution(config.channels, config.hidden, 1)
        self.second = _convolution(config.hidden, config.hidden, 2)
        positions = torch.empty((self.rows, 1, config.hidden), dtype=DTYPE, device="meta")
        self.register_buffer("positions", positions)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """Return the residual stream of ``(batch, channels, 2 · frames)``."""
        x = functional.gelu(self.second(functional.gelu(self.first(spectrogram))))
        return x.permute(2, 0, 1)[: self.rows] + self.positions


class CrossingBlock(nn.Module):
    """A block of a decoder that attends to what its encoder gives."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.block = Block(config, group, crosses=True)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return the residual stream."""
        result: Tensor = self.block(x, memory=memory)
        return result


class ImageEnd(nn.Module):
    """Last norm of an image's first token, and its projection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = norm_of(config, config.hidden)
        self.projection = _projection(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, projected)``."""
        result: Tensor = self.projection(self.norm(x[0]))
        return result


class PooledImageEnd(nn.Module):
    """Last norm of an image's tokens, a learned query that attends to them, and a network."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.group, alone = group, TensorGroup()
        self.norm = norm_of(config, config.hidden)
        self.query = parameter(1, 1, config.hidden)
        self.attention = CrossAttention(config, alone)
        self.second_norm = norm_of(config, config.hidden)
        self.feed_forward = FeedForward(config, alone)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, width)``."""
        x = self.norm(x)
        if self.group.splits_sequence:
            x = gather_sequence(x, self.group)
        pooled = self.attention(self.query.expand(1, *x.shape[1:]), x)
        result: Tensor = (pooled + self.feed_forward(self.second_norm(pooled)))[0]
        return result


class Comparison(nn.Module):
    """Last norm and projection of text, and the contrastive loss of all pairs with images.

    Each text is a class of every image and the other way round (CLIP), or every pair is a class of
    its own (SigLIP), where both the projection and the loss have a bias.
    """

    def __init__(self, config: TransformerConfig, width: int, *, pairwise: bool) -> None:
        super().__init__()
        self.norm = norm_of(config, config.hidden)
        self.projection = _projection(replace(config, vocabulary=width), bias=pairwise)
        self.scale = parameter(1)
        self.bias = parameter(1) if pairwise else None

    def forward(self, x: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of both directions, or of all pairs."""
        text = functional.normalize(self.projection(self.norm(x)[-1]), dim=-1)
        images = functional.normalize(images, dim=-1)
        logits = (text @ images.t() * self.scale.exp()).float()
        if self.bias is not None:
            logits = logits + self.bias
            # A sigmoid's loss of true pairs, on the diagonal, is that of false ones less the logit.
            pairs: Tensor = functional.softplus(logits).sum() - logits.diagonal().sum()
            return pairs / len(targets)
        alone = TensorGroup()
        losses = token_losses(logits, targets, alone) + token_losses(logits.t(), targets, alone)
        return losses.mean()


def speech_and_text(config: TransformerConfig, group: TensorGroup, microbatch: int) -> Assembly:
    """Return an encoder of speech and the decoder that attends to it."""
    encoder = config.encoder
    assert encoder
    heard = activation(_rows(encoder, group), microbatch, encoder.hidden)
    stream = activation(_rows(config, group), microbatch, config.hidden)
    tokens = whole_numbers(config.sequence, microbatch)
    spectrogram = activation(microbatch, encoder.channels, 2 * encoder.sequence).detach()
    embedding = Embedding(config, group)
    words = embedding.words.numel() if config.tied else 0
    parts = {
        "encoder.embedding": DistinctLayer(SpeechEmbedding(encoder, group), (spectrogram,)),
        "encoder.block": DistinctLayer(Block(encoder, group), (heard,)),
        "encoder.norm": DistinctLayer(EncoderEnd(encoder), (heard,)),
        "decoder.embedding": DistinctLayer(embedding, (tokens,), words),
        "decoder.block": DistinctLayer(CrossingBlock(config, group), (stream, heard)),
        "head": DistinctLayer(Head(config, group), (stream, tokens), words),
    }
    end = encoder.layers + 1
    return _joined(parts, encoder.layers, config.layers, range(end + 2, end + 2 + config.layers))


def images_and_text(config: TransformerConfig, group: TensorGroup, microbatch: int) -> Assembly:
    """Return an image tower and a text tower, whose results one head compares."""
    images = config.images
    assert images
    seen = activation(_rows(images, group), microbatch, images.hidden)
    stream = activation(_rows(config, group), microbatch, config.hidden)
    pixels = activation(microbatch, images.channels, images.image_size, images.image_size).detach()
    tokens, pairs = whole_numbers(config.sequence, microbatch), whole_numbers(microbatch)
    projected = activation(microbatch, images.vocabulary)
    head = Comparison(config, images.vocabulary, pairwise=bool(images.pools))
    patches = PatchEmbedding(images, bias=bool(images.pools), group=group)
    end = PooledImageEnd(images, group) if images.pools else ImageEnd(images)
    parts = {
        "image.embedding": DistinctLayer(patches, (pixels,)),
        "image.block": DistinctLayer(Block(images, group), (seen,)),
        "image.end": DistinctLayer(end, (seen,)),
        "text.embedding": DistinctLayer(Embedding(config, group), (tokens,)),
        "text.block": DistinctLayer(Block(config, group), (stream,)),
        "head": DistinctLayer(head, (stream, projected, pairs)),
    }
    return _joined(parts, images.layers, config.layers, (images.layers + config.layers + 3,))


def _joined(
    parts: dict[str, DistinctLayer], first: int, second: int, readers: Iterable[int]
) -> Assembly:
    """Put two stacks together: embedding, blocks and end of the first, then those of the second.

    Parameters
    ----------
    parts
        The layers in this order.
    first, second
        Blocks of each stack.
    readers
        Places that read what the first stack gives.
    """
    start, block, end, second_start, second_block, head = parts
    places = [(start, start), *((f"{block}.{i}", block) for i in range(first)), (end, end)]
    gives = len(places) - 1
    places += [(second_start, second_start)]
    places += [(f"{second_block}.{i}", second_block) for i in range(second)]
    places.append((head, head))
    chain = [(place, place + 1) for place in range(len(places) - 1) if place != gives]
    edges = sorted([*chain, *((gives, reader) for reader in readers)])
    return Assembly(parts, tuple(places), tuple(edges))


def _rows(config: TransformerConfig, group: TensorGroup) -> int:
    """Return the tokens of a sample that a device holds."""
    return config.sequence // (group.tensor_degree if group.splits_sequence else 1)


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Conv1d:
    """Return a convolution over three frames that keeps their number, or halves it."""
    return nn.Conv1d(inputs, outputs, 3, stride, padding=1, device="meta", dtype=DTYPE)


def _projection(config: TransformerConfig, *, bias: bool = False) -> nn.Linear:
    """Return the projection of a tower to the width that both have."""
    return nn.Linear(config.hidden, config.vocabulary, bias, device="meta", dtype=DTYPE)
