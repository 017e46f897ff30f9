"""Time of a batch for layers that are laid out over stages: the replay, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.costs import collective_table_s
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.memory import local_parameters
from phaze_opt.placement.overlap import left_after_s
from phaze_opt.placement.pipeline import PipelineWork, Replay, finish_s, replay


@dataclass(frozen=True)
class StageTail:
    """What a stage still does after its last backward, in this order.

    Attributes
    ----------
    synchronisation_s, network_s
        Exposed synchronisation of gradients; all of it, hidden or not.
    optimizer_s
        The optimizer step.
    gather_s
        Updated weights gathered, where that does not overlap with the next batch.
    """

    synchronisation_s: float
    network_s: float
    optimizer_s: float
    gather_s: float

    @property
    def all_s(self) -> float:
        """Everything."""
        return self.synchronisation_s + self.optimizer_s + self.gather_s


def pipeline_work(costs: CandidateCosts, layout: Layout) -> PipelineWork:
    """Return what every chunk of every stage does."""
    work = costs.work(layout.candidate)
    where = layout.first, layout.last
    head_s = work.head_s[where] if layout.gathers_ahead else np.zeros(layout.first.shape)
    if layout.chunks > 1 and head_s.any():
        # The weights of a chunk come in after those of the chunks before it.
        gather_s = costs.group(layout.candidate).forward_gather.total_s[where]
        head_s = head_s + np.cumsum(gather_s, axis=0) - gather_s
    # The first microbatch's backward is shorter: it has nothing to add up.
    saving_s = work.stages.accumulation_s(where)
    return PipelineWork(work.forward_s[where], work.backward_s[where], saving_s, head_s)


def _replay(costs: CandidateCosts, layout: Layout, work: PipelineWork) -> Replay:
    """Replay a batch of interleaved stages event by event."""
    return replay(work, costs.microbatches(layout.candidate.data), "interleaved")


def _finish_s(costs: CandidateCosts, layout: Layout, work: PipelineWork) -> FloatArray:
    """Replay a batch of other stages, for the ends of their last backwards."""
    return finish_s(work, costs.microbatches(layout.candidate.data), costs.schedule)


class Timed(NamedTuple):
    """What the stages do, what each still does after its last backward, and the time of a batch."""

    work: PipelineWork
    tails: list[StageTail]
    time_s: float


def timed_layout(costs: CandidateCosts, layout: Layout) -> Timed:
    """Replay a batch event by event, and add what follows it."""
    work = pipeline_work(costs, layout)
    if layout.chunks > 1:
        done = _replay(costs, layout, work)
        finished_s, tails = done.finish_s, _interleaved_tails(costs, layout, done)
    else:
        finished_s, tails = _finish_s(costs, layout, work), _stage_tails(costs, layout)
    ends_s = zip(finished_s.tolist(), tails, strict=True)
    return Timed(work, tails, max([end_s + tail.all_s for end_s, tail in ends_s]))


def replayed_s(costs: CandidateCosts, layout: Layout) -> float:
    """Return the time of a batch by event replay, with what follows the last backwards."""
    if layout.chunks > 1:
        return timed_layout(costs, layout).time_s
    finished_s = _finish_s(costs, layout, pipeline_work(costs, layout))
    tail_s = costs.tail_s(layout.candidate)
    if not layout.gathers_ahead:
        tail_s = tail_s + costs.final_gather_s(layout.candidate, ahead=False)
    return float((finished_s + tail_s[layout.first[0], layout.last[0]]).max())


def with_fastest_gathers(costs: CandidateCosts, layout: Layout) -> Layout:
    """Return the layout with weights gathered when it takes less, if it gathers any."""
    group = costs.group(layout.candidate)
    if group.zero not in (1, 2) or not group.overlaps:
        return layout
    behind = replace(layout, gathers_ahead=False)
    return min((layout, behind), key=lambda option: replayed_s(costs, option))


def _stage_tails(costs: CandidateCosts, layout: Layout) -> list[StageTail]:
    """Return what each stage, not interleaved, does after its last backward."""
    candidate = layout.candidate
    synchronisation_s = costs.synchronisation_s(candidate)
    network_s = costs.tied_exchange_s(candidate)
    if costs.group(candidate).zero < 2:
        network_s = network_s + costs.group(candidate).synchronisation.total_s
    tables = (
        synchronisation_s,
        network_s,
        costs.optimizer_s(candidate),
        costs.final_gather_s(candidate, layout.gathers_ahead),
    )
    where = layout.first[0], layout.last[0]
    return list(map(StageTail, *(table[where].tolist() for table in tables)))


def _interleaved_tails(costs: CandidateCosts, layout: Layout, done: Replay) -> list[StageTail]:
    """Return the same of interleaved stages, whose replay says when gradients can be sent."""
    stages = range(layout.candidate.pipeline)
    return [_interleaved_tail(costs, layout, done, stage) for stage in stages]


def _interleaved_tail(costs: CandidateCosts, layout: Layout, done: Replay, stage: int) -> StageTail:
    """Return what a stage of several chunks does after its last backward."""
    candidate, group, optimizer = layout.candidate, costs.group(layout.candidate), costs.optimizer
    chain = costs.problem.layers[candidate.tensor]
    layers = layout.layers(stage, chain)
    parameters = local_parameters(layers)
    synchronisation_s = network_s = gather_s = 0.0
    if group.zero < 2:
        own = np.array(_counted_once(costs, layout, stage), dtype=np.float64)
        service_s = collective_table_s(group.gradient_terms, own * optimizer.gradient_bytes)
        whole = np.array([parameters * float(optimizer.gradient_bytes)])
        synchronisation_s = network_s = float(collective_table_s(group.gradient_terms, whole)[0])
        if group.overlaps:
            left_s = left_after_s(
                service_s, _until_end_s(costs, layout, done, stage), group.free_share
            )
            total_s = float(service_s.sum())
            charged_s = left_s + costs.problem.collective_core_share * (total_s - left_s)
            if charged_s < synchronisation_s:
                synchronisation_s, network_s = charged_s, total_s
    if group.zero in (1, 2) and not (group.overlaps and layout.gathers_ahead):
        whole = np.array([parameters * float(optimizer.weight_bytes)])
        gather_s = float(collective_table_s(group.weight_terms, whole)[0])
    tied = [layer.tied_parameters for layer in layers]
    if max(tied) > 0 and sum(tied) < sum(layer.tied_parameters for layer in chain):
        shared_bytes = max(tied) * float(optimizer.gradient_bytes)
        exchange_s = 2.0 * costs.message(candidate).seconds(shared_bytes / 2.0)
        synchronisation_s, network_s = synchronisation_s + exchange_s, network_s + exchange_s
    shards = costs.shards(candidate.data).optimizer
    optimizer_s = parameters * costs.problem.step_s_per_parameter / shards
    return StageTail(synchronisation_s, network_s, optimizer_s, gather_s)


def _counted_once(costs: CandidateCosts, layout: Layout, stage: int) -> list[int]:
    """Return the parameters of every layer of a stage, tied ones with the first that holds them."""
    counts, held = [], False
    for layer in layout.layers(stage, costs.problem.layers[layout.candidate.tensor]):
        counts.append(layer.parameters - (layer.tied_parameters if held else 0))
        held = held or layer.tied_parameters > 0
    return counts


def _until_end_s(costs: CandidateCosts, layout: Layout, done: Replay, stage: int) -> FloatArray:
    """Return how long before the end of a stage's compute each layer's gradients are complete."""
    chain = costs.problem.layers[layout.candidate.tensor]
    backward_s = costs.work(layout.candidate).backward_s
    until_end_s: list[float] = []
    for chunk, (i, j) in enumerate(layout.runs(stage)):
        end_s = done.backward_start_s[chunk, stage, -1] + backward_s[i, j]
        after_s = np.cumsum(
            [0.0, *(layer.backward_s + layer.recompute_s for layer in chain[i : j - 1])]
        )
        until_end_s += (done.finish_s[stage] - end_s + after_s).tolist()
    return np.array(until_end_s)
