"""What the stages of a layout hold, which no time changes: found once for many designs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.optimizers import Optimizer
from phaze_opt.passes.layer_cost import local_parameters
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.chain_bytes import ChainBytes, for_many_designs_if_short
from phaze_opt.placement.layout import Layout, Runs
from phaze_opt.placement.memory import Shards, stage_memory
from phaze_opt.placement.pipeline import interleaved_in_flight
from phaze_opt.placement.placement_problem import StageMemory


class HeldStage(NamedTuple):
    """What a stage holds, per device.

    Attributes
    ----------
    memory
        Bytes by kind.
    parameters
        Tied ones once.
    shared_parameters
        Those tied to layers of other stages.
    routed_parameters
        A share of the routed experts, where they are shared out.
    """

    memory: StageMemory
    parameters: int
    shared_parameters: int
    routed_parameters: int


def held_stages(
    costs: CandidateCosts, layout: Layout, peak_bytes: FloatArray | None = None
) -> tuple[HeldStage, ...]:
    """Return what each stage holds.

    Parameters
    ----------
    costs, layout
        The stages.
    peak_bytes : (stages,)
        What microbatches hold at most, where the schedule splits the backward.
    """
    candidate = layout.candidate
    if peak_bytes is not None:
        return tuple(
            [
                own._replace(memory=replace(own.memory, stash=math.ceil(stash)))
                for own, stash in zip(
                    _held_without_stash(costs, layout), peak_bytes.tolist(), strict=True
                )
            ]
        )
    if layout.chunks > 1:
        microbatches = costs.microbatches(candidate.data)
        ahead = interleaved_in_flight(candidate.pipeline, microbatches, layout.chunks)
        in_flight = (ahead / layout.chunks).tolist()
    else:
        in_flight = costs.held(candidate)[:0:-1].tolist()
    chain, shards = costs.replicated(candidate.tensor).held, costs.shards(candidate.data)
    return _held_stages(chain, layout.all_runs, tuple(in_flight), costs.optimizer, shards)


def _held_without_stash(costs: CandidateCosts, layout: Layout) -> tuple[HeldStage, ...]:
    """Return what each stage holds without microbatches in flight."""
    candidate = layout.candidate
    chain, shards = costs.replicated(candidate.tensor).held, costs.shards(candidate.data)
    none = (0.0,) * candidate.pipeline
    return _held_stages(chain, layout.all_runs, none, costs.optimizer, shards)


def resident_bytes(costs: CandidateCosts, layout: Layout) -> FloatArray:
    """Return what each stage holds beside microbatches in flight, of shape ``(stages,)``."""
    held = _held_without_stash(costs, layout)
    return np.array([own.memory.total for own in held], dtype=np.float64)


@for_many_designs_if_short
def _held_stages(
    chain: ChainBytes,
    runs: tuple[Runs, ...],
    in_flight: tuple[float, ...],
    optimizer: Optimizer,
    shards: Shards,
) -> tuple[HeldStage, ...]:
    """Return what stages hold that consist of some runs of layers."""
    layers, all_tied = chain.layers, sum(chain.parameters.tied)

    def held(own_runs: Runs, microbatches: float) -> HeldStage:
        own = [layer for i, j in own_runs for layer in layers[i:j]]
        tied = [layer.tied_parameters for layer in own]
        return HeldStage(
            stage_memory(own, microbatches, optimizer, shards),
            local_parameters(own),
            max(tied) if sum(tied) < all_tied else 0,
            sum([layer.routed_parameters for layer in own]),
        )

    return tuple(map(held, runs, in_flight))
