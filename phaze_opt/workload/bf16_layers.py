"""Layers at the start and at the end of a model that stay in 16 bits, whatever the recipe.

As ``first_last_layers_bf16`` of Megatron-LM, with ``num_layers_at_start_in_bf16`` and
``num_layers_at_end_in_bf16``: such a layer runs outside the recipe as a whole, its fused attention
too. A layer counts here if it has linear layers that a recipe would cast, so embeddings and the
layer with the loss, which stay in 16 bits anyway, are none.

Passes, stash and weights of these layers are those of 16 bits; weights are cast and gathered as if
all layers were in the recipe, as those of embeddings are too (`phaze_opt.training.Training.state`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from phaze_opt.errors import InputError
from phaze_opt.training import Training
from phaze_opt.workload.casts import linear_products
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.recipes import has_loss


def with_bf16_layers(variant: WorkloadVariant, training: Training) -> WorkloadVariant:
    """Return a model whose first and last layers are marked as staying in 16 bits.

    Parameters
    ----------
    variant
        As its devices have it.
    training
        Says how many layers do so, and in what the others run.

    Raises
    ------
    InputError
        If the model has fewer layers.
    """
    counts = training.bf16_layers_at_start, training.bf16_layers_at_end
    if counts == (0, 0):
        return variant
    marked = _marked(variant, *counts)
    return marked if training.is_narrow else variant


@lru_cache(maxsize=64)
def _marked(variant: WorkloadVariant, at_start: int, at_end: int) -> WorkloadVariant:
    """Mark layers by their places; a distinct layer may then be there twice."""
    castable = [_is_castable(layer) for layer in variant.layers]
    places = [place for place, kind in enumerate(variant.kinds) if castable[kind]]
    if at_start + at_end > len(places):
        raise InputError(
            f"bf16_layers_at_start is {at_start} and bf16_layers_at_end is {at_end}, but the model "
            f"has {len(places)} layers that a recipe casts, and no more can stay in bf16."
        )
    wide = {*places[:at_start], *places[len(places) - at_end :]}
    narrow_kinds = {kind for place, kind in enumerate(variant.kinds) if place not in wide}
    wide_kinds = {variant.kinds[place] for place in wide}
    layers: list[Layer] = []
    index_of: dict[tuple[int, bool], int] = {}
    for kind, layer in enumerate(variant.layers):
        if kind in narrow_kinds or kind not in wide_kinds:
            index_of[kind, False] = len(layers)
            layers.append(layer)
        if kind in wide_kinds:
            index_of[kind, True] = len(layers)
            layers.append(replace(layer, name=f"{layer.name} in bf16", in_bf16=True))
    nodes = tuple(
        [(name, index_of[kind, place in wide]) for place, (name, kind) in enumerate(variant.nodes)]
    )
    return replace(variant, layers=tuple(layers), nodes=nodes)


def _is_castable(layer: Layer) -> bool:
    """Say whether a recipe would cast operands of linear layers of a layer."""
    return not has_loss(layer) and bool(linear_products(layer.forward))
