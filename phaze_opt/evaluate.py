"""One point of the search: a model, an accelerator, a cluster and training options become a time.

The method in one screen: every distinct layer is estimated operator by operator, each of its passes
is scheduled on the cores of the chip, and the layers are placed over the devices (Phaze, ICML 2024,
figure 2, with the costs that the published code leaves out).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.estimator.estimate import ENERGY_LEVELS
from phaze_opt.estimator.limits import check_chip
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.cluster import Cluster
from phaze_opt.hardware.energy import energy_per_event, static_power_w
from phaze_opt.layer_costs import Chip, ScheduleCache, WidthCost, cost_layers
from phaze_opt.placement.expert import expert_degrees
from phaze_opt.placement.memory import local_parameters
from phaze_opt.placement.problem import Placement, PlacementProblem
from phaze_opt.placement.solve import solve_placement
from phaze_opt.placement.training import OPTIMIZERS, Training
from phaze_opt.workload.fusion import FusionMode
from phaze_opt.workload.graph import Workload, WorkloadVariant

COST_MODEL_VERSION = "2"
"""Changes whenever any number that `evaluate` returns does; a golden file holds that."""

Degrees = tuple[int, int, int]
"""Pipeline, data and tensor parallelism."""

Placing = Literal["solve", "expert"] | Degrees
"""How a point is placed, see `evaluate`."""


def evaluate(
    workload: Workload,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    placement: Placing = "solve",
    *,
    fusion: FusionMode | None = None,
    cache: ScheduleCache | None = None,
    power_limit_w: float | None = None,
    lane_rate: float = 1.0,
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
    power_limit_w
        Average dynamic power of a device above which the point is infeasible.
    lane_rate
        Rate of the vector lanes relative to the accelerator's; see `phaze_opt.layer_costs.Chip`.

    Returns
    -------
    Evaluation
        Infeasible ones too, with the reason.

    Raises
    ------
    InputError
        If the workload was not captured at the microbatch or at the given tensor degree, the model
        has no expert placement, or no such chip can be built.
    """
    point = cost_point(
        workload,
        accelerator,
        cluster,
        training,
        placement,
        fusion=fusion,
        cache=cache,
        lane_rate=lane_rate,
    )
    return place_point(point, power_limit_w)


@dataclass(frozen=True)
class CostedPoint:
    """A point whose layers are estimated and scheduled, ready to be placed.

    Attributes
    ----------
    accelerator
        The chip.
    problem
        What the placement takes.
    costs
        By tensor-parallel width.
    degrees
        Those given; ``None`` where they are to be found.
    """

    accelerator: Accelerator
    problem: PlacementProblem
    costs: Mapping[int, WidthCost]
    degrees: Degrees | None


def cost_point(
    workload: Workload,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    placement: Placing = "solve",
    *,
    fusion: FusionMode | None = None,
    cache: ScheduleCache | None = None,
    lane_rate: float = 1.0,
) -> CostedPoint:
    """Estimate and schedule every layer at every width that the placement may use.

    Parameters and errors are those of `evaluate`.
    """
    check_chip(accelerator)
    degrees = _degrees(placement, workload, cluster)
    if fusion is None:
        fusion = "epilogue" if accelerator.concurrent_operators else "elementwise"
    # What fuses no epilogues does not fuse the optimizer's passes either.
    training = replace(training, fused_optimizer=training.fused_optimizer and fusion == "epilogue")
    chip = Chip(accelerator, cluster, fusion, lane_rate)
    schedules = {} if cache is None else cache
    costs = {
        variant.tensor_parallel: cost_layers(variant, chip, training, schedules)
        for variant in _variants(workload, cluster, training, degrees)
    }
    problem = PlacementProblem(
        layers={width: cost.chain for width, cost in costs.items()},
        edges=tuple((s, d) for s, d, _ in next(iter(costs.values())).variant.edges),
        cluster=cluster,
        training=training,
        hbm_usable_bytes=accelerator.usable_hbm_bytes,
        hbm_bytes_per_s=accelerator.sustained_hbm_bytes_per_s,
        step_parameters_per_s=_lanes_per_s(chip, f"{training.optimizer}_update"),
        accumulation_parameters_per_s=_lanes_per_s(chip, "add"),
    )
    return CostedPoint(accelerator, problem, costs, degrees)


