"""What comes before and after a transformer's blocks, as torch modules.

Embeddings of words and of image patches, the end of an encoder, layers that predict further ahead,
and the heads with their losses.
Layouts are those of `blocks`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture.attention import dropout, norm_of
from phaze_opt.workload.capture.hyper_connections import HyperConnection
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    ColumnParallelLinear,
    RepeatedLinear,
    TensorGroup,
    parameter,
    sum_over_group,
    token_losses,
)
from phaze_opt.workload.config import TransformerConfig


def _whole_linear(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer that is whole on every device."""
    return nn.Linear(inputs, outputs, bias, device="meta", dtype=DTYPE)


def _joined_streams(config: TransformerConfig, group: TensorGroup) -> HyperConnection | None:
    """Return what makes one of residual streams at the end, where there are several."""
    return HyperConnection(config, group, expands=False) if config.compressed else None


class Embedding(nn.Module):
    """Word, position and segment embeddings; the vocabulary is split over the group."""

    position_ids: Tensor

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.config, self.group = config, group
        self.local_rows = config.padded_vocabulary(group.tensor_degree) // group.tensor_degree
        self.words = parameter(self.local_rows, config.embedding_width)
        rows = config.position_table_rows
        self.positions = parameter(rows, config.hidden) if rows else None
        local = config.sequence // (group.tensor_degree if group.splits_sequence else 1)
        ids = torch.empty((local, 1), dtype=torch.int64, device="meta")
        self.register_buffer("position_ids", ids)
        types = config.token_types
        self.types = parameter(types, config.hidden) if types else None
        width, hidden = config.embedding_width, config.hidden
        self.project = _whole_linear(width, hidden, bias=False) if width != hidden else None
        self.norm = norm_of(config, config.hidden) if config.embedding_norm else None
        self.relative = RelativePositions(config, group) if config.relative_buckets else None

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> Any:
        """Return the residual stream of the (local share of the) sequence.

        Relative positions are a second result: a bias of the scores of every block.
        """
        x = self._words(tokens)
        if self.config.embedding_scale:
            x = x * self.config.hidden**0.5
        if self.project is not None:
            x = self.project(x)
        if self.positions is not None:
            x = x + functional.embedding(self.position_ids, self.positions)
        if self.types is not None and types is not None:
            x = x + functional.embedding(types, self.types)
        if self.norm is not None:
            x = self.norm(x)
        if self.config.embedding_dropout:
            x = dropout(x, self.config.dropout)
        if self.config.compressed:
            x = x.repeat(1, 1, self.config.compressed.streams)
        return x if self.relative is None else (x, self.relative())

    def _words(self, tokens: Tensor) -> Tensor:
        """Look words up; a device returns zeros for words of other devices."""
        if self.group.tensor_degree == 1:
            return functional.embedding(tokens, self.words)
        elsewhere = tokens >= self.local_rows
        local = tokens.masked_fill(elsewhere, 0)
        embedded = functional.embedding(local, self.words)
        embedded = embedded.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return sum_over_group(embedded, self.group)


