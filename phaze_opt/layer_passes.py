"""The passes of a layer as they run on one accelerator: fused, estimated, scheduled."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.chunked_collectives import chunk_collectives
from phaze_opt.estimator.estimate import (
    RESOURCES,
    GraphEstimate,
    ModeEstimate,
    ModeSeconds,
    estimate_each,
)
from phaze_opt.estimator.traffic import ENERGY_LEVELS
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_residency import cached_reads_of, residency_of, with_hbm_bytes
from phaze_opt.network.cluster import Cluster
from phaze_opt.scheduling.schedule_problem import (
    CoreType,
    IntraOperatorRule,
    Schedule,
    ScheduleOperator,
    ScheduleProblem,
    ScheduleStatus,
    SolveMethod,
)
from phaze_opt.scheduling.solve_schedule import solve_schedule
from phaze_opt.training import Training
from phaze_opt.workload.fusion import FusionMode, fuse
from phaze_opt.workload.graph import Layer, Operator, OperatorGraph, WorkloadVariant

ScheduleCache = MutableMapping[str, Schedule]

fuse_once = lru_cache(maxsize=1024)(fuse)

BANDWIDTH_STEPS = 100
"""Shares of a bandwidth are rounded up to this many steps."""
_ROUNDING_SLACK = 1e-9


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
    """One graph of a layer as it runs: fused, estimated in both modes, scheduled."""

    graph: OperatorGraph
    estimates: GraphEstimate
    problem: ScheduleProblem
    schedule: Schedule
    accelerator: Accelerator

    @cached_property
    def chosen(self) -> ModeEstimate:
        """Every operator in the mode that the schedule chose, with what then flows from the HBM."""
        if self.schedule.residency is not None:
            flow_bytes = np.array(self.schedule.residency.hbm_bytes)
            return with_hbm_bytes(self.estimates.all_cores, flow_bytes, self.accelerator)
        everywhere = np.array([one.intra_operator for one in self.schedule.operators], dtype=bool)
        pairs = zip(
            self.estimates.all_cores.arrays(), self.estimates.one_core.arrays(), strict=True
        )
        return ModeEstimate(
            *(np.where(everywhere.reshape(-1, *[1] * (a.ndim - 1)), a, one) for a, one in pairs)
        )

    @cached_property
    def bound_by_s(self) -> Mapping[str, float]:
        """Seconds of the operators by the resource that binds each."""
        resource = self.chosen.binding_index()
        operators = np.bincount(resource, minlength=len(RESOURCES)).tolist()
        seconds = np.bincount(resource, self.chosen.latency_s, len(RESOURCES)).tolist()
        return {name: s for name, s, n in zip(RESOURCES, seconds, operators, strict=True) if n}

    @cached_property
    def energy_by_level_j(self) -> Mapping[str, float]:
        """Energy of the operators in the modes that the schedule chose."""
        energy_j = self.chosen.energy_by_level_j.sum(axis=0).tolist()
        return dict(zip(ENERGY_LEVELS, energy_j, strict=True))

    @cached_property
    def link_s(self) -> float:
        """Seconds for which the tensor-parallel group uses the network, hidden or not."""
        return float(self.estimates.all_cores.link_s.sum())

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
        return tuple(one for one in passes if one is not None)


@dataclass(frozen=True, eq=False)
class _PassProblem:
    """One graph of a layer as it will run, and the schedule that it needs."""

    direction: str
    graph: OperatorGraph
    estimates: GraphEstimate
    problem: ScheduleProblem


def run_layers(
    variant: WorkloadVariant, chip: Chip, training: Training, cache: ScheduleCache
) -> tuple[LayerPasses, ...]:
    """Estimate all passes of all layers at once, and schedule each."""
    method: SolveMethod = "auto" if chip.prove else "branch-and-bound"

    def run(of_layer: list[_PassProblem]) -> LayerPasses:
        passes = {
            one.direction: LayerPass(
                one.graph,
                one.estimates,
                one.problem,
                solve_schedule(one.problem, cache, method=method),
                chip.accelerator,
            )
            for one in of_layer
        }
        again = passes["forward"] if training.recompute == "full" else passes.get("recompute")
        return LayerPasses(passes["forward"], passes["backward"], again)

    return tuple(map(run, _pass_problems(variant, chip, training)))


def schedule_problems(
    variant: WorkloadVariant, chip: Chip, training: Training
) -> list[ScheduleProblem]:
    """Return the problem of every pass of every distinct layer, named after both."""
    layers = _pass_problems(variant, chip, training)
    return [one.problem for of_layer in layers for one in of_layer]


def _pass_problems(
    variant: WorkloadVariant, chip: Chip, training: Training
) -> list[list[_PassProblem]]:
    """Estimate all passes of all layers at once, and state what is to be scheduled."""
    graphs = [graph for layer in variant.layers for graph in graphs_of(layer, training).values()]
    fused = [fuse_once(graph, chip.fusion) for graph in graphs]
    estimates = iter(
        zip(
            fused,
            estimate_each(fused, chip.accelerator, chip.cluster, variant.tensor_parallel),
            strict=True,
        )
    )
    # Chunks of collectives run beside products only where that is asked for.
    chunked = variant.tensor_parallel if training.overlap == "all" else 1
    return [
        [
            _pass_problem(
                layer.name, direction, *next(estimates), chip, chunked, training.residency
            )
            for direction in graphs_of(layer, training)
        ]
        for layer in variant.layers
    ]


def graphs_of(layer: Layer, training: Training) -> dict[str, OperatorGraph]:
    """Name the graphs that run: what a full recompute runs again is the forward."""
    graphs = {"forward": layer.forward, "backward": layer.backward}
    if training.recompute == "selective":
        graphs["recompute"] = layer.selective_recompute
    return graphs


def _pass_problem(
    layer: str,
    direction: str,
    graph: OperatorGraph,
    estimates: GraphEstimate,
    chip: Chip,
    chunked: int,
    residency: bool,
) -> _PassProblem:
    """State what is to be scheduled; collectives of ``chunked`` devices run beside products."""
    if chip.lane_rate != 1.0:
        estimates = GraphEstimate(
            _with_lane_rate(estimates.one_core, chip.lane_rate),
            _with_lane_rate(estimates.all_cores, chip.lane_rate),
        )
    core_share = chip.accelerator.calibration.collective_core_share
    estimates = chunk_collectives(graph, estimates, chunked, core_share)
    problem = build_problem(f"{layer} {direction}", graph, estimates, chip.accelerator)
    if residency and problem.serial:
        cached = cached_reads_of(graph, estimates.all_cores, chip.accelerator)
        problem = replace(problem, cached=cached)
    elif residency and chunked == 1:
        # What hides beside a product does not run one at a time, as the joint problem has it.
        joint = residency_of(graph, estimates.all_cores, chip.accelerator)
        problem = replace(problem, residency=joint)
    return _PassProblem(direction, graph, estimates, problem)


def _with_lane_rate(mode: ModeEstimate, rate: float) -> ModeEstimate:
    """Return the estimates with the lanes so many times as fast."""
    others_s = np.maximum.reduce([mode.glb_s, mode.hbm_s, mode.link_s])
    constant_s = mode.latency_s - np.maximum.reduce([others_s, mode.tc_s, mode.vc_s])
    vc_s, exposed_s = mode.vc_s / rate, mode.exposed_lanes_s / rate
    tc_s = mode.tc_s - mode.exposed_lanes_s + exposed_s
    latency_s = np.maximum.reduce([others_s, tc_s, vc_s]) + constant_s
    return replace(mode, tc_s=tc_s, vc_s=vc_s, exposed_lanes_s=exposed_s, latency_s=latency_s)


def core_type(operator: Operator) -> CoreType:
    """Return the cores that an operator occupies."""
    if operator.gemms:
        return "TC+VC" if operator.vector else "TC"
    return "VC" if operator.vector else "none"


def build_problem(
    name: str,
    graph: OperatorGraph,
    estimate: GraphEstimate,
    accelerator: Accelerator,
    intra_operator: IntraOperatorRule = "exclusive",
) -> ScheduleProblem:
    """Join operators, their two modes and the cores of the chip.

    The share of a bandwidth is its busy time over the operator's latency, rounded up to a
    hundredth: an operator that saturates takes all of it. Shares are rigid while the operator runs,
    which is pessimistic, since a real operator would slow down and let others in.
    """
    one, every = estimate.one_core, estimate.all_cores
    rows = np.concatenate(
        [
            [one.latency_s, every.latency_s],
            bandwidth_shares([one.hbm_s, one.glb_s, one.link_s], one),
            bandwidth_shares([every.hbm_s, every.glb_s], every),
        ]
    )
    operators = tuple(
        ScheduleOperator(operator.id, core_type(operator), *values)
        for operator, values in zip(graph.operators, rows.T.tolist(), strict=True)
    )
    return ScheduleProblem(
        name=name,
        num_tc=accelerator.num_tc,
        num_vc=accelerator.num_vc,
        operators=operators,
        edges=tuple((source, destination) for source, destination, _ in graph.edges),
        intra_operator=intra_operator,
        serial=not accelerator.concurrent_operators,
    )


def bandwidth_shares(busy_s: Sequence[FloatArray], mode: ModeSeconds) -> FloatArray:
    """Busy time of some resources over latency, rounded up to `BANDWIDTH_STEPS`."""
    latency_s = np.where(mode.latency_s > 0.0, mode.latency_s, 1.0)
    steps = np.ceil(np.array(busy_s) / latency_s * BANDWIDTH_STEPS - _ROUNDING_SLACK)
    return np.asarray(np.minimum(steps, BANDWIDTH_STEPS) / BANDWIDTH_STEPS)
