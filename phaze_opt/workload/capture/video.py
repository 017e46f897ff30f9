"""Diffusion transformers of a video, whose blocks attend to a text (Wan 2.1, arXiv 2503.20314).

The vector of the time step and the embedded text are layers of their own, which every block reads,
the head the vector alone. Scales, shifts and gates of a block are those that all blocks share and
a table of its own. The text is whole on every device, where these share the patches too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture.assembly import Assembly, DistinctLayer, activation
from phaze_opt.workload.capture.attention import Attention, CrossAttention
from phaze_opt.workload.capture.diffusion import Vector, modulated, whole_linear
from phaze_opt.workload.capture.feed_forward import FeedForward
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    TensorGroup,
    copy_to_group,
    parameter,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.diffusion import Diffusion

_IN_BLOCK, _IN_HEAD = 6, 2


class TimeStep(nn.Module):
    """The vector of the time step, and the six that all blocks share behind it."""

    def __init__(self, config: TransformerConfig, shape: Diffusion) -> None:
        super().__init__()
        self.time = Vector(shape.time_width, config.hidden)
        self.shared = whole_linear(config.hidden, _IN_BLOCK * config.hidden)

    def forward(self, time: Tensor) -> Tensor:
        """Return them side by side."""
        vector: Tensor = self.time(time)
        return torch.cat([vector, self.shared(functional.silu(vector))], dim=-1)


class Words(nn.Module):
    """The tokens of a text at the width of the blocks."""

    def __init__(self, config: TransformerConfig, shape: Diffusion) -> None:
        super().__init__()
        self.first = whole_linear(shape.text_width, config.hidden)
        self.second = whole_linear(config.hidden, config.hidden)

    def forward(self, text: Tensor) -> Tensor:
        """Return the tokens."""
        result: Tensor = self.second(functional.gelu(self.first(text), approximate="tanh"))
        return result


class _Table(nn.Module):
    """Vectors of the time step with a table of its own added."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, count: int) -> None:
        super().__init__()
        self.group, self.hidden = group, config.hidden
        self.rows = parameter(count, config.hidden)

    def forward(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Return as many; under sequence parallelism each device has part of gradients."""
        if self.group.splits_sequence:
            vectors = copy_to_group(vectors)
        apart = vectors.reshape(*vectors.shape[:-1], -1, self.hidden)
        made: tuple[Tensor, ...] = (apart + self.rows).unbind(-2)
        return made


class VideoBlock(nn.Module):
    """Patches attend to each other and then to a text, before a feed-forward network."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        hidden = config.hidden
        self.table = _Table(config, group, _IN_BLOCK)
        self.attention = Attention(config, group)
        self.norm = nn.LayerNorm(hidden, device="meta", dtype=DTYPE)
        self.cross_attention = CrossAttention(config, group, TensorGroup(group.tensor_degree))
        self.feed_forward = FeedForward(config, group)

    def forward(self, x: Tensor, vectors: Tensor, text: Tensor) -> Tensor:
        """Return the residual stream."""
        shared = vectors[..., self.table.hidden :]
        shift, scale, gate, next_shift, next_scale, next_gate = self.table(shared)
        x = x + gate * self.attention(modulated(x, shift, scale))
        x = x + self.cross_attention(self.norm(x), text)
        result: Tensor = x + next_gate * self.feed_forward(modulated(x, next_shift, next_scale))
        return result


class VideoHead(nn.Module):
    """Last norm of the patches, their projection, and the squared error."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.table = _Table(config, group, _IN_HEAD)
        self.patches = whole_linear(config.hidden, config.vocabulary)

    def forward(self, x: Tensor, vectors: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over all elements."""
        x = modulated(x, *self.table(vectors[..., : self.table.hidden]))
        loss: Tensor = (self.patches(x).float() - targets).square().mean()
        return loss


def video_transformer(config: TransformerConfig, group: TensorGroup, microbatch: int) -> Assembly:
    """Return a diffusion transformer of a video: time step, text, patches, blocks, head."""
    shape = config.diffusion
    assert shape
    rows = config.sequence // (group.tensor_degree if group.splits_sequence else 1)
    x = activation(rows, microbatch, config.hidden)
    vectors = activation(1, microbatch, (1 + _IN_BLOCK) * config.hidden)
    text = activation(shape.text_tokens, microbatch, config.hidden)
    patches = activation(rows, microbatch, config.vocabulary).detach()
    words = activation(shape.text_tokens, microbatch, shape.text_width).detach()
    time = activation(1, microbatch, shape.time_width).detach()
    embedding = whole_linear(config.vocabulary, config.hidden)
    parts = {
        "condition": DistinctLayer(TimeStep(config, shape), (time,)),
        "text": DistinctLayer(Words(config, shape), (words,)),
        "embedding": DistinctLayer(embedding, (patches,)),
        "block": DistinctLayer(VideoBlock(config, group), (x, vectors, text)),
        "head": DistinctLayer(VideoHead(config, group), (x, vectors, patches)),
    }
    condition, words_at, first, *_ = range(len(parts))
    ends = ("condition", "text", "embedding"), ("head",)
    places = [(name, name) for name in ends[0]]
    places += [(f"block.{i}", "block") for i in range(config.layers)]
    places += [(name, name) for name in ends[1]]
    last = len(places) - 1
    edges = [(place, place + 1) for place in range(first, last)]
    edges += [(condition, reader) for reader in range(first + 1, last + 1)]
    edges += [(words_at, reader) for reader in range(first + 1, last)]
    return Assembly(parts, tuple(places), tuple(sorted(edges)))
