"""Interleaved pipelines: every stage holds several chunks of layers.

With v chunks, chunk ``c`` of stage ``s`` is the ``(c · p + s)``-th of ``p · v`` even parts of the
layers, so the bubble shrinks to a v-th and the transfers grow v-fold (D. Narayanan et al., SC
2021). The stages must divide the microbatches. Only even parts are considered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.errors import InfeasibleError
from phaze_opt.network.collective import collective_terms
from phaze_opt.placement.candidates import Candidate, CandidateCosts
from phaze_opt.placement.costs import collective_table_s
from phaze_opt.placement.describe import chunk_work
from phaze_opt.placement.even import even_starts
from phaze_opt.placement.infeasible import MisfitError, explain_excess
from phaze_opt.placement.memory import chunked_memory, local_parameters
from phaze_opt.placement.pipeline import interleaved_in_flight, replay
from phaze_opt.placement.placement_problem import LayerCost, Placement, Stage, StageMemory


@dataclass(frozen=True)
class _Chunks:
    """A candidate's chunks: first and last + 1 layer by chunk and stage, both ``(v, p)``."""

    candidate: Candidate
    level: int
    first: IntArray
    last: IntArray

    def of_stage(self, stage: int) -> list[tuple[int, int]]:
        """Return the chunks of one stage."""
        pairs = zip(self.first[:, stage], self.last[:, stage], strict=True)
        return [(int(i), int(j)) for i, j in pairs]


def solve_interleaved(costs: CandidateCosts) -> Placement:
    """Find the fastest degrees of an interleaved pipeline.

    Raises
    ------
    InfeasibleError
        If no degrees can be interleaved or none fits.
    """
    options, misfits = [], []
    for chunks in _all_chunks(costs):
        misfit = _misfit(costs, chunks)
        if misfit is None:
            options.append(chunks)
        else:
            misfits.append(misfit)
    bounds_s = [_bound_s(costs, chunks) for chunks in options]
    best_s, best = math.inf, None
    for index in sorted(range(len(options)), key=lambda i: (bounds_s[i], options[i].candidate)):
        if bounds_s[index] > best_s:
            break
        time_s = _time_s(costs, options[index])
        if time_s < best_s:
            best_s, best = time_s, options[index]
    if best is None:
        raise _none_fits(costs, misfits)
    return _describe(costs, best, best_s)


def _none_fits(costs: CandidateCosts, misfits: Sequence[MisfitError]) -> InfeasibleError:
    """Say that no degrees fit, and what those hold that are nearest to it."""
    start = f"No degrees fit with {costs.problem.training.interleave} interleaved chunks per stage"
    if not misfits:
        return InfeasibleError(
            f"{start}: the stages must divide the microbatches, and every chunk needs a layer."
        )
    nearest = min(misfits, key=lambda misfit: misfit.violation)
    return MisfitError(f"{start}; nearest: {nearest}", nearest.memory, nearest.usable_bytes)


def evaluate_interleaved(costs: CandidateCosts, candidate: Candidate) -> Placement:
    """Evaluate given degrees.

    Raises
    ------
    InfeasibleError
        If the stages do not divide the microbatches, there are too few layers, or a stage does
        not fit.
    """
    microbatches = costs.microbatches(candidate.data)
    chunks = costs.problem.training.interleave
    layers = len(costs.problem.layers[candidate.tensor])
    if not _possible(costs, candidate):
        raise InfeasibleError(
            f"{candidate.pipeline} stages of {chunks} chunks need at least "
            f"{candidate.pipeline * chunks} layers and a multiple of {candidate.pipeline} "
            f"microbatches, but there are {layers} layers and {microbatches} microbatches."
        )
    found = _chunks(costs, candidate)
    misfit = _misfit(costs, found)
    if misfit is not None:
        raise misfit
    return _describe(costs, found, _time_s(costs, found))


def _possible(costs: CandidateCosts, candidate: Candidate) -> bool:
    """Whether layers and microbatches suffice; a single stage has nothing to interleave."""
    if candidate.pipeline == 1:
        return True
    chunks = costs.problem.training.interleave
    enough = candidate.pipeline * chunks <= len(costs.problem.layers[candidate.tensor])
    return enough and costs.microbatches(candidate.data) % candidate.pipeline == 0


def _all_chunks(costs: CandidateCosts) -> Iterator[_Chunks]:
    """Yield the chunks of all degrees that can be interleaved."""
    for grid in costs.grids:
        for index in range(len(grid.data)):
            candidate = grid.candidate(index)
            if _possible(costs, candidate):
                yield _chunks(costs, candidate)


def _chunks(costs: CandidateCosts, candidate: Candidate) -> _Chunks:
    """Cut the layers into even chunks."""
    layers = costs.problem.layers[candidate.tensor]
    count = costs.problem.training.interleave if candidate.pipeline > 1 else 1
    starts = even_starts(layers, candidate.pipeline * count)
    ends = np.append(starts[1:], len(layers))
    shape = count, candidate.pipeline
    return _Chunks(candidate, costs.level(candidate), starts.reshape(shape), ends.reshape(shape))


def _stage_layers(costs: CandidateCosts, chunks: _Chunks, stage: int) -> list[LayerCost]:
    """Return the layers of all chunks of a stage."""
    layers = costs.problem.layers[chunks.candidate.tensor]
    return [layer for i, j in chunks.of_stage(stage) for layer in layers[i:j]]


def _memory(costs: CandidateCosts, chunks: _Chunks, stage: int) -> StageMemory:
    """Return what a stage holds."""
    candidate = chunks.candidate
    ahead = interleaved_in_flight(
        candidate.pipeline, costs.microbatches(candidate.data), len(chunks.first)
    )
    share = int(ahead[stage]) / len(chunks.first)
    layers = _stage_layers(costs, chunks, stage)
    return chunked_memory(layers, share, costs.optimizer, costs.shards(candidate.data))


