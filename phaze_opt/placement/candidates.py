"""All degrees of parallelism that a cluster allows, with what their stages cost.

Ranks are numbered with tensor parallelism innermost; then either the replicas of one stage or the
stages of one replica are neighbours. On a cluster of one flat level the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.network.cluster import Cluster, outermost_level
from phaze_opt.network.collective import CollectiveName, collective_cost, collective_terms
from phaze_opt.network.message import message_over, message_term
from phaze_opt.network.term import Term
from phaze_opt.placement.chain import least_tail_terms
from phaze_opt.placement.costs import StageCosts, collective_table_s, stage_costs
from phaze_opt.placement.memory import Shards, local_parameters
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem, RankOrder
from phaze_opt.training import OPTIMIZERS, PipelineScheduleName


@dataclass(frozen=True, order=True)
class Candidate:
    """Degrees of parallelism; the order prefers fewer devices, then fewer stages.

    Attributes
    ----------
    data_inside
        Whether the replicas of a stage are neighbours (else the stages of a replica are).
    """

    devices: int
    pipeline: int
    data: int
    tensor: int
    data_inside: bool = True

    @classmethod
    def of(cls, pipeline: int, data: int, tensor: int, data_inside: bool = True) -> Candidate:
        """Build a candidate from its degrees."""
        return cls(pipeline * data * tensor, pipeline, data, tensor, data_inside)

    @property
    def rank_order(self) -> RankOrder:
        """The same in the words of `Placement`."""
        return "tensor-data-pipeline" if self.data_inside else "tensor-pipeline-data"

    @property
    def pipeline_stride(self) -> int:
        """Distance of neighbouring stages' ranks."""
        return self.tensor * self.data if self.data_inside else self.tensor

    @property
    def data_stride(self) -> int:
        """Distance of neighbouring replicas' ranks."""
        return self.tensor if self.data_inside else self.tensor * self.pipeline


@dataclass(frozen=True)
class CandidateGrid:
    """Candidates that share tensor degree, rank order and pipeline link; one entry each."""

    tensor: int
    data_inside: bool
    level: int
    data: IntArray
    pipeline: IntArray
    microbatches: IntArray

    def candidate(self, index: int) -> Candidate:
        """Return one of them."""
        return Candidate.of(
            int(self.pipeline[index]), int(self.data[index]), self.tensor, self.data_inside
        )


