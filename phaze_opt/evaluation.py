"""One point of the search: a model, an accelerator, a cluster and training options become a time.

The method in one screen: every distinct layer is estimated operator by operator, each of its passes
is scheduled on the cores of the chip, and the layers are placed over the devices (Phaze, ICML 2024,
figure 2, with the costs that the published code leaves out).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from phaze_opt.batch_energy import batch_energy_by_level_j
from phaze_opt.checked import Named, check_fields, checked
from phaze_opt.choices import AttentionKind, EvaluationPlotKind, FusionMode
from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.cost_model_version import COST_MODEL_VERSION as COST_MODEL_VERSION
from phaze_opt.degraded import Degradation, Degraded, degraded
from phaze_opt.economics.bill import Bill, bill_of
from phaze_opt.economics.choices import Economics
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.garbage import collected_later
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import static_power_w
from phaze_opt.hardware.ranges import RangedRate, RateRange, at_rates, rate_ranges
from phaze_opt.named_point import PlacingText, StagesText, named_point
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import deferrable, deferred
from phaze_opt.passes.launches import host_range
from phaze_opt.passes.layers import DegreeCost, LayerEvaluation
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placement.infeasible import MisfitError
from phaze_opt.placement.placement_problem import Misfit, Placement
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.point import (
    CostedPoint,
    Point,
    captured_variants,
    cost_point,
    cost_points,
    fusion_of,
    smaller_slices,
)
from phaze_opt.printing import DrawsPlots, PrintsAsTables
from phaze_opt.recompute_search import fastest_recompute
from phaze_opt.training import Training
from phaze_opt.units import format_number, format_seconds
from phaze_opt.workload.graph import Workload

PointRate = RangedRate | Literal["host"]
"""Rates of the chip that have a range, and that at which the host launches kernels."""

_BILLED = (
    *("cost_usd_per_million_samples", "tco_usd", "carbon_kg_per_million_samples", "carbon_kg"),
    "wall_power_w_per_device",
)
"""Figures of a bill that stand beside the others of an evaluation, each with its range."""

_ROOMY_BYTES = 2**50
"""Memory that holds every run."""
AT_ONCE = 64
"""Points that are estimated together: more take more memory, and hardly less time."""


@deferrable("layers", "time_per_batch_range_s", "bill")
@dataclass(frozen=True, repr=False)
class Evaluation(PrintsAsTables, DrawsPlots):
    """The answer for one point, with its breakdown.

    Attributes
    ----------
    feasible, reason, violation
        Whether a placement fits; if not, a sentence and the relative excess.
    throughput_samples_per_s
        Global batch over time per batch; 0 if infeasible.
    time_per_batch_s
        ``None`` if infeasible.
    area_mm2, area_chip_mm2
        Of one accelerator under the area models ``phaze-22nm`` and ``chip``; ``None`` where a
        buffer lies outside their table.
    mfu
        Model FLOPs (no recompute; attention in full) over nominal peak of ALL devices and time; the
        peak is that of the precision in which linear layers multiply. What is frozen has no weight
        gradients to count.
    placement
        Degrees and stages; ``None`` if infeasible.
    layers
        The distinct layers at the chosen tensor degree (the widest, if infeasible).
    time_breakdown_s
        By kind, summing to ``time_per_batch_s``.
    unused_devices
        Devices that no stage runs on.
    padding_samples
        Samples trained beyond the global batch, because the replicas' microbatches do not divide
        it; throughput and MFU do not count them.
    energy_by_level_j
        Dynamic energy of one batch on all devices by `ENERGY_LEVELS`; empty if infeasible.
    power_w_per_device
        Average dynamic power of the devices in use; 0 if no placement fits the memory.
    static_power_w_per_device
        Leakage, which is not part of the two above.
    tdp_w
        What the accelerator's board is rated for; ``None`` where that is not known.
    misfit
        The stage that does not fit its memory; ``None`` if that is not the reason.
    hfu
        As ``mfu``, with the FLOPs that run again before the backward.
    mfu_causal
        As ``mfu``, with causal attention counted by the part that its mask leaves, about half,
        where one fused core skips the rest.
    tflops_per_device
        Model FLOPs per second of ALL devices, in TFLOP/s; ``None`` if infeasible.
    tokens_per_s_per_device
        Of ALL devices; ``None`` also where a sample is no sequence, or one of unknown length.
    recompute
        The recompute that was found where it was asked for: ``none``, ``full``, ``selective``, or
        the parts that run again, see `phaze_opt.training.Training`; else ``None``.
    time_per_batch_range_s
        Time per batch on the fastest and on the slowest chips of the name, see
        `phaze_opt.hardware.ranges`; ``None`` if infeasible, if the chip states no range, and of the
        designs of a study and of `evaluate_many`, to which `with_range` adds it.
    degraded
        The run on a degraded cluster, where that was asked for and the whole one runs it.
    accelerators
        On which kind of device each stage is, where there are several kinds
        (`phaze_opt.device_kinds`): areas and the rated power are then not known, numbers per device
        are averages, and layers are counted on each kind.
    bill
        Dollars, watts at the wall and carbon; ``None`` if infeasible, or where the area of the
        chip's dies is unknown.
    """

    feasible: bool
    reason: str | None
    throughput_samples_per_s: float
    time_per_batch_s: float | None
    area_mm2: float | None
    mfu: float
    placement: Placement | None
    layers: tuple[LayerEvaluation, ...]
    time_breakdown_s: Mapping[str, float] = field(default_factory=dict)
    unused_devices: int = 0
    energy_by_level_j: Mapping[str, float] = field(default_factory=dict)
    power_w_per_device: float = 0.0
    static_power_w_per_device: float = 0.0
    violation: float = 0.0
    padding_samples: int = 0
    misfit: Misfit | None = None
    hfu: float | None = None
    tflops_per_device: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu_causal: float | None = None
    area_chip_mm2: float | None = None
    tdp_w: float | None = None
    recompute: str | None = None
    time_per_batch_range_s: tuple[float, float] | None = None
    degraded: Degraded | None = None
    accelerators: tuple[str, ...] | None = None
    bill: Bill | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        if self.placement is None or self.time_per_batch_s is None:
            return f"Evaluation(infeasible: {self.reason})"
        return (
            f"Evaluation({format_number(self.throughput_samples_per_s)} samples/s, "
            f"{format_seconds(self.time_per_batch_s)} per batch, MFU {self.mfu:.1%}, "
            f"{self.placement.degrees_text})"
        )

    def plot(self, kind: EvaluationPlotKind = "time") -> Any:
        """Draw it, as a ``plotly.graph_objects.Figure`` that a notebook shows.

        Parameters
        ----------
        kind
            ``time`` (of a batch, by what it is spent on), ``memory`` (of the fullest device) or
            ``binding`` (the share of the operators' time that each resource binds).

        Raises
        ------
        InputError
            If there is no such plot.
        """
        return self._drawn(kind)

    @property
    def energy_j_per_batch(self) -> float:
        """Dynamic energy of one batch on all devices; 0 if infeasible."""
        return sum(self.energy_by_level_j.values())

    @property
    def is_above_tdp(self) -> bool:
        """Whether a device takes more on average, leakage included, than its board is rated for."""
        if self.tdp_w is None:
            return False
        return self.power_w_per_device + self.static_power_w_per_device > self.tdp_w

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


@checked
def evaluate(
    workload: Workload | Named,
    accelerator: Accelerator | Named,
    cluster: Cluster | Named,
    training: Training,
    placement: PlacingText = "solve",
    *,
    devices: int | None = None,
    sequence: int | None = None,
    attention: AttentionKind | None = None,
    frozen: Sequence[str] = (),
    lora_rank: int = 0,
    lora_targets: Sequence[str] = (),
    fusion: FusionMode | None = None,
    cache: ScheduleCache | None = None,
    power_limit_w: float | None = None,
    lane_rate: float = 1.0,
    prove: bool = False,
    stages: StagesText | None = None,
    degrade: Degradation | None = None,
    economics: Economics | Named = "",
) -> Evaluation:
    """Estimate, schedule and place one training run.

    ``evaluate("bert-large", "h100", "dgx-h100", Training(4096, 8), devices=64)``

    Parameters
    ----------
    workload
        Name or path of a model, as `phaze_opt.workload.zoo.load_workload` takes it; or the model,
        captured at the training's microbatch, at every tensor degree that may be used.
    accelerator, cluster, training
        The chip and its network, by their names or paths or as objects, and the options of the run.
    placement
        ``"solve"`` for the fastest placement; pipeline, data and tensor degrees, which split the
        layers evenly by count, as three numbers or as text, ``"4x256x1"``; or ``"expert"`` for the
        degrees that people use for the model.
    devices
        How many chips a network that is named joins; a `Cluster` has its own number.
    sequence, attention
        Tokens per sample and attention of a model that is named, if not its own.
    frozen, lora_rank, lora_targets
        What of a model that is named is not trained, or the adapters that are trained instead, see
        `phaze_opt.workload.trained.Trained`: ``frozen=["embedding", "block.*.attention"]``.
    fusion
        How operators are fused before they are estimated; by default ``"epilogue"``, and
        ``"elementwise"`` (an eager framework) on chips that run one operator at a time.
    cache
        Schedules by content; solved ones are added.
    power_limit_w
        Average dynamic power of a device above which the point is infeasible.
    lane_rate
        Rate of the vector lanes relative to the accelerator's; see
        `phaze_opt.passes.estimates.Chip`.
    prove
        Whether schedules that the fast methods leave open are solved further; see the same.
    stages
        Layers of the pipeline stages of given degrees, ``(3, 4, 4, 3)`` or ``"3,4,4,3"``: repeated
        layers, or all with what stands before and after them. Even ones by default.
    degrade
        What is wrong with the cluster: adds the run as it stands there, and placed again.
    economics
        Grid, prices, lifetime, margin and volume, see `phaze_opt.economics.choices.Economics`; as
        text a file of them, or ``"grid=europe,margin=7"``. No time depends on them.

    Returns
    -------
    Evaluation
        Infeasible ones too, with the reason.

    Raises
    ------
    InputError
        If a name is unknown or a value is none that is allowed, the workload was not captured at
        the microbatch or at the given tensor degree, the model has no expert placement, or no such
        chip can be built.
    NotFoundError
        If a file is not there.
    """
    point = named_point(
        workload,
        accelerator,
        cluster,
        training,
        placement,
        devices=devices,
        sequence=sequence,
        attention=attention,
        frozen=frozen,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        fusion=fusion,
        power_limit_w=power_limit_w,
        lane_rate=lane_rate,
        prove=prove,
        stages=stages,
        economics=economics,
    ).point
    point = with_recompute_solved(point, cache)
    costed, evaluation = place_on_slice(cost_point(point, cache), cache)
    evaluation = with_degraded(costed, evaluation, degrade, cache)
    return with_range(point, evaluation, cache)


def with_recompute_solved(point: Point, cache: ScheduleCache | None = None) -> Point:
    """Return a point with the fastest recompute, where its training asks for that.

    Parameters
    ----------
    point
        What is evaluated.
    cache
        As for `evaluate`.
    """
    if point.training.recompute != "solve":
        return point
    known: ScheduleCache = {} if cache is None else cache

    def time_s(training: Training, *, is_roomy: bool = False) -> float:
        changed = replace(point, training=training)
        if is_roomy:
            chip = point.accelerator.with_memory_bytes(_ROOMY_BYTES)
            changed = replace(changed, accelerator=chip, power_limit_w=None)
        found = evaluate_one(changed, known).time_per_batch_s
        return math.inf if found is None else found

    training = fastest_recompute(
        captured_variants(point),
        point.training,
        time_s,
        partial(time_s, is_roomy=True),
    )
    return replace(point, training=training, solved_recompute=True)


def with_range(
    point: Point, evaluation: Evaluation, cache: ScheduleCache | None = None
) -> Evaluation:
    """Add the times per batch of the fastest and the slowest chips of the name to an evaluation.

    Arrays and HBM are slow, or fast, together; each has its own best placement, unless one is
    given. They are found when somebody reads them. Without a range of the chip nothing is added.

    Parameters
    ----------
    point
        What was evaluated.
    evaluation
        Of the chip as it is stated.
    cache
        As for `evaluate`.
    """
    ranges = point_ranges(point)
    if not ranges or evaluation.time_per_batch_s is None:
        return evaluation
    central_s = evaluation.time_per_batch_s
    fast = {rate: of_rate.high for rate, of_rate in ranges.items()}
    slow = {rate: of_rate.low for rate, of_rate in ranges.items()}

    def find() -> tuple[float, float]:
        times_s = [time_at_rates(point, rates, cache) for rates in (fast, slow)]
        least_s, most_s = (central_s if time_s is None else time_s for time_s in times_s)
        return min(least_s, central_s), max(most_s, central_s)

    # `replace` would find all that is deferred, the layers too.
    ranged = object.__new__(Evaluation)
    ranged.__dict__.update(evaluation.__dict__, time_per_batch_range_s=deferred(find))
    return ranged


def with_degraded(
    costed: CostedPoint,
    evaluation: Evaluation,
    degradation: Degradation | None,
    cache: ScheduleCache | None = None,
) -> Evaluation:
    """Add the run on a degraded cluster to an evaluation, if there is one that runs.

    Parameters
    ----------
    costed, evaluation
        As `place_on_slice` returns them.
    degradation
        What is wrong with the cluster.
    cache
        As for `evaluate`.

    Raises
    ------
    InputError
        As `phaze_opt.degraded.degraded`.
    """
    if degradation is None or evaluation.placement is None:
        return evaluation

    def solve(point: Point) -> tuple[CostedPoint, Placement | None]:
        on_slice, found = place_on_slice(cost_point(point, cache), cache)
        return on_slice, found.placement

    own = degraded(costed, evaluation.placement, degradation, solve, cache)
    return replace(evaluation, degraded=own)


def point_ranges(point: Point) -> dict[PointRate, RateRange]:
    """Return the ranges that the chip states, and that of the host where it launches kernels."""
    ranges: dict[PointRate, RateRange] = dict(rate_ranges(point.accelerator).items())
    of_host = host_range(point.training)
    if of_host is not None:
        ranges["host"] = of_host
    return ranges


def time_at_rates(
    point: Point, rates: Mapping[PointRate, float], cache: ScheduleCache | None = None
) -> float | None:
    """Return the time per batch with other rates of chip and host, by factors; ``None`` if none.

    A limit of the power is that of the chip as it is stated.
    """
    chip = at_rates(point.accelerator, rates.get("arrays", 1.0), rates.get("hbm", 1.0))
    host_rate = point.host_rate * rates.get("host", 1.0)
    other = replace(point, accelerator=chip, power_limit_w=None, host_rate=host_rate)
    return evaluate_one(other, cache).time_per_batch_s


@collected_later()
def evaluate_one(point: Point, cache: ScheduleCache | None = None) -> Evaluation:
    """Do as `evaluate` for a point of objects; see `evaluate_many` for several."""
    return place_point(cost_point(point, cache), cache)


@collected_later()
def evaluate_many(points: Sequence[Point], cache: ScheduleCache | None = None) -> list[Evaluation]:
    """Evaluate some points; every result equals that of `evaluate_one`.

    Parameters
    ----------
    points
        Whatever they differ in. Those that have the same workload (the object itself), network,
        training, placement and fusion are estimated together, and tensor-core pools that chips
        share are estimated once.
    cache
        Schedules by content; solved ones are added.

    Raises
    ------
    InputError
        As `evaluate`, for the first group of points that has such a mistake.
    """
    groups: dict[object, list[int]] = {}
    for place, point in enumerate(points):
        shared = (
            id(point.workload),
            point.accelerator.fp8_column_copies,
            point.cluster,
            point.training,
            point.placement,
            point.stages,
            fusion_of(point),
        )
        groups.setdefault(shared, []).append(place)
    evaluations: dict[int, Evaluation] = {}
    for places in groups.values():
        for begin in range(0, len(places), AT_ONCE):
            some = places[begin : begin + AT_ONCE]
            costed = cost_points([points[place] for place in some], cache)
            answers = [place_point(point, cache) for point in costed]
            evaluations.update(zip(some, answers, strict=True))
    return [evaluations[place] for place in range(len(points))]


def place_point(costed: CostedPoint, cache: ScheduleCache | None = None) -> Evaluation:
    """Place the layers of a costed point, and say what follows for the whole cluster.

    Parameters and errors are those of `place_on_slice`.
    """
    return place_on_slice(costed, cache)[1]


def place_on_slice(
    costed: CostedPoint, cache: ScheduleCache | None = None
) -> tuple[CostedPoint, Evaluation]:
    """Do as `place_point`, and return the point as it is costed on the slice that it takes.

    Parameters
    ----------
    costed
        On all of its network.
    cache
        As for `phaze_opt.point.cost_point`.
    """
    try:
        solved = solve_placement(costed.problem, costed.degrees, costed.point.stages)
        fastest = _fastest_slice(costed, solved, cache)
    except InfeasibleError as error:
        # On a slice there are no other degrees than on all of it, and devices hold as much.
        return costed, _infeasible(error, costed, max(costed.costs))
    return fastest[0], _within_power(*fastest)


def _fastest_slice(
    costed: CostedPoint, solved: Placement, cache: ScheduleCache | None
) -> tuple[CostedPoint, Placement]:
    """Look for a smaller slice of the network on which a batch takes less time than on all of it.

    Mostly there is none, as the work of the layers alone takes longer on half of the devices.
    """
    best, placed, degrees, bound_s = costed, solved, costed.degrees, solved.bound_s
    for slice_index, cluster in smaller_slices(costed.point.cluster, degrees):
        known_s = placed.time_per_batch_s
        if degrees is None and best.least_work_s(cluster) >= known_s:
            continue
        other = cost_point(costed.point, cache, slice_index)
        try:
            solved = solve_placement(other.problem, degrees, costed.point.stages)
        except InfeasibleError:
            continue
        if bound_s is not None and solved.bound_s is not None:
            bound_s = min(bound_s, solved.bound_s)
        if solved.time_per_batch_s < known_s:
            best, placed = other, solved
    if bound_s is None or bound_s == placed.bound_s:
        return best, placed
    # No placement is below the least of the bounds of the slices.
    return best, placed.searched(bound_s)


def _within_power(costed: CostedPoint, solved: Placement) -> Evaluation:
    """Say what follows from a placement, if it keeps the limit of the power."""
    power_limit_w = costed.point.power_limit_w
    result = _feasible(solved, costed)
    if power_limit_w is not None and result.power_w_per_device > power_limit_w:
        excess = InfeasibleError(
            f"The average power of {result.power_w_per_device:.4g} W per device is above the limit "
            f"of {power_limit_w:g} W.",
            violation=result.power_w_per_device / power_limit_w - 1.0,
        )
        too_hot = _infeasible(excess, costed, solved.tensor)
        return replace(too_hot, power_w_per_device=result.power_w_per_device)
    return result


def _infeasible(error: InfeasibleError, costed: CostedPoint, tensor: int) -> Evaluation:
    """Say what does not fit; the layers of the degree are scheduled when somebody reads them."""
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
        violation=error.violation,
        misfit=error.misfit if isinstance(error, MisfitError) else None,
        tdp_w=costed.point.accelerator.tdp_w,
    )


def _feasible(solved: Placement, costed: CostedPoint) -> Evaluation:
    """Join the placement with what follows from it for the whole cluster."""
    accelerator, cost = costed.point.accelerator, costed.costs[solved.tensor]
    training = costed.problem.training
    energy_by_level_j = batch_energy_by_level_j(solved, cost, accelerator, training)
    bill = partial(
        bill_of,
        accelerator,
        costed.point.economics,
        costed.point.cluster.devices,
        training.global_batch / solved.time_per_batch_s,
        energy_by_level_j,
        solved.time_per_batch_s,
    )
    return evaluation_of(
        solved,
        costed,
        OfDevices(
            peak_flops_per_s=peak_flops_per_s(accelerator, training),
            energy_by_level_j=energy_by_level_j,
            static_power_w=static_power_w(accelerator),
            layers=cost.layers,
            area_mm2=accelerator.area_mm2,
            area_chip_mm2=accelerator.area_chip_mm2,
            tdp_w=accelerator.tdp_w,
            bill=deferred(bill),
        ),
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


def evaluation_to_json_dict(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation as the plain data that ``evaluate --json`` prints."""
    plain: dict[str, Any] = to_builtins(evaluation)
    if evaluation.placement is not None:
        for stage, source in zip(
            plain["placement"]["stages"], evaluation.placement.stages, strict=True
        ):
            stage["memory_bytes"]["total"] = source.memory_bytes.total
    for name in ("degraded", "accelerators"):
        if plain[name] is None:
            del plain[name]
    plain["bound_by_share"] = evaluation.bound_by_share
    plain["energy_j_per_batch"] = evaluation.energy_j_per_batch
    for figure in _BILLED:
        ranged = None if evaluation.bill is None else getattr(evaluation.bill, figure)
        plain[figure] = None if ranged is None else ranged.central
        plain[f"{figure}_range"] = None if ranged is None else [ranged.low, ranged.high]
    return plain


def evaluation_from_json_dict(plain: Mapping[str, Any]) -> Evaluation:
    """Build an evaluation from the plain data that `evaluation_to_json_dict` returns.

    Values that follow from the fields (``bound_by_share``, ``energy_j_per_batch``, the figures of
    the bill and the total memory of a stage) are not read, but computed again.

    Raises
    ------
    InputError
        If the data is not that of an evaluation, or contradicts itself.
    """
    derived = {"bound_by_share", "energy_j_per_batch", *_BILLED}
    derived |= {f"{figure}_range" for figure in _BILLED}
    own = {key: value for key, value in plain.items() if key not in derived}
    if not own.get("feasible"):
        # An older program stored none.
        own |= {"hfu": own.get("hfu") or 0.0, "mfu_causal": own.get("mfu_causal") or 0.0}
    placement = own.get("placement")
    if isinstance(placement, Mapping) and isinstance(placement.get("stages"), list | tuple):
        own["placement"] = {**placement, "stages": [*map(_without_total, placement["stages"])]}
    evaluation = from_builtins(own, Evaluation, "evaluation")
    if evaluation.feasible:
        whole = evaluation.placement is not None and evaluation.throughput_samples_per_s > 0.0
        whole = whole and (evaluation.time_per_batch_s or 0.0) > 0.0
    else:
        whole = evaluation.reason is not None and evaluation.throughput_samples_per_s == 0.0
    if not whole:
        raise InputError("The evaluation is not valid: its fields contradict each other.")
    return evaluation


def _without_total(stage: object) -> object:
    """Return the plain data of a stage without the total of its memory."""
    if not isinstance(stage, Mapping) or not isinstance(stage.get("memory_bytes"), Mapping):
        return stage
    memory = {kind: size for kind, size in stage["memory_bytes"].items() if kind != "total"}
    return {**stage, "memory_bytes": memory}
