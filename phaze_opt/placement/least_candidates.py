"""All candidates of one tensor degree, as `phaze_opt.placement.least_splits` takes them.

Nothing here depends on the accelerator but the memory that a stage may fill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.term import Term
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement import least_splits as column
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, rank_orders
from phaze_opt.placement.chain_bounds import least_loads
from phaze_opt.placement.chain_bytes import held_by_runs, in_flight_limits, parameters_of_runs
from phaze_opt.placement.closed_form import even_share
from phaze_opt.placement.costs import StageCosts, collective_table_s
from phaze_opt.placement.even import even_starts, longest_run
from phaze_opt.placement.exchanges import cheapest_lines_s, lines_of, padded
from phaze_opt.placement.least_splits import CandidateArrays as CandidateArrays
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.pipeline import held_by_place, interleaved_in_flight
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.runs import sums_of_runs
from phaze_opt.training import Optimizer, Training


@dataclass(frozen=True, eq=False)
class LeastCandidates:
    """Candidates of one tensor degree, sorted by falling `least_splits.REACH`.

    Attributes
    ----------
    schedule, optimizer
        Of the training run.
    repeated : (layers,)
        Which layers are the distinct one that is repeated most.
    own, every_pass, lines, held, whole, real
        See `CandidateArrays`; the tables of ``limit`` are those of `memory`.
    memory
        State and working set of all stages, and what each microbatch in flight adds, in bytes and
        of shape (layers, layers + 1), by what replicas share out.
    shards
        What they share out.
    ends : (layers,)
        Where a stage that begins at each layer ends at the latest; ``None`` for anywhere.
    """

    schedule: PipelineScheduleName
    optimizer: Optimizer
    repeated: BoolArray
    own: FloatArray
    every_pass: FloatArray
    lines: FloatArray
    held: FloatArray
    whole: IntArray
    real: FloatArray
    memory: tuple[tuple[FloatArray, FloatArray], ...]
    shards: tuple[Shards, ...]
    ends: IntArray | None = None
    _fitting: dict[float, CandidateArrays] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        costs: CandidateCosts,
        distinct: IntArray,
        degrees: Degrees | None = None,
    ) -> LeastCandidates:
        """Collect all candidates, or those of given degrees, of layers that are distinct or not."""
        if degrees is not None:
            return _Collector(costs, distinct, degrees).collect()
        problem = costs.problem
        ((tensor, layers),) = problem.layers.items()
        unkept = tuple([replace(each, stash_bytes=0, transient_bytes=0) for each in layers])
        training = replace(problem.training, recompute="none")
        given = problem.edges, problem.cluster, training, tuple(distinct.tolist())
        candidates = _of_whatever_is_kept(tensor, unkept, *given)
        chain = costs.replicated(tensor).held
        held = [held_by_runs(chain, candidates.optimizer, each, 0.0) for each in candidates.shards]
        memory = tuple([(each.resident_bytes, each.stash_bytes) for each in held])
        return replace(candidates, memory=memory, _fitting={})

    def fitting(self, usable_bytes: float) -> CandidateArrays:
        """Return the arrays of the candidates that fit a memory, each computed once."""
        if usable_bytes not in self._fitting:
            limit = np.array(
                [
                    in_flight_limits(resident_bytes, stash_bytes, usable_bytes)
                    for resident_bytes, stash_bytes in self.memory
                ],
                dtype=np.int64,
            ).reshape(-1, *self.held.shape[1:])
            if self.ends is not None:
                limit[:, np.arange(limit.shape[2]) > self.ends[:, np.newaxis]] = 0
            interleaved = self.whole[:, column.CHUNKS] > 1
            fits = np.zeros(len(self.whole), dtype=np.bool_)
            fits[~interleaved] = column.fitting(
                self.lines, self.held, limit, self.whole[~interleaved]
            )
            fits[interleaved] = [
                self._interleaved_bytes(row) <= usable_bytes for row in self.whole[interleaved]
            ]
            whole, real = self.whole[fits], self.real[fits]
            real[:, column.MOST_REPEATED] = self._most_repeated(whole, limit)
            shared = self.own, self.every_pass, self.lines, self.held
            self._fitting[usable_bytes] = CandidateArrays(*shared, limit, whole, real)
        return self._fitting[usable_bytes]

    def _most_repeated(self, whole: IntArray, limit: IntArray) -> FloatArray:
        """Return how many repeated layers the stage with most of them has at least, by memory."""
        least = np.zeros(len(whole))
        counts = sums_of_runs(self.repeated.astype(np.float64))
        stages, microbatches = whole[:, column.STAGES], whole[:, column.MICROBATCHES]
        # Chunks of one stage lie apart, so that no memory of runs of layers bounds them.
        interleaved = whole[:, column.CHUNKS] > 1
        least[interleaved] = np.ceil(counts[0, -1] / stages[interleaved])
        # Where there are fewer microbatches than stages, or all are in flight, the fewest bound.
        few = (microbatches < stages) | (self.schedule == "gpipe")
        for table in np.unique(whole[:, column.LIMIT]):
            for part in (few & ~interleaved, ~few & ~interleaved):
                here = np.flatnonzero(part & (whole[:, column.LIMIT] == table))
                if len(here) == 0:
                    continue
                most_stages = int(stages[here].max())
                fewest = int(microbatches[here].min()) if few[here[0]] else most_stages
                held = held_by_place(most_stages, fewest, self.schedule)
                most, _ = least_loads(counts, limit[table], held)
                least[here] = most[stages[here], 0]
        return least

    def _interleaved_bytes(self, whole: IntArray) -> float:
        """Bound what the fullest stage holds by the average stage."""
        stages, chunks = int(whole[column.STAGES]), int(whole[column.CHUNKS])
        _, stash_bytes = self.memory[whole[column.LIMIT]]
        ahead = interleaved_in_flight(stages, int(whole[column.MICROBATCHES]), chunks)
        state = self.shards[whole[column.LIMIT]].state_bytes(self.optimizer)
        parameters = float(self.own.sum())
        stash = float(ahead.min()) / chunks * float(stash_bytes[0, -1])
        return float((parameters * state + stash) / stages * (1.0 - 1e-12))


@lru_cache(maxsize=32)
def _of_whatever_is_kept(
    tensor: int,
    layers: tuple[LayerCost, ...],
    edges: tuple[tuple[int, int], ...],
    cluster: Cluster,
    training: Training,
    distinct: tuple[int, ...],
) -> LeastCandidates:
    """Collect the candidates without the memory that stages need, on which nothing else depends.

    Runs that differ in nothing but what layers keep, by their recompute or attention, share them.
    """
    problem = PlacementProblem({tensor: layers}, edges, cluster, training, 0.0, np.inf)
    costs = CandidateCosts(problem)
    return replace(_Collector(costs, np.array(distinct), None).collect(), memory=())


class _Collector:
    """Fills the arrays of the candidates of one tensor degree."""

    def __init__(
        self,
        costs: CandidateCosts,
        distinct: IntArray,
        degrees: Degrees | None,
    ) -> None:
        self.costs = costs
        self.distinct = distinct
        self.degrees = degrees
        self.repeated = distinct == np.bincount(distinct).argmax()
        (self.tensor,) = costs.problem.layers
        replicated = costs.replicated(self.tensor)
        (_, self.own), *_ = replicated.own_parameters
        self.parameters = replicated.parameters
        self.lines: dict[tuple[object, ...], int] = {}
        self.line_rows: list[FloatArray] = []
        self.mean_sizes = _sizes(self.parameters)
        self.every_pass: dict[tuple[int, int], int] = {}
        self.pass_rows: list[FloatArray] = []
        self.tables: dict[Shards, int] = {}
        self.memory: list[tuple[FloatArray, FloatArray]] = []
        self.fewest: dict[tuple[int, int, Term], int] = {}
        self.messages: dict[int, tuple[float, float]] = {}

    def collect(self) -> LeastCandidates:
        """Return everything."""
        rows = [self._row(candidate) for candidate in self._all()]
        whole = np.array([row[0] for row in rows], dtype=np.int64).reshape(-1, 9)
        real = np.array([row[1] for row in rows], dtype=np.float64).reshape(-1, 13)
        order = np.lexsort((whole[:, column.STAGES], -real[:, column.REACH]))
        count = len(self.own)
        return LeastCandidates(
            schedule=self.costs.schedule,
            optimizer=self.costs.optimizer,
            repeated=self.repeated,
            own=self.own,
            every_pass=np.array(self.pass_rows).reshape(-1, 2, count + 1),
            lines=padded(self.line_rows),
            held=np.stack([self.parameters, self._tied()]),
            whole=whole[order],
            real=real[order],
            memory=tuple(self.memory),
            shards=tuple(self.tables),
            ends=self._even_ends(),
        )

    def _even_ends(self) -> IntArray | None:
        """Return where stages of given degrees end, which are even: no other split covers all.

        Nothing is said where the seconds of layers, which are not known here, may decide which of
        them are alike.
        """
        training, layers = self.costs.problem.training, self.costs.problem.layers[self.tensor]
        if self.degrees is None or self.degrees.pipeline > len(layers) or training.interleave > 1:
            return None
        kinds = map(LayerPasses.of, self.distinct.astype(float).tolist())
        told_apart = [replace(each, passes=own) for each, own in zip(layers, kinds, strict=True)]
        if longest_run(layers) != longest_run(told_apart):
            return None
        ends = np.append(even_starts(layers, self.degrees.pipeline)[1:], len(layers))
        return np.asarray(ends[np.searchsorted(ends, np.arange(len(layers)), side="right")])

    def _all(self) -> Iterator[Candidate]:
        """Yield the candidates, without those that others beat on every accelerator."""
        for candidate in self._of_degrees():
            if self.costs.can_interleave(candidate) and not self._beaten(candidate):
                yield candidate

    def _of_degrees(self) -> Iterator[Candidate]:
        """Yield the candidates with the fewest replicas of every class, or with given degrees."""
        if self.degrees is None:
            for grid in self.costs.grids:
                for index in range(len(grid.data)):
                    yield grid.candidate(index)
            return
        degrees, problem = self.degrees, self.costs.problem
        fits = degrees.devices <= problem.cluster.devices
        fits = fits and degrees.pipeline <= self.costs.layers
        if fits and degrees.data * problem.training.microbatch <= problem.training.global_batch:
            for order in rank_orders(problem.cluster):
                yield Candidate.of(degrees, order)

    def _beaten(self, candidate: Candidate) -> bool:
        """Whether fewer replicas run as many microbatches at no greater cost on any accelerator."""
        if self.costs.problem.training.zero > 0:
            return False
        message = self.costs.message(candidate)
        key = candidate.pipeline, self.costs.microbatches(candidate.data), message
        row = self._synchronisation(candidate)
        if key not in self.fewest:
            self.fewest[key] = row
            return False
        fewer, more = self.line_rows[self.fewest[key]], self.line_rows[row]
        return fewer.shape == more.shape and bool((fewer <= more).all())

    def _synchronisation(self, candidate: Candidate) -> int:
        """Return the row of the algorithms that synchronise gradients."""
        terms = self.costs.group(candidate).gradient_terms
        where = "gradients", candidate.data, candidate.stride("data")
        return self._lines(where, terms, float(self.costs.optimizer.gradient_bytes))

    def _tied(self) -> FloatArray:
        """Return the tied parameters of stages that share them with others if there are others."""
        parameters = self.costs.replicated(self.tensor).held.parameters
        if min(parameters.tied[0], parameters.tied[-1]) == 0:
            # All that are tied may lie on one stage.
            return np.zeros_like(self.parameters)
        return parameters_of_runs(parameters)[1]

    def _row(self, candidate: Candidate) -> tuple[list[int], list[float]]:
        """Return the numbers of one candidate."""
        costs, group = self.costs, self.costs.group(candidate)
        zero = group.zero
        shards, stages = costs.shards(candidate.data), costs.stages(candidate)
        if shards not in self.tables:
            self.tables[shards] = len(self.memory)
            self.memory.append((stages.held.resident_bytes, stages.held.stash_bytes))
        synchronised = gathered = every_pass = -1
        mean_s = 0.0
        gradient_bytes = float(costs.optimizer.gradient_bytes)
        if candidate.data > 1 and zero < 2:
            synchronised = self._synchronisation(candidate)
            mean_s = self._mean_s(synchronised, candidate.pipeline)
        if zero in (1, 2):
            weight_bytes = float(costs.optimizer.weight_bytes)
            where = "weights", candidate.data, candidate.stride("data")
            gathered = self._lines(where, group.weight_terms, weight_bytes)
        if zero >= 2:
            every_pass = self._passes(candidate)
        activation_s, gradient_s = self._receives(stages)
        message, microbatches = costs.message(candidate), costs.microbatches(candidate.data)
        chunks = costs.chunks(candidate)
        whole = [
            candidate.pipeline,
            microbatches,
            chunks,
            self.tables[shards],
            synchronised,
            gathered,
            every_pass,
            int(costs.schedule == "gpipe"),
            int(group.overlaps),
        ]
        # An all-reduce of tied gradients between two stages is one message each way per half.
        real = [
            activation_s,
            gradient_s,
            2.0 * message.latency_s,
            message.s_per_byte * gradient_bytes,
            2.0 * message.s_per_sqrt_byte * math.sqrt(gradient_bytes / 2.0),
            float(shards.optimizer),
            float(shards.gradients),
            mean_s,
            float(even_share(microbatches, candidate.pipeline, chunks)),
            0.0,
            0.0,
            0.0,
            0.0,
        ]
        return whole, real

    def _lines(self, key: tuple[object, ...], terms: Sequence[Term], bytes_each: float) -> int:
        """Return the row of some algorithms, by parameters instead of bytes."""
        if key not in self.lines:
            self.lines[key] = len(self.line_rows)
            lines = lines_of(terms)
            lines[:, 1] *= bytes_each
            lines[:, 2] *= math.sqrt(bytes_each)
            self.line_rows.append(lines)
        return self.lines[key]

    def _mean_s(self, row: int, stages: int) -> float:
        """Bound the average of the stages' synchronisation from below.

        The time is concave in the parameters, so it lies above its chord between the fewest and the
        most parameters of a stage.
        """
        least, most = self.mean_sizes
        sizes = np.array(self.mean_sizes)
        ((least_s, most_s),) = cheapest_lines_s(self.line_rows[row][np.newaxis], sizes).tolist()
        slope_s = (most_s - least_s) / (most - least) if most > least else 0.0
        return float(max(least_s + slope_s * (float(self.own.sum()) / stages - least), 0.0))

    def _passes(self, candidate: Candidate) -> int:
        """Return the row of what replicas exchange in every forward and backward."""
        key = candidate.data, candidate.stride("data")
        if key not in self.every_pass:
            self.every_pass[key] = len(self.pass_rows)
            group, optimizer = self.costs.group(candidate), self.costs.optimizer
            weights_s = np.zeros_like(self.own)
            if group.zero == 3:
                size_bytes = self.own * float(optimizer.weight_bytes)
                weights_s = collective_table_s(group.weight_terms, size_bytes)
            size_bytes = self.own * float(optimizer.gradient_bytes)
            gradients_s = collective_table_s(group.gradient_terms, size_bytes)
            rows = np.zeros((2, len(self.own) + 1))
            np.cumsum(weights_s, out=rows[0, 1:])
            np.cumsum(weights_s + gradients_s, out=rows[1, 1:])
            self.pass_rows.append(rows)
        return self.every_pass[key]

    def _receives(self, stages: StageCosts) -> tuple[float, float]:
        """Return the least that a stage after the first, and before the last, receives."""
        if id(stages) not in self.messages:
            index = np.arange(stages.layers)
            activation_s = stages.received.activation_s[index, index + 1][1:]
            gradient_s = stages.received.gradient_s[index, index + 1][:-1]
            least_s = [
                float(each.min()) if len(each) else 0.0 for each in (activation_s, gradient_s)
            ]
            self.messages[id(stages)] = least_s[0], least_s[1]
        return self.messages[id(stages)]


def _sizes(parameters: FloatArray) -> tuple[float, float]:
    """Return the fewest and the most parameters that a stage may have."""
    index = np.arange(len(parameters))
    return float(parameters[index, index + 1].min()), float(parameters[0, -1])
