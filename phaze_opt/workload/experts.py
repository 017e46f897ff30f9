"""Mixtures of experts and latent attention: their shapes, and the products of a group of experts.

Pure data, without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

from phaze_opt.codec import data_table
from phaze_opt.errors import InputError
from phaze_opt.precision import PRECISIONS, PrecisionName
from phaze_opt.workload.config_checks import refuse_outside
from phaze_opt.workload.graph import Gemm

TILE_ROWS = int(data_table("workload", "experts.toml")["tile_rows"])
"""Rows of a tile of grouped products, to a multiple of which the rows of an expert are filled."""


@dataclass(frozen=True)
class Experts:
    """Feed-forward networks of which a router chooses a few for every token.

    Attributes
    ----------
    count, top_k
        Routed experts of a block, and how many of them work on a token.
    feed_forward
        Inner width of a routed expert.
    shared
        Inner width of the experts that work on every token, as one network; 0 for none.
    shared_gate
        Whether the result of the shared experts is scaled by a gate per token (Qwen 2).
    dense_layers
        Blocks that have a feed-forward network of the model's own width instead.
    scores
        What makes the router's logits weights: a softmax over all experts, or a sigmoid of each
        (DeepSeek-V3). A correction that balances the experts is no parameter: it has no gradient.
    groups, top_groups
        Into how many groups of neighbours the experts are divided, and from how many of them those
        of a token are chosen, so that it goes to few nodes (DeepSeek-V3); all experts are open to
        every token where both are equal.
    capacity
        Rows that every expert has, relative to even routing: tokens beyond them are dropped, fewer
        are filled up. Not set where each has the tokens that come.
    router_bias, bias
        Whether the router, and every linear layer of a routed expert, has a bias.
    latent
        Width to which tokens are projected before they go to their routed experts, which then have
        it in place of the model's (Nemotron 3 Super); not set where they have the model's.
    """

    count: int
    top_k: int
    feed_forward: int
    shared: int = 0
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()
    scores: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    bias: bool = False
    groups: int = 1
    top_groups: int = 1
    capacity: float | UnsetType = UNSET
    latent: int | UnsetType = UNSET

    def __post_init__(self) -> None:
        least = {"count": 1, "top_k": 1, "feed_forward": 1, "shared": 0}
        latent = {"latent": 1} if self.latent is not UNSET else {}
        _check(self, {**least, "groups": 1, "top_groups": 1, **latent})
        if self.top_k > self.count:
            raise InputError(
                f"top_k is {self.top_k}, but it must be at most the {self.count} experts."
            )
        if self.count % self.groups:
            raise InputError(
                f"groups is {self.groups}, but it must divide the {self.count} experts."
            )
        open_experts = self.top_groups * self.count // self.groups
        if not (self.top_groups <= self.groups and self.top_k <= max(open_experts, 1)):
            raise InputError(
                f"top_groups is {self.top_groups}, but it must be at most the {self.groups} groups "
                f"and have at least the {self.top_k} experts of a token."
            )
        if self.scores not in ("softmax", "sigmoid"):
            raise InputError(f"scores is {self.scores!r}, but it must be softmax or sigmoid.")

    def rows(self, chosen: int) -> int:
        """Return the rows of all experts, of so many tokens times the experts of each."""
        if not self.capacity:
            return chosen
        return rows_of_capacity(chosen, self.count, self.capacity)


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose keys and values are made of one short vector per token (DeepSeek-V2).

    Attributes
    ----------
    query_rank, kv_rank
        Elements of the vectors that queries, and keys and values, are made of; a ``query_rank`` of
        0 makes queries of the residual stream itself.
    plain, rotary
        Elements of a query and key head without and with positions; all heads share the part of
        the keys with positions.
    value
        Elements of a value head.
    """

    kv_rank: int
    plain: int
    rotary: int
    value: int
    query_rank: int = 0

    def __post_init__(self) -> None:
        _check(self, {"kv_rank": 1, "plain": 1, "rotary": 1, "value": 1, "query_rank": 0})

    @property
    def width(self) -> int:
        """Elements of a query and key head."""
        return self.plain + self.rotary


def _check(shape: object, least: dict[str, int]) -> None:
    """Refuse sizes that are too small, or larger than those of any model."""
    for name, lowest in least.items():
        refuse_outside(name, getattr(shape, name), lowest)


def rows_of_expert(rows: int, experts: int, tile: int = TILE_ROWS) -> int:
    """Return the rows that a grouped product computes for each expert, evenly routed.

    Parameters
    ----------
    rows
        Of all experts: tokens times the experts of each.
    experts
        That share them.
    tile
        To a multiple of which the rows of an expert are filled.
    """
    return -(-rows // (experts * tile)) * tile


def rows_of_capacity(chosen: int, experts: int, capacity: float) -> int:
    """Return the rows of all experts, each of which has as many.

    Parameters
    ----------
    chosen
        Tokens times the experts of each.
    experts
        That share them.
    capacity
        Rows of an expert relative to even routing; tokens beyond them are dropped.
    """
    return experts * math.ceil(chosen * capacity / experts)


def grouped_product(rows: int, weight: tuple[int, int, int], tile: int = TILE_ROWS) -> Gemm:
    """Return the product of rows sorted by expert and the weights of the experts.

    Parameters
    ----------
    rows
        Of all experts.
    weight
        Experts, outputs, inputs.
    tile
        As for `rows_of_expert`.
    """
    experts, outputs, inputs = weight
    return Gemm(m=rows_of_expert(rows, experts, tile), n=outputs, k=inputs, batch=experts)


def grouped_weight_gradient(rows: int, weight: tuple[int, int, int], tile: int = TILE_ROWS) -> Gemm:
    """Return the product that is the gradient of the weights of the experts."""
    experts, outputs, inputs = weight
    return Gemm(m=outputs, n=inputs, k=rows_of_expert(rows, experts, tile), batch=experts)


def surplus_flops(gemm: Gemm, rows: int, weight: tuple[int, int, int], devices: int = 1) -> int:
    """Return the FLOPs of a grouped product that are no part of the model.

    Parameters
    ----------
    gemm
        The product, with filled rows.
    rows, weight
        As for `grouped_product`.
    devices
        Devices that compute the same.
    """
    _, outputs, inputs = weight
    return gemm.flops - 2 * rows * outputs * inputs // devices


def token_bytes(hidden: int, precision: PrecisionName = "bf16") -> int:
    """Return what a token takes on its way: 2 bytes per element, or what a recipe stores.

    What has one scale for more than 128 elements is sent with one per 128, as DeepEP sends fp8.
    """
    stated = PRECISIONS[precision]
    blocked = PRECISIONS["fp8-block"]
    if stated.arrays == "fp8" and stated.operand_bytes < blocked.operand_bytes:
        stated = blocked
    return math.ceil(hidden * stated.operand_bytes)


def is_gated(activation: str) -> bool:
    """Say whether an activation has a gate beside its value, and its network three matrices."""
    return activation in ("swiglu", "geglu")
