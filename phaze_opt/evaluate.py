"""One point of the search: a model, an accelerator, a cluster and training options become a time.

The method in one screen: every distinct layer is estimated operator by operator, each of its passes
is scheduled on the cores of the chip, and the layers are placed over the devices (Phaze, ICML 2024,
figure 2, with the costs that the published code leaves out).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from phaze_opt.codec import to_builtins
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.estimator.estimate import ENERGY_LEVELS, estimate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.cluster import Cluster
from phaze_opt.hardware.energy import energy_per_event, static_power_w
from phaze_opt.placement.expert import expert_degrees
from phaze_opt.placement.problem import LayerCost, Placement, PlacementProblem
from phaze_opt.placement.solve import solve_placement
from phaze_opt.placement.training import OPTIMIZERS, Training
from phaze_opt.scheduling.build import build_problem
from phaze_opt.scheduling.problem import Schedule, ScheduleStatus
from phaze_opt.scheduling.solve import solve
from phaze_opt.workload.fusion import FusionMode, fuse
from phaze_opt.workload.graph import Layer, OperatorGraph, Workload, WorkloadVariant

COST_MODEL_VERSION = "1"
"""Changes whenever any number that `evaluate` returns does; a golden file holds that."""

Degrees = tuple[int, int, int]
ScheduleCache = MutableMapping[str, Schedule]

_fuse_once = lru_cache(maxsize=1024)(fuse)


@dataclass(frozen=True)
class ScheduleProof:
    """What is known about a schedule: proven or not, the bound, and the relative gap."""

    status: ScheduleStatus
    bound_s: float
    gap: float


@dataclass(frozen=True)
class LayerEvaluation:
    """One distinct layer at the chosen tensor-parallel width, per device and microbatch.

    Attributes
    ----------
    name, count
        The layer, and how often it occurs.
    forward_s, backward_s, recompute_s
        Makespans; the backward is without the recompute before it.
    parameters, stash_bytes
        On one device; the stash under the chosen recompute.
    forward_schedule, backward_schedule
        Proofs of the two makespans.
    bound_by_s
        Operator seconds of one microbatch by the resource that binds each operator, in the mode
        that its schedule chose.
    energy_by_level_j
        Dynamic energy of one microbatch on one device by `ENERGY_LEVELS`, recompute included.
    """

    name: str
    count: int
    forward_s: float
    backward_s: float
    recompute_s: float
    parameters: int
    stash_bytes: int
    forward_schedule: ScheduleProof
    backward_schedule: ScheduleProof
    bound_by_s: Mapping[str, float]
    energy_by_level_j: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """The answer for one point, with its breakdown.

    Attributes
    ----------
    feasible, reason, violation
        Whether a placement fits; if not, a sentence and the relative excess.
    throughput_samples_per_s
        Global batch over time per batch; 0 if infeasible.
    time_per_batch_s
        ``None`` if infeasible.
    area_mm2
        Of one accelerator under ``phaze-22nm``.
    mfu
        Model FLOPs (no recompute; attention in full) over nominal peak of ALL devices and time.
    placement
        Degrees and stages; ``None`` if infeasible.
    layers
        The distinct layers at the chosen width (the widest, if infeasible).
    time_breakdown_s
        By kind, summing to ``time_per_batch_s``.
    unused_devices
        Devices that no stage runs on.
    energy_by_level_j
        Dynamic energy of one batch on all devices by `ENERGY_LEVELS`; empty if infeasible.
    power_w_per_device
        Average dynamic power of the devices in use.
    static_power_w_per_device
        Leakage, which is not part of the two above.
    """

    feasible: bool
    reason: str | None
    throughput_samples_per_s: float
    time_per_batch_s: float | None
    area_mm2: float
    mfu: float
    placement: Placement | None
    layers: tuple[LayerEvaluation, ...]
    time_breakdown_s: Mapping[str, float] = field(default_factory=dict)
    unused_devices: int = 0
    energy_by_level_j: Mapping[str, float] = field(default_factory=dict)
    power_w_per_device: float = 0.0
    static_power_w_per_device: float = 0.0
    violation: float = 0.0

    @property
    def energy_j_per_batch(self) -> float:
        """Dynamic energy of one batch on all devices; 0 if infeasible."""
        return sum(self.energy_by_level_j.values())

    @property
    def proven_schedule_share(self) -> float:
        """Share of the layers' schedules that are proven optimal."""
        proofs = [
            proof
            for layer in self.layers
            for proof in (layer.forward_schedule, layer.backward_schedule)
        ]
        return sum(proof.status == "optimal" for proof in proofs) / len(proofs)

    @property
    def bound_by_share(self) -> dict[str, float]:
        """Share of all operator seconds by binding resource, largest first."""
        total: dict[str, float] = {}
        for layer in self.layers:
            for resource, seconds in layer.bound_by_s.items():
                total[resource] = total.get(resource, 0.0) + layer.count * seconds
        whole = sum(total.values())
        ranked = sorted(total.items(), key=lambda item: -item[1])
        return {resource: seconds / whole for resource, seconds in ranked if seconds > 0.0}