class RelativePositions(nn.Module):
    """T5's bias of the scores by the distance of query and key (Raffel et al. 2020, section 2.1).

    The heads are split over the group.
    """

    buckets: Tensor

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.table = parameter(config.relative_buckets, config.heads // group.tensor_degree)
        shape = (config.sequence, config.sequence)
        self.register_buffer("buckets", torch.empty(shape, dtype=torch.int64, device="meta"))

    def forward(self) -> Tensor:
        """Return the bias, ``(local heads, queries, keys)``."""
        return functional.embedding(self.buckets, self.table).permute(2, 0, 1)


class PatchEmbedding(nn.Module):
    """Patches of an image as tokens, behind a token for its class (Dosovitskiy et al. 2021).

    Images that are pooled have no such token, and towers with rotary positions may have no table of
    positions, or one of another length, whose rows are looked up. Every device of a group makes the
    patches, and returns its share of them where the sequence is split.
    """

    position_ids: Tensor

    def __init__(
        self, config: TransformerConfig, *, bias: bool = True, group: TensorGroup | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.share = group.tensor_degree if group and group.splits_sequence else 1
        inputs = config.channels * config.patch_size**2
        self.project = _whole_linear(inputs, config.hidden, bias=bias)
        self.norm = norm_of(config, config.hidden) if config.embedding_norm else None
        self.first = None if config.pools else parameter(1, 1, config.hidden)
        rows = config.sequence if config.positions == "learned" else config.position_rows
        self.positions = parameter(rows, 1, config.hidden) if rows else None
        if rows not in (0, config.sequence):
            ids = torch.empty((config.sequence, 1), dtype=torch.int64, device="meta")
            self.register_buffer("position_ids", ids)

    def forward(self, images: Tensor) -> Tensor:
        """Return the residual stream of ``(batch, channels, height, width)`` images."""
        size = self.config.patch_size
        patches = images.unfold(2, size, size).unfold(3, size, size).permute(2, 3, 0, 1, 4, 5)
        x = self.project(patches.reshape(-1, len(images), self.project.in_features))
        if self.first is not None:
            x = torch.cat([self.first.expand(1, *x.shape[1:]), x])
        positions: Tensor | None = self.positions
        if positions is not None and len(positions) != len(x):
            positions = functional.embedding(self.position_ids, positions.squeeze(1))
        if self.share > 1:
            rows = len(x) // self.share
            x, positions = x[:rows], None if positions is None else positions[:rows]
        if positions is not None:
            x = x + positions
        if self.norm is not None:
            x = self.norm(x)
        return dropout(x, self.config.dropout)


class EncoderEnd(nn.Module):
    """The last norm of an encoder, whose result every block of the decoder reads."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm, self.probability = norm_of(config, config.hidden), config.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return what the decoder attends to."""
        return dropout(self.norm(x), self.probability)


class Classifier(nn.Module):
    """Last norm, projection of the first token to classes, and loss; whole on every device."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = norm_of(config, config.hidden)
        self.classes = _whole_linear(config.hidden, config.vocabulary, bias=True)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the samples."""
        return token_losses(self.classes(self.norm(x)[0]).float(), targets, TensorGroup()).mean()


class Head(nn.Module):
    """Last norm, vocabulary projection and loss; the vocabulary is split over the group.

    The loss is computed from fp32 logits, as in Megatron-LM.
    """

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.config, self.group = config, group
        hidden, embedding = config.hidden, config.embedding_width
        masked = config.head == "masked_language_model"
        self.streams = _joined_streams(config, group)
        self.norm = norm_of(config, hidden) if config.final_norm else None
        self.project = _whole_linear(hidden, embedding, bias=False) if embedding != hidden else None
        self.dense = _whole_linear(embedding, embedding, bias=True) if masked else None
        self.dense_norm = norm_of(config, embedding) if masked else None
        rows = config.padded_vocabulary(group.tensor_degree)
        bias = masked or bool(config.head_bias)
        self.vocabulary = ColumnParallelLinear(embedding, (rows,), bias, group)

    def forward(self, x: Tensor, targets: Tensor, *ahead: Tensor) -> Tensor:
        """Return the mean loss over all tokens.

        The streams of prediction layers, ``ahead``, go through the same projection, and their
        losses are added.
        """
        loss = self._loss(self._last(x), targets)
        for stream in ahead:
            loss = loss + self._loss(stream, targets)
        return loss

    def _last(self, x: Tensor) -> Tensor:
        """Return what the projection to the vocabulary reads."""
        if self.streams is not None:
            x, _ = self.streams(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.config.encoder_layers:
            x = dropout(x, self.config.dropout)  # as after the encoder's last norm
        if self.project is not None:
            x = self.project(x)
        if self.dense is not None and self.dense_norm is not None:
            x = self.dense_norm(functional.gelu(self.dense(x), approximate="tanh"))
        return x

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the logits of a stream."""
        (logits,) = self.vocabulary(x)
        if self.config.logit_softcap:
            logits = self.config.logit_softcap * torch.tanh(logits / self.config.logit_softcap)
        return token_losses(logits.float(), targets, self.group).mean()


class PredictionLayer(nn.Module):
    """A layer that predicts one token further ahead (DeepSeek-V3, section 2.2).

    It joins the stream before it and the embedding of the next token, both normalised, and has a
    block of its own; the embedding is the model's, and the head projects its result. Every device
    of a tensor-parallel group joins the tokens of its stream with the whole weight. Of several
    residual streams each is joined by the same weights (DeepSeek-V4).
    """

    def __init__(self, config: TransformerConfig, group: TensorGroup, block: nn.Module) -> None:
        super().__init__()
        self.embedding = Embedding(config, group)
        self.word_norm = norm_of(config, config.hidden)
        self.stream_norm = norm_of(config, config.hidden)
        self.hidden, self.streams = config.hidden, _joined_streams(config, group)
        apart = self.streams is not None
        self.join = RepeatedLinear((1 if apart else 2) * self.hidden, self.hidden, False, group)
        self.join_words = RepeatedLinear(self.hidden, self.hidden, False, group) if apart else None
        self.block = block
        self.norm = norm_of(config, config.hidden)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return what the head projects."""
        words = self.word_norm(self.embedding(tokens)[..., : self.hidden])
        if self.streams is not None and self.join_words is not None:
            each = x.view(len(x), -1, self.hidden)
            own = self.join(self.stream_norm(each)).view(*x.shape[:2], -1, self.hidden)
            joined = own + self.join_words(words).unsqueeze(2)
            x, _ = self.streams(self.block(joined.flatten(2)))
            last: Tensor = self.norm(x)
            return last
        joined = self.join(torch.cat([words, self.stream_norm(x)], dim=-1))
        result: Tensor = self.norm(self.block(joined))
        return result
