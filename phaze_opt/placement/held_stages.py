"""What the stages of a layout hold, which no time changes: found once for many designs."""

from __future__ import annotations

from typing import NamedTuple

from phaze_opt.passes.layer_cost import local_parameters
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.chain_bytes import ChainBytes, for_many_designs_if_short
from phaze_opt.placement.layout import Layout, Runs
from phaze_opt.placement.memory import Shards, stage_memory
from phaze_opt.placement.pipeline import interleaved_in_flight
from phaze_opt.placement.placement_problem import StageMemory
from phaze_opt.training import Optimizer


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


def held_stages(costs: CandidateCosts, layout: Layout) -> tuple[HeldStage, ...]:
    """Return what each stage holds."""
    candidate = layout.candidate
    if layout.chunks > 1:
        microbatches = costs.microbatches(candidate.data)
        ahead = interleaved_in_flight(candidate.pipeline, microbatches, layout.chunks)
        in_flight = (ahead / layout.chunks).tolist()
    else:
        in_flight = costs.held(candidate)[:0:-1].tolist()
    chain, shards = costs.replicated(candidate.tensor).held, costs.shards(candidate.data)
    return _held_stages(chain, layout.all_runs, tuple(in_flight), costs.optimizer, shards)


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