class CandidateCosts:
    """Costs of the stages of any candidate, each computed once."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.optimizer = OPTIMIZERS[problem.training.optimizer]
        training = problem.training
        self.schedule: PipelineScheduleName = (
            "gpipe" if training.pipeline_schedule == "gpipe" else "1f1b"
        )
        self._stages: dict[tuple[int, Term, Shards, int, int], StageCosts] = {}
        self._tails: dict[tuple[int, ...], FloatArray] = {}
        self._tail_terms: dict[tuple[int, ...], FloatArray] = {}

    @property
    def synchronisation_kind(self) -> CollectiveName:
        """What synchronises gradients: ZeRO 3 only needs its shards."""
        return "reduce_scatter" if self.problem.training.zero == 3 else "all_reduce"

    def microbatches(self, data: int) -> int:
        """Return how many microbatches one replica runs per batch."""
        return self.problem.training.microbatches(data)

    def held(self, candidate: Candidate) -> IntArray:
        """Return the microbatches in flight of every stage, by place from the end."""
        microbatches = self.microbatches(candidate.data)
        return held_by_place(candidate.pipeline, microbatches, self.schedule)

    def shards(self, data: int) -> Shards:
        """Return what so many replicas share out."""
        return Shards.of(self.problem.training.zero, data)

    def level(self, candidate: Candidate) -> int:
        """Return the network level of the slowest link between neighbouring stages."""
        return outermost_level(candidate.pipeline, self.problem.cluster, candidate.pipeline_stride)

    def least_stages(self, tensor: int, level: int) -> StageCosts:
        """Return what stages cost at least: sharing out all that ZeRO can, gathering for free."""
        most_data = max(1, self.problem.cluster.devices // tensor)
        message = message_over(self.problem.cluster, level)
        return self._table(tensor, message, self.shards(most_data), 1, 1)

    def message(self, candidate: Candidate, level: int) -> Term:
        """Return the cost of a message to the next stage, which all devices send at once."""
        if candidate.pipeline == 1:
            return message_over(self.problem.cluster, level)
        return message_term(self.problem.cluster, candidate.pipeline_stride, candidate.pipeline)

    def stages(self, candidate: Candidate, level: int) -> StageCosts:
        """Return the costs of all stages of a candidate, with messages over a network level."""
        shards = self.shards(candidate.data)
        gathering = candidate.data if shards.weights > 1 else 1
        stride = candidate.data_stride if gathering > 1 else 1
        message = self.message(candidate, level)
        return self._table(candidate.tensor, message, shards, gathering, stride)

    def _table(
        self,
        tensor: int,
        message: Term,
        shards: Shards,
        gathering: int,
        stride: int,
    ) -> StageCosts:
        key = (tensor, message, shards, gathering, stride)
        if key not in self._stages:
            terms = collective_terms("all_gather", gathering, self.problem.cluster, stride)
            self._stages[key] = stage_costs(
                self.problem, tensor, message, shards, terms if gathering > 1 else ()
            )
        return self._stages[key]

    def synchronisation_s(self, candidate: Candidate, level: int) -> FloatArray:
        """Return the exposed synchronisation of every stage's gradients.

        An all-reduce over the replicas (ZeRO 3 only needs the reduce-scatter), less the share that
        hides behind the backward; and where stages share tied weights, the exchange between them.
        """
        stages, cluster = self.stages(candidate, level), self.problem.cluster
        training = self.problem.training
        terms = collective_terms(
            self.synchronisation_kind, candidate.data, cluster, candidate.data_stride
        )
        size_bytes: FloatArray = stages.parameters * np.float64(self.optimizer.gradient_bytes)
        exposed = 1.0 - training.synchronisation_overlap
        total_s = exposed * collective_table_s(terms, size_bytes)
        if candidate.pipeline > 1 and stages.shared_parameters.any():
            # An all-reduce between two stages: one message each way per half of the gradients.
            shared_bytes: FloatArray = stages.shared_parameters * np.float64(
                self.optimizer.gradient_bytes
            )
            exchange_s = 2.0 * self.message(candidate, level).seconds(shared_bytes / 2.0)
            total_s = total_s + np.where(shared_bytes > 0, exchange_s, 0.0)
        return np.asarray(total_s)

    def sent_bytes(
        self, candidate: Candidate, level: int, runs: Sequence[tuple[int, int]]
    ) -> dict[str, float]:
        """Return what a device of a stage sends per batch, by the kinds of `Stage`.

        Parameters
        ----------
        candidate, level
            As for `stages`.
        runs
            First and last + 1 layer of every chunk of the stage.
        """
        stages = self.stages(candidate, level)
        microbatches, message = self.microbatches(candidate.data), self.message(candidate, level)
        layers = self.problem.layers[candidate.tensor]
        held = [layer for i, j in runs for layer in layers[i:j]]
        gradient_bytes = local_parameters(held) * float(self.optimizer.gradient_bytes)
        received_bytes = sum(float(stages.received_bytes[run]) for run in runs)
        synchronisation_bytes = self._sent(self.synchronisation_kind, gradient_bytes, candidate)
        tied = [layer.tied_parameters for layer in held]
        if candidate.pipeline > 1 and sum(tied) < sum(layer.tied_parameters for layer in layers):
            shared_bytes = max(tied) * float(self.optimizer.gradient_bytes)
            synchronisation_bytes += shared_bytes * message.all_sent_per_byte
        sent = {
            "transfer": microbatches * received_bytes * message.all_sent_per_byte,
            "gradient_synchronisation": synchronisation_bytes,
        }
        if self.shards(candidate.data).weights > 1:
            # Gathered for the forward and once more for the backward of every microbatch.
            weight_bytes = [
                float(stages.parameters[run]) * self.optimizer.weight_bytes for run in runs
            ]
            gathered = sum(self._sent("all_gather", each, candidate) for each in weight_bytes)
            sent["parameter_gather"] = 2.0 * microbatches * gathered
        return sent

    def _sent(self, kind: CollectiveName, size_bytes: float, candidate: Candidate) -> float:
        """Return what each replica sends in a collective over all of them."""
        cluster, stride = self.problem.cluster, candidate.data_stride
        return sum(
            collective_cost(kind, size_bytes, candidate.data, cluster, stride).bytes_by_level
        )

    def optimizer_s(self, candidate: Candidate, level: int) -> FloatArray:
        """Return the time of every stage's optimizer step, on what a replica keeps of it."""
        step_s = self.problem.step_s_per_parameter
        shards = self.shards(candidate.data).optimizer
        return np.asarray(self.stages(candidate, level).parameters * (step_s / shards))

    def tail_s(self, candidate: Candidate, level: int) -> FloatArray:
        """Return what every stage still does after its last backward."""
        key = self._tail_key(candidate, level)
        if key not in self._tails:
            tail_s = self.synchronisation_s(candidate, level) + self.optimizer_s(candidate, level)
            self._tails[key] = tail_s
        return self._tails[key]

    def least_tail_term_s(self, candidate: Candidate, level: int) -> float:
        """Return the least tail term of the closed form (see `phaze_opt.placement.chain`)."""
        key = self._tail_key(candidate, level)
        if key not in self._tail_terms:
            stages = self.stages(candidate, level)
            reach = self.problem.cluster.devices // (candidate.tensor * candidate.data)
            most_stages = 1 if candidate.pipeline == 1 else min(stages.layers, reach)
            self._tail_terms[key] = least_tail_terms(
                self.tail_s(candidate, level), stages.backward_work_s, most_stages
            )
        return float(self._tail_terms[key][candidate.pipeline])

    def _tail_key(self, candidate: Candidate, level: int) -> tuple[int, ...]:
        """Return what tails depend on; on a single stage nothing is shared with another one."""
        alone = int(candidate.pipeline == 1)
        return (candidate.tensor, candidate.data, candidate.data_stride, level, alone)

    def least_tail_s(self, grid: CandidateGrid, parameters: IntArray) -> FloatArray:
        """Bound the tail of stages with so many parameters from below, for a whole grid."""
        training = self.problem.training
        step_s = self.problem.step_s_per_parameter
        shards = grid.data if training.zero >= 1 else np.ones_like(grid.data)
        tail_s: FloatArray = parameters * (step_s / shards)
        if not grid.data_inside:
            return tail_s
        size_bytes = parameters * float(self.optimizer.gradient_bytes)
        latency_s, s_per_byte = _synchronisation_lines(
            self.synchronisation_kind, self.problem.cluster, grid.tensor, int(grid.data.max())
        )
        lines_s = latency_s[grid.data] + s_per_byte[grid.data] * size_bytes[:, None]
        exposed = 1.0 - training.synchronisation_overlap
        sync_s = exposed * np.where(size_bytes > 0, lines_s.min(axis=1), 0.0)
        return np.asarray(tail_s + sync_s)

    @cached_property
    def grids(self) -> tuple[CandidateGrid, ...]:
        """All candidates: every width, data degree and number of stages that may run."""
        return tuple(self._grids())

    def _grids(self) -> Iterator[CandidateGrid]:
        problem = self.problem
        devices, training = problem.cluster.devices, problem.training
        reach = _reach(problem.cluster)
        orders = (True,) if len(problem.cluster.levels) == 1 else (True, False)
        for tensor, layers in sorted(problem.layers.items()):
            most_data = min(devices // tensor, training.global_batch // training.microbatch)
            if most_data == 0:
                continue
            stages = np.arange(1, len(layers) + 1, dtype=np.int64)[:, None]
            data = np.arange(1, most_data + 1, dtype=np.int64)[None, :]
            pipeline_index, data_index = np.nonzero(stages * data * tensor <= devices)
            pipeline, data = pipeline_index + 1, data_index + 1
            microbatches = training.microbatches(data)
            for data_inside in orders:
                span = pipeline * tensor * (data if data_inside else 1)
                level = np.searchsorted(reach, span)
                for index in np.unique(level):
                    here = level == index
                    yield CandidateGrid(
                        tensor,
                        data_inside,
                        int(index),
                        data[here],
                        pipeline[here],
                        microbatches[here],
                    )


def _reach(cluster: Cluster) -> FloatArray:
    """Return how many devices each level joins, all levels below included."""
    sizes = [np.inf if level.group_size is None else level.group_size for level in cluster.levels]
    return np.asarray(np.cumprod(sizes), dtype=np.float64)


@lru_cache(maxsize=128)
def _synchronisation_lines(
    kind: CollectiveName, cluster: Cluster, stride: int, most_data: int
) -> tuple[FloatArray, FloatArray]:
    """Return latency and seconds per byte of every algorithm, by data degree."""
    terms = [collective_terms(kind, max(1, data), cluster, stride) for data in range(most_data + 1)]
    width = max(len(row) for row in terms)
    latency_s = np.full((most_data + 1, width), np.inf)
    s_per_byte = np.zeros((most_data + 1, width))
    for data, row in enumerate(terms):
        for column, term in enumerate(row):
            latency_s[data, column] = term.latency_s
            s_per_byte[data, column] = term.s_per_byte
    return latency_s, s_per_byte
