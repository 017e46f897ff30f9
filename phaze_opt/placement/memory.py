"""Bytes on each device of a pipeline stage, by kind.

A stage holds the state of its parameters (weights, gradients, optimizer), one stash per microbatch
in flight, and the largest working set of any of its layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phaze_opt.placement.problem import LayerCost, StageMemory
from phaze_opt.placement.training import Optimizer


def local_parameters(layers: Iterable[LayerCost]) -> int:
    """Count a stage's parameters per device, those tied between its layers once."""
    total, tied = 0, []
    for layer in layers:
        total += layer.parameters
        tied.append(layer.tied_parameters)
    return total - sum(tied) + max(tied, default=0)


def stage_memory(layers: Sequence[LayerCost], in_flight: int, optimizer: Optimizer) -> StageMemory:
    """Return what a stage holds.

    Parameters
    ----------
    layers
        Of the stage.
    in_flight
        Most microbatches whose forward is done and whose backward is not: under 1F1B the stage's
        place from the end of the pipeline, at most the microbatches per batch.
    optimizer
        Bytes per parameter.
    """
    parameters = local_parameters(layers)
    return StageMemory(
        parameters=parameters * optimizer.weight_bytes,
        gradients=parameters * optimizer.gradient_bytes,
        optimizer=parameters * optimizer.state_bytes,
        stash=in_flight * sum(layer.stash_bytes for layer in layers),
        transient=max(layer.transient_bytes for layer in layers),
    )
