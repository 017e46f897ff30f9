"""One point of the search: a model, an accelerator, a cluster and training options become a time.

The method in one screen: every distinct layer is estimated operator by operator, each of its passes
is scheduled on the cores of the chip, and the layers are placed over the devices (Phaze, ICML 2024,
figure 2, with the costs that the published code leaves out).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from phaze_opt.checked import Named, checked
from phaze_opt.choices import AttentionKind, FusionMode
from phaze_opt.cost_model_version import COST_MODEL_VERSION as COST_MODEL_VERSION
from phaze_opt.degraded import Degradation, degraded
from phaze_opt.economics.choices import Economics
from phaze_opt.errors import InfeasibleError
from phaze_opt.evaluation_record import Evaluation as Evaluation
from phaze_opt.fastest_slice import place_on_fastest_slice
from phaze_opt.garbage import collected_later
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.ranges import RangedRate, RateRange, at_rates, rate_ranges
from phaze_opt.named_point import PlacingText, StagesText, named_point
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import deferred, with_fields
from phaze_opt.passes.launches import host_range
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placed_figures import feasible_evaluation, infeasible_evaluation
from phaze_opt.point import (
    CostedPoint,
    Point,
    captured_variants,
    cost_point,
    cost_points,
    fusion_of,
)
from phaze_opt.recompute_search import fastest_recompute
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload

PointRate = RangedRate | Literal["host"]
"""Rates of the chip that have a range, and that at which the host launches kernels."""

_ROOMY_BYTES = 2**50
"""Memory that holds every run."""
_AT_ONCE = 64
"""Points that are estimated together: more take more memory, and hardly less time."""


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

    return with_fields(evaluation, time_per_batch_range_s=deferred(find))


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
    own = degraded(costed, evaluation.placement, degradation, cache)
    return with_fields(evaluation, degraded=own)


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
        for begin in range(0, len(places), _AT_ONCE):
            some = places[begin : begin + _AT_ONCE]
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
        on_slice, solved = place_on_fastest_slice(costed, cache)
    except InfeasibleError as error:
        return costed, infeasible_evaluation(costed, error, max(costed.costs))
    return on_slice, feasible_evaluation(on_slice, solved)
