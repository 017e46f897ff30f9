"""Time of a batch for layers that are laid out over stages: the replay, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.passes.layer_cost import local_parameters
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.held_stages import resident_bytes
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.memory import stepped_parameters
from phaze_opt.placement.overlap import charged_s, left_after_s
from phaze_opt.placement.pipeline import PipelineWork, Replay, finish_s, replay
from phaze_opt.placement.zero_bubble import (
    STASHES,
    WEIGHT,
    ZeroBubbleReplay,
    ZeroBubbleWork,
    best_order,
    first_starts_s,
)


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
    forward_s, backward_s = work.forward_s[where], work.backward_s[where]
    if layout.zero_bubble and layout.chunks > 1 and costs.is_chain:
        # Where the V turns, both layers are on one device.
        received = work.stages.received
        forward_s[1, -1] -= received.activation_s[layout.first[1, -1], layout.last[1, -1]]
        backward_s[0, -1] -= received.gradient_s[layout.first[0, -1], layout.last[0, -1]]
    return PipelineWork(forward_s, backward_s, saving_s, head_s)


def zero_bubble_work(costs: CandidateCosts, layout: Layout, work: PipelineWork) -> ZeroBubbleWork:
    """Split the backwards of every chunk of every stage, and say what may be held between."""
    candidate = layout.candidate
    seconds, operand_bytes = costs.problem.weight_gradients(candidate.tensor)
    weight_s = np.zeros_like(work.forward_s)
    operands, stash = np.zeros_like(weight_s), np.zeros_like(weight_s)
    stash_bytes = costs.stages(candidate).held.stash_bytes
    for stage, own in enumerate(layout.all_runs):
        for chunk, (i, j) in enumerate(own):
            weight_s[chunk, stage] = seconds[i:j].sum()
            operands[chunk, stage] = operand_bytes[i:j].sum()
            stash[chunk, stage] = stash_bytes[i, j]
    # What is added up is weight gradients.
    weight_s = np.minimum(weight_s + work.first_saving_s, work.backward_s)
    return ZeroBubbleWork(
        np.stack([work.forward_s, work.backward_s - weight_s, weight_s]),
        work.first_saving_s,
        work.head_s,
        stash,
        operands,
        _room_bytes(costs, layout, stash),
    )


def _room_bytes(costs: CandidateCosts, layout: Layout, stash: FloatArray) -> FloatArray:
    """Return what microbatches may hold on each stage, by the schedule and by the memory.

    As many stashes as it says of the fuller of the first two stages, on all of them, as published
    (``scheduler`` in ``megatron/core/pipeline_parallel/schedules.py`` of
    sail-sg/zero-bubble-pipeline-parallelism); always what 1F1B holds, and in a V a microbatch.
    """
    candidate, pipeline = layout.candidate, layout.candidate.pipeline
    usable = costs.problem.hbm_usable_bytes - resident_bytes(costs, layout)
    plain = costs.even_layout(candidate) if layout.chunks > 1 else layout
    own = costs.stages(candidate).held.stash_bytes[plain.first[0], plain.last[0]]
    each, less = STASHES.get(layout.zero_bubble or "zb-1p", (1, 0))
    allowed = (each * pipeline - less) * own[:2].max()
    least = stash.sum(axis=0) if layout.chunks > 1 else costs.held(candidate)[:0:-1] * own
    return np.asarray(np.maximum(np.minimum(allowed, usable), least))


class SplitBackward(NamedTuple):
    """How the stages of a schedule that splits the backward work.

    Attributes
    ----------
    work
        What they do, and may hold.
    order
        Which it is, see `phaze_opt.placement.zero_bubble.ORDERS`.
    peak_bytes : (stages,)
        What microbatches hold at most.
    """

    work: ZeroBubbleWork
    order: int
    peak_bytes: FloatArray


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
    split
        The work and the order that was taken, where the schedule splits the backward.
    """

    work: PipelineWork
    tails: list[StageTail] | None
    time_s: float
    split: SplitBackward | None = None