def evaluate(
    workload: Workload,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    placement: Literal["solve", "expert"] | Degrees = "solve",
    *,
    fusion: FusionMode | None = None,
    cache: ScheduleCache | None = None,
) -> Evaluation:
    """Estimate, schedule and place one training run.

    Parameters
    ----------
    workload
        Captured at the training's microbatch, at every tensor-parallel width that may be used.
    accelerator, cluster, training
        The chip, its network with the number of devices, and the options of the run.
    placement
        ``"solve"`` for the fastest placement; pipeline, data and tensor degrees, which split the
        layers evenly by count; or ``"expert"`` for the degrees that people use for the model.
    fusion
        How operators are fused before they are estimated; by default ``"epilogue"``, and
        ``"elementwise"`` (an eager framework) on chips that run one operator at a time.
    cache
        Schedules by content; solved ones are added.

    Returns
    -------
    Evaluation
        Infeasible ones too, with the reason.

    Raises
    ------
    InputError
        If the workload was not captured at the microbatch or at the given tensor degree, or the
        model has no expert placement.
    """
    degrees = _degrees(placement, workload, cluster)
    if fusion is None:
        fusion = "epilogue" if accelerator.concurrent_operators else "elementwise"
    # What fuses no epilogues does not fuse the optimizer's passes either.
    training = replace(training, fused_optimizer=training.fused_optimizer and fusion == "epilogue")
    costs = {
        variant.tensor_parallel: _cost_layers(
            variant, accelerator, cluster, training, fusion, {} if cache is None else cache
        )
        for variant in _variants(workload, cluster, training, degrees)
    }
    problem = PlacementProblem(
        layers={width: cost.chain for width, cost in costs.items()},
        edges=tuple((s, d) for s, d, _ in next(iter(costs.values())).variant.edges),
        cluster=cluster,
        training=training,
        hbm_usable_bytes=accelerator.usable_hbm_bytes,
        hbm_bytes_per_s=accelerator.sustained_hbm_bytes_per_s,
    )
    try:
        solved = solve_placement(problem, degrees)
    except InfeasibleError as error:
        widest = costs[max(costs)]
        return Evaluation(
            feasible=False,
            reason=str(error),
            throughput_samples_per_s=0.0,
            time_per_batch_s=None,
            area_mm2=accelerator.area_mm2,
            mfu=0.0,
            placement=None,
            layers=widest.layers,
            violation=error.violation,
        )
    return _feasible(solved, costs[solved.tensor], accelerator, cluster, training)


