"""Attention to the latest tokens and to compressed ones, and hyper-connections (DeepSeek-V4).

All heads share one key, which is the value too. Beside the latest ``window`` tokens a query sees
entries that each stand for ``r`` tokens: a softmax over a window's gates, element by element,
weighs what its tokens give. Where a layer chooses among them, windows overlap (an entry is made of
twice ``r`` tokens), and an indexer with compressed keys of its own chooses ``k`` of ``S/r``; other
layers see all. With ``w`` latest tokens, ``n = min(k, S/r)`` or ``S/r``, heads of ``d`` elements

    forward    2·S·(w + n)·h·2·d (attention) + 2·S·(S/r)·H·D (indexer, H heads of D elements)

FLOPs per sample, keys in full as everywhere; early queries, which have fewer, are masked as under a
window of ``w + n`` tokens. The indexer learns from the chosen entries by itself.

Hyper-connections keep ``m`` residual streams. Before a sub-layer they are summed with weights of
every token, and after it mixed and given its result: one product of ``m·h`` inputs makes all
``m·(m + 2)`` weights, of which ``m·m`` are made doubly stochastic by iteration.

Source: DeepSeek-AI 2026, "DeepSeek-V4", sections 2.2 and 2.3, and its released configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.errors import InputError
from phaze_opt.workload.config_checks import refuse_outside
from phaze_opt.workload.sparse_attention import Indexer

NORMALISATIONS = 20
"""Of rows and columns, that make mixing weights doubly stochastic (``hc_sinkhorn_iters``)."""


@dataclass(frozen=True)
class CompressedAttention:
    """Sizes of the attention of a model with compressed keys.

    Attributes
    ----------
    ratios
        By layer: tokens that an entry stands for; 0 for a layer without entries.
    chosen_ratio
        That of layers whose indexer chooses entries.
    indexer
        Of these layers.
    window
        Latest tokens that every query sees.
    query_rank
        Elements of the vectors that queries are made of.
    rotary
        Elements of a head with positions.
    groups, output_rank
        Groups of heads, whose results are projected to so many elements each before the last
        product.
    streams
        Residual streams that hyper-connections mix.
    """

    ratios: tuple[int, ...]
    chosen_ratio: int
    indexer: Indexer
    window: int
    query_rank: int
    rotary: int
    groups: int
    output_rank: int
    streams: int

    def __post_init__(self) -> None:
        names = "chosen_ratio", "window", "query_rank", "rotary", "groups", "output_rank", "streams"
        for name in names:
            refuse_outside(f"{name} of compressed attention", getattr(self, name), 1)
        if min(self.ratios, default=0) < 0:
            raise InputError(f"ratios is {list(self.ratios)}, but none may be below 0.")

    @property
    def mixing_weights(self) -> int:
        """Weights of a token before and after a sub-layer."""
        return self.streams * (self.streams + 2)
