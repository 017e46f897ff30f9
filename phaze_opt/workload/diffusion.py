"""Diffusion transformers whose image and text tokens attend together: their shape (pure data).

Stable Diffusion 3 (Esser et al. 2024, section 4) has blocks of two streams, each with weights of
its own, that meet in one attention; the scale, shift and gate of every norm and sub-layer come from
one vector of time and pooled text. FLUX.1 puts blocks of one joint stream behind them. Blocks of
Wan 2.1 have the patches of a video alone, and attend to them and then to the text. The encoders of
text and images are frozen and no part of the model: their results are its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

from phaze_opt.errors import InputError
from phaze_opt.workload.config_checks import refuse_outside


@dataclass(frozen=True)
class Diffusion:
    """What a diffusion transformer has beside the shape of its blocks.

    Attributes
    ----------
    text_tokens, text_width
        Tokens of the text beside those of the image, and elements of each as they come in.
    pooled_width
        Elements of the vector of the whole text.
    time_width
        Elements of the sines of the time step.
    single_layers
        Blocks of one joint stream behind those of two streams.
    guided
        Whether the strength of the guidance is embedded as the time step is.
    keeps_text
        Whether the last block of two streams gives the text too; it must where single ones follow.
    crosses
        Whether blocks hold patches only, and attend to the text after themselves (Wan 2.1); then
        there is no vector of the whole text, and every device has all tokens of the text.
    """

    text_tokens: int
    text_width: int
    pooled_width: int
    time_width: int = 256
    single_layers: int = 0
    guided: bool = False
    keeps_text: bool = False
    crosses: Literal[True] | UnsetType = UNSET

    def __post_init__(self) -> None:
        none = ("single_layers", "pooled_width") if self.crosses else ("single_layers",)
        for name in ("text_tokens", "text_width", "pooled_width", "time_width", "single_layers"):
            refuse_outside(name, getattr(self, name), int(name not in none))
        if self.crosses and (self.single_layers or self.pooled_width or self.guided):
            raise InputError(
                "Blocks that attend to the text have no single layers, guidance or pooled text "
                "beside them."
            )
        if self.single_layers and not self.keeps_text:
            raise InputError("Blocks of one joint stream need a last block that keeps the text.")
