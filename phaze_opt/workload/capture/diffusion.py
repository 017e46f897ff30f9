"""Diffusion transformers as torch modules: image and text tokens in one attention.

Their shape is in `phaze_opt.workload.diffusion`; those that attend to a text are in `video`. The
vector of conditions is a layer of its own, which every block and the head read. Streams are
``(sequence, batch, hidden)``, the vector ``(1, batch, hidden)``. Heads and feed-forward networks
are split over a tensor-parallel group; what makes scales, shifts and gates of the vector is whole
on every device, and so are the embeddings.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.assembly import Assembly, DistinctLayer, activation
from phaze_opt.workload.capture.attention import AttentionCore, RmsNorm
from phaze_opt.workload.capture.feed_forward import FeedForward
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    ColumnParallelLinear,
    RepeatedLinear,
    RowParallelLinear,
    TensorGroup,
    copy_to_group,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.diffusion import Diffusion


def whole_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer that is whole on every device."""
    return nn.Linear(inputs, outputs, device="meta", dtype=DTYPE)


class Vector(nn.Module):
    """Two linear layers that embed a vector."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = whole_linear(inputs, hidden), whole_linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embedded vector."""
        result: Tensor = self.second(functional.silu(self.first(x)))
        return result


class Condition(nn.Module):
    """The vector that time, guidance and the pooled text make."""

    def __init__(self, config: TransformerConfig, shape: Diffusion) -> None:
        super().__init__()
        self.time = Vector(shape.time_width, config.hidden)
        self.guidance = Vector(shape.time_width, config.hidden) if shape.guided else None
        self.text = Vector(shape.pooled_width, config.hidden)

    def forward(self, time: Tensor, text: Tensor) -> Tensor:
        """Return the vector; the guidance has sines as the time has."""
        vector: Tensor = self.time(time) + self.text(text)
        return vector if self.guidance is None else vector + self.guidance(time)


class Streams(nn.Module):
    """The patches of a latent image and the tokens of a text as two streams."""

    positions: Tensor

    def __init__(self, config: TransformerConfig, shape: Diffusion) -> None:
        super().__init__()
        self.image = whole_linear(config.vocabulary, config.hidden)
        self.text = whole_linear(shape.text_width, config.hidden)
        self.adds = config.positions != "rotary"
        positions = torch.empty((config.sequence, 1, config.hidden), dtype=DTYPE, device="meta")
        self.register_buffer("positions", positions)

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams of what a device holds of them."""
        x = self.image(image)
        if self.adds:
            x = x + self.positions[: len(x)]
        return x, self.text(text)


class _Modulation(nn.Module):
    """Scales, shifts and gates that one linear layer makes of the vector."""

    def __init__(self, hidden: int, count: int, group: TensorGroup) -> None:
        super().__init__()
        self.count, self.group = count, group
        # All devices compute the same, under sequence parallelism too.
        same = TensorGroup(group.tensor_degree)
        self.linear = RepeatedLinear(hidden, count * hidden, True, same)

    def forward(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Return as many vectors; under sequence parallelism each device has part of gradients."""
        joint: Tensor = self.linear(functional.silu(vector))
        if self.group.splits_sequence:
            joint = copy_to_group(joint)
        made: tuple[Tensor, ...] = joint.chunk(self.count, dim=-1)
        return made


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalise without parameters, scale and shift."""
    return functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift


def _head_norms(config: TransformerConfig) -> nn.ModuleList:
    """Return the norms of queries and of keys, where the model has them."""
    count = 2 if config.query_key_norm else 0
    return nn.ModuleList(RmsNorm(config.head_size, made_by=config.kernels) for _ in range(count))


class _Heads(AttentionCore):
    """Queries, keys and values of one stream, normalised, and the projection of their result."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, *, projects: bool) -> None:
        super().__init__(config, group)
        hidden = config.hidden
        self.query_key_value = ColumnParallelLinear(hidden, (hidden,) * 3, True, group)
        self.norms = _head_norms(config)
        self.projection = RowParallelLinear(hidden, hidden, True, group) if projects else None

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return query, key and value as ``(sequence, batch, local heads, head size)``."""
        made = [each.view(*each.shape[:2], self.heads, -1) for each in self.query_key_value(x)]
        for place, norm in enumerate(self.norms):
            made[place] = norm(made[place])
        return made


class _JointCore(AttentionCore):
    """One attention of all tokens, rotated where the model rotates."""

    table: Tensor

    def __init__(self, config: TransformerConfig, tokens: int, group: TensorGroup) -> None:
        super().__init__(config, group)
        table = torch.empty((tokens, config.head_size), dtype=torch.float32, device="meta")
        self.register_buffer("table", table)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return what the heads see, ``(sequence, batch, local width)``."""
        if self.config.positions == "rotary":
            query, key = (kernels.rotary(each, self.table, False) for each in (query, key))
        if self.config.attention == "flash":
            return self.attend(query, key, value).flatten(2)
        return self.attend_through_memory(query, key, value).flatten(2)


