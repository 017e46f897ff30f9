"""Images in tiles that blocks of a language model attend to (Llama 3.2, Grattafiori et al. 2024).

The tiles of an image go through a tower of two stacks, in which all tokens of an image see each
other; the results of some blocks of the first stack stand beside the last one's, and one product
brings them to the width of the language model. Some of its blocks attend to that and not to the
text. Tokens that fill tiles up to a multiple are left out. A tensor-parallel group splits blocks as
others, and computes patches and the projection on every device; under sequence parallelism tokens
of the tower stay whole.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture.assembly import Assembly, DistinctLayer, activation, whole_numbers
from phaze_opt.workload.capture.attention import Attention, CrossAttention, norm_of
from phaze_opt.workload.capture.blocks import Block
from phaze_opt.workload.capture.ends import Embedding, PatchEmbedding
from phaze_opt.workload.capture.feed_forward import FeedForward
from phaze_opt.workload.capture.images_in_text import by_sample
from phaze_opt.workload.capture.tensor_parallel import (
    DTYPE,
    RepeatedLinear,
    TensorGroup,
    parameter,
)
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.projector import Tiles


class _TileTable(nn.Module):
    """A row for every shape of the tiles of an image, added to their tokens behind a gate."""

    def __init__(self, tiles: Tiles, tokens: int, hidden: int) -> None:
        super().__init__()
        self.shape = tiles.count, tokens, hidden
        self.rows = parameter(tiles.ratios, tiles.count * tokens * hidden)
        self.gate = parameter(1)

    def forward(self, ratios: Tensor) -> Tensor:
        """Return what is added, ``(tokens, images · tiles, width)``, of the shape of each image."""
        rows = functional.embedding(ratios, self.rows).view(len(ratios), *self.shape)
        return rows.flatten(0, 1).transpose(0, 1) * torch.tanh(self.gate)


class TiledPatches(nn.Module):
    """Patches of all tiles as tokens, with the position of each in its tile, and of the tile."""

    def __init__(self, tower: TransformerConfig, tiles: Tiles) -> None:
        super().__init__()
        self.tiles, hidden = tiles, tower.hidden
        self.patches = PatchEmbedding(replace(tower, embedding_norm=False), bias=False)
        self.before = _TileTable(tiles, 1, hidden)
        self.positions = _TileTable(tiles, tower.sequence, hidden)
        self.norm = norm_of(tower, hidden)

    def forward(self, pixels: Tensor, ratios: Tensor) -> Tensor:
        """Return the tokens of every image, ``(tiles · tokens, images, width)``."""
        x = self.patches(pixels) + self.before(ratios) + self.positions(ratios)
        return _by_image(self.norm(x), self.tiles.count)


class TiledNorm(nn.Module):
    """The norm between the stacks of a tower, and once more the position of every tile."""

    def __init__(self, tower: TransformerConfig, tiles: Tiles) -> None:
        super().__init__()
        self.tiles, self.norm = tiles, norm_of(tower, tower.hidden)
        self.after = _TileTable(tiles, 1, tower.hidden)

    def forward(self, x: Tensor, ratios: Tensor) -> Tensor:
        """Return the tokens of every image."""
        added = self.after(ratios).view(1, len(ratios), self.tiles.count, -1)
        x = self.norm(x).view(self.tiles.count, -1, *x.shape[1:])
        result: Tensor = (x + added.permute(2, 0, 1, 3)).flatten(0, 1)
        return result


class GatedBlock(nn.Module):
    """A block whose sub-layers are scaled by gates; its attention may be that to images."""

    def __init__(
        self, config: TransformerConfig, group: TensorGroup, *, crosses: bool = False
    ) -> None:
        super().__init__()
        self.norm, self.second_norm = (norm_of(config, config.hidden) for _ in range(2))
        self.attention: nn.Module
        if crosses:
            alone, normed = TensorGroup(group.tensor_degree), replace(config, query_key_norm=True)
            self.attention = CrossAttention(normed, group, alone)
        else:
            self.attention = Attention(config, group)
        self.feed_forward = FeedForward(config, group)
        self.gate, self.second_gate = parameter(1), parameter(1)

    def forward(self, x: Tensor, images: Tensor | None = None) -> Tensor:
        """Return the residual stream."""
        seen = () if images is None else (by_sample(images, x.shape[1]),)
        x = x + torch.tanh(self.gate) * self.attention(self.norm(x), *seen)
        result: Tensor = x + torch.tanh(self.second_gate) * self.feed_forward(self.second_norm(x))
        return result


class JoinedFeatures(nn.Module):
    """The results of several blocks of a tower beside each other, projected."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, width: int) -> None:
        super().__init__()
        self.projection = RepeatedLinear(width, config.hidden, True, group)

    def forward(self, *features: Tensor) -> Tensor:
        """Return ``(tokens, images, width of the language model)``."""
        result: Tensor = self.projection(torch.cat(features, dim=-1))
        return result


