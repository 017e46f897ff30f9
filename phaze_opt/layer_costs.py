"""What every layer of a model costs on one accelerator: estimated, then scheduled."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.estimator.estimate import ENERGY_LEVELS, estimate
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
class WidthCost:
    """Everything known about the model at one tensor-parallel width.

    Attributes
    ----------
    variant
        As captured.
    layers
        The distinct layers, evaluated.
    chain
        Every layer of the model in topological order, as the placement needs it.
    """

    variant: WorkloadVariant
    layers: tuple[LayerEvaluation, ...]
    chain: tuple[LayerCost, ...]


def cost_layers(
    variant: WorkloadVariant,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    fusion: FusionMode,
    cache: ScheduleCache,
) -> WidthCost:
    """Estimate and schedule every distinct layer at one width.

    Parameters
    ----------
    variant
        The model at the width.
    accelerator, cluster, training
        The chip, the network of its tensor-parallel group, and the recompute.
    fusion
        How operators are fused before they are estimated.
    cache
        Schedules by content; solved ones are added.
    """
    layers = tuple(
        _cost_layer(layer, count, variant, accelerator, cluster, training, fusion, cache)
        for layer, count in zip(variant.layers, variant.counts, strict=True)
    )
    chain = tuple(
        _layer_cost(name, variant.layers[index], layers[index], training)
        for name, index in variant.nodes
    )
    return WidthCost(variant, layers, chain)


@dataclass(frozen=True)
class _Pass:
    """One scheduled graph: makespan and proof, operator seconds by binding resource, energy."""

    schedule: Schedule
    bound_by_s: Mapping[str, float]
    energy_by_level_j: Mapping[str, float]

    @property
    def proof(self) -> ScheduleProof:
        """What is known about the makespan."""
        return ScheduleProof(self.schedule.status, self.schedule.bound_s, self.schedule.gap)


def _cost_layer(
    layer: Layer,
    count: int,
    variant: WorkloadVariant,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    fusion: FusionMode,
    cache: ScheduleCache,
) -> LayerEvaluation:
    """Schedule the forward, the backward and what runs again before the backward."""

    def run(direction: str, graph: OperatorGraph) -> _Pass:
        fused = _fuse_once(graph, fusion)
        estimates = estimate(fused, accelerator, cluster, variant.tensor_parallel)
        problem = build_problem(f"{layer.name} {direction}", fused, estimates, accelerator)
        schedule = solve(problem, cache)
        bound_by_s: dict[str, float] = {}
        energy_j = np.zeros(len(ENERGY_LEVELS))
        binding = estimates.one_core.binding(), estimates.all_cores.binding()
        for index, scheduled in enumerate(schedule.operators):
            mode = estimates.all_cores if scheduled.intra_operator else estimates.one_core
            resource = binding[scheduled.intra_operator][index]
            seconds = float(mode.latency_s[index])
            bound_by_s[resource] = bound_by_s.get(resource, 0.0) + seconds
            energy_j += mode.energy_by_level_j[index]
        return _Pass(schedule, bound_by_s, dict(zip(ENERGY_LEVELS, energy_j.tolist(), strict=True)))

    forward = run("forward", layer.forward)
    backward = run("backward", layer.backward)
    again = {
        "none": None,
        "selective": run("recompute", layer.selective_recompute)
        if training.recompute == "selective"
        else None,
        "full": forward,
    }[training.recompute]
    passes = [part for part in (forward, backward, again) if part is not None]
    resources = sorted({resource for part in passes for resource in part.bound_by_s})
    return LayerEvaluation(
        name=layer.name,
        count=count,
        forward_s=forward.schedule.makespan_s,
        backward_s=backward.schedule.makespan_s,
        recompute_s=0.0 if again is None else again.schedule.makespan_s,
        parameters=layer.parameters,
        stash_bytes=getattr(layer.stash_bytes, training.recompute),
        forward_schedule=forward.proof,
        backward_schedule=backward.proof,
        bound_by_s={r: sum(part.bound_by_s.get(r, 0.0) for part in passes) for r in resources},
        energy_by_level_j={
            level: sum(part.energy_by_level_j[level] for part in passes) for level in ENERGY_LEVELS
        },
    )


def _layer_cost(
    name: str, layer: Layer, evaluated: LayerEvaluation, training: Training
) -> LayerCost:
    """Reduce one layer to what the placement needs."""
    # Under full recompute the layer's own stash is back while its backward runs.
    working_set = layer.stash_bytes.none if training.recompute == "full" else 0
    if training.recompute == "selective":
        working_set = layer.stash_bytes.none - layer.stash_bytes.selective
    return LayerCost(
        name=name,
        forward_s=evaluated.forward_s,
        backward_s=evaluated.backward_s,
        recompute_s=evaluated.recompute_s,
        parameters=layer.parameters,
        tied_parameters=layer.tied_parameters,
        stash_bytes=evaluated.stash_bytes,
        transient_bytes=layer.transient_bytes + working_set,
        output_bytes=layer.output_bytes,
    )
