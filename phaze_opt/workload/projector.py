"""Images among the tokens of a language model: what joins a tower of images to it.

A sample has some images, each of whose patches goes through the tower; ``merge`` neighbouring
tokens of its result become one, which a few linear layers bring to the width of the language model,
where they stand in place of as many tokens of the sequence; or blocks of the language model attend
to them (`Tiles`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

from phaze_opt.workload.config_checks import MOST_LAYERS, refuse_outside


@dataclass(frozen=True)
class Tiles:
    """Images as tiles that a language model attends to, in blocks of its own (Llama 3.2).

    Attributes
    ----------
    count
        Tiles of an image, all of whose tokens see each other.
    ratios
        Shapes that the tiles of an image may make, and one for none: rows of the tables of
        positions.
    features
        Blocks of the tower, counted from 0, whose results stand beside the last one's.
    gated_layers
        The last blocks of the tower, behind a norm, whose sub-layers are scaled by gates.
    crosses
        Blocks of the language model, counted from 0, that attend to the images and not to the text.
    added_words
        Rows of the word embedding that are never predicted.
    """

    count: int
    ratios: int
    features: tuple[int, ...]
    gated_layers: int
    crosses: tuple[int, ...]
    added_words: int = 0

    def __post_init__(self) -> None:
        refuse_outside("tiles of an image", self.count, 1, MOST_LAYERS)
        for name in ("ratios", "gated_layers", "added_words"):
            refuse_outside(name, getattr(self, name), 0, MOST_LAYERS)


@dataclass(frozen=True)
class Projector:
    """What follows a tower of images.

    Attributes
    ----------
    images
        Of a sample.
    merge
        Tokens of the tower that become one.
    widths
        Results of the linear layers, with an activation between any two.
    bias, patch_bias
        Whether these have one, and the product that makes patches tokens.
    pools
        Whether merged tokens are averaged, and not put beside each other (Gemma 3).
    merged_norm
        Of merged tokens; not set for none. A norm of the tower's tokens is its own last one.
    deepstack
        Blocks of the tower, counted from 0, whose results are projected too, each by layers of its
        own behind a norm of merged tokens, and added behind the first blocks of the language model
        (Qwen3-VL).
    tiles
        How images are cut into tiles that the language model attends to; not set where they stand
        in the sequence.
    """

    images: int
    merge: int
    widths: tuple[int, ...]
    bias: bool = True
    patch_bias: bool = True
    pools: bool = False
    merged_norm: Literal["rms_norm"] | UnsetType = UNSET
    deepstack: tuple[int, ...] = ()
    tiles: Tiles | UnsetType = UNSET

    def __post_init__(self) -> None:
        refuse_outside("images of a sample", self.images, 1, MOST_LAYERS)
        refuse_outside("merge of a projector", self.merge, 1)
        for width in self.widths:
            refuse_outside("widths of a projector", width, 1)