def _by_image(x: Tensor, tiles: int) -> Tensor:
    """Put an image's tiles one after another, from ``(tokens, images · tiles, width)``."""
    tokens, count, width = x.shape
    apart = x.view(tokens, count // tiles, tiles, width)
    return apart.permute(2, 0, 1, 3).reshape(tiles * tokens, count // tiles, width)


def with_tiled_images(
    text: Assembly, config: TransformerConfig, group: TensorGroup, microbatch: int
) -> Assembly:
    """Put a tower of images before a language model, blocks of which attend to its result."""
    tower, shape = config.images, config.projector
    assert tower and shape and shape.tiles
    tiles = shape.tiles
    parts = _parts(text, config, group, microbatch * shape.images)
    first, last = "image.embedding", "image.end"
    gated = tower.layers - tiles.gated_layers
    places = [(first, first), *((f"image.block.{i}", "image.block") for i in range(gated))]
    places.append(("image.middle", "image.middle"))
    places += [(f"image.block.{i}", "image.gated_block") for i in range(gated, tower.layers)]
    end = len(places)
    edges = [(place, place + 1) for place in range(end)]
    edges += [(1 + block, end) for block in tiles.features]
    places.append((last, last))
    crosses = {f"block.{i}" for i in tiles.crosses}
    places += [(name, "cross_block" if name in crosses else kind) for name, kind in text.places]
    edges += [(end + 1 + source, end + 1 + reader) for source, reader in text.edges]
    edges += [(end, place) for place, (_, kind) in enumerate(places) if kind == "cross_block"]
    used = {kind for _, kind in places}
    kinds = {kind: part for kind, part in parts.items() if kind in used}
    return Assembly(kinds, tuple(places), tuple(sorted(set(edges))))


def _parts(
    text: Assembly, config: TransformerConfig, group: TensorGroup, images: int
) -> dict[str, DistinctLayer]:
    """Return the distinct layers by kind."""
    tower, shape = config.images, config.projector
    assert tower and shape and shape.tiles
    tiles, alone = shape.tiles, TensorGroup(group.tensor_degree)
    rows, edge = tiles.count * tower.sequence, tower.image_size
    seen = activation(rows, images, tower.hidden)
    projected = activation(rows, images, config.hidden)
    pixels = torch.empty(
        (images * tiles.count, tower.channels, edge, edge), dtype=DTYPE, device="meta"
    )
    ratios, words = whole_numbers(images), text.parts["embedding"]
    features = tuple(seen.detach().requires_grad_() for _ in tiles.features)
    joined = JoinedFeatures(config, alone, (1 + len(features)) * tower.hidden)
    more = replace(config, vocabulary=config.vocabulary + tiles.added_words)
    crossing = GatedBlock(config, group, crosses=True)
    return {
        "image.embedding": DistinctLayer(TiledPatches(tower, tiles), (pixels, ratios)),
        "image.block": DistinctLayer(Block(tower, alone), (seen,)),
        "image.middle": DistinctLayer(TiledNorm(tower, tiles), (seen, ratios)),
        "image.gated_block": DistinctLayer(GatedBlock(tower, alone), (seen,)),
        "image.end": DistinctLayer(joined, (seen, *features)),
        **text.parts,
        "embedding": replace(words, module=Embedding(more, group)),
        "cross_block": DistinctLayer(crossing, (*text.parts["block"].inputs, projected)),
    }