def place_point(point: CostedPoint, power_limit_w: float | None = None) -> Evaluation:
    """Place the layers of a point, and say what follows for the whole cluster.

    Parameters
    ----------
    point
        From `cost_point`.
    power_limit_w
        See `evaluate`.
    """
    accelerator, problem = point.accelerator, point.problem
    try:
        solved = solve_placement(problem, point.degrees)
    except InfeasibleError as error:
        return _infeasible(error, accelerator, point.costs[max(point.costs)])
    cost = point.costs[solved.tensor]
    result = _feasible(solved, cost, accelerator, problem.cluster, problem.training)
    if power_limit_w is not None and result.power_w_per_device > power_limit_w:
        excess = InfeasibleError(
            f"The average power of {result.power_w_per_device:.4g} W per device is above the limit "
            f"of {power_limit_w:g} W.",
            violation=result.power_w_per_device / power_limit_w - 1.0,
        )
        return _infeasible(excess, accelerator, cost)
    return result


def _lanes_per_s(chip: Chip, kind: str) -> float:
    """Elements of a vector operator per second on all lanes of the chip."""
    lanes = chip.accelerator.num_vc * chip.accelerator.pe_vc
    cycles_per_s = lanes * chip.accelerator.sustained_clock_hz * chip.lane_rate
    return cycles_per_s / vector_operator(kind).cycles


def _degrees(placement: Placing, workload: Workload, cluster: Cluster) -> Degrees | None:
    """Resolve a placement to its degrees, or to nothing where they are to be found."""
    if placement == "solve":
        return None
    if placement == "expert":
        return expert_degrees(workload.model, cluster.devices)
    return placement


def _variants(
    workload: Workload, cluster: Cluster, training: Training, degrees: Degrees | None
) -> list[WorkloadVariant]:
    """Pick the captured variants that the placement may use."""
    captured = list(workload.variants_for(training.microbatch, training.sequence_parallel))
    if degrees is None:
        # A width of more devices than there are is kept only to say that it does not fit.
        within = [one for one in captured if one.tensor_parallel <= cluster.devices]
        usable = within or captured
    else:
        usable = [one for one in captured if one.tensor_parallel == degrees[2]]
    if not usable:
        wanted = "any width" if degrees is None else f"tensor-parallel width {degrees[2]}"
        widths = ", ".join(str(one.tensor_parallel) for one in captured) or "none"
        raise InputError(
            f"{workload.model} is not captured at microbatch {training.microbatch} and {wanted}; "
            f"captured widths: {widths}."
        )
    return usable


def _infeasible(error: InfeasibleError, accelerator: Accelerator, cost: WidthCost) -> Evaluation:
    """Say what does not fit."""
    return Evaluation(
        feasible=False,
        reason=str(error),
        throughput_samples_per_s=0.0,
        time_per_batch_s=None,
        area_mm2=accelerator.area_mm2,
        mfu=0.0,
        placement=None,
        layers=cost.layers,
        violation=error.violation,
    )


def _feasible(
    solved: Placement,
    cost: WidthCost,
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
    solved: Placement, cost: WidthCost, accelerator: Accelerator, training: Training
) -> dict[str, float]:
    """Dynamic energy of one batch on all devices: operators, gradients, optimizer and network."""
    joules = energy_per_event([accelerator])
    optimizer = OPTIMIZERS[training.optimizer]
    chain = {layer.name: layer for layer in cost.chain}
    parameters = sum(
        local_parameters([chain[name] for name in stage.layers]) for stage in solved.stages
    )
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
    boundary_bytes = 2 * sum(chain[stage.layers[-1]].output_bytes for stage in solved.stages[:-1])
    energy_j["network"] += (
        ring_bytes + solved.microbatches * boundary_bytes
    ) * joules.network_j_per_byte
    replicas = solved.data * solved.tensor
    return {level: replicas * value for level, value in energy_j.items()}
