"""A placement in full: stages with memory and communication, and the time of a batch by kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.degrees import ORDER_TEXTS
from phaze_opt.errors import InputError
from phaze_opt.passes.layer_cost import LayerPasses
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.held_stages import HeldStage, held_stages
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.memory import stepped_parameters
from phaze_opt.placement.pipeline import PipelineWork, Replay, replay
from phaze_opt.placement.placement_problem import (
    ChunkWork,
    Communication,
    Placement,
    Stage,
)
from phaze_opt.placement.timing import Replayed, StageTail, replayed, stage_tails
from phaze_opt.placement.zero_bubble import (
    WEIGHT,
    ZeroBubbleWork,
    planned_order,
    replay_order,
)

_CLOSE = 1e-9
"""Relative difference up to which two times are the same."""


def describe(
    costs: CandidateCosts,
    layout: Layout,
    done: Replayed | None = None,
    held: Sequence[HeldStage] | None = None,
) -> Placement:
    """Describe layers laid out over stages in full; what is known of them may be given."""
    candidate = layout.candidate
    done = done or replayed(costs, layout)
    work, known_tails, time_s, split = done
    tails = known_tails or stage_tails(costs, layout)
    waits_s = _first_waits_s(work)
    held = held or held_stages(costs, layout, None if split is None else split.peak_bytes)
    read = _read_stages(costs, layout, done)
    rooms = [0.0] * candidate.pipeline if split is None else split.work.room_bytes.tolist()
    exchanged = _communication(costs, layout, held, read, tails, waits_s)
    each = zip(range(candidate.pipeline), held, tails, exchanged, rooms, strict=True)
    stages = tuple(
        [
            Stage(
                layers=tuple(layout.layers(index, read.names)),
                devices=candidate.tensor,
                load_s=read.load_s[index],
                memory_bytes=own.memory,
                work=read.work[index],
                synchronisation_s=tail.synchronisation_s,
                optimizer_s=tail.optimizer_s,
                gather_s=tail.gather_s,
                communication=communication,
                room_bytes=room_bytes,
            )
            for index, own, tail, communication, room_bytes in each
        ]
    )
    heaviest = max(range(len(stages)), key=lambda index: (stages[index].load_s, -index))
    return Placement(
        pipeline=candidate.pipeline,
        data=candidate.data // costs.problem.training.context_parallel,
        tensor=candidate.tensor,
        rank_order=ORDER_TEXTS[candidate.order],
        pipeline_schedule=layout.zero_bubble
        or ("interleaved" if layout.chunks > 1 else costs.schedule),
        microbatches=costs.microbatches(candidate.data),
        stages=stages,
        time_per_batch_s=time_s,
        time_breakdown_s=_breakdown(costs, layout, heaviest, stages[heaviest], time_s),
        expert=costs.problem.training.expert_parallel,
        expert_tensor=costs.problem.training.expert_tensor_parallel,
        context=costs.problem.training.context_parallel,
        order=None if split is None else split.order,
        replicas_inside=candidate.inside,
    )


def placement_replay(placement: Placement) -> Replay:
    """Replay one batch of a placement event by event."""
    by_chunk = list(zip(*(stage.work for stage in placement.stages), strict=True))

    def table(name: str) -> FloatArray:
        return np.array([[getattr(work, name) for work in chunk] for chunk in by_chunk])

    names = "forward_s", "backward_s", "first_saving_s", "head_s"
    work = PipelineWork(*(table(name) for name in names))
    if placement.order is None:
        return replay(work, placement.microbatches, placement.pipeline_schedule)
    if placement.order == 0 and len(by_chunk) == 1:
        whole = replay(work, placement.microbatches)
        # The order of 1F1B stands for whole backwards too, where they take no longer.
        if _takes_as_long(placement, whole, work.head_s[0]):
            return whole
    weight_s = table("weight_gradient_s")
    split = ZeroBubbleWork(
        np.stack([work.forward_s, work.backward_s - weight_s, weight_s]),
        work.first_saving_s,
        work.head_s,
        table("stash_bytes"),
        table("operand_bytes"),
        np.array([stage.room_bytes for stage in placement.stages]),
    )
    named = placement.pipeline_schedule, placement.order
    order = planned_order(*named, split, placement.microbatches)
    if order is None:
        raise InputError(f"The order {placement.order} of the placement cannot be run.")
    return replay_order(split, order, placement.microbatches).replay


def _takes_as_long(placement: Placement, done: Replay, head_s: FloatArray) -> bool:
    """Say whether a replay takes the time of a placement whose stages begin by themselves."""
    own_s = done.finish_s - (done.forward_start_s[0, :, 0] - head_s)
    tails_s = [
        stage.synchronisation_s + stage.optimizer_s + stage.gather_s for stage in placement.stages
    ]
    time_s = float((own_s + np.array(tails_s)).max())
    return abs(time_s - placement.time_per_batch_s) <= _CLOSE * placement.time_per_batch_s


@dataclass(frozen=True, eq=False)
class _Read:
    """What the tables hold of all stages: lists by stage, of numbers by chunk.

    Attributes
    ----------
    names
        Of all layers.
    work
        Of each chunk.
    load_s
        Of each stage.
    received_s, transfer_bytes
        Of the messages to each stage, in one microbatch.
    """

    names: tuple[str, ...]
    work: list[tuple[ChunkWork, ...]]
    load_s: list[float]
    received_s: list[float]
    transfer_bytes: list[float]


def _read_stages(costs: CandidateCosts, layout: Layout, done: Replayed) -> _Read:
    """Read the tables for all stages at once."""
    work, split = done.work, done.split
    tables, where = costs.stages(layout.candidate), (layout.first, layout.last)
    columns = [
        work.forward_s.T.tolist(),
        work.backward_s.T.tolist(),
        [[tables.runs.sum("recompute.seconds", run) for run in runs] for runs in layout.all_runs],
        work.first_saving_s.T.tolist(),
        work.head_s.T.tolist(),
    ]
    if split is not None:
        of_split = split.work.seconds[WEIGHT], split.work.stash_bytes, split.work.operand_bytes
        columns += [column.T.tolist() for column in of_split]
    by_stage = zip(*columns, strict=True)
    received_s = tables.received.activation_s[where] + tables.received.gradient_s[where]
    sent_bytes = tables.transfer_bytes[where]
    if split is not None and layout.chunks > 1 and costs.is_chain:
        turn = layout.first[1, -1], layout.last[1, -1]
        received_s[1, -1] -= tables.received.activation_s[turn]
        received_s[0, -1] -= tables.received.gradient_s[layout.first[0, -1], layout.last[0, -1]]
        # All layers up to the turn receive nothing but gradients, the others but activations.
        sent_bytes[0, -1] -= tables.transfer_bytes[0, turn[0]]
        sent_bytes[1, -1] -= tables.transfer_bytes[turn[0], tables.layers]
    return _Read(
        names=costs.problem.names_of(layout.candidate.tensor),
        work=[tuple(starmap(ChunkWork, zip(*chunks, strict=True))) for chunks in by_stage],
        load_s=[float(chunks_s.sum()) for chunks_s in (work.forward_s + work.backward_s).T],
        received_s=list(map(sum, received_s.T.tolist())),
        transfer_bytes=list(map(sum, sent_bytes.T.tolist())),
    )


def _communication(
    costs: CandidateCosts,
    layout: Layout,
    held: Sequence[HeldStage],
    read: _Read,
    tails: Sequence[StageTail],
    waits_s: Sequence[float],
) -> Iterator[tuple[Communication, ...]]:
    """Yield what each stage exchanges with other stages and other replicas per batch."""
    candidate, optimizer = layout.candidate, costs.optimizer
    group, microbatches = costs.group(candidate), costs.microbatches(candidate.data)
    zero, reduced_bytes = group.zero, costs.problem.training.reduced_bytes
    for stage, (own, tail) in enumerate(zip(held, tails, strict=True)):
        transfer_s = microbatches * read.received_s[stage]
        sent_bytes = microbatches * read.transfer_bytes[stage]
        communication = [Communication("transfer", transfer_s, transfer_s, sent_bytes)]
        counts = own.parameters, own.routed_parameters
        gradient_bytes = group.gradient_terms.sent_bytes(*counts, reduced_bytes)
        exposed_s, network_s = tail.synchronisation_s, tail.network_s
        if zero >= 2:
            (_, reductions), runs = group.every_backward, layout.runs(stage)
            exposed_s += microbatches * sum(float(reductions.exposed_s[run]) for run in runs)
            network_s += microbatches * sum(float(reductions.total_s[run]) for run in runs)
            gradient_bytes *= microbatches
        if own.shared_parameters:
            shared_bytes = own.shared_parameters * float(reduced_bytes)
            gradient_bytes += shared_bytes * costs.message(candidate).all_sent_per_byte
        communication.append(
            Communication("gradient_synchronisation", network_s, exposed_s, gradient_bytes)
        )
        if zero:
            weight_bytes = group.weight_terms.sent_bytes(*counts, optimizer.gathered_bytes)
            once_s = tail.gather_s + waits_s[stage]
            communication.append(_gathers(costs, layout, stage, once_s, weight_bytes))
        if costs.problem.training.offloads:
            communication.append(_offload(costs, layout, stage))
        yield tuple(communication)


def _offload(costs: CandidateCosts, layout: Layout, stage: int) -> Communication:
    """Return what a stage sends to its host, and takes back, per batch."""
    problem, candidate = costs.problem, layout.candidate
    layers = layout.layers(stage, problem.layers[candidate.tensor])
    microbatches = costs.microbatches(candidate.data)
    sent_bytes = float(microbatches * sum(layer.offloaded_bytes for layer in layers))
    exposed_s = microbatches * sum(layer.link_exposed_s for layer in layers)
    shards = costs.shards(candidate.data)
    stepped = stepped_parameters(layers, shards) / shards.optimizer
    sent_bytes += stepped * problem.training.offloaded_state_bytes
    longer_s = problem.step_s_per_parameter - problem.device_step_s_per_parameter
    total_s = 2.0 * sent_bytes / problem.host_bytes_per_s
    return Communication("offload", total_s, exposed_s + stepped * longer_s, 2.0 * sent_bytes)


def _gathers(
    costs: CandidateCosts, layout: Layout, stage: int, once_s: float, weight_bytes: float
) -> Communication:
    """Return the gathers of a stage's weights per batch.

    Parameters
    ----------
    costs, layout, stage
        The stage.
    once_s
        Exposed seconds of gathers once per batch.
    weight_bytes
        What a device sends to gather the stage's weights once.
    """
    group, runs = costs.group(layout.candidate), layout.runs(stage)
    forward = group.forward_gather
    if group.zero < 3:
        total_s = sum(float(forward.total_s[run]) for run in runs)
        return Communication("parameter_gather", max(total_s, once_s), once_s, weight_bytes)
    microbatches = costs.microbatches(layout.candidate.data)
    backward, _ = group.every_backward
    total_s, exposed_s = (
        microbatches * sum(float(forward_s[run] + backward_s[run]) for run in runs)
        for forward_s, backward_s in (
            (forward.total_s, backward.total_s),
            (forward.exposed_s, backward.exposed_s),
        )
    )
    return Communication("parameter_gather", total_s, exposed_s, 2.0 * microbatches * weight_bytes)


def _first_waits_s(work: PipelineWork) -> list[float]:
    """Return how long each stage waits for weights before its first forward, ready otherwise."""
    waits_s, ready_s = [], 0.0
    for head_s, forward_s in zip(work.head_s[0].tolist(), work.forward_s[0].tolist(), strict=True):
        waits_s.append(max(0.0, head_s - ready_s))
        ready_s = max(head_s, ready_s) + forward_s
    return waits_s


def _breakdown(
    costs: CandidateCosts, layout: Layout, index: int, stage: Stage, time_s: float
) -> dict[str, float]:
    """Split the time by kind along one stage; the bubble is what it waits."""
    tables = costs.stages(layout.candidate)
    where = layout.first[:, index], layout.last[:, index]
    microbatches = costs.microbatches(layout.candidate.data)

    def in_batch_s(name: str) -> float:
        each_s = [tables.runs.sum(f"{name}.seconds", run) for run in layout.runs(index)]
        return microbatches * float(np.array(each_s).sum())

    exposed_s = {each.kind: each.exposed_s for each in stage.communication}
    parts = {
        **{name: in_batch_s(name) for name in LayerPasses._fields},
        "transfer": exposed_s["transfer"],
        "gradient_accumulation": (microbatches - 1) * float(tables.accumulation_s(where).sum()),
        "optimizer": stage.optimizer_s,
        "gradient_synchronisation": exposed_s["gradient_synchronisation"],
    }
    if "parameter_gather" in exposed_s:
        parts["parameter_gather"] = exposed_s["parameter_gather"]
    parts["bubble"] = max(0.0, time_s - sum(parts.values()))
    return parts
