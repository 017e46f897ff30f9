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

Without overlap, ZeRO 0 and 1 exchange the whole stage at once (as Megatron-LM did in 2021), ZeRO 2
and 3 layer by layer, since they never hold more. With overlap all go layer by layer through the
queues of `phaze_opt.placement.overlap`; where that would take longer than the whole stage at once,
it is exchanged at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.network.collective import CollectiveName, collective_terms
from phaze_opt.network.term import Term, cheapest
from phaze_opt.placement.costs import collective_table_s, parameters_of_runs, sums_of_runs
from phaze_opt.placement.overlap import backward_queue_s, forward_wait_s
from phaze_opt.placement.placement_problem import LayerCost, PlacementProblem
from phaze_opt.training import OPTIMIZERS


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
class ReplicaGroup:
    """Replicas of the stages at one tensor-parallel width.

    Attributes
    ----------
    problem, tensor
        The layers.
    data, stride
        How many replicas, and the distance of their ranks.
    """

    problem: PlacementProblem
    tensor: int
    data: int
    stride: int

    @property
    def zero(self) -> int:
        """Stage of ZeRO; of a single replica there is nothing to share out."""
        return self.problem.training.zero if self.data > 1 else 0

    @property
    def overlaps(self) -> bool:
        """Whether communication runs beside the compute."""
        return self.problem.training.overlap != "none"

    @cached_property
    def _layers(self) -> tuple[LayerCost, ...]:
        return self.problem.layers[self.tensor]

    @cached_property
    def gradient_terms(self) -> tuple[Term, ...]:
        """Algorithms that synchronise gradients."""
        return self._terms(synchronisation_kind(self.zero))

    @cached_property
    def weight_terms(self) -> tuple[Term, ...]:
        """Algorithms that gather weights."""
        return self._terms("all_gather")

    def _terms(self, kind: CollectiveName) -> tuple[Term, ...]:
        return collective_terms(kind, self.data, self.problem.cluster, self.stride)

    @cached_property
    def _shares_level(self) -> bool:
        """Whether the tensor-parallel group sends over a level that the replicas use too."""
        own = collective_terms("all_reduce", self.tensor, self.problem.cluster)
        return bool(_levels(own) & _levels(self.gradient_terms))

    @cached_property
    def forward_cover_s(self) -> FloatArray:
        """Seconds of each layer's forward in which the queue may run."""
        links = self._shares_level
        return np.array([la.forward_s - links * la.forward_link_s for la in self._layers])

    @cached_property
    def backward_cover_s(self) -> FloatArray:
        """The same of what each layer does for a backward: recompute, gradients."""
        links = self._shares_level
        return np.array(
            [
                la.backward_s + la.recompute_s - links * (la.backward_link_s + la.recompute_link_s)
                for la in self._layers
            ]
        )

    @cached_property
    def free_share(self) -> float:
        """Share of all compute in which the queue may run."""
        total_s = sum(la.forward_s + la.backward_s + la.recompute_s for la in self._layers)
        free_s = float(self.forward_cover_s.sum() + self.backward_cover_s.sum())
        return free_s / total_s if total_s > 0.0 else 1.0

    def charged_s(self, exposed_s: FloatArray, total_s: FloatArray) -> FloatArray:
        """Add what hidden communication takes from the compute, by the cores that it occupies."""
        return exposed_s + self.problem.collective_core_share * (total_s - exposed_s)

    def own_gradients_s(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the seconds of each layer's gradients; see `_own_parameters`."""
        bytes_each = float(OPTIMIZERS[self.problem.training.optimizer].gradient_bytes)
        for rows, own in _own_parameters(self._layers):
            yield rows, collective_table_s(self.gradient_terms, own * bytes_each)

    def own_weights_s(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the seconds of each layer's weights; see `_own_parameters`."""
        bytes_each = float(OPTIMIZERS[self.problem.training.optimizer].weight_bytes)
        for rows, own in _own_parameters(self._layers):
            yield rows, collective_table_s(self.weight_terms, own * bytes_each)

    @cached_property
    def _parameters(self) -> FloatArray:
        return parameters_of_runs(self._layers)[0]

    @cached_property
    def forward_gather(self) -> Exchange:
        """Weights gathered for the forward: ZeRO 3 for every microbatch, else once per batch."""
        count = len(self._layers)
        exposed_s, total_s = np.zeros((count, count + 1)), np.zeros((count, count + 1))
        for rows, gather_s in self.own_weights_s():
            total_s[rows] = sums_of_runs(gather_s)[rows]
            wait_s = forward_wait_s(gather_s, self.forward_cover_s)
            exposed_s[rows] = self.charged_s(wait_s[rows], total_s[rows])
        if not self.overlaps:
            exposed_s = total_s
        return self._at_once(exposed_s, total_s, self.weight_terms, self._weight_bytes)

    @cached_property
    def synchronisation(self) -> Exchange:
        """Gradients sent once per batch, beside the last backward (ZeRO 0 and 1)."""
        count = len(self._layers)
        exposed_s, total_s = np.zeros((count, count + 1)), np.zeros((count, count + 1))
        no_gathers = np.zeros(count)
        for rows, reduce_s in self.own_gradients_s():
            total_s[rows] = sums_of_runs(reduce_s)[rows]
            _, left_s = backward_queue_s(no_gathers, reduce_s, self.backward_cover_s)
            exposed_s[rows] = self.charged_s(left_s[rows], total_s[rows])
        if not self.overlaps:
            exposed_s = total_s
        return self._at_once(exposed_s, total_s, self.gradient_terms, self._gradient_bytes)

    @cached_property
    def every_backward(self) -> tuple[Exchange, Exchange]:
        """Weights gathered (ZeRO 3) and gradients sent (ZeRO 2 and 3) in every backward."""
        count = len(self._layers)
        gathers, reductions = (
            Exchange(np.zeros((count, count + 1)), np.zeros((count, count + 1))) for _ in range(2)
        )
        share = self.problem.collective_core_share
        both = zip(self.own_weights_s(), self.own_gradients_s(), strict=True)
        for (rows, weights_s), (_, reduce_s) in both:
            gather_s = weights_s if self.zero == 3 else np.zeros(count)
            gathers.total_s[rows] = sums_of_runs(gather_s)[rows]
            reductions.total_s[rows] = sums_of_runs(reduce_s)[rows]
            wait_s, left_s = backward_queue_s(gather_s, reduce_s, self.backward_cover_s)
            hidden_s = gathers.total_s[rows] + reductions.total_s[rows]
            hidden_s = hidden_s - wait_s[rows] - left_s[rows]
            gathers.exposed_s[rows] = wait_s[rows]
            reductions.exposed_s[rows] = left_s[rows] + share * hidden_s
        if self.overlaps:
            return gathers, reductions
        return (
            Exchange(gathers.total_s, gathers.total_s),
            Exchange(reductions.total_s, reductions.total_s),
        )

    @property
    def _gradient_bytes(self) -> FloatArray:
        optimizer = OPTIMIZERS[self.problem.training.optimizer]
        return np.asarray(self._parameters * float(optimizer.gradient_bytes))

    @property
    def _weight_bytes(self) -> FloatArray:
        optimizer = OPTIMIZERS[self.problem.training.optimizer]
        return np.asarray(self._parameters * float(optimizer.weight_bytes))

    def _at_once(
        self,
        exposed_s: FloatArray,
        total_s: FloatArray,
        terms: Sequence[Term],
        size_bytes: FloatArray,
    ) -> Exchange:
        """Exchange whole stages at once where that takes less, unless only layers are held."""
        if self.zero == 3:
            return Exchange(exposed_s, total_s)
        whole_s = collective_table_s(terms, size_bytes)
        less = whole_s <= exposed_s
        return Exchange(np.where(less, whole_s, exposed_s), np.where(less, whole_s, total_s))

    def sent_bytes(self, terms: Sequence[Term], size_bytes: float) -> float:
        """Return what a device sends in one collective of the group."""
        return cheapest(terms, size_bytes).all_sent_per_byte * size_bytes


def _levels(terms: Sequence[Term]) -> set[int]:
    """Return the levels over which any of the algorithms sends."""
    return {index for term in terms for index, sent in enumerate(term.sent_per_byte) if sent > 0}


def _own_parameters(layers: Sequence[LayerCost]) -> Iterator[tuple[slice, FloatArray]]:
    """Count each layer's parameters, tied ones with the first layer of a run that holds them.

    Tied gradients are complete, and tied weights needed, when the first of their layers runs.

    Yields
    ------
    rows, own : slice of first layers, (layers,)
        The counts for all runs that begin in these rows.
    """
    parameters = np.array([layer.parameters for layer in layers], dtype=np.float64)
    tied = np.array([layer.tied_parameters for layer in layers], dtype=np.float64)
    holders = [index for index, count in enumerate(tied) if count > 0]
    begin = 0
    for holder in holders:
        own = parameters - tied
        own[holder] = parameters[holder]
        yield slice(begin, holder + 1), own
        begin = holder + 1
    yield slice(begin, len(layers)), parameters - tied
