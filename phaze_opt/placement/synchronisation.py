"""Gradient synchronisation and weight gathers of the replicas: exposed seconds, and bytes.

What replicas exchange (S. Rajbhandari et al., ZeRO, SC 2020):

====  =====================================  ==========================================
ZeRO  gradients                              weights
====  =====================================  ==========================================
0     all-reduce per batch                   –
1     reduce-scatter per batch               all-gather after the optimizer step
2     reduce-scatter per microbatch          all-gather after the optimizer step
3     reduce-scatter per microbatch          all-gather for every forward and backward
====  =====================================  ==========================================

Where only neighbouring replicas share out (``Training.zero_group``), weights are gathered among
them, and gradients, reduced among them, are then reduced among the groups.

Routed experts that are shared out are exchanged among the replicas that have the same ones
(`GroupTerms`), all else among all; where only neighbours share out, among those of a group that
have the same ones, and then among the groups.

Without overlap, ZeRO 0 and 1 exchange the whole stage at once (as Megatron-LM did in 2021), ZeRO 2
and 3 layer by layer, since they never hold more. With overlap all go layer by layer through the
queues of `phaze_opt.placement.overlap`; where that would take longer than the whole stage at once,
it is exchanged at once.

``partial`` is in between: gradients go out as without overlap, and of the seconds of gathers that
the queues hide, a share is exposed too (``data/overlap.toml``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.choices import CollectiveName
from phaze_opt.codec import data_table, from_builtins
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import collective_terms, split_terms
from phaze_opt.network.term import Term, cheapest, one_after_the_other
from phaze_opt.on_demand import cached_property
from phaze_opt.optimizers import Optimizer
from phaze_opt.passes.layer_cost import PASS_COLUMNS
from phaze_opt.placement.chain_bytes import (
    ChainBytes,
    ChainParameters,
    chain_bytes,
    for_many_designs,
    for_many_designs_if_short,
    parameters_of_runs,
    sums,
)
from phaze_opt.placement.costs import DegreeRuns, collective_table_s
from phaze_opt.placement.exchanges import cheapest_lines_s, exchanges_per_batch, lines_of, padded
from phaze_opt.placement.overlap import backward_queue_s, charged_s, forward_queue_s
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.training import Training


@lru_cache(maxsize=1)
def hidden_share() -> float:
    """Return the share of what queues hide of gathers that ``partial`` overlap hides."""
    stated = data_table("placement", "overlap.toml")["partial"]
    return from_builtins(stated, PartialOverlap, "overlap.toml").central


@dataclass(frozen=True)
class PartialOverlap:
    """A share of the gathers that is hidden, with its range and source."""

    low: float
    central: float
    high: float
    source: str
    confidence: str


def synchronisation_kind(zero: int) -> CollectiveName:
    """Return the collective that synchronises gradients."""
    return "all_reduce" if zero == 0 else "reduce_scatter"


@dataclass(frozen=True, eq=False)
class Exchange:
    """One kind of communication of every run of layers, each time that it happens.

    Attributes
    ----------
    exposed_s, total_s : (layers, layers + 1)
        Seconds by which it makes the run longer, and seconds on the network.
    """

    exposed_s: FloatArray
    total_s: FloatArray


@dataclass(frozen=True)
class ReplicatedLayers:
    """The layers of one tensor degree, as any number of replicas exchange them."""

    problem: PlacementProblem
    tensor: int

    @cached_property
    def held(self) -> ChainBytes:
        """What they hold."""
        return chain_bytes(self.problem, self.tensor)

    @property
    def parameters(self) -> FloatArray:
        """Parameters of every run of layers."""
        return parameters_of_runs(self.held.parameters)[0]

    @property
    def own_parameters(self) -> tuple[tuple[slice, FloatArray], ...]:
        """Parameters of each layer, tied ones with the first layer of a run that holds them.

        Tied gradients are complete, and tied weights needed, when the first of their layers runs.
        The slice is of the first layers of the runs that the counts, of shape ``(layers,)``, are
        for.
        """
        return own_parameters(self.held.parameters)

    @property
    def gradients(self) -> Gradients:
        """Bytes of gradients."""
        each = float(self.problem.training.reduced_bytes)
        merged = self.problem.merged_from
        if merged is None:
            return _gradients(self.held.parameters, each)
        layers = chain_bytes(merged.problem, self.tensor).parameters
        return _gradients_of(layers, merged.places, self.parameters, each)

    @cached_property
    def levels(self) -> frozenset[int]:
        """Network levels over which groups send beside replicas: tensors, experts, sequences."""
        cluster, training = self.problem.cluster, self.problem.training
        used = levels_used(collective_terms("all_reduce", self.tensor, cluster))
        of_expert = training.expert_tensor_parallel or self.tensor
        groups = [(training.expert_parallel, of_expert), (training.context_parallel, self.tensor)]
        groups += [(of_expert, 1)] if of_expert != self.tensor else []
        for devices, stride in groups:
            used |= levels_used(collective_terms("all_to_all", devices, cluster, stride))
        return used

    @property
    def before_s(self) -> FloatArray:
        """Seconds that hide communication before each layer's gradients are complete, at most.

        The first layer's are the last ones.
        """
        _, cover_s = self.cover_s[False]
        merged = self.problem.merged_from
        if merged is None:
            return np.append(0.0, np.cumsum(cover_s)[:-1])
        # Those of a merged layer go out beside it.
        return np.cumsum(np.add.reduceat(cover_s, merged.starts))

    @cached_property
    def cover_s(self) -> dict[bool, tuple[FloatArray, FloatArray]]:
        """Seconds of each layer's forward, and backward, in which the queue may run.

        By whether the tensor-parallel group uses the same level. Of the first forward and the last
        backward of a batch, which have no other microbatch beside them.
        """
        merged = self.problem.merged_from
        return self._cover_s(self.problem if merged is None else merged.problem, 0.0)

    @property
    def every_cover_s(self) -> dict[bool, tuple[FloatArray, FloatArray]]:
        """The same of any forward and backward: beside another microbatch they take less."""
        return self._least_cover_s if self.problem.training.pairs_microbatches else self.cover_s

    @cached_property
    def _least_cover_s(self) -> dict[bool, tuple[FloatArray, FloatArray]]:
        return self._cover_s(self.problem, None)

    def _cover_s(
        self, problem: PlacementProblem, paired: float | None
    ) -> dict[bool, tuple[FloatArray, FloatArray]]:
        """Return them for some share of the microbatches in pairs, see `DegreeRuns`."""
        runs = DegreeRuns(problem, self.tensor, self.held, paired)
        forward_s, forward_link_s, *others = [runs.column(name) for name in PASS_COLUMNS]
        backward_s, backward_link_s = others[0] + others[2], others[1] + others[3]
        return {
            False: (forward_s, backward_s),
            True: (forward_s - forward_link_s, backward_s - backward_link_s),
        }


class GroupTerms(NamedTuple):
    """Algorithms of a collective of what layers have in all replicas.

    Attributes
    ----------
    of_all
        Among all replicas.
    of_same
        Among those that have the same share of the routed experts; none where nothing is shared.

    Where only neighbouring replicas share anything out, both are inside a group, and then between
    groups.
    """

    of_all: tuple[Term, ...]
    of_same: tuple[Term, ...] = ()

    def table_s(self, parameters: FloatArray, routed: FloatArray, bytes_each: float) -> FloatArray:
        """Return the seconds for parameters, of which some are of routed experts."""
        if not self.of_same:
            return collective_table_s(self.of_all, parameters * bytes_each)
        own_s = collective_table_s(self.of_all, (parameters - routed) * bytes_each)
        return own_s + collective_table_s(self.of_same, routed * bytes_each)

    def sent_bytes(self, parameters: int, routed: int, bytes_each: float) -> float:
        """Return what a device sends in one collective."""
        sent = 0.0
        parts = ((self.of_all, parameters - routed), (self.of_same, routed))
        for terms, count in parts:
            if terms:
                size_bytes = float(count * bytes_each)
                sent += cheapest(terms, size_bytes).all_sent_per_byte * size_bytes
        return sent


@dataclass(frozen=True)
class ReplicaGroup:
    """Replicas of the stages at one tensor degree.

    Attributes
    ----------
    replicated
        The layers.
    data, stride
        How many replicas, and the distance of their ranks.
    inside, outside_stride
        How many of them are neighbours where others are further apart, and how far; else 0.
    """

    replicated: ReplicatedLayers
    data: int
    stride: int
    inside: int = 0
    outside_stride: int = 0

    @property
    def problem(self) -> PlacementProblem:
        """What is placed."""
        return self.replicated.problem

    @property
    def zero(self) -> int:
        """Stage of ZeRO; of a single replica there is nothing to share out."""
        return self.problem.training.zero if self.data > 1 else 0

    @property
    def overlaps(self) -> bool:
        """Whether any communication runs beside the compute."""
        return self.problem.training.overlap != "none"

    def _partly_hidden(self, gathers: Exchange) -> Exchange:
        """Return gathers of which no more is hidden than the compiler of the program can hide."""
        if self.problem.training.overlap != "partial":
            return gathers
        hidden = hidden_share()
        exposed_s = hidden * gathers.exposed_s + (1.0 - hidden) * gathers.total_s
        return Exchange(exposed_s, gathers.total_s)

    @cached_property
    def gradient_terms(self) -> GroupTerms:
        """Algorithms that synchronise gradients."""
        return self._terms(synchronisation_kind(self.zero))

    @cached_property
    def weight_terms(self) -> GroupTerms:
        """Algorithms that gather weights."""
        return self._terms("all_gather")

    def _terms(self, kind: CollectiveName) -> GroupTerms:
        cluster = self.problem.cluster
        training, tensor = self.problem.training, self.replicated.tensor
        group = training.sharing(self.data)
        if group < self.data and self.zero > 0:
            of_group = self._terms_of_groups(kind, group, self.stride)
            if not training.holds_experts_apart(tensor):
                return GroupTerms(of_group)
            same_inside = training.with_same_experts(group, tensor, self.stride)
            return GroupTerms(of_group, self._terms_of_groups(kind, *same_inside))
        apart = self.data, self.stride, self.inside, self.outside_stride
        of_all = replica_terms(kind, *apart, cluster)
        if not training.holds_experts_apart(tensor):
            return GroupTerms(of_all)
        same = with_same_experts(training, tensor, *apart)
        return GroupTerms(of_all, replica_terms(kind, *same, cluster))

    def _terms_of_groups(self, kind: CollectiveName, sharing: int, stride: int) -> tuple[Term, ...]:
        """Return what is exchanged where only neighbouring replicas share anything out.

        Weights are gathered inside a group. Gradients are reduced there, and what each device then
        has of them is reduced with those who have the same in the other groups.

        Parameters
        ----------
        kind
            The collective.
        sharing, stride
            Devices of a group that have the same, and how far they are apart.
        """
        cluster, group = self.problem.cluster, self.problem.training.sharing(self.data)
        inside = collective_terms(kind, sharing, cluster, stride)
        if kind == "all_gather":
            return inside
        others = self.data // group, cluster, self.stride * group
        return tuple(
            [
                one_after_the_other(first, second, 1.0 / sharing)
                for first in inside
                for second in collective_terms("all_reduce", *others)
            ]
        )

    @cached_property
    def shares_level(self) -> bool:
        """Whether the tensor-parallel group sends over a level that the replicas use too."""
        own = self.replicated.levels
        return bool(own) and not own.isdisjoint(levels_used(sum(self.gradient_terms, ())))

    @property
    def free_share(self) -> float:
        """Share of all compute in which the queue may run."""
        busy_s, free_s = (
            sum(float(each.sum()) for each in self.replicated.cover_s[shared])
            for shared in (False, self.shares_level)
        )
        return free_s / busy_s if busy_s > 0.0 else 1.0

    def own_gradients_s(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the seconds of each layer's gradients; see `ReplicatedLayers.own_parameters`."""
        return self._own_s(self.gradient_terms, self.problem.training.reduced_bytes)

    def own_weights_s(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the seconds of each layer's weights; see `ReplicatedLayers.own_parameters`."""
        return self._own_s(self.weight_terms, self._optimizer.gathered_bytes)

    def _own_s(self, terms: GroupTerms, bytes_each: float) -> Iterator[tuple[slice, FloatArray]]:
        routed = np.array(self.replicated.held.parameters.routed, dtype=np.float64)
        for rows, own in self.replicated.own_parameters:
            yield rows, terms.table_s(own, routed, float(bytes_each))

    @cached_property
    def forward_gather(self) -> Exchange:
        """Weights gathered for the forward: ZeRO 3 for every microbatch, else once per batch."""
        count = len(self.replicated.held)
        every = self.zero == 3
        covers_s = self.replicated.every_cover_s if every else self.replicated.cover_s
        cover_s, _ = covers_s[self.shares_level]
        exposed_s, total_s = np.zeros((count, count + 1)), np.zeros((count, count + 1))
        share = self.problem.collective_core_share
        for rows, gather_s in self.own_weights_s():
            wait_s, all_s = (each[rows] for each in forward_queue_s(gather_s, cover_s))
            total_s[rows], exposed_s[rows] = all_s, charged_s(wait_s, all_s - wait_s, share)
        if not self.overlaps:
            exposed_s = total_s
        exposed_s = self._partly_hidden(Exchange(exposed_s, total_s)).exposed_s
        if self.zero == 3:
            return Exchange(exposed_s, total_s)
        # Unless only layers are held, whole stages are gathered at once where that takes less.
        less = self.gather_at_once_s <= exposed_s
        both = (np.where(less, self.gather_at_once_s, each) for each in (exposed_s, total_s))
        return Exchange(*both)

    @cached_property
    def synchronisation(self) -> Exchange:
        """Gradients sent once per batch, beside the last backward (ZeRO 0 and 1)."""
        gradients = self.replicated.gradients
        if not self.problem.training.hides_gradients:
            return _exchanged_after(self.replicated.held.parameters, gradients, self.gradient_terms)
        _, cover_s = self.replicated.cover_s[self.shares_level]
        share = self.problem.collective_core_share
        return _exchanged(gradients, self.gradient_terms, cover_s, share, overlaps=True)

    @cached_property
    def every_backward(self) -> tuple[Exchange, Exchange]:
        """Weights gathered (ZeRO 3) and gradients sent (ZeRO 2 and 3) in every backward."""
        count = len(self.replicated.held)
        _, cover_s = self.replicated.every_cover_s[self.shares_level]
        gathers, reductions = (
            Exchange(np.zeros((count, count + 1)), np.zeros((count, count + 1))) for _ in range(2)
        )
        share = self.problem.collective_core_share
        both = zip(self.own_weights_s(), self.own_gradients_s(), strict=True)
        for (rows, weights_s), (_, reduce_s) in both:
            gather_s = weights_s if self.zero == 3 else np.zeros(count)
            queue = backward_queue_s(gather_s, reduce_s, cover_s)
            wait_s, left_s, gathers_s, reductions_s = queue
            gathers.total_s[rows], reductions.total_s[rows] = gathers_s[rows], reductions_s[rows]
            hidden_s = (gathers_s + reductions_s - wait_s - left_s)[rows]
            gathers.exposed_s[rows] = wait_s[rows]
            reductions.exposed_s[rows] = charged_s(left_s[rows], hidden_s, share)
        if self.problem.training.hides_gradients:
            return gathers, reductions
        if self.overlaps:
            hidden_s = gathers.total_s - gathers.exposed_s
            gathers = Exchange(charged_s(gathers.exposed_s, hidden_s, share), gathers.total_s)
            gathers = self._partly_hidden(gathers)
        else:
            gathers = Exchange(gathers.total_s, gathers.total_s)
        return gathers, Exchange(reductions.total_s, reductions.total_s)

    @property
    def _optimizer(self) -> Optimizer:
        return self.problem.training.state

    @cached_property
    def gather_at_once_s(self) -> FloatArray:
        """Seconds to gather the weights of every run of layers at once."""
        each = float(self._optimizer.gathered_bytes)
        routed = routed_of_runs(self.replicated.held.parameters)
        return self.weight_terms.table_s(self.replicated.parameters, routed, each)


def replica_terms(
    kind: CollectiveName,
    data: int,
    stride: int,
    inside: int,
    outside_stride: int,
    cluster: Cluster,
) -> tuple[Term, ...]:
    """Return what a collective of replicas costs; the others are fields of `ReplicaGroup`."""
    if inside == 0:
        return collective_terms(kind, data, cluster, stride)
    return split_terms(kind, inside, stride, data // inside, outside_stride, cluster)


def with_same_experts(
    training: Training, tensor: int, data: int, stride: int, inside: int, outside_stride: int
) -> tuple[int, int, int, int]:
    """Return the devices of some replicas that have the same experts, apart as replicas are.

    Those next to each other are as far apart as all shares reach.
    """
    devices, apart = training.with_same_experts(data, tensor, stride)
    neighbours, _ = training.with_same_experts(inside, tensor, stride)
    return devices, apart, neighbours, outside_stride


def levels_used(terms: Sequence[Term]) -> frozenset[int]:
    """Return the levels over which any of the algorithms sends."""
    return frozenset(
        index for term in terms for index, sent in enumerate(term.sent_per_byte) if sent > 0
    )


@for_many_designs
def own_parameters(parameters: ChainParameters) -> tuple[tuple[slice, FloatArray], ...]:
    """Return `ReplicatedLayers.own_parameters`."""
    all_own = np.array(parameters.own, dtype=np.float64)
    tied = np.array(parameters.tied, dtype=np.float64)
    holders = [index for index, count in enumerate(parameters.tied) if count > 0]
    parts, begin = [], 0
    for holder in holders:
        own = all_own - tied
        own[holder] = all_own[holder]
        parts.append((slice(begin, holder + 1), own))
        begin = holder + 1
    if begin < len(parameters):
        parts.append((slice(begin, len(parameters)), all_own - tied))
    return tuple(parts)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Bytes of gradients.

    Attributes
    ----------
    ends, own_bytes, routed_bytes
        Where the slices of `ReplicatedLayers.own_parameters` end, and what each layer has there,
        its share of the routed experts aside, and what that share has.
    places, parameters, routed
        Which runs of layers are stages, and their parameters, likewise; see
        `phaze_opt.placement.exchanges.exchanges_per_batch`.
    bytes_each
        Of one parameter.
    """

    ends: IntArray
    own_bytes: FloatArray
    routed_bytes: FloatArray
    places: IntArray
    parameters: FloatArray
    routed: FloatArray
    bytes_each: float


@for_many_designs
def _gradients(parameters: ChainParameters, bytes_each: float) -> Gradients:
    """Return the gradients of layers with so many bytes per parameter."""
    places = np.arange(len(parameters) + 1, dtype=np.int64)
    return _gradients_of(parameters, places, parameters_of_runs(parameters)[0], bytes_each)


def _gradients_of(
    parameters: ChainParameters, places: IntArray, of_runs: FloatArray, bytes_each: float
) -> Gradients:
    """Return the gradients of layers of which some runs are stages, with so many parameters."""
    parts, routed = own_parameters(parameters), np.array(parameters.routed, dtype=np.float64)
    # Chains whose layers are merged share no experts out.
    routed_runs = routed_of_runs(parameters) if any(parameters.routed) else np.zeros_like(of_runs)
    return Gradients(
        np.array([rows.stop for rows, _ in parts], dtype=np.int64),
        np.array([own - routed for _, own in parts]) * bytes_each,
        routed * bytes_each,
        places,
        of_runs - routed_runs,
        routed_runs,
        bytes_each,
    )


def routed_of_runs(parameters: ChainParameters) -> FloatArray:
    """Count the parameters of routed experts of runs of layers."""
    return sums(parameters.routed)


@for_many_designs_if_short
def _exchanged_after(
    parameters: ChainParameters, gradients: Gradients, terms: GroupTerms
) -> Exchange:
    """Exchange the gradients once per batch, after all compute: no time of a layer changes that."""
    no_cover_s = np.zeros(gradients.own_bytes.shape[1])
    return _exchanged(gradients, terms, no_cover_s, 0.0, overlaps=False)


def _exchanged(
    gradients: Gradients,
    terms: GroupTerms,
    cover_s: FloatArray,
    core_share: float,
    overlaps: bool,
) -> Exchange:
    """Exchange the gradients once per batch; see `phaze_opt.placement.exchanges`."""
    tables = exchanges_per_batch(
        lines_of(terms.of_all),
        lines_of(terms.of_same),
        gradients.ends,
        gradients.own_bytes,
        gradients.routed_bytes,
        cover_s,
        gradients.places,
        gradients.parameters,
        gradients.routed,
        gradients.bytes_each,
        core_share,
        overlaps,
    )
    return Exchange(*tables)


@for_many_designs
def synchronisations_s(
    parameters: ChainParameters,
    gradient_bytes: float,
    kind: CollectiveName,
    cluster: Cluster,
    tensor: int,
    data: bytes,
) -> tuple[FloatArray, FloatArray]:
    """Return the synchronisation of the first layers among some numbers of neighbouring replicas.

    Parameters
    ----------
    parameters, gradient_bytes
        The layers at one tensor degree, and the gradient of a parameter.
    kind, cluster, tensor
        How the gradients are synchronised.
    data
        The numbers of replicas, as bytes of an array.

    Returns
    -------
    at_once_s, queued_s : (numbers of replicas, layers)
        Of the first 1, 2, … layers: all at once, and one after the other.
    """
    replicas = np.frombuffer(data, dtype=np.int64).tolist()
    terms = [collective_terms(kind, count, cluster, tensor) for count in replicas]
    lines = padded([lines_of(of_count) for of_count in terms])
    (_, own), *_ = own_parameters(parameters)
    all_at_once = parameters_of_runs(parameters)[0][0, 1:]
    queued_s = np.cumsum(cheapest_lines_s(lines, own * gradient_bytes), axis=1)
    return cheapest_lines_s(lines, all_at_once * gradient_bytes), queued_s