def replayed(costs: CandidateCosts, layout: Layout) -> Replayed:
    """Replay a batch event by event, and add what follows the last backwards."""
    candidate, work = layout.candidate, pipeline_work(costs, layout)
    microbatches = costs.microbatches(candidate.data)
    if layout.zero_bubble:
        return _replayed_split(costs, layout, work)
    if layout.chunks > 1:
        done = replay(work, microbatches, "interleaved")
        stages = range(candidate.pipeline)
        tails = [
            _chunked_tail(costs, layout, _until_end_s(costs, layout, done, stage), stage)
            for stage in stages
        ]
        tails_s = np.array([tail.all_s for tail in tails])
        return Replayed(work, tails, float((done.finish_s + tails_s).max()))
    ends_s = finish_s(work, microbatches, costs.schedule)
    return Replayed(work, None, float((ends_s + whole_tails_s(costs, layout)).max()))


def whole_tails_s(costs: CandidateCosts, layout: Layout) -> FloatArray:
    """Return what stages of one chunk do after their last whole backward."""
    where = layout.first[0], layout.last[0]
    tail_s = costs.tail_s(layout.candidate, where)
    if not layout.gathers_ahead:
        tail_s = tail_s + costs.final_gather_s(layout.candidate, ahead=False)[where]
    return tail_s


def _replayed_split(costs: CandidateCosts, layout: Layout, work: PipelineWork) -> Replayed:
    """Replay a batch of a schedule that splits the backward; as 1F1B where that takes no longer."""
    assert layout.zero_bubble is not None
    split = zero_bubble_work(costs, layout, work)
    microbatches = costs.microbatches(layout.candidate.data)
    # A single stage has nothing to wait for.
    several = layout.candidate.pipeline > 1
    found = best_order(layout.zero_bubble, split, microbatches, costs.orders) if several else None
    answers = []
    if layout.chunks == 1:
        own_s = finish_s(work, microbatches) - (first_starts_s(work) - work.head_s[0])
        held = costs.held(layout.candidate)[:0:-1] * split.stash_bytes[0]
        time_s = float((own_s + whole_tails_s(costs, layout)).max())
        answers.append(Replayed(work, None, time_s, SplitBackward(split, 0, held)))
    if found is not None:
        stages = range(layout.candidate.pipeline)
        tails = [_split_tail(costs, layout, split, found.done, stage) for stage in stages]
        tails_s = np.array([tail.all_s for tail in tails])
        time_s = float((found.done.own_s(work.head_s) + tails_s).max())
        taken = SplitBackward(split, found.number, found.done.peak_bytes)
        answers.append(Replayed(work, tails, time_s, taken))
    return min(answers, key=lambda answer: answer.time_s)


def _split_tail(
    costs: CandidateCosts,
    layout: Layout,
    work: ZeroBubbleWork,
    done: ZeroBubbleReplay,
    stage: int,
) -> StageTail:
    """Return what a stage does after its last W, which completes the gradients layer by layer."""
    each_s, _ = costs.problem.weight_gradients(layout.candidate.tensor)
    until_end_s: list[float] = []
    for chunk, (i, j) in enumerate(layout.runs(stage)):
        end_s = done.starts_s[WEIGHT, chunk, stage, -1] + work.seconds[WEIGHT, chunk, stage]
        after_s = np.append(0.0, np.cumsum(each_s[i : j - 1]))
        until_end_s += (max(done.finish_s[stage] - end_s, 0.0) + after_s).tolist()
    return _chunked_tail(costs, layout, np.array(until_end_s), stage)


def ways_to_gather(costs: CandidateCosts, layout: Layout) -> tuple[Layout, ...]:
    """Return the layout with weights gathered at either time, if it gathers any."""
    group = costs.group(layout.candidate)
    if group.zero not in (1, 2) or not group.overlaps:
        return (layout,)
    return layout, replace(layout, gathers_ahead=False)


def with_fastest_gathers(costs: CandidateCosts, layout: Layout) -> tuple[Layout, Replayed]:
    """Return the layout with weights gathered when it takes less, if it gathers any; replayed."""
    options = [(way, replayed(costs, way)) for way in ways_to_gather(costs, layout)]
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


def _chunked_tail(
    costs: CandidateCosts, layout: Layout, until_end_s: FloatArray, stage: int
) -> StageTail:
    """Return what a stage of several chunks, or with a split backward, does after its last work.

    Parameters
    ----------
    costs, layout, stage
        The stage.
    until_end_s : (layers,)
        How long before the end of its compute the gradients of each layer are complete.
    """
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
            left_s = left_after_s(service_s, until_end_s, group.free_share)
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
