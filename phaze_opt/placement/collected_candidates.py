"""Fills the tables of `least_candidates`: what every candidate sends, and how its replicas lie.

Nothing here depends on the accelerator, nor on what layers keep.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from phaze_opt.choices import CollectiveName
from phaze_opt.degrees import RANK_ORDERS, REPLICAS_INSIDE, REPLICAS_SPLIT, Degrees
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.term import Term
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement import least_splits as column
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, candidate_grids, given_candidates
from phaze_opt.placement.chain_bytes import (
    not_elsewhere,
    parameters_of_runs,
    sums,
)
from phaze_opt.placement.closed_form import even_share
from phaze_opt.placement.even import even_starts, longest_run
from phaze_opt.placement.every_pass import (
    Groups,
    collectives_of_groups,
    exchanged_s,
    how_far_apart,
    lines_s,
    own_of_layers,
)
from phaze_opt.placement.exchanges import padded
from phaze_opt.placement.least_candidates import LeastCandidates
from phaze_opt.placement.least_splits import CandidateArrays as CandidateArrays
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.pipeline import alone_share
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.synchronisation import (
    levels_used,
    replica_terms,
    routed_of_runs,
    synchronisation_kind,
    with_same_experts,
)
from phaze_opt.training import Training

_ORDERS = (*RANK_ORDERS, REPLICAS_SPLIT)
"""All orders of ranks."""


def collect_candidates(
    costs: CandidateCosts,
    distinct: IntArray,
    degrees: Degrees | None = None,
    most_devices: int | None = None,
) -> LeastCandidates:
    """Collect the candidates of layers.

    Parameters
    ----------
    costs
        Of one tensor degree.
    distinct : (layers,)
        Which distinct layer each of them is.
    degrees
        If they are given; ``None`` for all.
    most_devices
        On which they lie; ``None`` for no limit.
    """
    if degrees is not None:
        return _Collector(costs, distinct, degrees, most_devices).collect()
    problem = costs.problem
    ((tensor, layers),) = problem.layers.items()
    unkept = tuple([replace(each, stash_bytes=0, transient_bytes=0) for each in layers])
    training = replace(problem.training, recompute="none", recompute_parts="")
    given = problem.edges, problem.cluster, training, tuple(distinct.tolist()), most_devices
    candidates = _of_whatever_is_kept(tensor, unkept, *given)
    return replace(candidates, kept=costs.replicated(tensor).held, _fitting={})


@lru_cache(maxsize=32)
def _of_whatever_is_kept(
    tensor: int,
    layers: tuple[LayerCost, ...],
    edges: tuple[tuple[int, int], ...],
    cluster: Cluster,
    training: Training,
    distinct: tuple[int, ...],
    most_devices: int | None,
) -> LeastCandidates:
    """Collect the candidates without the memory that stages need, on which nothing else depends.

    Runs that differ in nothing but what layers keep, by their recompute or attention, share them.
    """
    problem = PlacementProblem({tensor: layers}, edges, cluster, training, 0.0, np.inf)
    costs = CandidateCosts(problem)
    return _Collector(costs, np.array(distinct), None, most_devices).collect()


class _Columns(NamedTuple):
    """Some candidates, an array each: whole numbers of shape (candidates,).

    Attributes
    ----------
    pipeline, data, microbatches, chunks
        Stages, replicas, microbatches per batch, and chunks of each stage.
    message
        Which of some messages go to the next stage.
    group
        Which of some groups its replicas are.
    """

    pipeline: IntArray
    data: IntArray
    microbatches: IntArray
    chunks: IntArray
    message: IntArray
    group: IntArray

    def some(self, which: BoolArray) -> _Columns:
        """Return those of a mask."""
        return _Columns(*(column[which] for column in self))


class _Collector:
    """Fills the arrays of the candidates of one tensor degree."""

    def __init__(
        self,
        costs: CandidateCosts,
        distinct: IntArray,
        degrees: Degrees | None,
        most_devices: int | None,
    ) -> None:
        self.costs = costs
        self.most_devices = most_devices
        self.distinct = distinct
        self.degrees = degrees
        self.training = costs.problem.training
        self.zero = self.training.zero
        self.repeated = distinct == np.bincount(distinct).argmax()
        (self.tensor,) = costs.problem.layers
        replicated = costs.replicated(self.tensor)
        twice = not_elsewhere(replicated.held.parameters)
        of_runs = sums(tuple(twice.tolist())) if twice.any() else 0.0
        self.own, self.own_routed = own_of_layers(replicated.held.parameters)
        self.parameters = replicated.parameters + of_runs
        self.routed = routed_of_runs(replicated.held.parameters) + of_runs

    def collect(self) -> LeastCandidates:
        """Return everything."""
        columns, messages, groups = self._candidates()
        cluster, optimizer = self.costs.problem.cluster, self.costs.optimizer
        given = cluster, self.training, self.tensor, groups
        gradients = collectives_of_groups(synchronisation_kind(self.zero), *given)
        weights = collectives_of_groups("all_gather", *given)
        sent = [_by_parameters(each, float(self.training.reduced_bytes)) for each in gradients]
        gathered = [_by_parameters(each, float(optimizer.gathered_bytes)) for each in weights]
        if self.zero == 0:
            beaten = [_beaten(columns, each) for each in sent]
            columns = columns.some(~np.logical_and.reduce(beaten))
        ways: dict[Shards, int] = {}
        data, replicas = np.unique(columns.data, return_inverse=True)
        numbers = [
            ways.setdefault(each, len(ways)) for each in map(self.costs.shards, data.tolist())
        ]
        way = np.array(numbers, dtype=np.int64)
        whole = self._whole(columns, way[replicas], self._share_levels(groups))
        real = self._real(columns, messages, sent)
        order = np.lexsort((whole[:, column.STAGES], -real[:, column.REACH]))
        held = self.costs.replicated(self.tensor).held
        return LeastCandidates(
            schedule=self.training.pipeline_schedule,
            optimizer=optimizer,
            repeated=self.repeated,
            own=self.own,
            added=np.maximum(self.own - np.array(held.parameters.accumulated, dtype=np.float64), 0),
            every_pass=self._every_pass(groups),
            lines=padded([lines for each in (*sent, *gathered) for lines in each]),
            held=np.stack([self.parameters, self._tied(), self.routed]),
            whole=whole[order],
            real=real[order],
            kept=held,
            shards=tuple(ways),
            links=np.zeros((2, len(self.own) + 1)),
            ends=self._even_ends(),
        )

    def _share_levels(self, groups: Groups) -> BoolArray:
        """Whether each group sends over a level of the network that groups beside it use too."""
        training, cluster = self.training, self.costs.problem.cluster
        beside, kind = self.costs.replicated(self.tensor).levels, synchronisation_kind(self.zero)
        if training.zero_group or not beside:
            return np.zeros(len(groups), dtype=np.bool_)
        used = _levels_of_groups(kind, cluster, groups)
        if training.holds_experts_apart(self.tensor):
            same = tuple([with_same_experts(training, self.tensor, *group) for group in groups])
            others = _levels_of_groups(kind, cluster, same)
            used = [own | more for own, more in zip(used, others, strict=True)]
        return np.array([not beside.isdisjoint(own) for own in used], dtype=np.bool_)

    def _even_ends(self) -> IntArray | None:
        """Return where stages of given degrees end, which are even: no other split covers all.

        Nothing is said where the seconds of layers, which are not known here, may decide which of
        them are alike.
        """
        training, layers = self.costs.problem.training, self.costs.problem.layers[self.tensor]
        chunks = training.interleave > 1 or training.pipeline_schedule == "zb-v"
        if self.degrees is None or self.degrees.pipeline > len(layers) or chunks:
            return None
        kinds = map(LayerPasses.of, self.distinct.astype(float).tolist())
        told_apart = [replace(each, passes=own) for each, own in zip(layers, kinds, strict=True)]
        if longest_run(layers) != longest_run(told_apart):
            return None
        ends = np.append(even_starts(layers, self.degrees.pipeline)[1:], len(layers))
        return np.asarray(ends[np.searchsorted(ends, np.arange(len(layers)), side="right")])

    def _candidates(self) -> tuple[_Columns, list[Candidate], Groups]:
        """Return the candidates that have layers and microbatches for their chunks.

        Beside them, a candidate for every message, and replicas and distances of every group.
        """
        costs, tensor = self.costs, self.tensor
        pipeline, data, order, level, split = self._within(self._of_degrees())
        microbatches = self.training.microbatches(data)
        chunks = np.where(pipeline > 1, self.training.interleave, 1)
        divides = (chunks == 1) | (microbatches % pipeline == 0)
        inside = order == _ORDERS.index(REPLICAS_INSIDE)
        # On a switch, messages between neighbours of any distance are alike.
        switched = np.array([each.is_uniform for each in costs.problem.cluster.levels])
        apart = np.where(inside, data, np.maximum(split, 1))
        stride = np.where((pipeline == 1) | switched[level], 0, apart)
        first, link = distinct_rows(np.column_stack([level, pipeline == 1, stride]))
        linked = [
            Candidate.of(Degrees(stages, replicas, tensor), _ORDERS[place], own)
            for stages, replicas, place, own in zip(
                *(each[first].tolist() for each in (pipeline, data, order, split)), strict=True
            )
        ]
        terms: dict[Term, int] = {}
        messages = [terms.setdefault(costs.message(each), len(terms)) for each in linked]
        apart = how_far_apart(tensor, pipeline, data, inside, split)
        grouped, group = distinct_rows(apart)
        columns = _Columns(
            pipeline, data, microbatches, chunks, np.array(messages, dtype=np.int64)[link], group
        )
        senders = [linked[messages.index(number)] for number in range(len(terms))]
        groups = tuple([tuple(row) for row in apart[grouped].tolist()])
        return columns.some(divides & (pipeline * chunks <= costs.layers)), senders, groups

    def _within(self, candidates: IntArray) -> IntArray:
        """Return the candidates of `_of_degrees` on no more than the most devices."""
        if self.most_devices is None:
            return candidates
        devices = candidates[0] * candidates[1] * self.tensor
        return candidates[:, devices <= self.most_devices]

    def _of_degrees(self) -> IntArray:
        """Return stages, replicas, order, level, replicas inside of candidates: (5, candidates).

        Those with the fewest replicas of every class, or with given degrees. The order is the place
        in `_ORDERS`, and the level is that of the messages.
        """
        costs, problem, degrees = self.costs, self.costs.problem, self.degrees
        if degrees is None:
            parts = [
                (
                    each.pipeline,
                    each.data,
                    *np.full(
                        (3, len(each.data)),
                        [[_ORDERS.index(each.order)], [each.level], [each.inside]],
                    ),
                )
                for each in candidate_grids(problem, shares_out=False)
            ]
            return np.concatenate([np.zeros((5, 0), dtype=np.int64), *map(np.stack, parts)], axis=1)
        fits = degrees.devices <= problem.cluster.devices and degrees.pipeline <= costs.layers
        fits = fits and degrees.data % self.training.replica_step(self.tensor) == 0
        fits = fits and degrees.data >= self.training.fewest_replicas(self.tensor)
        fits = fits and degrees.data <= self.training.most_replicas
        candidates = given_candidates(degrees, problem.cluster, self.training) if fits else []
        given = [
            (*degrees[:2], _ORDERS.index(each.order), costs.level(each), each.inside)
            for each in candidates
        ]
        return np.array(given, dtype=np.int64).reshape(-1, 5).T

    def _tied(self) -> FloatArray:
        """Return the tied parameters of stages that share them with others if there are others."""
        parameters = self.costs.replicated(self.tensor).held.parameters
        if min(parameters.tied[0], parameters.tied[-1]) == 0:
            # All that are tied may lie on one stage.
            return np.zeros_like(self.parameters)
        return parameters_of_runs(parameters)[1]

    def _whole(self, columns: _Columns, way: IntArray, shares: BoolArray) -> IntArray:
        """Return the whole numbers of the candidates, the groups' gathers after what they send."""
        groups = len(shares)
        zero = np.where(columns.data > 1, self.zero, 0)
        holds_apart = self.training.holds_experts_apart(self.tensor)
        once, gathers = (zero < 2) & (columns.data > 1), (zero == 1) | (zero == 2)
        # After those of all replicas come those of the replicas with the same experts.
        collectives = 2 if holds_apart else 1
        same, _ = self.training.with_same_experts(columns.data, self.tensor, 1)
        apart = holds_apart & (same > 1)
        exchanges = (
            (once, columns.group),
            (gathers, columns.group + collectives * groups),
            (zero >= 2, columns.group),
        )
        of_routed = (
            (once & apart, columns.group + groups),
            (gathers & apart, columns.group + (collectives + 1) * groups),
        )
        flags = [self.costs.schedule == "gpipe", self.training.overlap != "none"]
        return np.column_stack(
            [
                columns.pipeline,
                columns.microbatches,
                columns.chunks,
                way,
                *(np.where(exchanged, row, -1) for exchanged, row in exchanges),
                *np.full((2, len(way)), np.array(flags)[:, np.newaxis]),
                *(np.where(exchanged, row, -1) for exchanged, row in of_routed),
                np.where(columns.pipeline > 1, self._splits_backward, 0),
                shares[columns.group],
            ]
        )

    def _real(
        self, columns: _Columns, messages: list[Candidate], sent: list[list[FloatArray]]
    ) -> FloatArray:
        """Return the real numbers of the candidates."""
        gradient_bytes = float(self.training.reduced_bytes)
        # An all-reduce of tied gradients between two stages is one message each way per half.
        of_message = [
            (
                *self._receives(each),
                2.0 * term.latency_s,
                term.s_per_byte * gradient_bytes,
                2.0 * term.s_per_sqrt_byte * math.sqrt(gradient_bytes / 2.0),
            )
            for each, term in zip(messages, map(self.costs.message, messages), strict=True)
        ]
        numbers = columns.microbatches, columns.pipeline, columns.chunks
        each = zip(*(values.tolist() for values in numbers), strict=True)
        reach = np.array([float(even_share(*row)) for row in each])
        if self.training.splits_backward:
            # Weight gradients are on no way of a microbatch through the stages.
            own = columns.pipeline / columns.microbatches
            reach = np.where(columns.pipeline > 1, own, reach)
        real = np.zeros((len(columns.data), column.SHARE + 1))
        real[:, : column.OPTIMIZER_SHARDS] = np.array(of_message).reshape(-1, 5)[columns.message]
        real[:, column.OPTIMIZER_SHARDS] = columns.data if self.zero >= 1 else 1.0
        real[:, column.GRADIENT_SHARDS] = columns.data if self.zero >= 2 else 1.0
        if self.zero < 2:
            mean_s = self._mean_s(sent, columns.group, columns.pipeline)
            real[:, column.MEAN_SYNCHRONISATION_S] = np.where(columns.data > 1, mean_s, 0.0)
        real[:, column.REACH] = reach
        real[:, column.ALONE] = self._alone(columns)
        return real

    @property
    def _splits_backward(self) -> int:
        """How pipelines lie that split the backward; 0 where none does."""
        if not self.training.splits_backward:
            return 0
        is_v = self.training.pipeline_schedule == "zb-v"
        return column.IN_V if is_v else column.STRAIGHT

    def _alone(self, columns: _Columns) -> FloatArray:
        """Return the share of the microbatches of every candidate that are in no pair."""
        if not self.training.pairs_microbatches:
            return np.ones(len(columns.data))
        numbers = columns.pipeline, columns.microbatches, columns.chunks
        first, which = distinct_rows(np.column_stack(numbers).astype(np.float64))
        rows = zip(*(own[first].tolist() for own in numbers), strict=True)
        return np.array([alone_share(*row) for row in rows])[which]

    def _mean_s(
        self, sent: list[list[FloatArray]], group: IntArray, stages: IntArray
    ) -> FloatArray:
        """Bound the average of the stages' synchronisation from below, of every candidate.

        The time is concave in the parameters, so it lies above its chord between the fewest and the
        most parameters of a stage; routed experts that are shared out have one of their own.
        """
        routed = [self.routed] if len(sent) > 1 else []
        parts = [self.parameters - sum(routed), *routed]
        owns = [self.own - self.own_routed, self.own_routed] if routed else [self.own]
        total_s: FloatArray = np.zeros(len(stages))
        index = np.arange(len(self.parameters))
        for lines, part, own in zip(sent, parts, owns, strict=True):
            least, most = float(part[index, index + 1].min()), float(part[0, -1])
            least_s, most_s = lines_s(lines, np.array([least, most]))[group].T
            slope_s = (most_s - least_s) / (most - least) if most > least else 0.0
            mean_s = least_s + slope_s * (float(own.sum()) / stages - least)
            total_s = total_s + np.maximum(mean_s, 0.0)
        return total_s

    def _every_pass(self, groups: Groups) -> FloatArray:
        """Return the sums over layers of what replicas exchange in every forward and backward."""
        layers, cluster = len(self.own), self.costs.problem.cluster
        rows = np.zeros((len(groups) if self.zero >= 2 else 0, 2, layers + 1))
        if len(rows):
            each = self.own, self.own_routed
            each_s = exchanged_s(cluster, self.training, self.tensor, each, groups)
            np.cumsum(each_s, axis=2, out=rows[:, :, 1:])
        return rows

    def _receives(self, candidate: Candidate) -> tuple[float, float]:
        """Return the least that a stage after the first, and before the last, receives."""
        stages = self.costs.stages(candidate)
        index = np.arange(stages.layers)
        activation_s = stages.received.activation_s[index, index + 1][1:]
        gradient_s = stages.received.gradient_s[index, index + 1][:-1]
        least_s = [float(each.min()) if len(each) else 0.0 for each in (activation_s, gradient_s)]
        return least_s[0], least_s[1]


@lru_cache(maxsize=64)
def _levels_of_groups(
    kind: CollectiveName, cluster: Cluster, groups: Groups
) -> list[frozenset[int]]:
    """Return the levels over which a collective of some groups of replicas sends."""
    return [levels_used(replica_terms(kind, *group, cluster)) for group in groups]


def _by_parameters(groups: list[FloatArray], bytes_each: float) -> list[FloatArray]:
    """Return algorithms by parameters instead of bytes."""
    factors = np.array([1.0, bytes_each, math.sqrt(bytes_each)])
    return [lines * factors for lines in groups]


def _beaten(columns: _Columns, groups: list[FloatArray]) -> BoolArray:
    """Whether fewer replicas run as many microbatches at no greater cost on any accelerator."""
    key = [columns.pipeline, columns.microbatches, columns.message]
    first, which = distinct_rows(np.column_stack(key))
    fewest = columns.group[first[which]]
    lines, counts = padded(groups), np.array([len(each) for each in groups])
    no_less = (lines[fewest] <= lines[columns.group]).all(axis=(1, 2))
    no_less &= counts[fewest] == counts[columns.group]
    no_less[first] = False
    return np.asarray(no_less)
