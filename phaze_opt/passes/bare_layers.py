"""What layers hold and send, whatever chip they run on: their costs without seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import FusionMode
from phaze_opt.passes.graphs import precisions_of
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.passes.offload import offloaded_bytes
from phaze_opt.training import Training
from phaze_opt.workload.fused_accumulation import accumulated_parameters
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.linear_precisions import weight_precisions
from phaze_opt.workload.recipes import (
    attention_stash_change_bytes,
    narrow_elements,
    stash_change_bytes,
)

Rate = TypeVar("Rate", float, FloatArray)


def copies_s(parameters: int, training: Training, memory_bytes_per_s: Rate) -> tuple[Rate, Rate]:
    """Return the seconds in which a forward and a backward copy around communication.

    Nothing else of the layer runs beside the copies, see `phaze_opt.training.Training`.
    """
    forward, backward = training.copy_bytes
    return parameters * forward / memory_bytes_per_s, parameters * backward / memory_bytes_per_s


class LayerMemory(NamedTuple):
    """What a layer holds on its device, and sends to the host.

    Attributes
    ----------
    kept_bytes
        Per microbatch in flight.
    working_bytes
        Its working set.
    sent_bytes
        Sent to the host per microbatch; see `phaze_opt.passes.offload`.
    """

    kept_bytes: int
    working_bytes: int
    sent_bytes: int


def layer_memory(layer: Layer, training: Training, fusion: FusionMode) -> LayerMemory:
    """Return what a layer holds per microbatch."""
    working_set = layer.fused_transient_bytes if fusion == "epilogue" else layer.transient_bytes
    kept: int = getattr(layer.stash_bytes, training.recompute)
    precision, attention_precision = precisions_of(layer, training)
    others = weight_precisions(layer, training)
    kept += stash_change_bytes(layer, precision, training.recompute, others)
    kept += attention_stash_change_bytes(layer, attention_precision, training.recompute)
    kept = max(kept, 0)
    used: int = getattr(working_set, training.recompute)
    sent, on_device = offloaded_bytes(layer, training, kept)
    return LayerMemory(kept - sent, used + on_device, sent)


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


def narrow_weights(layer: Layer, training: Training) -> int:
    """Count the parameters of a layer that are held as narrow operands of its products too."""
    precision, _ = precisions_of(layer, training)
    held = narrow_elements(layer.forward, precision, weight_precisions(layer, training))
    return min(held, layer.parameters)


@lru_cache(maxsize=128)
def bare_layers(
    variant: WorkloadVariant, training: Training, fusion: FusionMode
) -> tuple[LayerCost, ...]:
    """Return what `bare_chain` does, of the distinct layers; the designs of a study share it."""
    tensor = variant.tensor_parallel
    return tuple([_bare_layer(layer, training, fusion, tensor) for layer in variant.layers])


@lru_cache(maxsize=128)
def has_twins(variant: WorkloadVariant, training: Training, fusion: FusionMode) -> bool:
    """Do as `phaze_opt.passes.layers.EstimatedDegree.has_twins`."""
    bare = bare_layers(variant, training, fusion)
    return len({replace(each, name="") for each in bare}) < len(bare)


def _bare_layer(layer: Layer, training: Training, fusion: FusionMode, tensor: int) -> LayerCost:
    """Return what the placement needs of one distinct layer, without seconds."""
    held = layer_memory(layer, training, fusion)
    apart, holding = training.holds_experts_apart(tensor), training.expert_devices(tensor)
    routed = (layer.routed_parameters or 0) if apart else 0
    frozen, frozen_tied = layer.frozen_parameters or 0, layer.frozen_tied_parameters or 0
    wide = layer.parameters - narrow_weights(layer, training) if training.state.wide_bytes else 0
    return LayerCost(
        name=layer.name,
        passes=LayerPasses(),
        parameters=layer.parameters - frozen,
        tied_parameters=layer.tied_parameters - frozen_tied,
        stash_bytes=held.kept_bytes,
        transient_bytes=held.working_bytes,
        output_bytes=layer.output_bytes,
        routed_parameters=routed,
        elsewhere_parameters=-(-routed * holding // tensor) - routed,
        accumulated_parameters=accumulated_parameters(layer.backward),
        offloaded_bytes=held.sent_bytes,
        frozen_parameters=frozen,
        frozen_tied_parameters=frozen_tied,
        wide_parameters=wide,
        wide_tied_parameters=min(wide, layer.tied_parameters),
        returns_gradient=layer.has_backward,
    )
