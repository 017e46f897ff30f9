"""All degrees of parallelism that a cluster allows.

Many numbers of replicas run equally many microbatches. Where more of them never communicate faster
(see `phaze_opt.network.collective.rising_starts`), they are one *class*: its fewest replicas bound
all others from below. Replicas that share states out (ZeRO 1) hold less, and update less, the more
they are. Where there are very many, they are in classes too: each is bounded by what its fewest
exchange beside what its most share out, and tried with its fewest and its most.

Ranks are numbered with tensor parallelism innermost; then either the replicas of one stage or the
stages of one replica are neighbours; or, where that is asked for, some replicas of a stage, then
its neighbours in the pipeline, then its other replicas. On one flat level all are the same.
Devices that share a sequence are replicas next to each other: they hold the same parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.degrees import (
    RANK_ORDERS,
    REPLICAS_INSIDE,
    REPLICAS_SPLIT,
    Axis,
    Degrees,
    RankOrder,
)
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import has_ranges, rising_starts
from phaze_opt.network.groups import WholeUnits, whole_units
from phaze_opt.on_demand import cached_property
from phaze_opt.placement.closed_form import even_share
from phaze_opt.placement.fitting_stages import FittingStages
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.size import DegreeSize, check_memory
from phaze_opt.training import Training

MOST_SINGLE_REPLICAS = 2**14
"""Replicas that share states out are in classes only where there may be more of them."""


class Candidate(NamedTuple):
    """Degrees of parallelism on some devices; of two, that with fewer devices comes first.

    Attributes
    ----------
    devices, degrees
        Those in use, and how they share the work.
    order
        Of the ranks.
    sharing
        Over how many replicas states are shared out, where not over all: more of them bound many
        candidates at once.
    inside
        Replicas inside the stages, where others are outside; 0 where all stand together.
    """

    devices: int
    degrees: Degrees
    order: RankOrder = REPLICAS_INSIDE
    sharing: int = 0
    inside: int = 0

    @classmethod
    def of(cls, degrees: Degrees, order: RankOrder = REPLICAS_INSIDE, inside: int = 0) -> Candidate:
        """Build a candidate from its degrees."""
        return cls(degrees.devices, degrees, order, inside=inside)

    @property
    def pipeline(self) -> int:
        """Number of stages."""
        return self.degrees.pipeline

    @property
    def data(self) -> int:
        """Number of replicas of the parameters, devices that share a sequence among them."""
        return self.degrees.data

    @property
    def shares(self) -> int:
        """Number of replicas over which states are shared out."""
        return self.sharing or self.degrees.data

    @property
    def tensor(self) -> int:
        """Devices of a tensor-parallel group."""
        return self.degrees.tensor

    def stride(self, axis: Axis) -> int:
        """Return how far neighbours along an axis are apart in ranks; of replicas, those inside."""
        if not self.inside:
            return self.degrees.stride(axis, self.order)
        return self.tensor * self.inside if axis == "pipeline" else self.tensor

    @property
    def outside_stride(self) -> int:
        """Distance of replicas outside the stages, in ranks; 0 where all stand together."""
        return self.tensor * self.inside * self.pipeline


class DeepestPipelines(NamedTuple):
    """The most stages of some candidates by their number of microbatches, which rises.

    Attributes
    ----------
    microbatches, stages
        Different numbers of microbatches, and the most stages with each of them.
    even_share
        See `phaze_opt.placement.closed_form.even_share`.
    """

    microbatches: FloatArray
    stages: IntArray
    even_share: FloatArray


@dataclass(frozen=True, eq=False)
class CandidateGrid:
    """Candidates that share tensor degree, rank order and pipeline link; one entry per class.

    All of them have one microbatch per batch, or all have several (``accumulates``).

    Attributes
    ----------
    data, most_data
        The fewest and the most replicas of a class. With more of them, a candidate of the class
        takes at least as long, and no stage has less memory; unless they share states out.
    shares_out
        Whether they do.
    inside
        See `Candidate`.
    """

    tensor: int
    order: RankOrder
    level: int
    accumulates: bool
    data: IntArray
    most_data: IntArray
    pipeline: IntArray
    microbatches: IntArray
    shares_out: bool = False
    inside: int = 0

    @property
    def sizes(self) -> IntArray:
        """Number of candidates of every class."""
        return np.asarray(self.most_data - self.data + 1)

    @property
    def devices(self) -> IntArray:
        """Devices of the candidate of every class with the fewest replicas."""
        return np.asarray(self.pipeline * self.data * self.tensor)

    @cached_property
    def candidates_by_stages(self) -> FloatArray:
        """Number of candidates of 0, 1, 2, … stages."""
        return np.asarray(np.bincount(self.pipeline, self.sizes), dtype=np.float64)

    @cached_property
    def distinct_data(self) -> tuple[IntArray, IntArray]:
        """The different numbers of replicas, rising, and the place of each class among them."""
        return np.unique(self.data, return_inverse=True)

    @cached_property
    def most_stages(self) -> int:
        """The most stages of any candidate."""
        return int(self.pipeline.max())

    @cached_property
    def fewest_microbatches(self) -> int:
        """The fewest microbatches of any candidate."""
        return int(self.microbatches.min())

    @cached_property
    def even_share(self) -> FloatArray:
        """See `phaze_opt.placement.closed_form.even_share`, of every class."""
        return even_share(self.microbatches, self.pipeline)

    @cached_property
    def has_all_in_flight(self) -> BoolArray:
        """Whether the first stage of a class holds as many microbatches as there are stages."""
        return np.asarray(self.pipeline <= self.microbatches)

    @cached_property
    def deepest(self) -> DeepestPipelines:
        """The most stages of any candidate, for every number of microbatches."""
        return self._deepest(np.ones(len(self.data), dtype=np.bool_))

    def deepest_that_fit(self, fitting: FittingStages) -> DeepestPipelines:
        """Return the most stages of a candidate that fits, for every number of microbatches."""
        if fitting not in self._found:
            full, single = fitting.full[self.pipeline], fitting.single[self.pipeline]
            self._found[fitting] = self._deepest(np.where(self.has_all_in_flight, full, single))
        return self._found[fitting]

    @cached_property
    def _found(self) -> WeakKeyDictionary[FittingStages, DeepestPipelines]:
        """What `deepest_that_fit` has returned."""
        return WeakKeyDictionary()

    def _deepest(self, fits: BoolArray) -> DeepestPipelines:
        microbatches, place = np.unique(self.microbatches[fits], return_inverse=True)
        stages = np.zeros_like(microbatches)
        np.maximum.at(stages, place, self.pipeline[fits])
        share = even_share(microbatches, stages)
        return DeepestPipelines(microbatches.astype(np.float64), stages, share)

    def candidate(self, index: int) -> Candidate:
        """Return the candidate of a class with the fewest replicas."""
        return next(self.candidates(index))

    def bounding(self, index: int) -> Candidate:
        """Return a candidate that takes no longer than any of a class, and needs no more memory."""
        fewest, most = self.candidate(index), int(self.most_data[index])
        return fewest._replace(sharing=most) if self.shares_out and most > fewest.data else fewest

    def candidates(self, index: int) -> Iterator[Candidate]:
        """Yield the candidates of a class that are tried, those with fewer replicas first."""
        pipeline, step = int(self.pipeline[index]), 1
        fewest, most = int(self.data[index]), int(self.most_data[index])
        if self.shares_out:
            step = max(1, most - fewest)
        for data in range(fewest, most + 1, step):
            yield Candidate.of(Degrees(pipeline, data, self.tensor), self.order, self.inside)


def candidate_grids(
    problem: PlacementProblem, *, shares_out: bool = True
) -> tuple[CandidateGrid, ...]:
    """Return all candidates: every tensor degree, data degree and number of stages that may run.

    Parameters
    ----------
    problem
        What is placed.
    shares_out
        Whether very many replicas that share states out (ZeRO 1) may be in classes.
    """
    layers = problem.outline.layers
    count, training = len(next(iter(layers.values()))), problem.training
    most = most_data(1, problem.cluster, training)
    # With ZeRO 2 and 3 replicas exchange something in every microbatch, which bounds leave out:
    # there would be too many classes that may be the fastest.
    shares_out = shares_out and training.zero == 1 and most > MOST_SINGLE_REPLICAS
    return _grids(tuple(sorted(layers)), count, problem.cluster, training, shares_out)


@lru_cache(maxsize=16)
def _grids(
    tensor_degrees: tuple[int, ...],
    layers: int,
    cluster: Cluster,
    training: Training,
    shares_out: bool,
) -> tuple[CandidateGrid, ...]:
    """Return the same, cached: the designs of a study share them."""
    given = layers, cluster, training, shares_out
    sizes = [_size_of_degree(tensor, *given) for tensor in tensor_degrees]
    check_memory(layers, cluster.devices, sizes)
    return all_grids(tensor_degrees, *given)


def all_grids(
    tensor_degrees: tuple[int, ...],
    layers: int,
    cluster: Cluster,
    training: Training,
    shares_out: bool = False,
) -> tuple[CandidateGrid, ...]:
    """Return the candidates of a chain of so many layers, of which there may be too many tables."""
    return tuple(
        grid
        for tensor in tensor_degrees
        for grid in _grids_of_degree(tensor, layers, cluster, training, shares_out)
    )


def _grids_of_degree(
    tensor: int, layers: int, cluster: Cluster, training: Training, shares_out: bool
) -> Iterator[CandidateGrid]:
    """Yield the candidates of one tensor degree."""
    reach = _reach(cluster)
    for order, inside in rank_orders(cluster, training, tensor):
        classes = list(_classes(tensor, order, inside, layers, cluster, training, shares_out))
        if not classes:
            continue
        stages, first, last = zip(*classes, strict=True)
        data, most = np.concatenate(first), np.concatenate(last)
        pipeline = np.repeat(np.array(stages, dtype=np.int64), [len(each) for each in first])
        microbatches = training.microbatches(data)
        # The stages of one replica are so far apart.
        span = pipeline * tensor * (data if order == REPLICAS_INSIDE else max(inside, 1))
        # Levels twice, and one more where gradients are accumulated.
        kind = 2 * np.searchsorted(reach, span) + (microbatches > 1)
        for each in np.flatnonzero(np.bincount(kind)):
            here = kind == each
            yield CandidateGrid(
                tensor,
                order,
                int(each) // 2,
                bool(each % 2),
                data[here],
                most[here],
                pipeline[here],
                microbatches[here],
                shares_out,
                inside,
            )


def _size_of_degree(
    tensor: int, layers: int, cluster: Cluster, training: Training, shares_out: bool = False
) -> DegreeSize:
    """Count the candidates of one tensor degree without listing them."""
    most, orders = most_data(tensor, cluster, training), rank_orders(cluster, training, tensor)
    if not _has_classes(tensor, cluster, training, shares_out):
        # So many replicas fit at most beside 1, 2, … stages.
        fitting = cluster.devices // (tensor * np.arange(1, layers + 1, dtype=np.int64))
        step = training.replica_step(tensor)
        each = np.minimum(fitting, most) // step
        # Too few replicas are none; see `_starts`.
        each = np.maximum(each + 1 - training.fewest_replicas(tensor) // step, 0)
        return DegreeSize(len(orders) * int(each.sum()), most)
    firsts = [
        first
        for order, inside in orders
        for _, first, _ in _classes(tensor, order, inside, layers, cluster, training, shares_out)
    ]
    different = np.unique(np.concatenate(firsts)) if firsts else ()
    return DegreeSize(sum(map(len, firsts)), len(different))


def rank_orders(
    cluster: Cluster, training: Training, tensor: int
) -> tuple[tuple[RankOrder, int], ...]:
    """Return the orders of ranks that differ, each with its replicas inside (`Candidate`).

    What shares experts or sequences is together. Where all orders are asked for, replicas inside
    the stages are as many as share these, or fill a unit of a level or what a leaf switch joins.
    """
    step = training.replica_step(tensor)
    apart = step > 1 or training.holds_experts_apart(tensor)
    only = len(cluster.levels) == 1 or apart
    orders = [(order, 0) for order in (RANK_ORDERS[:1] if only else RANK_ORDERS)]
    if training.rank_order == "two":
        return tuple(orders)
    if only and not apart and not cluster.levels[0].is_uniform:
        orders.append((RANK_ORDERS[1], 0))
    units, sizes = 1, [step * tensor]
    for level in cluster.levels:
        sizes.append(level.leaf_devices or units)
        units *= level.group_size or cluster.devices
        sizes.append(units)
    fitting = {size // tensor for size in sizes if size < cluster.devices and size % tensor == 0}
    return (
        *orders,
        *(
            (REPLICAS_SPLIT, inside)
            for inside in sorted(fitting)
            if inside > 1 and not inside % step
        ),
    )


def given_candidates(degrees: Degrees, cluster: Cluster, training: Training) -> list[Candidate]:
    """Return the candidates of given degrees, one for every order of ranks that they can have."""
    return [
        Candidate.of(degrees, order, inside)
        for order, inside in rank_orders(cluster, training, degrees.tensor)
        if not inside
        or (degrees.pipeline > 1 and degrees.data > inside and degrees.data % inside == 0)
    ]


def most_data(devices: int, cluster: Cluster, training: Training) -> int:
    """Return the most replicas of so many devices each."""
    return min(cluster.devices // devices, training.most_replicas)


def _classes(
    tensor: int,
    order: RankOrder,
    inside: int,
    layers: int,
    cluster: Cluster,
    training: Training,
    shares_out: bool,
) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Yield every number of stages with the fewest and the most replicas of its classes."""
    most = most_data(tensor, cluster, training)
    for stages in range(1, min(layers, cluster.devices // tensor) + 1):
        fitting = min(most, cluster.devices // (stages * tensor))
        if inside:
            # With one stage, or no replicas outside, all would stand together.
            split = np.arange(2 * inside, fitting + 1, inside, dtype=np.int64)
            if stages > 1 and len(split):
                yield stages, split, split
            continue
        stride = tensor if order == REPLICAS_INSIDE else stages * tensor
        units = whole_units(cluster, stride)
        first = _starts(tensor, cluster, training, units, most, shares_out)
        first = first[: np.searchsorted(first, fitting, side="right")]
        if len(first):
            last = np.append(first[1:] - 1, fitting)
            yield stages, first, first if training.replica_step(tensor) > 1 else last


@lru_cache(maxsize=32)
def _starts(
    tensor: int,
    cluster: Cluster,
    training: Training,
    units: WholeUnits,
    most_data: int,
    shares_out: bool,
) -> IntArray:
    """Return the fewest replicas of every class; where nothing is known, of every number."""
    if _has_classes(tensor, cluster, training, shares_out):
        begins = _where_microbatches_change(training, most_data)
        return rising_starts(cluster, units, begins, most_data)
    first, step = training.fewest_replicas(tensor), training.replica_step(tensor)
    return np.arange(first, most_data + 1, step, dtype=np.int64)


def _has_classes(tensor: int, cluster: Cluster, training: Training, shares_out: bool) -> bool:
    """Whether classes have several numbers of replicas."""
    may_have = training.replica_step(tensor) == 1 and (training.zero == 0 or shares_out)
    may_have = may_have and not training.holds_experts_apart(tensor)
    return may_have and training.interleave == 1 and has_ranges(cluster)


@lru_cache(maxsize=8)
def _where_microbatches_change(training: Training, most_data: int) -> IntArray:
    """Return the fewest replicas of every number of microbatches."""
    data = np.arange(1, most_data + 1, dtype=np.int64)
    microbatches: IntArray = training.microbatches(data)
    first: IntArray = data[np.append(True, microbatches[1:] != microbatches[:-1])[:most_data]]
    return first


def _reach(cluster: Cluster) -> FloatArray:
    """Return how many devices each level joins, all levels below included."""
    sizes = [np.inf if level.group_size is None else level.group_size for level in cluster.levels]
    return np.asarray(np.cumprod(sizes), dtype=np.float64)
