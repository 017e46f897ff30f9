"""What layers hold and send, whatever chip they run on: their costs without seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import FusionMode
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.training import Training
from phaze_opt.workload.fused_accumulation import accumulated_parameters
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.recipes import attention_stash_change_bytes, stash_change_bytes

Rate = TypeVar("Rate", float, FloatArray)


def copies_s(parameters: int, training: Training, hbm_bytes_per_s: Rate) -> tuple[Rate, Rate]:
    """Return the seconds in which a forward and a backward copy around communication.

    Nothing else of the layer runs beside the copies, see `phaze_opt.training.Training`.
    """
    forward, backward = training.copy_bytes
    return parameters * forward / hbm_bytes_per_s, parameters * backward / hbm_bytes_per_s


def memory_bytes(layer: Layer, training: Training, fusion: FusionMode) -> tuple[int, int]:
    """Return what a layer keeps per microbatch in flight, and its working set."""
    working_set = layer.fused_transient_bytes if fusion == "epilogue" else layer.transient_bytes
    kept: int = getattr(layer.stash_bytes, training.recompute)
    kept += stash_change_bytes(layer, training.precision, training.recompute)
    kept += attention_stash_change_bytes(layer, training.attention_precision, training.recompute)
    kept = max(kept, 0)
    used: int = getattr(working_set, training.recompute)
    return kept, used


def bare_chain(
    variant: WorkloadVariant, training: Training, fusion: FusionMode
) -> tuple[LayerCost, ...]:
    """Return `phaze_opt.passes.layers.DegreeCost.chain` without seconds.

    Parameters
    ----------
    variant
        The model at one tensor degree.
    training
        Says what is stashed and what runs again.
    fusion
        Of vector operators, which says what a layer holds while it runs.
    """
    return all_layers(variant, bare_layers(variant, training, fusion))


def all_layers(variant: WorkloadVariant, distinct: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
    """Return every layer of the model in topological order."""
    return tuple([distinct[index] for index in variant.kinds])


@lru_cache(maxsize=128)
def bare_layers(
    variant: WorkloadVariant, training: Training, fusion: FusionMode
) -> tuple[LayerCost, ...]:
    """Return what `bare_chain` does, of the distinct layers; the designs of a study share it."""
    return tuple([_bare_layer(layer, training, fusion) for layer in variant.layers])


@lru_cache(maxsize=128)
def has_twins(variant: WorkloadVariant, training: Training, fusion: FusionMode) -> bool:
    """Do as `phaze_opt.passes.layers.EstimatedDegree.has_twins`."""
    bare = bare_layers(variant, training, fusion)
    return len({replace(each, name="") for each in bare}) < len(bare)


def _bare_layer(layer: Layer, training: Training, fusion: FusionMode) -> LayerCost:
    """Return what the placement needs of one distinct layer, without seconds."""
    stash_bytes, transient_bytes = memory_bytes(layer, training, fusion)
    others = training.expert_parallel - 1
    routed = (layer.routed_parameters or 0) if others else 0
    frozen, frozen_tied = layer.frozen_parameters or 0, layer.frozen_tied_parameters or 0
    return LayerCost(
        name=layer.name,
        passes=LayerPasses(),
        parameters=layer.parameters - frozen,
        tied_parameters=layer.tied_parameters - frozen_tied,
        stash_bytes=stash_bytes,
        transient_bytes=transient_bytes,
        output_bytes=layer.output_bytes,
        routed_parameters=routed,
        elsewhere_parameters=routed * others,
        accumulated_parameters=accumulated_parameters(layer.backward),
        frozen_parameters=frozen,
        frozen_tied_parameters=frozen_tied,
        returns_gradient=layer.has_backward,
    )