def evaluation_to_json_dict(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation as the plain data that ``evaluate --json`` prints."""
    plain: dict[str, Any] = to_builtins(evaluation)
    if evaluation.placement is not None:
        for stage, source in zip(
            plain["placement"]["stages"], evaluation.placement.stages, strict=True
        ):
            stage["memory_bytes"]["total"] = source.memory_bytes.total
    plain["bound_by_share"] = evaluation.bound_by_share
    plain["energy_j_per_batch"] = evaluation.energy_j_per_batch
    return plain


def _degrees(
    placement: Literal["solve", "expert"] | Degrees, workload: Workload, cluster: Cluster
) -> Degrees | None:
    """Resolve a placement to its degrees, or to nothing where they are to be found."""
    if placement == "solve":
        return None
    if placement == "expert":
        return expert_degrees(workload.model, cluster.devices)
    return placement


@dataclass(frozen=True)
class _WidthCost:
    """Everything known about the model at one tensor-parallel width."""

    variant: WorkloadVariant
    layers: tuple[LayerEvaluation, ...]
    chain: tuple[LayerCost, ...]


def _variants(
    workload: Workload, cluster: Cluster, training: Training, degrees: Degrees | None
) -> list[WorkloadVariant]:
    """Pick the captured variants that the placement may use."""
    captured = list(workload.variants_for(training.microbatch, training.sequence_parallel))
    usable = [
        variant
        for variant in captured
        if variant.tensor_parallel <= cluster.devices
        and (degrees is None or variant.tensor_parallel == degrees[2])
    ]
    if not usable:
        wanted = "any width" if degrees is None else f"tensor-parallel width {degrees[2]}"
        widths = ", ".join(str(variant.tensor_parallel) for variant in captured) or "none"
        raise InputError(
            f"{workload.model} is not captured at microbatch {training.microbatch} and {wanted} "
            f"on {cluster.devices} devices; captured widths: {widths}."
        )
    return usable


def _cost_layers(
    variant: WorkloadVariant,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    fusion: FusionMode,
    cache: ScheduleCache,
) -> _WidthCost:
    """Estimate and schedule every distinct layer at one width."""
    layers = tuple(
        _cost_layer(layer, count, variant, accelerator, cluster, training, fusion, cache)
        for layer, count in zip(variant.layers, variant.counts, strict=True)
    )
    chain = tuple(
        _layer_cost(name, variant.layers[index], layers[index], training)
        for name, index in variant.nodes
    )
    return _WidthCost(variant, layers, chain)


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


def _feasible(
    solved: Placement,
    cost: _WidthCost,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
) -> Evaluation:
    """Join the placement with what follows from it for the whole cluster."""
    time_s = solved.time_per_batch_s
    energy_by_level_j = _energy_by_level_j(solved, cost, accelerator, training)
    used_devices = solved.pipeline * solved.data * solved.tensor
    replicas_per_batch = training.global_batch / training.microbatch
    model_flops = 3.0 * cost.variant.forward_flops * solved.tensor * replicas_per_batch
    return Evaluation(
        feasible=True,
        reason=None,
        throughput_samples_per_s=training.global_batch / time_s,
        time_per_batch_s=time_s,
        area_mm2=accelerator.area_mm2,
        mfu=model_flops / (cluster.devices * accelerator.peak_flops_per_s * time_s),
        placement=solved,
        layers=cost.layers,
        time_breakdown_s=solved.time_breakdown_s,
        unused_devices=cluster.devices - used_devices,
        energy_by_level_j=energy_by_level_j,
        power_w_per_device=sum(energy_by_level_j.values()) / time_s / used_devices,
        static_power_w_per_device=static_power_w(accelerator),
    )


def _energy_by_level_j(
    solved: Placement, cost: _WidthCost, accelerator: Accelerator, training: Training
) -> dict[str, float]:
    """Dynamic energy of one batch on all devices: operators, gradients, optimizer and network."""
    joules = energy_per_event([accelerator])
    optimizer = OPTIMIZERS[training.optimizer]
    parameters = sum(layer.count * layer.parameters for layer in cost.layers)
    energy_j = {
        level: solved.microbatches
        * sum(layer.count * layer.energy_by_level_j[level] for layer in cost.layers)
        for level in ENERGY_LEVELS
    }
    updated_share = 1.0 if training.zero == 0 else 1.0 / solved.data
    update_bytes = (
        updated_share * training.step_bytes + solved.microbatches * optimizer.accumulation_bytes
    )
    energy_j["hbm"] += parameters * update_bytes * joules.hbm_j_per_byte
    # A ring passes (d − 1)/d of the gradients twice; every stage boundary carries one activation
    # and one gradient per microbatch.
    ring_bytes = 2.0 * (solved.data - 1) / solved.data * optimizer.gradient_bytes * parameters
    last_of_stage = {stage.layers[-1] for stage in solved.stages[:-1]}
    boundary_bytes = 2 * sum(
        layer.output_bytes for layer in cost.chain if layer.name in last_of_stage
    )
    energy_j["network"] += (
        ring_bytes + solved.microbatches * boundary_bytes
    ) * joules.network_j_per_byte
    replicas = solved.data * solved.tensor
    return {level: replicas * value for level, value in energy_j.items()}
