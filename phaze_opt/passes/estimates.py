"""The passes of layers on some accelerators: fused and estimated, not yet scheduled.

All of them are estimated at once, as arrays of chips × operators (`PassEstimates`); `EstimatedPass`
is one of them on one chip.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import FusionMode, ResidencyChoice
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.estimate import (
    GraphEstimate,
    JointEstimate,
    ModeSeconds,
    estimate_jointly,
)
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import cached_property, with_fields
from phaze_opt.passes.chunked_collectives import beside_products
from phaze_opt.passes.graphs import as_estimated, fuse_once, graphs_of
from phaze_opt.passes.layer_cost import PassCost
from phaze_opt.passes.problem import (
    build_problem,
    columns_of,
    least_of_passes,
    least_of_residency,
    operator_values,
)
from phaze_opt.passes.residency import cached_reads_of, residency_of
from phaze_opt.passes.tiles import TiledPass, tile_graph
from phaze_opt.passes.totals import BoundOperators, bound_in_modes
from phaze_opt.scheduling.problem_columns import ProblemColumns
from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import CachedReads, ScheduleProblem
from phaze_opt.training import Training
from phaze_opt.workload.graph import Layer, OperatorGraph, WorkloadVariant

Mode = TypeVar("Mode", bound=ModeSeconds)


_KEPT = 8
"""Estimates that are kept, of the captures that are tried for one design."""


@dataclass(frozen=True)
class Chip:
    """What the layers run on.

    Attributes
    ----------
    accelerator, cluster
        The chip, and the network of its tensor-parallel group.
    fusion
        How operators are fused before they are estimated.
    lane_rate
        Rate of the vector lanes relative to the accelerator's, whose lanes are whole numbers and
        share the chip's clock; other than 1 only in what-if questions.
    prove
        Whether schedules that the fast methods leave open are solved further, with CP-SAT.
    host_rate
        Rate at which the host launches kernels, relative to the central one; other than 1 only in
        ranges and what-if questions.
    """

    accelerator: Accelerator
    cluster: Cluster
    fusion: FusionMode
    lane_rate: float = 1.0
    prove: bool = False
    host_rate: float = 1.0


class PassGraph(NamedTuple):
    """One graph of a layer, on whatever chip.

    Attributes
    ----------
    layer, direction
        What it is a pass of, and which one.
    graph
        Fused.
    tensor
        Devices of the tensor-parallel group.
    place
        Which of the graphs that are estimated together it is.
    """

    layer: str
    direction: str
    graph: OperatorGraph
    tensor: int
    place: int


@dataclass(frozen=True, eq=False)
class PassEstimates:
    """Some passes on some chips, estimated as one; see `phaze_opt.estimator.estimate`.

    Attributes
    ----------
    estimate
        Of all passes on all chips, with the chips' lanes and, where ``whole`` is given, with
        collectives beside products.
    passes, chips
        What runs, and on what.
    residency
        Whether tensors may stay on the chip, as in `phaze_opt.training.Training`.
    whole
        The same with whole collectives, where collectives of groups go beside products.
    """

    estimate: JointEstimate
    passes: Sequence[PassGraph]
    chips: Sequence[Chip]
    residency: ResidencyChoice
    whole: PassEstimates | None = None

    @cached_property
    def _values(self) -> FloatArray:
        return operator_values(self.estimate.both)

    @cached_property
    def least_s(self) -> list[list[float]]:
        """Bounds of the makespans of schedules without residency, by chip and pass."""
        accelerators = [chip.accelerator for chip in self.chips]
        cores = np.array([[float(each.num_tc), float(each.num_vc)] for each in accelerators])
        graphs = tuple([each.graph for each in self.passes])
        takes_time = self._values[:, :, :2].min(axis=2) > 0.0
        if (takes_time == takes_time[0]).all():
            least_s = least_of_passes(graphs, self._values, cores)
        else:
            # The bound of several chips takes operators out only if none needs time for them.
            alone = zip(self._values[:, np.newaxis], cores[:, np.newaxis], strict=True)
            least_s = np.concatenate([least_of_passes(graphs, *chip) for chip in alone])
        by_chip: list[list[float]] = least_s.tolist()
        return by_chip

    @cached_property
    def are_finite(self) -> list[bool]:
        """Whether no operator of any pass takes endless time, by chip."""
        finite: list[bool] = np.isfinite(self._values.sum(axis=(1, 2))).tolist()
        return finite

    @cached_property
    def _bound(self) -> tuple[BoundOperators, BoundOperators]:
        return bound_in_modes(self.estimate.both)

    def bound(self, row: int, place: int) -> tuple[BoundOperators, BoundOperators]:
        """Return what binds the operators of one pass on one chip, on one core and on all."""
        one_core, all_cores = self._bound
        which = row, self.estimate.parts[place]
        return one_core.rows(which), all_cores.rows(which)

    def columns(self, row: int, place: int) -> ProblemColumns:
        """Return what the scheduler takes of one pass on one chip."""
        values = self._values[row, self.estimate.parts[place]]
        return columns_of(self.passes[place].graph, values, self.chips[row].accelerator)


@dataclass(frozen=True, eq=False)
class EstimatedPass:
    """One graph of a layer as it will run: fused and estimated in both modes, not yet scheduled.

    Attributes
    ----------
    own
        The graph, and where its estimates are among those of the others.
    among, row
        All passes, and which of their chips this one is on.
    """

    own: PassGraph
    among: PassEstimates
    row: int

    @property
    def layer(self) -> str:
        """The layer that it is a pass of."""
        return self.own.layer

    @property
    def direction(self) -> str:
        """Which pass it is."""
        return self.own.direction

    @property
    def graph(self) -> OperatorGraph:
        """The operators."""
        return self.own.graph

    @property
    def accelerator(self) -> Accelerator:
        """The chip."""
        return self.among.chips[self.row].accelerator

    @cached_property
    def estimates(self) -> GraphEstimate:
        """Both modes of all operators, with the chip's lanes and collectives beside products."""
        return self.among.estimate.of(self.row, self.own.place)

    @property
    def bound(self) -> tuple[BoundOperators, BoundOperators]:
        """What binds every operator on one core, and on all cores."""
        return self.among.bound(self.row, self.own.place)

    @property
    def link_s(self) -> float:
        """Seconds for which all operators use the network."""
        return self.among.estimate.link_s[self.own.place]

    @cached_property
    def problem(self) -> ScheduleProblem:
        """What is to be scheduled."""
        problem = build_problem(f"{self.layer} {self.direction}", self.graph, self.columns)
        return replace(problem, cached=self.cached_reads, residency=self.residency)

    @cached_property
    def columns(self) -> ProblemColumns:
        """What is to be scheduled, without residency."""
        return self.among.columns(self.row, self.own.place)

    @property
    def may_be_endless(self) -> bool:
        """Whether operators, of this pass or of others beside it, take endless time."""
        return not self.among.are_finite[self.row]

    @property
    def _is_chunked(self) -> bool:
        """Whether collectives go beside products, chunk by chunk."""
        return self.own.tensor > 1 and self.among.whole is not None

    @property
    def _may_hold(self) -> bool:
        """Whether tensors may stay in a buffer that the program manages."""
        return bool(self.among.residency) and self.accelerator.concurrent_operators

    @cached_property
    def cached_reads(self) -> CachedReads | None:
        """What a cache serves, where the chip has one and tensors may stay."""
        if not self.among.residency or self.accelerator.concurrent_operators:
            return None
        return cached_reads_of(self.graph, self.estimates.all_cores, self.accelerator)

    @cached_property
    def residency(self) -> Residency | None:
        """The joint problem, where tensors can stay in a managed buffer."""
        # What hides beside a product does not run one at a time, as the joint problem has it.
        if self._is_chunked or not self._may_hold:
            return None
        joint = residency_of(self.graph, self.estimates.all_cores, self.accelerator)
        if joint is None or self.tiled is None:
            return joint
        return with_fields(joint, tiling=self.tiled.tiling(joint))

    @cached_property
    def tiled(self) -> TiledPass | None:
        """The operators cut into tiles, where tensors may be handed on by tiles."""
        if self.among.residency != "tiles" or not tile_graph(self.graph).through:
            return None
        chip = self.among.chips[self.row]
        return TiledPass(self.graph, self.estimates.all_cores, chip.accelerator, chip.lane_rate)

    @cached_property
    def whole(self) -> EstimatedPass | None:
        """The same with whole collectives, where only these let tensors stay; else ``None``."""
        if self.among.whole is None or not (self._is_chunked and self._may_hold):
            return None
        return EstimatedPass(self.own, self.among.whole, self.row)

    @cached_property
    def least_s(self) -> float:
        """Bound the makespan of every schedule from below, up to rounding."""
        own_s = self._least_as_estimated_s
        return own_s if self.whole is None else min(own_s, self.whole.least_s)

    @property
    def _least_as_estimated_s(self) -> float:
        if not self.accelerator.concurrent_operators:
            latency_s = self.estimates.all_cores.latency_s
            if self.cached_reads is not None:
                latency_s = np.minimum(latency_s, self.cached_reads.latency_s)
            return float(latency_s.sum())
        least_s = self.among.least_s[self.row][self.own.place]
        return (
            least_s if self.residency is None else min(least_s, least_of_residency(self.residency))
        )


