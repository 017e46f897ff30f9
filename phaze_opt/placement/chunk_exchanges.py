"""What every chunk of every stage of a placement exchanges for one microbatch, each kind apart.

The replay of a batch needs their sums only, which `placement_problem.ChunkWork` has; who writes
the events down for others needs the parts.
"""

from __future__ import annotations

from typing import NamedTuple

from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.size import ONE_CANDIDATE, check_memory
from phaze_opt.placement.solve_placement import layer_starts, placed_candidate
from phaze_opt.placement.split_backward import folded
from phaze_opt.placement.synchronisation import Exchange

Run = tuple[int, int]


class PartlyHidden(NamedTuple):
    """Communication of which a part runs beside compute, in seconds."""

    exposed_s: float = 0.0
    total_s: float = 0.0


class ChunkExchanges(NamedTuple):
    """What a chunk of a stage exchanges for one microbatch, per device.

    Attributes
    ----------
    run
        First layer, and last + 1.
    activation_s, gradient_s
        Receiving them from other stages.
    activation_bytes, gradient_bytes
        What a device sends for that.
    forward_gather, backward_gather
        Weights that come in for the forward and for the backward (ZeRO 3).
    reduction
        Gradients that go out in every backward (ZeRO 2 and 3).
    parameters
        Of the chunk, on a device.
    """

    run: Run
    activation_s: float
    gradient_s: float
    activation_bytes: float
    gradient_bytes: float
    forward_gather: PartlyHidden
    backward_gather: PartlyHidden
    reduction: PartlyHidden
    parameters: int


def chunk_exchanges(
    problem: PlacementProblem, placement: Placement
) -> tuple[tuple[ChunkExchanges, ...], ...]:
    """Return what every chunk of every stage exchanges.

    Parameters
    ----------
    problem
        What was placed.
    placement
        Of its layers.

    Returns
    -------
    By stage and chunk.

    Raises
    ------
    InputError
        If the model has so many layers that their tables would take too much memory.
    """
    check_memory(
        sum(len(stage.layers) for stage in placement.stages),
        problem.cluster.devices,
        [ONE_CANDIDATE],
    )
    costs, candidate = CandidateCosts(problem), placed_candidate(placement)
    layout = _layout_of(costs, candidate, placement)
    turn = layout.zero_bubble is not None and layout.chunks > 1 and costs.is_chain
    last_stage = candidate.pipeline - 1
    by_stage = []
    for stage, runs in enumerate(layout.all_runs):
        own = [_of_run(costs, candidate, run) for run in runs]
        if turn and stage == last_stage:
            # Where the V turns, both layers are on one device.
            own[0] = own[0]._replace(gradient_s=0.0, gradient_bytes=0.0)
            own[1] = own[1]._replace(activation_s=0.0, activation_bytes=0.0)
        by_stage.append(tuple(own))
    return tuple(by_stage)


def _layout_of(costs: CandidateCosts, candidate: Candidate, placement: Placement) -> Layout:
    """Lay the layers out as they are placed; several chunks are even parts."""
    chunks = len(placement.stages[0].work)
    if chunks == 1:
        return Layout.of_starts(candidate, layer_starts(placement), costs.layers)
    if placement.pipeline_schedule == "zb-v":
        return folded(costs, candidate)
    return costs.even_layout(candidate, chunks)


def _of_run(costs: CandidateCosts, candidate: Candidate, run: Run) -> ChunkExchanges:
    """Read the tables for one run of layers."""
    stages, group = costs.stages(candidate), costs.group(candidate)
    sent_bytes = stages.transfer_bytes
    activation_bytes = min(float(sent_bytes[run[0], costs.layers]), float(sent_bytes[run]))
    gather = reduction = PartlyHidden()
    backward_gather = PartlyHidden()
    if group.zero == 3:
        gather = _at(group.forward_gather, run)
    if group.zero >= 2:
        backward_gather, reduction = (_at(each, run) for each in group.every_backward)
    return ChunkExchanges(
        run=run,
        activation_s=float(stages.received.activation_s[run]),
        gradient_s=float(stages.received.gradient_s[run]),
        activation_bytes=activation_bytes,
        gradient_bytes=float(sent_bytes[run]) - activation_bytes,
        forward_gather=gather,
        backward_gather=backward_gather,
        reduction=reduction,
        parameters=int(costs.replicated(candidate.tensor).parameters[run]),
    )


def _at(exchange: Exchange, run: Run) -> PartlyHidden:
    """Read an exchange of one run."""
    return PartlyHidden(float(exchange.exposed_s[run]), float(exchange.total_s[run]))
