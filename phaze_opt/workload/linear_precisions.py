"""Linear layers in another recipe than the others, by the names that Megatron-Core gives them.

`phaze_opt.training.Training.linear_precisions` says so, as the ``quant_recipe`` of Megatron-Bridge
does: Nemotron 3 Super is trained in nvfp4 with its projections of attention and of latent experts
in bf16, and those behind state-space mixers in mxfp8.

* ``linear_qkv``: all products of a layer that its attention hangs on; ``linear_proj``: the one
  after it.
* ``linear_fc1``, ``linear_fc2``: before and after an activation, of shared experts too.
* ``experts``: the products of routed experts; ``latent_proj``: what gives them narrower tokens,
  and widens their results.
* ``in_proj``, ``out_proj``: before and after a state-space mixer or a delta net.

The products of a linear layer are told in every pass by the size of its weight. Weights in 16 bits
have no narrow copies; else weights are held, cast once per batch and gathered as if all were in the
recipe of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from phaze_opt.errors import InputError
from phaze_opt.precision import PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.casts import linear_products, weights_of
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.layer_forward import LayerForward
from phaze_opt.workload.recipes import WeightPrecisions


@lru_cache(maxsize=256)
def linear_names(layer: Layer) -> Mapping[int, frozenset[str]]:
    """Return the names of the linear layers of a layer, by the elements of their weights."""
    forward = LayerForward(layer)
    names: dict[int, set[str]] = {}
    sizes = weights_of(forward.graph)
    for name, operators in _named_products(forward).items():
        for index in operators & set(linear_products(forward.graph)):
            names.setdefault(sizes[index], set()).add(name)
    return {size: frozenset(own) for size, own in names.items()}


def _named_products(forward: LayerForward) -> dict[str, frozenset[int]]:
    """Return the products with a weight by the name of their linear layer; each has one at most."""
    weighted = forward.weighted
    first, last = forward.around_activations
    experts = forward.expert_products
    found = {
        "experts": experts,
        "in_proj": forward.before(forward.mixer),
        "out_proj": forward.closure(forward.mixer, forward.readers, weighted),
        "linear_fc1": first,
        "linear_fc2": last,
        "linear_proj": forward.closure(forward.attention, forward.readers, weighted),
        "linear_qkv": forward.closure(forward.attention, forward.reads),
    }
    if forward.routed:
        found["latent_proj"] = forward.closure(experts, forward.reads, weighted) | (
            forward.closure(experts, forward.readers, weighted)
        )
    named: frozenset[int] = frozenset()
    for name, operators in found.items():
        found[name] = (operators & weighted) - named
        named |= found[name]
    return found


def weight_precisions(layer: Layer, training: Training) -> WeightPrecisions:
    """Return what linear layers multiply in where it is not what the others do.

    Parameters
    ----------
    layer
        A captured layer.
    training
        Says so by name.

    Returns
    -------
        Elements of a weight, and what its products multiply in; in order of the elements.
    """
    stated = training.precision_by_linear
    if not stated:
        return ()
    found = []
    for size, names in linear_names(layer).items():
        precisions = {stated.get(name, training.precision) for name in names}
        if precisions != {training.precision}:
            found.append((size, min(precisions)))
    return tuple(sorted(found))


def check_linear_precisions(variants: Iterable[WorkloadVariant], training: Training) -> None:
    """Refuse names that a model has not, and linear layers that cannot be told apart.

    Raises
    ------
    InputError
        Names the linear layers, and what the model has.
    """
    stated: Mapping[str, PrecisionName] = training.precision_by_linear
    if not stated:
        return
    for variant in variants:
        by_layer = [linear_names(layer) for layer in variant.layers]
        known = frozenset().union(*(names for sizes in by_layer for names in sizes.values()))
        missing = [name for name in stated if name not in known]
        if missing:
            raise InputError(
                f"linear_precisions names {missing[0]}, but the model has only "
                f"{', '.join(sorted(known))}."
            )
        for sizes in by_layer:
            for names in sizes.values():
                if len({stated.get(name, training.precision) for name in names}) > 1:
                    alike = " and ".join(sorted(names))
                    raise InputError(
                        f"linear_precisions is {training.linear_precisions}, but the weights of "
                        f"{alike} have as many elements, by which they are told apart; they must "
                        "be in one precision."
                    )