class _Stream(nn.Module):
    """One of the two streams of a block; the last text stream gives keys and values only."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, *, whole: bool) -> None:
        super().__init__()
        self.modulation = _Modulation(config.hidden, 6 if whole else 2, group)
        self.heads = _Heads(config, group, projects=whole)
        self.feed_forward = FeedForward(config, group) if whole else None

    def after(self, x: Tensor, context: Tensor, modulation: tuple[Tensor, ...]) -> Tensor:
        """Return the stream behind the attention and the feed-forward network."""
        gate, shift, scale, last_gate = modulation
        assert self.heads.projection is not None and self.feed_forward is not None
        x = x + gate * self.heads.projection(context)
        result: Tensor = x + last_gate * self.feed_forward(modulated(x, shift, scale))
        return result


class TwoStreamBlock(nn.Module):
    """A block whose image and text tokens have weights of their own and attend together."""

    def __init__(
        self, config: TransformerConfig, shape: Diffusion, group: TensorGroup, *, keeps_text: bool
    ) -> None:
        super().__init__()
        self.keeps_text, self.image_tokens = keeps_text, config.sequence
        self.image = _Stream(config, group, whole=True)
        self.text = _Stream(config, group, whole=keeps_text)
        self.core = _JointCore(config, config.sequence + shape.text_tokens, group)

    def forward(self, x: Tensor, text: Tensor, vector: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return both streams, or that of the image."""
        of_image, of_text = self.image.modulation(vector), self.text.modulation(vector)
        image_heads = self.image.heads(modulated(x, *of_image[:2]))
        text_heads = self.text.heads(modulated(text, *of_text[:2]))
        joint = (torch.cat(pair) for pair in zip(image_heads, text_heads, strict=True))
        context = self.core(*joint)
        x = self.image.after(x, context[: self.image_tokens], of_image[2:])
        if not self.keeps_text:
            return x
        return x, self.text.after(text, context[self.image_tokens :], of_text[2:])


class Joined(nn.Module):
    """Both streams as one."""

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Return the joint stream."""
        return torch.cat([x, text])


class SingleStreamBlock(nn.Module):
    """A block of the joint stream whose attention and feed-forward network run side by side."""

    def __init__(self, config: TransformerConfig, shape: Diffusion, group: TensorGroup) -> None:
        super().__init__()
        self.inner, hidden = config.inner, config.hidden
        self.modulation = _Modulation(hidden, 3, group)
        self.up = ColumnParallelLinear(hidden, (hidden, hidden, hidden, config.inner), True, group)
        self.norms = _head_norms(config)
        self.core = _JointCore(config, config.sequence + shape.text_tokens, group)
        self.down = RowParallelLinear(hidden + config.inner, hidden, True, group)

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        """Return the joint stream."""
        shift, scale, gate = self.modulation(vector)
        *heads, inner = self.up(modulated(x, shift, scale))
        heads = [each.view(*each.shape[:2], self.core.heads, -1) for each in heads]
        for place, norm in enumerate(self.norms):
            heads[place] = norm(heads[place])
        inner = functional.gelu(inner, approximate="tanh")
        result: Tensor = x + gate * self.down(torch.cat([self.core(*heads), inner], dim=-1))
        return result


class PatchHead(nn.Module):
    """Last norm of the image's tokens, their projection to patches, and the squared error."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.modulation = _Modulation(config.hidden, 2, group)
        self.patches = whole_linear(config.hidden, config.vocabulary)

    def forward(self, x: Tensor, vector: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over all elements; a joint stream begins with the image."""
        x = modulated(x[: len(targets)], *self.modulation(vector))
        loss: Tensor = (self.patches(x).float() - targets).square().mean()
        return loss


def diffusion_transformer(
    config: TransformerConfig, group: TensorGroup, microbatch: int
) -> Assembly:
    """Return a diffusion transformer: conditions, streams, blocks of two, blocks of one, head."""
    shape = config.diffusion
    assert shape
    share = group.tensor_degree if group.splits_sequence else 1
    rows, text_rows = config.sequence // share, shape.text_tokens // share
    x, text, joint = (
        activation(count, microbatch, config.hidden)
        for count in (rows, text_rows, rows + text_rows)
    )
    vector = activation(1, microbatch, config.hidden)
    patches = activation(rows, microbatch, config.vocabulary).detach()
    words = activation(text_rows, microbatch, shape.text_width).detach()
    time = activation(1, microbatch, shape.time_width).detach()
    pooled = activation(1, microbatch, shape.pooled_width).detach()
    stream = joint if shape.single_layers else x

    def block(*, keeps_text: bool) -> DistinctLayer:
        module = TwoStreamBlock(config, shape, group, keeps_text=keeps_text)
        return DistinctLayer(module, (x, text, vector))

    parts = {
        "condition": DistinctLayer(Condition(config, shape), (time, pooled)),
        "embedding": DistinctLayer(Streams(config, shape), (patches, words)),
        "block": block(keeps_text=True),
        "last_block": block(keeps_text=False),
        "join": DistinctLayer(Joined(), (x, text)),
        "single_block": DistinctLayer(SingleStreamBlock(config, shape, group), (joint, vector)),
        "head": DistinctLayer(PatchHead(config, group), (stream, vector, patches)),
    }
    last = "block" if shape.keeps_text else "last_block"
    places = [("condition", "condition"), ("embedding", "embedding")]
    places += [(f"block.{i}", "block") for i in range(config.layers - 1)]
    places.append((f"block.{config.layers - 1}", last))
    if shape.single_layers:
        places.append(("join", "join"))
    places += [(f"single_block.{i}", "single_block") for i in range(shape.single_layers)]
    places.append(("head", "head"))
    kinds = {kind for _, kind in places}
    chain = [(place, place + 1) for place in range(1, len(places) - 1)]
    reads_vector = [i for i, (_, kind) in enumerate(places) if i > 1 and kind != "join"]
    edges = sorted([*chain, *((0, reader) for reader in reads_vector)])
    used = {kind: part for kind, part in parts.items() if kind in kinds}
    return Assembly(used, tuple(places), tuple(edges))
