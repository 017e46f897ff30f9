"""What follows from a placement for the whole cluster: utilisation, power, energy, the bill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from phaze_opt.batch_energy import batch_energy_by_level_j
from phaze_opt.economics.bill import Bill, bill_of
from phaze_opt.errors import InfeasibleError
from phaze_opt.evaluation_record import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import static_power_w
from phaze_opt.on_demand import deferred
from phaze_opt.passes.layers import DegreeCost, LayerEvaluation
from phaze_opt.placement.infeasible import MisfitError
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.point import CostedPoint, Point
from phaze_opt.training import Training


def feasible_evaluation(costed: CostedPoint, solved: Placement) -> Evaluation:
    """Say what follows from a placement, if it keeps the limit of the power.

    Parameters
    ----------
    costed, solved
        As `phaze_opt.fastest_slice.place_on_fastest_slice` returns them.
    """
    accelerator, cost = costed.point.accelerator, costed.costs[solved.tensor]
    training = costed.problem.training
    energy_by_level_j = batch_energy_by_level_j(solved, cost, accelerator, training)
    bill = partial(
        bill_of,
        accelerator,
        costed.point.economics,
        costed.point.cluster,
        training.global_batch / solved.time_per_batch_s,
        energy_by_level_j,
        solved.time_per_batch_s,
    )
    own = OfDevices(
        peak_flops_per_s=peak_flops_per_s(accelerator, training),
        energy_by_level_j=energy_by_level_j,
        static_power_w=static_power_w(accelerator),
        layers=cost.layers,
        area_mm2=accelerator.area_mm2,
        area_chip_mm2=accelerator.area_chip_mm2,
        tdp_w=accelerator.tdp_w,
        bill=deferred(bill),
    )
    evaluation, limit_w = evaluation_of(solved, costed, own), costed.point.power_limit_w
    power_w = evaluation.power_w_per_device
    if limit_w is None or power_w <= limit_w:
        return evaluation
    excess = InfeasibleError(
        f"The average power of {power_w:.4g} W per device is above the limit of {limit_w:g} W.",
        violation=power_w / limit_w - 1.0,
    )
    return infeasible_evaluation(costed, excess, solved.tensor, power_w)


def infeasible_evaluation(
    costed: CostedPoint, error: InfeasibleError, tensor: int, power_w_per_device: float = 0.0
) -> Evaluation:
    """Say what does not fit.

    Parameters
    ----------
    costed
        What was to be placed.
    error
        Why nothing fits, by how much, and where.
    tensor
        Degree whose layers are shown; they are scheduled when somebody reads them.
    power_w_per_device
        Average dynamic power, where that is what is too much.
    """
    return Evaluation(
        feasible=False,
        reason=str(error),
        throughput_samples_per_s=0.0,
        time_per_batch_s=None,
        area_mm2=costed.point.accelerator.area_mm2,
        area_chip_mm2=costed.point.accelerator.area_chip_mm2,
        mfu=0.0,
        mfu_causal=0.0,
        hfu=0.0,
        placement=None,
        layers=deferred(lambda: costed.costs[tensor].layers),
        power_w_per_device=power_w_per_device,
        violation=error.violation,
        misfit=error.misfit if isinstance(error, MisfitError) else None,
        tdp_w=costed.point.accelerator.tdp_w,
    )


def peak_flops_per_s(accelerator: Accelerator, training: Training) -> float:
    """Return the nominal peak in which the linear layers of a training multiply."""
    return accelerator.peak_flops_per_s * accelerator.nominal_rate(training.precision)


@dataclass(frozen=True)
class OfDevices:
    """What an evaluation takes from its devices; the attributes are those of `Evaluation`.

    Attributes
    ----------
    peak_flops_per_s
        Nominal, of one device; on average where they differ.
    """

    peak_flops_per_s: float
    energy_by_level_j: Mapping[str, float]
    static_power_w: float
    layers: tuple[LayerEvaluation, ...]
    area_mm2: float | None = None
    area_chip_mm2: float | None = None
    tdp_w: float | None = None
    bill: Bill | None = None


def evaluation_of(solved: Placement, costed: CostedPoint, own: OfDevices) -> Evaluation:
    """Say what follows from a placement on some devices for the whole cluster."""
    cost, training = costed.costs[solved.tensor], costed.problem.training
    sequence, devices = costed.point.workload.sequence, costed.point.cluster.devices
    time_s, peak = solved.time_per_batch_s, own.peak_flops_per_s
    microbatches = training.global_batch / training.microbatch
    sharing = solved.tensor * solved.context
    model_flops = cost.variant.training_flops * sharing * microbatches
    again_flops = _recompute_flops(cost) * sharing * microbatches
    device_seconds = devices * time_s
    mfu = model_flops / (devices * peak * time_s)
    trained = solved.microbatches * solved.data * training.microbatch
    return Evaluation(
        feasible=True,
        reason=None,
        throughput_samples_per_s=training.global_batch / time_s,
        time_per_batch_s=time_s,
        area_mm2=own.area_mm2,
        area_chip_mm2=own.area_chip_mm2,
        mfu=mfu,
        mfu_causal=mfu * (1.0 - cost.variant.masked_flops_share),
        hfu=(model_flops + again_flops) / (device_seconds * peak),
        tflops_per_device=model_flops / device_seconds / 1e12,
        tokens_per_s_per_device=None
        if sequence == 1
        else sequence * training.global_batch / device_seconds,
        placement=solved,
        layers=own.layers,
        time_breakdown_s=solved.time_breakdown_s,
        unused_devices=devices - solved.devices,
        padding_samples=trained - training.global_batch,
        energy_by_level_j=own.energy_by_level_j,
        power_w_per_device=sum(own.energy_by_level_j.values()) / time_s / solved.devices,
        static_power_w_per_device=own.static_power_w,
        tdp_w=own.tdp_w,
        recompute=_found_recompute(costed.point),
        bill=own.bill,
    )


def _found_recompute(point: Point) -> str | None:
    """Name the recompute of a point whose recompute was found."""
    if not point.solved_recompute:
        return None
    return point.training.recompute_parts or point.training.recompute


def _recompute_flops(cost: DegreeCost) -> int:
    """GEMM FLOPs that run again before the backward, of one microbatch on one device."""
    return sum(
        layer.count * own.recompute.graph.flops
        for layer, own in zip(cost.layers, cost.passes, strict=True)
        if own.recompute is not None
    )