@dataclass(frozen=True, eq=False)
class EstimatedLayers:
    """The passes of the distinct layers of a variant on one chip.

    Attributes
    ----------
    graphs
        By layer.
    among, row
        All passes that were estimated together, and which of their chips it is.
    """

    graphs: Sequence[Sequence[PassGraph]]
    among: PassEstimates
    row: int

    @property
    def chip(self) -> Chip:
        """What they run on."""
        return self.among.chips[self.row]

    @cached_property
    def passes(self) -> list[list[EstimatedPass]]:
        """The passes, by layer."""
        return [
            [EstimatedPass(pass_problem, self.among, self.row) for pass_problem in of_layer]
            for of_layer in self.graphs
        ]

    def least(self) -> list[dict[str, PassCost]]:
        """Bound the makespans of every schedule from below, up to rounding: by layer and name."""
        if self.among.residency or not self.chip.accelerator.concurrent_operators:
            return [
                {
                    estimated.direction: PassCost(estimated.least_s, estimated.link_s)
                    for estimated in of_layer
                }
                for of_layer in self.passes
            ]
        least_s, link_s = self.among.least_s[self.row], self.among.estimate.link_s
        return [
            {
                pass_problem.direction: PassCost(
                    least_s[pass_problem.place], link_s[pass_problem.place]
                )
                for pass_problem in of_layer
            }
            for of_layer in self.graphs
        ]


