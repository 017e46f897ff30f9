"""All degrees of parallelism that a cluster allows, with what their stages cost.

Ranks are numbered with tensor parallelism innermost; then either the replicas of one stage or the
stages of one replica are neighbours. On a cluster of one flat level the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.network.cluster import Cluster, outermost_level
from phaze_opt.network.collective import CollectiveName, collective_terms
from phaze_opt.network.message import messages_per_link
from phaze_opt.placement.chain import least_tail_terms
from phaze_opt.placement.costs import StageCosts, collective_table_s, stage_costs
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.pipeline import PipelineSchedule, held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.training import OPTIMIZERS


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
        self.schedule: PipelineSchedule = (
            "gpipe" if training.pipeline_schedule == "gpipe" else "1f1b"
        )
        self._stages: dict[tuple[int, int, float, Shards, int, int], StageCosts] = {}
        self._tails: dict[tuple[int, ...], FloatArray] = {}
        self._tail_terms: dict[tuple[int, ...], FloatArray] = {}

    @property
    def synchronisation_kind(self) -> CollectiveName:
        """What synchronises gradients: ZeRO 3 only needs its shards."""
        return "reduce_scatter" if self.problem.training.zero == 3 else "all_reduce"

    def microbatches(self, data: int) -> int:
        """Return how many microbatches one replica runs per batch."""
        training = self.problem.training
        return -(-training.global_batch // (data * training.microbatch))

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
        link = self.problem.cluster.levels[level]
        return self._table(tensor, level, link.link_bytes_per_s, self.shards(most_data), 1, 1)

    def link_bytes_per_s(self, candidate: Candidate, level: int) -> float:
        """Return the bandwidth of a message to the next stage, which all devices send at once."""
        link = self.problem.cluster.levels[level]
        if candidate.pipeline == 1:
            return link.link_bytes_per_s
        stride = candidate.pipeline_stride
        return link.link_bytes_per_s / messages_per_link(self.problem.cluster, level, stride)

    def stages(self, candidate: Candidate, level: int) -> StageCosts:
        """Return the costs of all stages of a candidate, with messages over a network level."""
        shards = self.shards(candidate.data)
        gathering = candidate.data if shards.weights > 1 else 1
        stride = candidate.data_stride if gathering > 1 else 1
        link_bytes_per_s = self.link_bytes_per_s(candidate, level)
        return self._table(candidate.tensor, level, link_bytes_per_s, shards, gathering, stride)

    def _table(
        self,
        tensor: int,
        level: int,
        link_bytes_per_s: float,
        shards: Shards,
        gathering: int,
        stride: int,
    ) -> StageCosts:
        key = (tensor, level, link_bytes_per_s, shards, gathering, stride)
        if key not in self._stages:
            terms = collective_terms("all_gather", gathering, self.problem.cluster, stride)
            self._stages[key] = stage_costs(
                self.problem,
                tensor,
                self.problem.cluster.levels[level].latency_s,
                link_bytes_per_s,
                shards,
                terms if gathering > 1 else (),
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
            shared_bytes = stages.shared_parameters * float(self.optimizer.gradient_bytes)
            link_bytes_per_s = self.link_bytes_per_s(candidate, level)
            exchange_s = 2.0 * cluster.levels[level].latency_s + shared_bytes / link_bytes_per_s
            total_s = total_s + np.where(shared_bytes > 0, exchange_s, 0.0)
        return np.asarray(total_s)

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
            microbatches = -(-training.global_batch // (data * training.microbatch))
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
