"""The passes of a layer as they run on one accelerator: fused, estimated, scheduled."""

from __future__ import annotations

import itertools
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.chunked_collectives import chunk_collectives
from phaze_opt.estimator.estimate import (
    RESOURCES,
    GraphEstimate,
    ModeEstimate,
    ModeSeconds,
    estimate_jointly,
)
from phaze_opt.estimator.traffic import ENERGY_LEVELS
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_residency import cached_reads_of, residency_of, with_hbm_bytes
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
from phaze_opt.pass_totals import totals_in_modes
from phaze_opt.scheduling.cached_reads import schedule_with_cache
from phaze_opt.scheduling.problem_columns import ProblemColumns
from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import (
    CachedReads,
    Schedule,
    ScheduleProblem,
    ScheduleStatus,
    SolveMethod,
    check_problem,
)
from phaze_opt.scheduling.solve_schedule import solve_columns, with_residency
from phaze_opt.training import Training
from phaze_opt.workload.fusion import FusionMode, fuse
from phaze_opt.workload.graph import Layer, OperatorGraph, WorkloadVariant

ScheduleCache = MutableMapping[str, Schedule]

Mode = TypeVar("Mode", bound=ModeSeconds)

fuse_once = lru_cache(maxsize=1024)(fuse)


@dataclass(frozen=True)
class ScheduleProof:
    """What is known about a schedule: proven or not, the bound, the relative gap, and by what.

    The method is a `phaze_opt.scheduling.schedule_problem.ScheduleMethod`; empty in an evaluation
    that an older program stored.
    """

    status: ScheduleStatus
    bound_s: float
    gap: float
    method: str = ""


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


