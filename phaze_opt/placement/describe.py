"""A placement in full: stages with memory, and the time of a batch by kind."""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.placement.best import replayed_s
from phaze_opt.placement.candidates import Candidate, CandidateCosts
from phaze_opt.placement.costs import StageCosts
from phaze_opt.placement.memory import stage_memory
from phaze_opt.placement.pipeline import Replay, replay
from phaze_opt.placement.placement_problem import ChunkWork, Placement, Stage


def stage_bounds(starts: IntArray, layers: int) -> list[tuple[int, int]]:
    """Return first and last + 1 layer of every stage."""
    first = [int(start) for start in starts]
    return list(zip(first, [*first[1:], layers], strict=True))


def describe(costs: CandidateCosts, candidate: Candidate, starts: IntArray) -> Placement:
    """Describe a split in full."""
    level = costs.level(candidate)
    table = costs.stages(candidate, level)
    layers = costs.problem.layers[candidate.tensor]
    bounds = stage_bounds(starts, len(layers))
    held = costs.held(candidate)[:0:-1].tolist()
    shards = costs.shards(candidate.data)
    synchronisation_s = costs.synchronisation_s(candidate, level)
    optimizer_s = costs.optimizer_s(candidate, level)
    stages = tuple(
        Stage(
            layers=tuple(layer.name for layer in layers[i:j]),
            devices=candidate.tensor,
            load_s=float(table.load_s[i, j]),
            memory_bytes=stage_memory(layers[i:j], held[index], costs.optimizer, shards),
            work=(chunk_work(table, i, j),),
            synchronisation_s=float(synchronisation_s[i, j]),
            optimizer_s=float(optimizer_s[i, j]),
            sent_bytes=costs.sent_bytes(candidate, level, [(i, j)]),
        )
        for index, (i, j) in enumerate(bounds)
    )
    time_s = replayed_s(costs, candidate, starts)
    heaviest = max(range(len(stages)), key=lambda index: (stages[index].load_s, -index))
    return Placement(
        pipeline=candidate.pipeline,
        data=candidate.data,
        tensor=candidate.tensor,
        rank_order=candidate.rank_order,
        pipeline_schedule=costs.schedule,
        microbatches=costs.microbatches(candidate.data),
        stages=stages,
        time_per_batch_s=time_s,
        time_breakdown_s=_breakdown(costs, candidate, bounds[heaviest], time_s),
    )


def placement_replay(placement: Placement) -> Replay:
    """Replay one batch of a placement event by event."""
    by_chunk = list(zip(*(stage.work for stage in placement.stages), strict=True))
    return replay(
        np.array([[work.forward_s for work in chunk] for chunk in by_chunk]),
        np.array([[work.backward_s for work in chunk] for chunk in by_chunk]),
        placement.microbatches,
        placement.pipeline_schedule,
    )


def chunk_work(table: StageCosts, first: int, end: int) -> ChunkWork:
    """Return what a run of layers does for one microbatch."""
    return ChunkWork(
        forward_s=float(table.forward_work_s[first, end]),
        backward_s=float(table.backward_work_s[first, end]),
        recompute_s=float(table.recompute_s[first, end]),
    )


def _breakdown(
    costs: CandidateCosts, candidate: Candidate, stage: tuple[int, int], time_s: float
) -> dict[str, float]:
    """Split the time by kind along one stage; the bubble is what it waits."""
    level = costs.level(candidate)
    table = costs.stages(candidate, level)
    microbatches = costs.microbatches(candidate.data)
    transfer_s = table.receive_activation_s + table.receive_gradient_s
    parts = {
        "forward": microbatches * float(table.forward_s[stage]),
        "backward": microbatches * float(table.backward_s[stage]),
        "recompute": microbatches * float(table.recompute_s[stage]),
        "transfer": microbatches * float(transfer_s[stage]),
        "gradient_accumulation": microbatches * float(table.accumulation_s[stage]),
        "optimizer": float(costs.optimizer_s(candidate, level)[stage]),
        "gradient_synchronisation": float(costs.synchronisation_s(candidate, level)[stage]),
    }
    if table.gather_s.any():
        parts["parameter_gather"] = 2 * microbatches * float(table.gather_s[stage])
    parts["bubble"] = max(0.0, time_s - sum(parts.values()))
    return parts