def schedule_problems(
    variant: WorkloadVariant, chip: Chip, training: Training
) -> list[ScheduleProblem]:
    """Return the problem of every pass of every distinct layer, named after both."""
    ((layers,),) = estimate_layers([variant], [chip], training)
    return [estimated.problem for of_layer in layers.passes for estimated in of_layer]


def estimate_layers(
    variants: Sequence[WorkloadVariant], chips: Sequence[Chip], training: Training
) -> list[list[EstimatedLayers]]:
    """Estimate all passes of all layers of some variants on some chips at once, each by itself.

    Parameters
    ----------
    variants, training
        What runs.
    chips
        With one network and one fusion.

    Returns
    -------
    By chip and variant.
    """
    find = _of_design if len(chips) == 1 else _estimate_layers
    return find(tuple(variants), tuple(chips), as_estimated(training))


def _estimate_layers(
    variants: tuple[WorkloadVariant, ...], chips: tuple[Chip, ...], training: Training
) -> list[list[EstimatedLayers]]:
    """Do the same."""
    first, places = chips[0], itertools.count()

    def passes_of(layer: Layer, tensor: int) -> list[PassGraph]:
        return [
            PassGraph(layer.name, name, fuse_once(graph, first.fusion), tensor, next(places))
            for name, graph in graphs_of(layer, training).items()
        ]

    own = [
        [passes_of(layer, variant.tensor_parallel) for layer in variant.layers]
        for variant in variants
    ]
    passes = [each for layers in own for layer in layers for each in layer]
    estimate = estimate_jointly(
        tuple([each.graph for each in passes]),
        [chip.accelerator for chip in chips],
        first.cluster,
        [each.tensor for each in passes],
    )
    estimate = _on_lanes(estimate, chips)
    among = PassEstimates(estimate, passes, chips, training.residency)
    if training.overlap == "all":
        among = replace(among, estimate=_beside_products(among), whole=among)
    return [[EstimatedLayers(each, among, row) for each in own] for row in range(len(chips))]


_of_design = lru_cache(maxsize=_KEPT)(_estimate_layers)


def _on_lanes(estimate: JointEstimate, chips: Sequence[Chip]) -> JointEstimate:
    """Return the estimates with every chip's rate of the lanes."""
    rates = np.array([[chip.lane_rate] for chip in chips])
    both = estimate.both
    modes = with_lane_rate(both.one_core, rates), with_lane_rate(both.all_cores, rates)
    return replace(estimate, both=GraphEstimate(*modes))


def _beside_products(among: PassEstimates) -> JointEstimate:
    """Return the estimates with the collectives of every pass beside products."""
    estimate, accelerators = among.estimate, [chip.accelerator for chip in among.chips]
    one_core, all_cores = estimate.both.one_core, estimate.both.all_cores
    one_core_s, all_cores_s = one_core.latency_s.copy(), all_cores.latency_s.copy()
    core_share = chip_column(accelerators, "calibration.collective_core_share")
    for each in among.passes:
        which = slice(None), estimate.parts[each.place]
        own = one_core.rows(which), all_cores.rows(which)
        on_one, on_all = beside_products(each.graph, *own, each.tensor, core_share)
        one_core_s[which], all_cores_s[which] = on_one.latency_s, on_all.latency_s
    both = GraphEstimate(
        replace(one_core, latency_s=one_core_s), replace(all_cores, latency_s=all_cores_s)
    )
    return replace(estimate, both=both)


def with_lane_rate(mode: Mode, rate: float | FloatArray) -> Mode:
    """Return the estimates with the vector lanes ``rate`` times as fast; 1 changes no bit."""
    unchanged = np.equal(rate, 1.0)
    if unchanged.all():
        return mode
    exposed_s = mode.exposed_lanes_s / rate
    changed = mode.with_seconds(
        tc_s=mode.tc_s - mode.exposed_lanes_s + exposed_s,
        vc_s=mode.vc_s / rate,
        exposed_lanes_s=exposed_s,
    )
    pairs = zip(mode.arrays(), changed.arrays(), strict=True)
    return type(mode)(
        *(
            before if before is other else np.where(unchanged, before, other)
            for before, other in pairs
        )
    )