@dataclass(frozen=True, eq=False)
class LayerPass:
    """One graph of a layer as it runs: fused, estimated in both modes, scheduled.

    Attributes
    ----------
    estimated
        What runs.
    schedule
        How it runs.
    on_all : (operators,)
        Whether each operator runs on all cores; not looked at where tensors stay on the chip.
    """

    estimated: EstimatedPass
    schedule: Schedule
    on_all: BoolArray

    @property
    def graph(self) -> OperatorGraph:
        """The operators."""
        return self.estimated.graph

    @property
    def estimates(self) -> GraphEstimate:
        """Their two modes."""
        return self.estimated.estimates

    @property
    def problem(self) -> ScheduleProblem:
        """What was scheduled."""
        return self.estimated.problem

    @property
    def accelerator(self) -> Accelerator:
        """What it runs on."""
        return self.estimated.accelerator

    @cached_property
    def chosen(self) -> ModeEstimate:
        """Every operator in the mode that the schedule chose, with what then flows from the HBM."""
        if self.schedule.residency is not None:
            flow_bytes = np.array(self.schedule.residency.hbm_bytes)
            return with_hbm_bytes(self.estimates.all_cores, flow_bytes, self.accelerator)
        pairs = zip(
            self.estimates.all_cores.arrays(), self.estimates.one_core.arrays(), strict=True
        )
        return ModeEstimate(
            *(np.where(self.on_all.reshape(-1, *[1] * (a.ndim - 1)), a, one) for a, one in pairs)
        )

    @cached_property
    def totals(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Operators and seconds by the resource that binds, and energy by level, as they run."""
        if self.schedule.residency is not None:
            one_core = all_cores = BoundOperators.of(self.chosen)
        else:
            one_core, all_cores = self.estimated.bound
        return totals_in_modes(self.on_all, len(RESOURCES), *one_core, *all_cores)

    @property
    def proof(self) -> ScheduleProof:
        """What is known about the makespan."""
        found = self.schedule
        return ScheduleProof(found.status, found.bound_s, found.gap, found.method)


@dataclass(frozen=True, eq=False)
class LayerPasses:
    """The passes of one distinct layer; what runs again before the backward is one of its own."""

    forward: LayerPass
    backward: LayerPass
    recompute: LayerPass | None

    def all(self) -> tuple[LayerPass, ...]:
        """Return those that run."""
        passes = (self.forward, self.backward, self.recompute)
        return tuple([one for one in passes if one is not None])

    @cached_property
    def _totals(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """The sums of `LayerPass.totals`."""
        operators, seconds, energy_j = self.forward.totals
        for one in self.all()[1:]:
            more_operators, more_seconds, more_j = one.totals
            operators, seconds = operators + more_operators, seconds + more_seconds
            energy_j = energy_j + more_j
        return operators, seconds, energy_j

    @property
    def bound_by_s(self) -> dict[str, float]:
        """Seconds of the operators by the resource that binds each."""
        operators, seconds, _ = self._totals
        rows = zip(RESOURCES, seconds.tolist(), operators.tolist(), strict=True)
        return {name: s for name, s, n in sorted(rows) if n}

    @property
    def energy_by_level_j(self) -> dict[str, float]:
        """Energy of the operators in the modes that the schedules chose."""
        *_, energy_j = self._totals
        return dict(zip(ENERGY_LEVELS, energy_j.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class EstimatedPass:
    """One graph of a layer as it will run: fused and estimated in both modes, not yet scheduled.

    Attributes
    ----------
    layer, direction
        What it is a pass of, and which one.
    graph
        Fused.
    joint, row, place
        What it was estimated with, and which chip and which pass of that it is.
    chip
        What it runs on.
    chunked
        Collectives of so many devices run beside products, chunk by chunk; 1 for none.
    residency
        Whether tensors may stay on the chip.
    """

    layer: str
    direction: str
    graph: OperatorGraph
    joint: JointPasses
    row: int
    place: int
    chip: Chip
    chunked: int
    residency: bool

    @property
    def accelerator(self) -> Accelerator:
        """The chip."""
        return self.chip.accelerator

    @property
    def _is_plain(self) -> bool:
        """Whether the operators take what was estimated."""
        return self.chip.lane_rate == 1.0 and self.chunked == 1

    @cached_property
    def estimates(self) -> GraphEstimate:
        """Both modes of all operators, with the chip's lanes and collectives beside products."""
        estimates = self.joint.estimate.of(self.row, self.place)
        if self._is_plain:
            return estimates
        return _as_on_chip(self.graph, estimates, self.chip, self.chunked)

    @property
    def bound(self) -> tuple[BoundOperators, BoundOperators]:
        """What binds every operator on one core, and on all cores."""
        if self._is_plain:
            return self.joint.bound(self.row, self.place)
        return bound_in_modes(self.estimates)

    @property
    def link_s(self) -> float:
        """Seconds for which all operators use the network."""
        if self._is_plain:
            return self.joint.estimate.link_s[self.place]
        return self.estimates.link_s

    @cached_property
    def problem(self) -> ScheduleProblem:
        """What is to be scheduled."""
        problem = build_problem(f"{self.layer} {self.direction}", self.graph, self._columns)
        return replace(problem, cached=self._cached, residency=self._joint)

    @cached_property
    def _columns(self) -> ProblemColumns:
        """The same without residency."""
        if self._is_plain:
            return self.joint.columns(self.row, self.place)
        return build_columns(self.graph, self.estimates, self.accelerator)

    @cached_property
    def _cached(self) -> CachedReads | None:
        """What a cache serves, where the chip has one."""
        if not self.residency or self.accelerator.concurrent_operators:
            return None
        return cached_reads_of(self.graph, self.estimates.all_cores, self.accelerator)

    @cached_property
    def _joint(self) -> Residency | None:
        """The joint problem, where tensors can stay in a managed buffer."""
        # What hides beside a product does not run one at a time, as the joint problem has it.
        if not (self.residency and self.accelerator.concurrent_operators and self.chunked == 1):
            return None
        return residency_of(self.graph, self.estimates.all_cores, self.accelerator)

    @cached_property
    def least_s(self) -> float:
        """Bound the makespan of every schedule from below, up to rounding."""
        if not self.accelerator.concurrent_operators:
            latency_s = self.estimates.all_cores.latency_s
            if self._cached is not None:
                latency_s = np.minimum(latency_s, self._cached.latency_s)
            return float(latency_s.sum())
        if self._is_plain:
            least_s = self.joint.least_s(self.row, self.place)
        else:
            least_s = least_of_pass(self.graph, self._columns)
        return least_s if self._joint is None else min(least_s, least_of_residency(self._joint))

    def run(self, cache: ScheduleCache | None, method: SolveMethod) -> LayerPass:
        """Schedule the pass."""
        if not np.isfinite(self._columns.values.sum()):
            check_problem(self.problem)  # says which operator takes endless time
        schedule, on_all = solve_columns(self._columns, cache, method=method)
        if self._cached is not None:
            schedule = schedule_with_cache(self._columns, self._cached, schedule)
        elif self._joint is not None:
            schedule = with_residency(self.problem, schedule, cache, method)
        return LayerPass(self, schedule, on_all)


def run_layers(
    layers: Sequence[Sequence[EstimatedPass]],
    chip: Chip,
    training: Training,
    cache: ScheduleCache | None,
) -> tuple[LayerPasses, ...]:
    """Schedule all passes of all layers."""
    method: SolveMethod = "auto" if chip.prove else "branch-and-bound"

    def run(of_layer: Sequence[EstimatedPass]) -> LayerPasses:
        passes = {one.direction: one.run(cache, method) for one in of_layer}
        again = passes["forward"] if training.recompute == "full" else passes.get("recompute")
        return LayerPasses(passes["forward"], passes["backward"], again)

    return tuple(map(run, layers))


def schedule_problems(
    variant: WorkloadVariant, chip: Chip, training: Training
) -> list[ScheduleProblem]:
    """Return the problem of every pass of every distinct layer, named after both."""
    ((layers,),) = estimate_passes([variant], [chip], training)
    return [one.problem for of_layer in layers for one in of_layer]


def estimate_passes(
    variants: Sequence[WorkloadVariant], chips: Sequence[Chip], training: Training
) -> list[list[list[list[EstimatedPass]]]]:
    """Estimate all passes of all layers of some variants on some chips at once, each by itself.

    Parameters
    ----------
    variants, training
        What runs.
    chips
        With one network and one fusion.

    Returns
    -------
    By chip, variant and distinct layer.
    """
    named = [
        [(layer.name, graphs_of(layer, training)) for layer in variant.layers]
        for variant in variants
    ]
    first = chips[0]
    graphs, widths = [], []
    for variant, layers in zip(variants, named, strict=True):
        own = [fuse_once(graph, first.fusion) for _, passes in layers for graph in passes.values()]
        graphs += own
        widths += [variant.tensor_parallel] * len(own)
    accelerators = [chip.accelerator for chip in chips]
    estimate = estimate_jointly(graphs, accelerators, first.cluster, widths)
    joint = JointPasses(estimate, accelerators, tuple(graphs))
    # Chunks of collectives run beside products only where that is asked for.
    chunked = [width if training.overlap == "all" else 1 for width in widths]

    def on_chip(row: int, chip: Chip) -> list[list[list[EstimatedPass]]]:
        places = itertools.count()

        def estimated(layer: str, direction: str) -> EstimatedPass:
            at = next(places)
            own = joint, row, at, chip, chunked[at], training.residency
            return EstimatedPass(layer, direction, graphs[at], *own)

        return [
            [[estimated(name, direction) for direction in passes] for name, passes in layers]
            for layers in named
        ]

    return list(itertools.starmap(on_chip, enumerate(chips)))


def graphs_of(layer: Layer, training: Training) -> dict[str, OperatorGraph]:
    """Name the graphs that run: what a full recompute runs again is the forward."""
    graphs = {"forward": layer.forward, "backward": layer.backward}
    if training.recompute == "selective":
        graphs["recompute"] = layer.selective_recompute
    return graphs


def _as_on_chip(
    graph: OperatorGraph, estimates: GraphEstimate, chip: Chip, chunked: int
) -> GraphEstimate:
    """Return the estimates with the chip's lanes, and collectives beside products."""
    if chip.lane_rate != 1.0:
        estimates = GraphEstimate(
            with_lane_rate(estimates.one_core, chip.lane_rate),
            with_lane_rate(estimates.all_cores, chip.lane_rate),
        )
    core_share = chip.accelerator.calibration.collective_core_share
    return chunk_collectives(graph, estimates, chunked, core_share)


def with_lane_rate(mode: Mode, rate: float) -> Mode:
    """Return the estimates with the vector lanes ``rate`` times as fast."""
    others_s = np.maximum.reduce([mode.glb_s, mode.hbm_s, mode.link_s])
    constant_s = mode.latency_s - np.maximum.reduce([others_s, mode.tc_s, mode.vc_s])
    vc_s, exposed_s = mode.vc_s / rate, mode.exposed_lanes_s / rate
    tc_s = mode.tc_s - mode.exposed_lanes_s + exposed_s
    latency_s = np.maximum.reduce([others_s, tc_s, vc_s]) + constant_s
    return replace(mode, tc_s=tc_s, vc_s=vc_s, exposed_lanes_s=exposed_s, latency_s=latency_s)
