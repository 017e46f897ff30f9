"""All degrees of parallelism that a cluster allows, with what their stages cost.

Ranks are numbered with tensor parallelism innermost; then either the replicas of one stage or the
stages of one replica are neighbours. On a cluster of one flat level the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from phaze_opt.estimator.collective import collective_terms, outermost_level
from phaze_opt.hardware.cluster import Cluster
from phaze_opt.placement.chain import least_tail_terms
from phaze_opt.placement.costs import Floats, Integers, StageCosts, stage_costs
from phaze_opt.placement.problem import PlacementProblem
from phaze_opt.placement.training import OPTIMIZERS


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
    data: Integers
    pipeline: Integers
    microbatches: Integers

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
        self._stages: dict[tuple[int, float, float], StageCosts] = {}
        self._tails: dict[tuple[int, int, int, int], Floats] = {}
        self._tail_terms: dict[tuple[int, int, int, int], Floats] = {}

    def microbatches(self, data: int) -> int:
        """Return how many microbatches one replica runs per batch."""
        training = self.problem.training
        return -(-training.global_batch // (data * training.microbatch))

    def level(self, candidate: Candidate) -> int:
        """Return the network level of the slowest link between neighbouring stages."""
        return outermost_level(candidate.pipeline, self.problem.cluster, candidate.pipeline_stride)

    def stages(self, tensor: int, level: int) -> StageCosts:
        """Return the costs of all stages at a width, with messages over a network level."""
        link = self.problem.cluster.levels[level]
        key = (tensor, link.latency_s, link.link_bytes_per_s)
        if key not in self._stages:
            self._stages[key] = stage_costs(self.problem, *key)
        return self._stages[key]

    def synchronisation_s(self, candidate: Candidate, level: int) -> Floats:
        """Return the all-reduce of every stage's gradients, tied ones between stages too."""
        stages, cluster = self.stages(candidate.tensor, level), self.problem.cluster
        size_bytes = stages.parameters * float(self.optimizer.gradient_bytes)
        terms = collective_terms("all_reduce", candidate.data, cluster, candidate.data_stride)
        total_s = np.minimum.reduce([t.latency_s + t.s_per_byte * size_bytes for t in terms])
        total_s[stages.parameters == 0] = 0.0
        if candidate.pipeline > 1 and stages.shared_parameters.any():
            # An all-reduce between two stages: one message each way per half of the gradients.
            link = cluster.levels[level]
            shared_bytes = stages.shared_parameters * float(self.optimizer.gradient_bytes)
            exchange_s = 2.0 * link.latency_s + shared_bytes / link.link_bytes_per_s
            total_s = total_s + np.where(shared_bytes > 0, exchange_s, 0.0)
        return np.asarray(total_s)

    def optimizer_s(self, tensor: int, level: int) -> Floats:
        """Return the time of every stage's optimizer step."""
        step_s = self.optimizer.step_bytes / self.problem.hbm_bytes_per_s
        return np.asarray(self.stages(tensor, level).parameters * step_s, dtype=np.float64)

    def tail_s(self, candidate: Candidate, level: int) -> Floats:
        """Return what every stage still does after its last backward."""
        key = (candidate.tensor, candidate.data, candidate.data_stride, level)
        if candidate.pipeline == 1:  # nothing is shared with another stage
            return self._compute_tail_s(candidate, level)
        if key not in self._tails:
            self._tails[key] = self._compute_tail_s(candidate, level)
        return self._tails[key]

    def least_tail_term_s(self, candidate: Candidate, level: int) -> float:
        """Return the least tail term of the closed form (see `phaze_opt.placement.chain`)."""
        stages = self.stages(candidate.tensor, level)
        if candidate.pipeline == 1:
            return float(self.tail_s(candidate, level)[0, stages.layers])
        key = (candidate.tensor, candidate.data, candidate.data_stride, level)
        if key not in self._tail_terms:
            reach = self.problem.cluster.devices // (candidate.tensor * candidate.data)
            self._tail_terms[key] = least_tail_terms(
                self.tail_s(candidate, level),
                stages.backward_work_s,
                min(stages.layers, reach),
            )
        return float(self._tail_terms[key][candidate.pipeline])

    def _compute_tail_s(self, candidate: Candidate, level: int) -> Floats:
        return self.synchronisation_s(candidate, level) + self.optimizer_s(candidate.tensor, level)

    def least_tail_s(self, grid: CandidateGrid, parameters: Integers | int) -> Floats:
        """Bound the tail of stages with so many parameters from below, for a whole grid."""
        size_bytes = np.asarray(parameters * float(self.optimizer.gradient_bytes))
        step_s = self.optimizer.step_bytes / self.problem.hbm_bytes_per_s
        tail_s: Floats = np.broadcast_to(np.float64(step_s) * parameters, grid.data.shape)
        if not grid.data_inside:
            return tail_s
        latency_s, s_per_byte = _synchronisation_lines(
            self.problem.cluster, grid.tensor, int(grid.data.max())
        )
        lines_s = latency_s[grid.data] + s_per_byte[grid.data] * size_bytes.reshape(-1, 1)
        return np.asarray(tail_s + np.where(size_bytes > 0, lines_s.min(axis=1), 0.0))

    def grids(self) -> Iterator[CandidateGrid]:
        """Yield all candidates: every width, data degree and number of stages that may run."""
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


def _reach(cluster: Cluster) -> NDArray[np.float64]:
    """Return how many devices each level joins, all levels below included."""
    sizes = [np.inf if level.group_size is None else level.group_size for level in cluster.levels]
    return np.asarray(np.cumprod(sizes), dtype=np.float64)


@lru_cache(maxsize=128)
def _synchronisation_lines(cluster: Cluster, stride: int, most_data: int) -> tuple[Floats, Floats]:
    """Return latency and seconds per byte of every all-reduce algorithm, by data degree."""
    terms = [
        collective_terms("all_reduce", max(1, data), cluster, stride)
        for data in range(most_data + 1)
    ]
    width = max(len(row) for row in terms)
    latency_s = np.full((most_data + 1, width), np.inf)
    s_per_byte = np.zeros((most_data + 1, width))
    for data, row in enumerate(terms):
        for column, term in enumerate(row):
            latency_s[data, column] = term.latency_s
            s_per_byte[data, column] = term.s_per_byte
    return latency_s, s_per_byte
