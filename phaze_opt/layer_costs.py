"""What every layer of a model costs on one accelerator: estimated, then scheduled."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from phaze_opt.estimator.estimate import (
    ENERGY_LEVELS,
    RESOURCES,
    GraphEstimate,
    ModeEstimate,
    estimate_each,
)
from phaze_opt.evaluation import LayerEvaluation, ScheduleProof
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.cluster import Cluster
from phaze_opt.placement.problem import LayerCost
from phaze_opt.placement.training import Training
from phaze_opt.scheduling.build import build_problem
from phaze_opt.scheduling.problem import Schedule
from phaze_opt.scheduling.solve import solve
from phaze_opt.workload.fusion import FusionMode, fuse
from phaze_opt.workload.graph import Layer, OperatorGraph, WorkloadVariant

ScheduleCache = MutableMapping[str, Schedule]

_fuse_once = lru_cache(maxsize=1024)(fuse)


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
    """

    accelerator: Accelerator
    cluster: Cluster
    fusion: FusionMode
    lane_rate: float = 1.0


@dataclass(frozen=True, eq=False)
class LayerPass:
    """One graph of a layer as it runs: fused, estimated in both modes, scheduled."""

    graph: OperatorGraph
    estimates: GraphEstimate
    schedule: Schedule

    @cached_property
    def chosen(self) -> ModeEstimate:
        """Every operator in the mode that the schedule chose."""
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
        seconds = np.bincount(resource, self.chosen.latency_s, len(RESOURCES)).tolist()
        return {RESOURCES[index]: seconds[index] for index in np.unique(resource).tolist()}

    @cached_property
    def energy_by_level_j(self) -> Mapping[str, float]:
        """Energy of the operators in the modes that the schedule chose."""
        energy_j = self.chosen.energy_by_level_j.sum(axis=0).tolist()
        return dict(zip(ENERGY_LEVELS, energy_j, strict=True))

    def mode(self, index: int) -> ModeEstimate:
        """Return the estimates in the mode that the schedule chose for one operator."""
        chosen = self.schedule.operators[index].intra_operator
        return self.estimates.all_cores if chosen else self.estimates.one_core

    @property
    def proof(self) -> ScheduleProof:
        """What is known about the makespan."""
        return ScheduleProof(self.schedule.status, self.schedule.bound_s, self.schedule.gap)


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


@dataclass(frozen=True)
class WidthCost:
    """Everything known about the model at one tensor-parallel width.

    Attributes
    ----------
    variant
        As captured.
    layers
        The distinct layers, evaluated.
    passes
        Their graphs as they run, in the same order.
    chain
        Every layer of the model in topological order, as the placement needs it.
    """

    variant: WorkloadVariant
    layers: tuple[LayerEvaluation, ...]
    passes: tuple[LayerPasses, ...]
    chain: tuple[LayerCost, ...]


def cost_layers(
    variant: WorkloadVariant, chip: Chip, training: Training, cache: ScheduleCache
) -> WidthCost:
    """Estimate and schedule every distinct layer at one width.

    Parameters
    ----------
    variant
        The model at the width.
    chip
        What it runs on.
    training
        Says what runs again before the backward.
    cache
        Schedules by content; solved ones are added.
    """
    passes = _run_layers(variant, chip, training, cache)
    layers = tuple(
        _evaluate_layer(layer, count, own, training)
        for layer, count, own in zip(variant.layers, variant.counts, passes, strict=True)
    )
    chain = tuple(
        _layer_cost(name, variant.layers[index], layers[index], training, chip.fusion)
        for name, index in variant.nodes
    )
    return WidthCost(variant, layers, passes, chain)


def _run_layers(
    variant: WorkloadVariant, chip: Chip, training: Training, cache: ScheduleCache
) -> tuple[LayerPasses, ...]:
    """Estimate all passes of all layers at once, and schedule each."""
    graphs = [graph for layer in variant.layers for graph in _graphs(layer, training).values()]
    fused = [_fuse_once(graph, chip.fusion) for graph in graphs]
    estimates = iter(
        zip(
            fused,
            estimate_each(fused, chip.accelerator, chip.cluster, variant.tensor_parallel),
            strict=True,
        )
    )

    def run(layer: Layer) -> LayerPasses:
        passes = {
            direction: _run(f"{layer.name} {direction}", *next(estimates), chip, cache)
            for direction in _graphs(layer, training)
        }
        again = passes["forward"] if training.recompute == "full" else passes.get("recompute")
        return LayerPasses(passes["forward"], passes["backward"], again)

    return tuple(run(layer) for layer in variant.layers)


def _graphs(layer: Layer, training: Training) -> dict[str, OperatorGraph]:
    """Name the graphs that run: what a full recompute runs again is the forward."""
    graphs = {"forward": layer.forward, "backward": layer.backward}
    if training.recompute == "selective":
        graphs["recompute"] = layer.selective_recompute
    return graphs


def _run(
    name: str, graph: OperatorGraph, estimates: GraphEstimate, chip: Chip, cache: ScheduleCache
) -> LayerPass:
    """Schedule one graph."""
    if chip.lane_rate != 1.0:
        estimates = GraphEstimate(
            _with_lane_rate(estimates.one_core, chip.lane_rate),
            _with_lane_rate(estimates.all_cores, chip.lane_rate),
        )
    problem = build_problem(name, graph, estimates, chip.accelerator)
    return LayerPass(graph, estimates, solve(problem, cache))


def _with_lane_rate(mode: ModeEstimate, rate: float) -> ModeEstimate:
    """Return the estimates with the lanes so many times as fast."""
    others_s = np.maximum.reduce([mode.tc_s, mode.glb_s, mode.hbm_s, mode.link_s])
    constant_s = mode.latency_s - np.maximum(others_s, mode.vc_s)
    vc_s = mode.vc_s / rate
    return replace(mode, vc_s=vc_s, latency_s=np.maximum(others_s, vc_s) + constant_s)


def _evaluate_layer(
    layer: Layer, count: int, passes: LayerPasses, training: Training
) -> LayerEvaluation:
    """Join the passes of one layer."""
    bound = [one.bound_by_s for one in passes.all()]
    energy = [one.energy_by_level_j for one in passes.all()]
    resources = sorted({resource for part in bound for resource in part})
    again = passes.recompute
    return LayerEvaluation(
        name=layer.name,
        count=count,
        forward_s=passes.forward.schedule.makespan_s,
        backward_s=passes.backward.schedule.makespan_s,
        recompute_s=0.0 if again is None else again.schedule.makespan_s,
        parameters=layer.parameters,
        stash_bytes=getattr(layer.stash_bytes, training.recompute),
        forward_schedule=passes.forward.proof,
        backward_schedule=passes.backward.proof,
        bound_by_s={r: sum(part.get(r, 0.0) for part in bound) for r in resources},
        energy_by_level_j={level: sum(part[level] for part in energy) for level in ENERGY_LEVELS},
    )


def _layer_cost(
    name: str, layer: Layer, evaluated: LayerEvaluation, training: Training, fusion: FusionMode
) -> LayerCost:
    """Reduce one layer to what the placement needs."""
    working_set = layer.fused_transient_bytes if fusion == "epilogue" else layer.transient_bytes
    return LayerCost(
        name=name,
        forward_s=evaluated.forward_s,
        backward_s=evaluated.backward_s,
        recompute_s=evaluated.recompute_s,
        parameters=layer.parameters,
        tied_parameters=layer.tied_parameters,
        stash_bytes=evaluated.stash_bytes,
        transient_bytes=getattr(working_set, training.recompute),
        output_bytes=layer.output_bytes,
    )
