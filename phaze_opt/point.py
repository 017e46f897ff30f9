"""A point of the search whose layers are estimated, and scheduled on demand, to be placed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from phaze_opt.choices import FusionMode
from phaze_opt.degrees import Degrees
from phaze_opt.economics.choices import Economics
from phaze_opt.errors import InputError
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import check_chip, check_training, training_on
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import tensor_terms
from phaze_opt.network.slices import slices
from phaze_opt.on_demand import OnDemand, cached_property
from phaze_opt.passes.bare_layers import bare_chain
from phaze_opt.passes.estimates import Chip
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.passes.layers import DegreeCost, EstimatedDegree, estimate_degrees
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placement.degree_bounds import least_of_layers_s
from phaze_opt.placement.expert import expert_degrees
from phaze_opt.placement.placement_problem import ChipRates, PlacementProblem
from phaze_opt.training import Training
from phaze_opt.workload.bf16_layers import with_bf16_layers
from phaze_opt.workload.context_parallel import with_context_shared_out
from phaze_opt.workload.expert_parallel import whole_groups, with_experts_shared_out
from phaze_opt.workload.fused_accumulation import with_fused_accumulation
from phaze_opt.workload.graph import Workload, WorkloadVariant
from phaze_opt.workload.linear_precisions import check_linear_precisions
from phaze_opt.workload.recompute_parts import with_parts_run_again

Placing = Literal["solve", "expert"] | Degrees | tuple[int, int, int]
"""How a point is placed, see `phaze_opt.evaluation.evaluate`."""


@dataclass(frozen=True)
class Point:
    """The arguments of `phaze_opt.evaluation.evaluate` as one value, so that each can be changed.

    The attributes are those of the function, ``host_rate`` is that of
    `phaze_opt.passes.estimates.Chip`, and ``solved_recompute`` says whether the recompute of the
    training was found (`phaze_opt.recompute_search`). ``stages`` are the layers of the stages of
    given degrees, see `phaze_opt.placement.given_split`; even ones by default. No time depends on
    ``economics``.
    """

    workload: Workload
    accelerator: Accelerator
    cluster: Cluster
    training: Training
    placement: Placing = "solve"
    fusion: FusionMode | None = None
    power_limit_w: float | None = None
    lane_rate: float = 1.0
    prove: bool = False
    host_rate: float = 1.0
    solved_recompute: bool = False
    stages: tuple[int, ...] | None = None
    economics: Economics = Economics()  # noqa: RUF009 (frozen)


@dataclass(frozen=True)
class CostedPoint:
    """A point whose layers are estimated, and scheduled where that is asked for.

    Attributes
    ----------
    point
        What was costed.
    problem
        What the placement takes; its network is the slice.
    costs
        By tensor degree; those of a tensor degree are found when they are first asked for.
    degrees
        Those given; ``None`` where they are to be found.
    estimated
        By tensor degree, before anything is scheduled.
    slice_index
        Which of the `phaze_opt.network.slices.slices` of the point's network it is costed on.
    """

    point: Point
    problem: PlacementProblem
    costs: Mapping[int, DegreeCost]
    degrees: Degrees | None
    estimated: Mapping[int, EstimatedDegree]
    slice_index: int = 0

    def least_work_s(self, cluster: Cluster) -> float:
        """Bound the time of a batch on a slice of the network from below, without costing it."""
        own, layers = self.problem, {}
        for tensor in (tensor for tensor in self.estimated if tensor <= cluster.devices):
            same = tensor_terms(tensor, cluster) == tensor_terms(tensor, own.cluster)
            same = same and own.training.has_tensor_groups_only
            layers[tensor] = (own.outline.layers if same else self._without_collectives)[tensor]
        if not layers:
            return math.inf
        return least_of_layers_s(replace(own, layers=layers, least=None, cluster=cluster))

    @cached_property
    def _without_collectives(self) -> Mapping[int, tuple[LayerCost, ...]]:
        """At most what layers take, whatever their collectives do.

        With collectives a pass takes at most their own time longer, in which all else may wait.
        """
        return OnDemand(self.estimated, lambda tensor: self.estimated[tensor].least_chain(False))


def cost_point(
    point: Point, cache: ScheduleCache | None = None, slice_index: int = 0
) -> CostedPoint:
    """Estimate every layer at every tensor degree that the placement may use.

    A tensor degree is scheduled when its costs are first asked for: the placement asks for those
    that can be the fastest.

    Parameters
    ----------
    point
        What to cost.
    cache
        Schedules by content; solved ones are added. ``None`` where nobody asks for them again.
    slice_index
        Which of the slices of the network to take; by default all of it.

    Raises
    ------
    InputError
        As `phaze_opt.evaluation.evaluate`.
    """
    return cost_points([point], cache, slice_index)[0]


def cost_points(
    points: Sequence[Point], cache: ScheduleCache | None = None, slice_index: int = 0
) -> list[CostedPoint]:
    """Do as `cost_point` for points that differ in nothing but their chips.

    Raises
    ------
    InputError
        As `phaze_opt.evaluation.evaluate`.
    """
    first = points[0]
    if first.training.recompute == "solve":
        raise InputError(
            "recompute is solve, which only evaluate and explain take; elsewhere it must be none, "
            "selective or full."
        )
    cluster = slices(first.cluster)[slice_index]
    for point in points:
        check_chip(point.accelerator)
        check_training(point.accelerator, point.training)
    degrees = degrees_of(first.placement, first.workload, first.cluster, first.training)
    fusion = fusion_of(first)
    training = training_as_fused(training_on(first.accelerator, first.training), fusion)
    variants = _variants(first.workload, cluster, training, degrees)
    chips = [
        Chip(point.accelerator, cluster, fusion, point.lane_rate, point.prove, point.host_rate)
        for point in points
    ]
    shape = _Shape(variants[0].precedences, variants[0].names, _common_kinds(variants))

    def costed(point: Point, chip: Chip, estimated: dict[int, EstimatedDegree]) -> CostedPoint:
        costs = OnDemand(estimated, lambda tensor: estimated[tensor].cost(cache))
        layers = OnDemand(estimated, lambda tensor: costs[tensor].chain)
        least = _least_layers(estimated, costs) if degrees is None and len(estimated) > 1 else None
        problem = _problem(chip, training, shape, layers, least)
        return CostedPoint(point, problem, costs, degrees, estimated, slice_index)

    return list(map(costed, points, chips, estimate_degrees(variants, chips, training)))


class _Shape(NamedTuple):
    """The part of a problem that is the same at every degree; see `PlacementProblem`."""

    edges: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    kinds: tuple[int, ...] | None


def fusion_of(point: Point) -> FusionMode:
    """Return how the operators of a point are fused."""
    return point.fusion or default_fusion(point.accelerator)


def _problem(
    chip: Chip,
    training: Training,
    shape: _Shape,
    layers: Mapping[int, tuple[LayerCost, ...]],
    least: Mapping[int, tuple[LayerCost, ...]] | None,
) -> PlacementProblem:
    """Join layers, what they are in the model, and chip to what the placement takes."""
    accelerator = chip.accelerator
    return PlacementProblem(
        layers=layers,
        cluster=chip.cluster,
        training=training,
        hbm_usable_bytes=accelerator.usable_memory_bytes,
        hbm_bytes_per_s=accelerator.memory_bytes_per_s,
        step_parameters_per_s=_lanes_per_s(chip, f"{training.optimizer}_update"),
        accumulation_parameters_per_s=_lanes_per_s(chip, "add"),
        collective_core_share=accelerator.calibration.collective_core_share,
        least=least,
        host_bytes_per_s=accelerator.host_link_bytes_per_s or math.inf,
        **shape._asdict(),
    )


def _common_kinds(variants: Sequence[WorkloadVariant]) -> tuple[int, ...] | None:
    """Return which layers are alike, where that is the same at all tensor degrees."""
    kinds = variants[0].kinds
    return kinds if all(variant.kinds == kinds for variant in variants) else None


def _least_layers(
    estimated: Mapping[int, EstimatedDegree], costs: Mapping[int, DegreeCost]
) -> dict[int, tuple[LayerCost, ...]]:
    """Return the layers of every tensor degree with the least seconds that they may have.

    Which layers are alike must be known at the least tensor degree, by which even splits divide
    them.
    """
    least = {tensor: each.least_chain() for tensor, each in estimated.items()}
    if estimated[min(estimated)].has_twins:
        least[min(estimated)] = costs[min(estimated)].chain
    return least


def training_as_fused(training: Training, fusion: FusionMode) -> Training:
    """Return how a model is trained where vector operators are fused in some way.

    Without fused epilogues the optimizer's passes over its state are not fused either.
    """
    return replace(training, fused_optimizer=training.fused_optimizer and fusion == "epilogue")


def chip_rates(chips: Sequence[Chip], training: Training) -> ChipRates:
    """Return what the bound of the placement takes from chips, as `cost_point` gives it."""
    accelerators = [chip.accelerator for chip in chips]
    update = f"{training.optimizer}_update"
    return ChipRates(
        hbm_usable_bytes=np.array([chip.usable_memory_bytes for chip in accelerators]),
        hbm_bytes_per_s=np.array([chip.memory_bytes_per_s for chip in accelerators]),
        step_parameters_per_s=np.array([_lanes_per_s(chip, update) for chip in chips]),
        accumulation_parameters_per_s=np.array([_lanes_per_s(chip, "add") for chip in chips]),
        collective_core_share=np.array(
            [accelerator.calibration.collective_core_share for accelerator in accelerators]
        ),
    )


def bare_problem(
    variant: WorkloadVariant, cluster: Cluster, training: Training, fusion: FusionMode
) -> PlacementProblem:
    """Return the problem at one tensor degree, without the seconds and rates of a chip.

    Parameters
    ----------
    variant
        The model at the tensor degree.
    cluster, training, fusion
        See `Chip`; the training as `training_as_fused` gives it.
    """
    return PlacementProblem(
        layers={variant.tensor_parallel: bare_chain(variant, training, fusion)},
        edges=variant.precedences,
        cluster=cluster,
        training=training,
        hbm_usable_bytes=0.0,
        hbm_bytes_per_s=np.inf,
    )


def _lanes_per_s(chip: Chip, kind: str) -> float:
    """Elements of a vector operator per second on all lanes of the chip."""
    lanes = chip.accelerator.num_vc * chip.accelerator.pe_vc
    cycles_per_s = lanes * chip.accelerator.sustained_clock_hz * chip.lane_rate
    return cycles_per_s / vector_operator(kind).cycles


def degrees_of(
    placement: Placing, workload: Workload, cluster: Cluster, training: Training
) -> Degrees | None:
    """Resolve a placement to its degrees, or to nothing where they are to be found.

    The devices of a sequence are among the replicas (`Degrees.as_replicas`). Degrees that people
    use say nothing of them: they are taken out of theirs.
    """
    if placement == "solve":
        return None
    if placement == "expert":
        return expert_degrees(workload.model, cluster.devices)
    return Degrees(*placement)._replace(context=training.context_parallel).as_replicas


def smaller_slices(cluster: Cluster, degrees: Degrees | None) -> Iterator[tuple[int, Cluster]]:
    """Yield the smaller slices that a placement may take, with their places among all slices.

    Parameters
    ----------
    cluster
        The whole network.
    degrees
        Those that a slice must hold; ``None`` where they are to be found.
    """
    for slice_index, each in enumerate(slices(cluster)):
        if slice_index > 0 and (degrees is None or degrees.devices <= each.devices):
            yield slice_index, each


def variants_within(
    workload: Workload, cluster: Cluster, training: Training
) -> list[WorkloadVariant]:
    """Return the captured variants whose tensor- and context-parallel groups fit the cluster."""
    most = cluster.devices // training.context_parallel
    captured = _captured(workload, training)
    fitting = [variant for variant in captured if variant.tensor_parallel <= most]
    return _shared_out(fitting, training)


def captured_variants(point: Point) -> list[WorkloadVariant]:
    """Return the variants of a point as captured, at the tensor degrees that it may use.

    Raises
    ------
    InputError
        If there are none.
    """
    degrees = degrees_of(point.placement, point.workload, point.cluster, point.training)
    captured = _captured(point.workload, point.training)
    return _of_degrees(captured, degrees, point.workload, point.training)


def _captured(workload: Workload, training: Training) -> list[WorkloadVariant]:
    """Return the variants of a training, at any tensor degree."""
    shape = training.microbatch, training.sequence_parallel, training.context_parallel
    experts = training.expert_tensor_parallel, training.expert_capacity
    return list(workload.variants_for(*shape, *experts))


def _shared_out(variants: Sequence[WorkloadVariant], training: Training) -> list[WorkloadVariant]:
    """Return variants with sequences and routed experts shared out, as far as they can be.

    What selective recompute runs again is found first, so that it is shared out too; which products
    add gradients up, and which layers stay in 16 bits, last.

    Raises
    ------
    InputError
        If frozen weights would be shared out (ZeRO 3).
    """
    if training.zero == 3 and any(variant.is_partly_frozen for variant in variants):
        raise InputError(
            "zero is 3, but weights that are not trained are not shared out among replicas; it "
            "must be 0, 1 or 2."
        )
    shared = with_context_shared_out(with_parts_run_again(variants, training), training)
    shared = [with_experts_shared_out(each, training) for each in whole_groups(shared, training)]
    shared = [with_fused_accumulation(variant, training) for variant in shared]
    check_linear_precisions(shared, training)
    return [with_bf16_layers(variant, training) for variant in shared]


def _variants(
    workload: Workload, cluster: Cluster, training: Training, degrees: Degrees | None
) -> list[WorkloadVariant]:
    """Pick the captured variants that the placement may use."""
    captured = _of_degrees(_captured(workload, training), degrees, workload, training)
    # A tensor degree of more devices than there are is kept only to say that it does not fit.
    within = variants_within(workload, cluster, training) if degrees is None else []
    return within or _shared_out(captured, training)


def _of_degrees(
    captured: list[WorkloadVariant],
    degrees: Degrees | None,
    workload: Workload,
    training: Training,
) -> list[WorkloadVariant]:
    """Return the variants of some degrees; of all where they are to be found."""
    usable = captured
    if degrees is not None:
        usable = [variant for variant in captured if variant.tensor_parallel == degrees.tensor]
    if not usable:
        wanted = "any tensor degree" if degrees is None else f"tensor degree {degrees.tensor}"
        tensor_degrees = ", ".join(str(variant.tensor_parallel) for variant in captured) or "none"
        shared = training.context_parallel
        wanted += f" with context_parallel {shared}" if shared > 1 else ""
        apart = training.expert_tensor_parallel
        wanted += f" with expert_tensor_parallel {apart}" if apart else ""
        capacity = training.expert_capacity
        wanted += f" with expert_capacity {capacity:g}" if capacity else ""
        raise InputError(
            f"{workload.model} is not captured at microbatch {training.microbatch} and {wanted}; "
            f"captured tensor degrees: {tensor_degrees}."
        )
    return usable
