"""Time of a batch for layers that are laid out over stages: the replay, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.passes.layer_cost import local_parameters
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.memory import stepped_parameters
from phaze_opt.placement.overlap import charged_s, left_after_s
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


class Replayed(NamedTuple):
    """A batch, event by event.

    Attributes
    ----------
    work
        What the stages do.
    tails
        What each still does after its last backward, where that depends on the events.
    time_s
        Of the batch, with what follows the last backwards.
    """

    work: PipelineWork
    tails: list[StageTail] | None
    time_s: float


def replayed(costs: CandidateCosts, layout: Layout) -> Replayed:
    """Replay a batch event by event, and add what follows the last backwards."""
    candidate, work = layout.candidate, pipeline_work(costs, layout)
    microbatches = costs.microbatches(candidate.data)
    if layout.chunks > 1:
        done = replay(work, microbatches, "interleaved")
        stages = range(candidate.pipeline)
        tails = [_interleaved_tail(costs, layout, done, stage) for stage in stages]
        tails_s = np.array([tail.all_s for tail in tails])
        return Replayed(work, tails, float((done.finish_s + tails_s).max()))
    ends_s = finish_s(work, microbatches, costs.schedule)
    where = layout.first[0], layout.last[0]
    tail_s = costs.tail_s(candidate, where)
    if not layout.gathers_ahead:
        tail_s = tail_s + costs.final_gather_s(candidate, ahead=False)[where]
    return Replayed(work, None, float((ends_s + tail_s).max()))


def with_fastest_gathers(costs: CandidateCosts, layout: Layout) -> tuple[Layout, Replayed]:
    """Return the layout with weights gathered when it takes less, if it gathers any; replayed."""
    group, done = costs.group(layout.candidate), replayed(costs, layout)
    if group.zero not in (1, 2) or not group.overlaps:
        return layout, done
    behind = replace(layout, gathers_ahead=False)
    options = (layout, done), (behind, replayed(costs, behind))
    return min(options, key=lambda option: option[1].time_s)


def stage_tails(costs: CandidateCosts, layout: Layout) -> list[StageTail]:
    """Return what each stage, not interleaved, does after its last backward."""
    candidate, where = layout.candidate, (layout.first[0], layout.last[0])
    network_s = costs.tied_exchange_s(candidate)[where]
    if costs.group(candidate).zero < 2:
        network_s = network_s + costs.group(candidate).synchronisation.total_s[where]
    parts = (
        costs.synchronisation_s(candidate, where),
        network_s,
        costs.optimizer_s(candidate, where),
        costs.final_gather_s(candidate, layout.gathers_ahead)[where],
    )
    return list(map(StageTail, *(part.tolist() for part in parts)))


def _interleaved_tail(costs: CandidateCosts, layout: Layout, done: Replay, stage: int) -> StageTail:
    """Return what a stage of several chunks does after its last backward."""
    candidate, group, optimizer = layout.candidate, costs.group(layout.candidate), costs.optimizer
    chain = costs.problem.layers[candidate.tensor]
    layers, reduced_bytes = layout.layers(stage, chain), costs.problem.training.reduced_bytes
    parameters = local_parameters(layers)
    each_routed = np.array([layer.routed_parameters for layer in layers], dtype=np.float64)
    whole, routed = np.array([float(parameters)]), np.array([each_routed.sum()])
    synchronisation_s = network_s = gather_s = 0.0
    if group.zero < 2:
        own = np.array(_counted_once(costs, layout, stage), dtype=np.float64)
        service_s = group.gradient_terms.table_s(own, each_routed, float(reduced_bytes))
        at_once_s = group.gradient_terms.table_s(whole, routed, float(reduced_bytes))
        synchronisation_s = network_s = float(at_once_s[0])
        if costs.problem.training.hides_gradients:
            left_s = left_after_s(
                service_s, _until_end_s(costs, layout, done, stage), group.free_share
            )
            total_s = float(service_s.sum())
            alone_s = charged_s(left_s, total_s - left_s, costs.problem.collective_core_share)
            if alone_s < synchronisation_s:
                synchronisation_s, network_s = alone_s, total_s
    if group.zero in (1, 2) and not (group.overlaps and layout.gathers_ahead):
        gather_s = float(
            group.weight_terms.table_s(whole, routed, float(optimizer.gathered_bytes))[0]
        )
    tied = [layer.tied_parameters for layer in layers]
    if max(tied) > 0 and sum(tied) < sum(layer.tied_parameters for layer in chain):
        shared_bytes = max(tied) * float(reduced_bytes)
        exchange_s = 2.0 * costs.message(candidate).seconds(shared_bytes / 2.0)
        synchronisation_s, network_s = synchronisation_s + exchange_s, network_s + exchange_s
    shards = costs.shards(candidate.data)
    stepped = stepped_parameters(layers, shards)
    optimizer_s = stepped * costs.problem.step_s_per_parameter / shards.optimizer
    optimizer_s += parameters * costs.problem.cast_s_per_parameter
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
    runs = costs.stages(layout.candidate).runs
    each_s = runs.column("backward.seconds") + runs.column("recompute.seconds")
    backward_s = costs.work(layout.candidate).backward_s
    until_end_s: list[float] = []
    for chunk, (i, j) in enumerate(layout.runs(stage)):
        end_s = done.backward_start_s[chunk, stage, -1] + backward_s[i, j]
        after_s = np.append(0.0, np.cumsum(each_s[i : j - 1]))
        until_end_s += (done.finish_s[stage] - end_s + after_s).tolist()
    return np.array(until_end_s)