def _misfit(costs: CandidateCosts, chunks: _Chunks) -> MisfitError | None:
    """Return the error for the first stage, which holds most, where it does not fit."""
    for stage in range(chunks.candidate.pipeline):
        memory = _memory(costs, chunks, stage)
        if memory.total > costs.problem.hbm_usable_bytes:
            name = f"Stage {stage + 1} of {chunks.candidate.pipeline} interleaved ones"
            return explain_excess(name, memory, costs.problem)
    return None


def _work_s(costs: CandidateCosts, chunks: _Chunks) -> tuple[FloatArray, FloatArray]:
    """Return forward and backward work of every chunk of every stage."""
    table = costs.stages(chunks.candidate, chunks.level)
    where = chunks.first, chunks.last
    return table.forward_work_s[where], table.backward_work_s[where]


def _bound_s(costs: CandidateCosts, chunks: _Chunks) -> float:
    """Bound the time from below: the busiest stage's work on all microbatches."""
    forward_s, backward_s = _work_s(costs, chunks)
    busiest_s = float((forward_s + backward_s).sum(axis=0).max())
    return costs.microbatches(chunks.candidate.data) * busiest_s


def _time_s(costs: CandidateCosts, chunks: _Chunks) -> float:
    """Return the replayed time of a batch."""
    forward_s, backward_s = _work_s(costs, chunks)
    microbatches = costs.microbatches(chunks.candidate.data)
    done = replay(forward_s, backward_s, microbatches, "interleaved")
    tails = [sum(_tail_s(costs, chunks, s)) for s in range(chunks.candidate.pipeline)]
    return float((done.finish_s + np.array(tails)).max())


def _tail_s(costs: CandidateCosts, chunks: _Chunks, stage: int) -> tuple[float, float]:
    """Return a stage's exposed gradient synchronisation and its optimizer step."""
    candidate, problem, optimizer = chunks.candidate, costs.problem, costs.optimizer
    layers = _stage_layers(costs, chunks, stage)
    parameters = local_parameters(layers)
    kind = costs.synchronisation_kind
    terms = collective_terms(kind, candidate.data, problem.cluster, candidate.data_stride)
    gradient_bytes = np.array([parameters * float(optimizer.gradient_bytes)])
    exposed = 1.0 - problem.training.synchronisation_overlap
    sync_s = exposed * float(collective_table_s(terms, gradient_bytes)[0])
    tied = [layer.tied_parameters for layer in layers]
    all_tied = sum(layer.tied_parameters for layer in problem.layers[candidate.tensor])
    if max(tied) > 0 and sum(tied) < all_tied:
        shared_bytes = max(tied) * float(optimizer.gradient_bytes)
        sync_s += 2.0 * costs.message(candidate, chunks.level).seconds(shared_bytes / 2.0)
    shards = costs.shards(candidate.data).optimizer
    return sync_s, parameters * problem.step_s_per_parameter / shards


def _describe(costs: CandidateCosts, chunks: _Chunks, time_s: float) -> Placement:
    """Describe an interleaved placement in full."""
    candidate = chunks.candidate
    forward_s, backward_s = _work_s(costs, chunks)
    loads_s = (forward_s + backward_s).sum(axis=0)
    table = costs.stages(candidate, chunks.level)
    tails_s = [_tail_s(costs, chunks, stage) for stage in range(candidate.pipeline)]
    stages = tuple(
        Stage(
            layers=tuple(layer.name for layer in _stage_layers(costs, chunks, stage)),
            devices=candidate.tensor,
            load_s=float(loads_s[stage]),
            memory_bytes=_memory(costs, chunks, stage),
            work=tuple(chunk_work(table, i, j) for i, j in chunks.of_stage(stage)),
            synchronisation_s=tails_s[stage][0],
            optimizer_s=tails_s[stage][1],
            sent_bytes=costs.sent_bytes(candidate, chunks.level, chunks.of_stage(stage)),
        )
        for stage in range(candidate.pipeline)
    )
    return Placement(
        pipeline=candidate.pipeline,
        data=candidate.data,
        tensor=candidate.tensor,
        rank_order=candidate.rank_order,
        pipeline_schedule="interleaved",
        microbatches=costs.microbatches(candidate.data),
        stages=stages,
        time_per_batch_s=time_s,
        time_breakdown_s=_breakdown(costs, chunks, int(loads_s.argmax()), time_s),
    )


def _breakdown(
    costs: CandidateCosts, chunks: _Chunks, stage: int, time_s: float
) -> dict[str, float]:
    """Split the time by kind along one stage; the bubble is what it waits."""
    table = costs.stages(chunks.candidate, chunks.level)
    microbatches = costs.microbatches(chunks.candidate.data)
    where = chunks.first[:, stage], chunks.last[:, stage]
    sync_s, step_s = _tail_s(costs, chunks, stage)
    per_microbatch = {
        "forward": table.forward_s,
        "backward": table.backward_s,
        "recompute": table.recompute_s,
        "transfer": table.receive_activation_s + table.receive_gradient_s,
        "gradient_accumulation": table.accumulation_s,
    }
    if table.gather_s.any():
        per_microbatch["parameter_gather"] = 2.0 * table.gather_s
    parts = {kind: microbatches * float(s[where].sum()) for kind, s in per_microbatch.items()}
    parts.update(optimizer=step_s, gradient_synchronisation=sync_s)
    parts["bubble"] = max(0.0, time_s - sum(parts.values()))
    return parts
