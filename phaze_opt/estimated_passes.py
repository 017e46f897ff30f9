"""The passes of layers on one accelerator: fused and estimated, not yet scheduled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from phaze_opt.chunked_collectives import chunk_collectives
from phaze_opt.estimator.estimate import GraphEstimate, ModeSeconds, estimate_jointly
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_residency import cached_reads_of, residency_of
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import cached_property
from phaze_opt.pass_problem import (
    BoundOperators,
    JointPasses,
    bound_in_modes,
    build_columns,
    build_problem,
    least_of_pass,
    least_of_residency,
)
from phaze_opt.scheduling.problem_columns import ProblemColumns
from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import CachedReads, ScheduleProblem
from phaze_opt.training import Training
from phaze_opt.workload.fusion import FusionMode, fuse
from phaze_opt.workload.graph import Layer, OperatorGraph, WorkloadVariant

Mode = TypeVar("Mode", bound=ModeSeconds)
Pass = TypeVar("Pass")

fuse_once = lru_cache(maxsize=1024)(fuse)


def default_fusion(accelerator: Accelerator) -> FusionMode:
    """Return how operators are fused where nobody says: as an eager framework on a GPU's stream."""
    return "epilogue" if accelerator.concurrent_operators else "elementwise"


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
    """

    accelerator: Accelerator
    cluster: Cluster
    fusion: FusionMode
    lane_rate: float = 1.0
    prove: bool = False


class PassGraph(NamedTuple):
    """One graph of a layer, on whatever chip.

    Attributes
    ----------
    layer, direction
        What it is a pass of, and which one.
    graph
        Fused.
    place
        Which of the graphs that are estimated together it is.
    """

    layer: str
    direction: str
    graph: OperatorGraph
    place: int


class PassSeconds(NamedTuple):
    """What a pass takes, and for how long it uses the network."""

    seconds: float
    link_s: float

    def without_link(self) -> PassSeconds:
        """Bound what the pass takes from below, however fast the network is."""
        return PassSeconds(max(self.seconds - self.link_s, 0.0), 0.0)


@dataclass(frozen=True, eq=False)
class EstimatedLayers:
    """All passes of the distinct layers of a variant on one chip.

    Attributes
    ----------
    graphs
        By layer.
    joint, row
        What they were estimated with, and which chip of that it is.
    chip
        What they run on.
    chunked
        Collectives of so many devices run beside products, chunk by chunk; 1 for none.
    residency
        Whether tensors may stay on the chip.
    """

    graphs: Sequence[Sequence[PassGraph]]
    joint: JointPasses
    row: int
    chip: Chip
    chunked: int
    residency: bool

    @property
    def is_plain(self) -> bool:
        """Whether the operators take what was estimated."""
        return self.chip.lane_rate == 1.0 and self.chunked == 1

    @cached_property
    def whole(self) -> EstimatedLayers | None:
        """The same with whole collectives, where only these let tensors stay; else ``None``."""
        if self.chunked == 1 or not (self.residency and self.chip.accelerator.concurrent_operators):
            return None
        return replace(self, chunked=1)

    @cached_property
    def passes(self) -> list[list[EstimatedPass]]:
        """The passes, by layer."""
        return [[EstimatedPass(one, self) for one in of_layer] for of_layer in self.graphs]

    def least(self) -> list[dict[str, PassSeconds]]:
        """Bound the makespans of every schedule from below, up to rounding: by layer and name."""
        if self.residency or not (self.is_plain and self.chip.accelerator.concurrent_operators):
            return [
                {one.direction: PassSeconds(one.least_s, one.link_s) for one in of_layer}
                for of_layer in self.passes
            ]
        least_s, link_s = self.joint.least_s(self.row), self.joint.estimate.link_s
        return [
            {
                direction: PassSeconds(least_s[place], link_s[place])
                for _, direction, _, place in of_layer
            }
            for of_layer in self.graphs
        ]


@dataclass(frozen=True, eq=False)
class EstimatedPass:
    """One graph of a layer as it will run: fused and estimated in both modes, not yet scheduled.

    Attributes
    ----------
    own
        The graph, and where its estimates are among those of the others.
    among
        All passes of the layers, with the chip.
    """

    own: PassGraph
    among: EstimatedLayers

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
        return self.among.chip.accelerator

    @property
    def _place(self) -> tuple[int, int]:
        """Which chip, and which pass, of all that were estimated."""
        return self.among.row, self.own.place

    @cached_property
    def estimates(self) -> GraphEstimate:
        """Both modes of all operators, with the chip's lanes and collectives beside products."""
        estimates = self.among.joint.estimate.of(*self._place)
        if self.among.is_plain:
            return estimates
        return _as_on_chip(self.graph, estimates, self.among)

    @property
    def bound(self) -> tuple[BoundOperators, BoundOperators]:
        """What binds every operator on one core, and on all cores."""
        if self.among.is_plain:
            return self.among.joint.bound(*self._place)
        return bound_in_modes(self.estimates)

    @property
    def link_s(self) -> float:
        """Seconds for which all operators use the network."""
        if self.among.is_plain:
            return self.among.joint.estimate.link_s[self.own.place]
        return self.estimates.link_s

    @cached_property
    def problem(self) -> ScheduleProblem:
        """What is to be scheduled."""
        problem = build_problem(f"{self.layer} {self.direction}", self.graph, self.columns)
        return replace(problem, cached=self.cached_reads, residency=self.residency)

    @cached_property
    def columns(self) -> ProblemColumns:
        """What is to be scheduled, without residency."""
        if self.among.is_plain:
            return self.among.joint.columns(*self._place)
        return build_columns(self.graph, self.estimates, self.accelerator)

    @property
    def may_be_endless(self) -> bool:
        """Whether operators, of this pass or of others beside it, take endless time."""
        if self.among.is_plain:
            return not self.among.joint.are_finite(self.among.row)
        return not np.isfinite(self.columns.values.sum())

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
        among, concurrent = self.among, self.accelerator.concurrent_operators
        if not (among.residency and concurrent and among.chunked == 1):
            return None
        return residency_of(self.graph, self.estimates.all_cores, self.accelerator)

    @cached_property
    def whole(self) -> EstimatedPass | None:
        """The same with whole collectives, see `EstimatedLayers.whole`."""
        return None if self.among.whole is None else EstimatedPass(self.own, self.among.whole)

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
        if self.among.is_plain:
            least_s = self.among.joint.least_s(self.among.row)[self.own.place]
        else:
            least_s = least_of_pass(self.graph, self.columns)
        if self.residency is None:
            return least_s
        return min(least_s, least_of_residency(self.residency))


