"""Images among the tokens of a language model (Qwen-VL, Gemma 3, Llama 4).

The tower stands before the embedding, which puts its projected tokens in place of the first ones of
every sample. A tensor-parallel group splits the tower's blocks as the others, and computes patches
and projections on every device; under sequence parallelism tokens of the tower stay whole, and the
embedding takes a device's share of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture.assembly import Assembly, DistinctLayer, activation
from phaze_opt.workload.capture.attention import RmsNorm, norm_of
from phaze_opt.workload.capture.blocks import Block
from phaze_opt.workload.capture.ends import Embedding, PatchEmbedding
from phaze_opt.workload.capture.tensor_parallel import DTYPE, RepeatedLinear, TensorGroup
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.projector import Projector

_WITH_IMAGES = "_with_images"


class ProjectedImages(nn.Module):
    """Tokens of a tower merged and projected: of its last block, or of one of its others."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, *, last: bool) -> None:
        super().__init__()
        assert config.images and config.projector
        tower, shape = config.images, config.projector
        self.shape, self.first = shape, 0 if tower.pools else 1
        wide = tower.hidden * (1 if shape.pools else shape.merge)
        self.norm = norm_of(tower, tower.hidden) if last and tower.final_norm else None
        self.merged_norm: nn.Module | None = None
        if last and shape.merged_norm:
            self.merged_norm = RmsNorm(wide, made_by=config.kernels)
        elif not last:
            self.merged_norm = norm_of(tower, wide)
        inputs = (wide, *shape.widths[:-1])
        self.layers = nn.ModuleList(
            RepeatedLinear(width, result, shape.bias, group)
            for width, result in zip(inputs, shape.widths, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(merged tokens, images, width of the language model)``."""
        x = x[self.first :]
        if self.norm is not None:
            x = self.norm(x)
        x = x.view(-1, self.shape.merge, *x.shape[1:])
        x = x.mean(1) if self.shape.pools else x.transpose(1, 2).flatten(2)
        if self.merged_norm is not None:
            x = self.merged_norm(x)
        for place, layer in enumerate(self.layers):
            x = layer(functional.gelu(x) if place else x)
        return x


class ImageTextEmbedding(nn.Module):
    """The embedding of words, the first of every sample replaced by images."""

    def __init__(self, config: TransformerConfig, group: TensorGroup) -> None:
        super().__init__()
        self.embedding = Embedding(config, group)
        self.rows = config.sequence // (group.tensor_degree if group.splits_sequence else 1)

    @property
    def words(self) -> Tensor:
        """The word embedding."""
        return self.embedding.words

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        """Return the residual stream."""
        x: Tensor = self.embedding(tokens)
        seen = by_sample(images, x.shape[1])[: self.rows]
        return torch.cat([seen, x[len(seen) :]])


class BlockWithImages(nn.Module):
    """A block behind which what a block of the tower gives is added."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, images: Tensor) -> Tensor:
        """Return the residual stream."""
        x = self.block(x)
        seen = by_sample(images, x.shape[1])[: len(x)]
        return torch.cat([x[: len(seen)] + seen, x[len(seen) :]])


def by_sample(images: Tensor, samples: int) -> Tensor:
    """Put the images of every sample behind each other, ``(tokens, samples, width)``."""
    tokens, count, width = images.shape
    apart = images.view(tokens, samples, count // samples, width)
    return apart.permute(2, 0, 1, 3).reshape(-1, samples, width)


def with_images(
    text: Assembly, config: TransformerConfig, group: TensorGroup, microbatch: int
) -> Assembly:
    """Put a tower of images before a language model."""
    tower, shape = config.images, config.projector
    assert tower and shape
    alone, count = TensorGroup(group.tensor_degree), microbatch * shape.images
    seen = activation(tower.sequence, count, tower.hidden)
    projected = activation(config.image_tokens_in_text // shape.images, count, config.hidden)
    pixels = torch.empty(
        (count, tower.channels, tower.image_size, tower.image_size), dtype=DTYPE, device="meta"
    )
    (tokens,) = text.parts["embedding"].inputs
    embedding = ImageTextEmbedding(config, group)
    parts = {
        **_tower(tower, shape, alone, pixels, seen),
        "image.end": DistinctLayer(ProjectedImages(config, alone, last=True), (seen,)),
        **text.parts,
        "embedding": DistinctLayer(embedding, (tokens, projected), text.parts["embedding"].words),
    }
    places = [("image.embedding", "image.embedding")]
    places += [(f"image.block.{i}", _kind(window)) for i, window in enumerate(tower.block_windows)]
    places.append(("image.end", "image.end"))
    edges = [(place, place + 1) for place in range(len(places))]
    end = len(places)
    places += text.places
    edges += [(end + source, end + reader) for source, reader in text.edges]
    if shape.deepstack:
        parts["image.deepstack"] = DistinctLayer(
            ProjectedImages(config, alone, last=False), (seen,)
        )
        _add_deepstack(shape, parts, places, projected)
        at = {name: place for place, (name, _) in enumerate(places)}
        moved = {
            place: at[name]
            for place, (name, _) in enumerate([p for p in places if "deepstack" not in p[0]])
        }
        edges = [(moved[source], moved[reader]) for source, reader in edges]
        for i, block in enumerate(shape.deepstack):
            given = at[f"image.deepstack.{i}"]
            edges += [(at[f"image.block.{block}"], given), (given, at[f"block.{i}"])]
    return Assembly(parts, tuple(places), tuple(sorted(edges)))


def _tower(
    tower: TransformerConfig,
    shape: Projector,
    group: TensorGroup,
    pixels: Tensor,
    seen: Tensor,
) -> dict[str, DistinctLayer]:
    """Return patches and blocks of the tower; those within windows are apart."""
    patches = PatchEmbedding(tower, bias=shape.patch_bias)
    return {
        "image.embedding": DistinctLayer(patches, (pixels,)),
        **{
            _kind(window): DistinctLayer(Block(tower, group, window=window), (seen,))
            for window in dict.fromkeys(tower.block_windows)
        },
    }


def _kind(window: int) -> str:
    """Name a block of the tower."""
    return "image.window_block" if window else "image.block"


def _add_deepstack(
    shape: Projector,
    parts: dict[str, DistinctLayer],
    places: list[tuple[str, str]],
    projected: Tensor,
) -> None:
    """Add what projects blocks of the tower, and the blocks of text that it is added behind."""
    for i, block in enumerate(shape.deepstack):
        names = [name for name, _ in places]
        place = names.index(f"block.{i}")
        kind = places[place][1]
        own = f"{kind}{_WITH_IMAGES}"
        if own not in parts:
            plain = parts[kind]
            module = BlockWithImages(plain.module)
            parts[own] = replace(plain, module=module, inputs=(*plain.inputs, projected))
        places[place] = (f"block.{i}", own)
        after = names.index(f"image.block.{block}") + 1
        places.insert(after, (f"image.deepstack.{i}", "image.deepstack"))
