"""Bytes on each device of a pipeline stage, by kind.

A stage holds the state of its parameters (weights, gradients, optimizer), one stash per microbatch
in flight, and the largest working set of any of its layers: `stage_memory` of one stage by kind,
`phaze_opt.placement.chain_bytes.held_by_runs` of all possible ones, with the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.compiled import inlined
from phaze_opt.optimizers import Optimizer
from phaze_opt.passes.layer_cost import (
    LayerCost,
    local_frozen_parameters,
    local_parameters,
    local_wide_parameters,
)
from phaze_opt.placement.placement_problem import StageMemory

Bytes = TypeVar("Bytes", float, FloatArray)


class Shards(NamedTuple):
    """Over how many replicas ZeRO shares out weights, gradients and optimizer state."""

    weights: int = 1
    gradients: int = 1
    optimizer: int = 1

    @classmethod
    def of(cls, zero: int, data: int) -> Shards:
        """Return the shards of a ZeRO stage with so many replicas."""
        return cls(*[data if zero >= stage else 1 for stage in (3, 2, 1)])

    def state_bytes(self, optimizer: Optimizer) -> float:
        """Return what each device holds per parameter of its stage, not rounded."""
        kinds = zip(optimizer.held_bytes, self, strict=True)
        return sum([each / replicas for each, replicas in kinds])

    def whole_layer_bytes(self, parameters: int, elsewhere: int, optimizer: Optimizer) -> int:
        """Return what having a layer's weights and gradients whole adds to the shares.

        Parameters
        ----------
        parameters, elsewhere
            Those of the layer, and the other shares of its experts: replicas share out both.
        optimizer
            Bytes per parameter.
        """
        kinds = (
            (optimizer.whole_weight_bytes, self.weights),
            (optimizer.gradient_bytes, self.gradients),
        )
        return sum(
            [
                int(max(parameters * (replicas - 1) - elsewhere, 0) * each // replicas)
                for each, replicas in kinds
                if replicas > 1
            ]
        )


UNSHARDED = Shards()
"""Every replica holds everything."""


@inlined
def share_bytes(parameters: float, bytes_each: float, replicas: float) -> float:
    """Return what one of some replicas holds of a kind of state, whole bytes."""
    rounded: float = np.ceil(parameters * bytes_each / replicas)
    return rounded


@inlined
def with_stashes(resident_bytes: Bytes, stash_bytes: Bytes, in_flight: Bytes) -> Bytes:
    """Return what a stage holds: state and working set, and a stash of each microbatch."""
    return resident_bytes + in_flight * stash_bytes


def stepped_parameters(layers: Sequence[LayerCost], shards: Shards) -> int:
    """Count the parameters of a stage that an optimizer steps, over all that share its state out.

    What replicas share out, they share over all of them, the shares of experts too.
    """
    stepped = local_parameters(layers)
    if shards.optimizer > 1:
        stepped += sum([layer.elsewhere_parameters for layer in layers])
    return stepped


def stage_memory(
    layers: Sequence[LayerCost], in_flight: float, optimizer: Optimizer, shards: Shards = UNSHARDED
) -> StageMemory:
    """Return what a stage holds.

    Parameters
    ----------
    layers
        Of the stage.
    in_flight
        Most microbatches whose forward is done and whose backward is not: under 1F1B the stage's
        place from the end of the pipeline, at most the microbatches per batch. A fraction where
        part of an interleaved stage's chunks hold one microbatch more.
    optimizer
        Bytes per parameter.
    shards
        What replicas share out. Shared-out weights are gathered, and gradients that are to be
        shared out are whole, for one layer at a time: the other replicas' shares of the largest
        layer add to the working set.
    """
    parameters = local_parameters(layers)
    # What replicas share out, they share over all of them, the shares of experts too.
    whole = parameters + sum([layer.elsewhere_parameters for layer in layers])
    kinds = zip(optimizer.held_bytes, shards, strict=True)
    weights, gradients, state = (
        int(share_bytes(whole if replicas > 1 else parameters, each, replicas))
        for each, replicas in kinds
    )
    stash = math.ceil(in_flight * sum([layer.stash_bytes for layer in layers]))
    working_set = max([layer.transient_bytes for layer in layers])
    whole_layer = max(
        [
            shards.whole_layer_bytes(layer.parameters, layer.elsewhere_parameters, optimizer)
            for layer in layers
        ]
    )
    frozen, weight_bytes = local_frozen_parameters(layers), optimizer.held_bytes[0]
    weights += int(share_bytes(frozen, weight_bytes, 1.0))
    weights += int(share_bytes(local_wide_parameters(layers), optimizer.wide_bytes, 1.0))
    return StageMemory(weights, gradients, state, stash, working_set + whole_layer)