def schedule_problems(
    variant: WorkloadVariant, chip: Chip, training: Training
) -> list[ScheduleProblem]:
    """Return the problem of every pass of every distinct layer, named after both."""
    ((layers,),) = estimate_layers([variant], [chip], training)
    return [one.problem for of_layer in layers.passes for one in of_layer]


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
    first, places = chips[0], itertools.count()

    def passes_of(layer: Layer) -> list[PassGraph]:
        return [
            PassGraph(layer.name, direction, fuse_once(graph, first.fusion), next(places))
            for direction, graph in graphs_of(layer, training).items()
        ]

    own = [(one.tensor_parallel, [*map(passes_of, one.layers)]) for one in variants]
    all_passes = [(each, width) for width, layers in own for layer in layers for each in layer]
    graphs = tuple([each.graph for each, _ in all_passes])
    accelerators = [chip.accelerator for chip in chips]
    widths = [width for _, width in all_passes]
    estimate = estimate_jointly(graphs, accelerators, first.cluster, widths)
    joint = JointPasses(estimate, accelerators, graphs)

    def estimated(row: int, width: int, layers: list[list[PassGraph]]) -> EstimatedLayers:
        # Chunks of collectives run beside products only where that is asked for.
        chunked = width if training.overlap == "all" else 1
        return EstimatedLayers(layers, joint, row, chips[row], chunked, training.residency)

    return [[estimated(row, *each) for each in own] for row in range(len(chips))]


def graphs_of(layer: Layer, training: Training) -> dict[str, OperatorGraph]:
    """Name the graphs that run: what a full recompute runs again is the forward."""
    graphs = {"forward": layer.forward, "backward": layer.backward}
    if training.recompute == "selective":
        graphs["recompute"] = layer.selective_recompute
    return graphs


def runs_again(passes: Mapping[str, Pass], training: Training) -> Pass | None:
    """Return what runs again before the backward, of passes by the names of `graphs_of`."""
    return passes["forward"] if training.recompute == "full" else passes.get("recompute")


def _as_on_chip(
    graph: OperatorGraph, estimates: GraphEstimate, layers: EstimatedLayers
) -> GraphEstimate:
    """Return the estimates with the chip's lanes, and collectives beside products."""
    chip = layers.chip
    if chip.lane_rate != 1.0:
        estimates = GraphEstimate(
            with_lane_rate(estimates.one_core, chip.lane_rate),
            with_lane_rate(estimates.all_cores, chip.lane_rate),
        )
    core_share = chip.accelerator.calibration.collective_core_share
    return chunk_collectives(graph, estimates, layers.chunked, core_share)


def with_lane_rate(mode: Mode, rate: float) -> Mode:
    """Return the estimates with the vector lanes ``rate`` times as fast."""
    others_s = np.maximum.reduce([mode.glb_s, mode.hbm_s, mode.link_s])
    constant_s = mode.latency_s - np.maximum.reduce([others_s, mode.tc_s, mode.vc_s])
    vc_s, exposed_s = mode.vc_s / rate, mode.exposed_lanes_s / rate
    tc_s = mode.tc_s - mode.exposed_lanes_s + exposed_s
    latency_s = np.maximum.reduce([others_s, tc_s, vc_s]) + constant_s
    return replace(mode, tc_s=tc_s, vc_s=vc_s, exposed_lanes_s=exposed_s, latency_s=latency_s)
