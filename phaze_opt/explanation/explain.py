"""Why a point is as fast as it is, what would make it faster, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phaze_opt.checked import Named, checked
from phaze_opt.choices import AttentionKind, FusionMode
from phaze_opt.codec import to_builtins
from phaze_opt.economics.choices import Economics
from phaze_opt.evaluation import (
    Evaluation,
    place_on_slice,
    point_ranges,
    time_at_rates,
    with_range,
    with_recompute_solved,
)
from phaze_opt.evaluation_json import evaluation_to_json_dict
from phaze_opt.explanation.binding import PassBinding, bind_pass
from phaze_opt.explanation.changes import changes, fewer_launches, fewer_rows, more_overlap
from phaze_opt.explanation.fixes import Fix, fixes
from phaze_opt.explanation.gains import Gain, gains, try_changes
from phaze_opt.explanation.host import HostBoundPass, host_bound_passes
from phaze_opt.explanation.stage import (
    LayerBinding,
    MemoryUse,
    StageTime,
    fullest_stage,
    memory_use,
    stage_time,
)
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.named_point import PlacingText, StagesText, named_point
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.layers import LayerEvaluation
from phaze_opt.passes.scheduled import ScheduleCache, ScheduledLayer
from phaze_opt.point import CostedPoint, Point, cost_point, fusion_of
from phaze_opt.printing import PrintsAsTables
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.workload_file import select_variants
from phaze_opt.workload.zoo import LoadWorkload, model_loader, names_a_shape


@dataclass(frozen=True, repr=False)
class Explanation(PrintsAsTables):
    """An evaluation with its reasons.

    Attributes
    ----------
    evaluation
        Of the point.
    layers
        What binds each distinct layer, in the order of the evaluation's.
    stage
        Where the time goes on the stage with the largest load; ``None`` if infeasible.
    memory
        What the fullest stage holds; ``None`` if something else than memory is in the way.
    searched_tensor
        Tensor degrees among which the placement was to be found, with every
        pipeline depth and number of replicas; empty where degrees were given.
    gains
        What a tenth more of each resource brings; empty if infeasible.
    overlap_gains
        What more communication beside compute brings; empty if infeasible, or if all of it is
        there already.
    fixes
        What would make it fit; empty if it does.
    range_by_rate_s
        Times per batch, the shorter one first, where only the arrays or only the HBM are those of
        the fastest and of the slowest chips of the name, or only the host is the fastest and the
        slowest; empty where nothing has a range.
    launch_gains
        What fewer launches of the host bring; empty if infeasible, or if it starts recorded graphs.
    host_bound
        Passes in which the device waits for the host.
    routing_gains
        What it brings that experts have no more rows than even routing gives them; empty where they
        have none, or if infeasible.
    """

    evaluation: Evaluation
    layers: tuple[LayerBinding, ...]
    stage: StageTime | None
    memory: MemoryUse | None
    searched_tensor: tuple[int, ...]
    gains: tuple[Gain, ...]
    overlap_gains: tuple[Gain, ...]
    fixes: tuple[Fix, ...]
    range_by_rate_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    launch_gains: tuple[Gain, ...] = ()
    host_bound: tuple[HostBoundPass, ...] = ()
    routing_gains: tuple[Gain, ...] = ()

    def __repr__(self) -> str:
        return f"Explanation({self.evaluation!r})"


@checked
def explain(
    workload: Workload | Named,
    accelerator: Accelerator | Named,
    cluster: Cluster | Named,
    training: Training,
    placement: PlacingText = "solve",
    load: LoadWorkload | None = None,
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
    stages: StagesText | None = None,
    economics: Economics | Named = "",
) -> Explanation:
    """Evaluate one training run and explain the answer.

    Parameters
    ----------
    workload, accelerator, cluster, training, placement, devices, sequence, attention, frozen, \
    lora_rank, lora_targets, fusion, cache, power_limit_w, stages, economics
        As `phaze_opt.evaluation.evaluate` takes them.
    load
        Loads the model under other options, to try what could make it fit; see `LoadWorkload`. By
        default a model that is named, or whose name says its shape, is loaded by that name; of any
        other model the variants that ``workload`` holds are tried.

    Returns
    -------
    Explanation
        With the evaluation that `phaze_opt.evaluation.evaluate` returns.

    Raises
    ------
    InputError, NotFoundError
        As `phaze_opt.evaluation.evaluate`.
    """
    point, by_name = named_point(
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
        stages=stages,
        economics=economics,
    )
    load = load or by_name or _loader(point.workload)
    return explain_point(point, load, {} if cache is None else cache)


def _loader(workload: Workload) -> LoadWorkload:
    """Return what loads a model under other options, see `explain`."""

    def select(training: Training, tensor: int | None) -> Workload:
        captured = {variant.tensor_parallel for variant in workload.variants}
        degrees = sorted(captured) if tensor is None else (tensor,)
        variants = select_variants(
            workload,
            [(degree, training.expert_tensor_parallel) for degree in degrees],
            (training.microbatch,),
            training.sequence_parallel,
            (training.context_parallel,),
            (training.expert_capacity,),
        )
        return replace(workload, variants=variants)

    partly_frozen = any(variant.is_partly_frozen for variant in workload.variants)
    if names_a_shape(workload.model) and not partly_frozen:
        return model_loader(workload.model, workload.sequence)
    return select


def explain_point(point: Point, load: LoadWorkload, schedules: ScheduleCache) -> Explanation:
    """Evaluate a point and explain the answer; see `explain`.

    Parameters
    ----------
    point
        What to evaluate.
    load
        Loads its model under other options.
    schedules
        By content; solved ones are added.
    """
    point = with_recompute_solved(point, schedules)
    whole = cost_point(point, schedules)
    costed, evaluation = place_on_slice(whole, schedules)
    evaluation = with_range(point, evaluation, schedules)
    tried = try_changes(changes(point), schedules, costed.slice_index)
    overlaps = try_changes(more_overlap(point), schedules, costed.slice_index)
    launched = try_changes(fewer_launches(point), schedules, costed.slice_index)
    evenly = try_changes(fewer_rows(point, load), schedules, costed.slice_index)
    placement = evaluation.placement
    tensor = max(costed.costs) if placement is None else placement.tensor
    cost = costed.costs[tensor]
    layers = tuple(
        _bind_layer(
            layer,
            point.accelerator,
            cost.passes[index],
            {trial.change.resource: trial.same.costs[tensor].passes[index] for trial in tried},
        )
        for index, layer in enumerate(cost.layers)
    )
    stage = None
    if placement is not None:
        names = {name: cost.layers[index].name for name, index in cost.variant.nodes}
        stage = stage_time(placement, names, layers, cost)
    return Explanation(
        evaluation=evaluation,
        layers=layers,
        stage=stage,
        memory=_memory(point, costed, evaluation),
        searched_tensor=tuple(sorted(whole.costs)) if whole.degrees is None else (),
        gains=gains(tried, evaluation, schedules),
        overlap_gains=gains(overlaps, evaluation, schedules),
        fixes=() if evaluation.feasible else fixes(point, evaluation, load, schedules),
        range_by_rate_s=_range_by_rate_s(point, evaluation, schedules),
        launch_gains=gains(launched, evaluation, schedules),
        host_bound=host_bound_passes(cost, fusion_of(point)),
        routing_gains=gains(evenly, evaluation, schedules),
    )


def _range_by_rate_s(
    point: Point, evaluation: Evaluation, schedules: ScheduleCache
) -> dict[str, tuple[float, float]]:
    """Return the times per batch with one rate at a time at the ends of its range."""
    central_s = evaluation.time_per_batch_s
    if central_s is None:
        return {}
    shares: dict[str, tuple[float, float]] = {}
    for rate, ends in point_ranges(point).items():
        times_s = [time_at_rates(point, {rate: end}, schedules) for end in (ends.high, ends.low)]
        least_s, most_s = (central_s if time_s is None else time_s for time_s in times_s)
        shares[rate] = min(least_s, central_s), max(most_s, central_s)
    return shares


def _bind_layer(
    layer: LayerEvaluation,
    chip: Accelerator,
    own: ScheduledLayer,
    more: Mapping[str, ScheduledLayer],
) -> LayerBinding:
    """Say what binds every pass of a layer."""
    return LayerBinding(
        name=layer.name,
        count=layer.count,
        forward=bind_pass(own.forward, chip, {r: layer.forward for r, layer in more.items()}),
        backward=bind_pass(own.backward, chip, {r: layer.backward for r, layer in more.items()}),
        recompute=None
        if own.recompute is None
        else bind_pass(
            own.recompute,
            chip,
            {r: layer.recompute for r, layer in more.items() if layer.recompute is not None},
        ),
    )


def _memory(point: Point, costed: CostedPoint, evaluation: Evaluation) -> MemoryUse | None:
    """Say what fills the fullest stage, or the one that does not fit."""
    usable_bytes, hbm_bytes = costed.problem.hbm_usable_bytes, point.accelerator.hbm_bytes
    if evaluation.placement is not None:
        stage = fullest_stage(evaluation.placement)
        memory = evaluation.placement.stages[stage].memory_bytes
        return memory_use(memory, stage, usable_bytes, hbm_bytes)
    misfit = evaluation.misfit
    if misfit is None:
        return None
    return memory_use(misfit.memory, None, usable_bytes, hbm_bytes)


def explanation_to_json_dict(explanation: Explanation) -> dict[str, Any]:
    """Return the plain data that ``explain --json`` prints: that of ``evaluate``, and the reasons.

    Each layer has ``forward_binding``, ``backward_binding`` and ``recompute_binding``; beside
    ``layers`` there are ``stage_time``, ``memory``, ``searched_tensor``, ``gains``, ``fixes``,
    ``launch_gains`` and ``host_bound``, and ``routing_gains`` where there are some.
    """
    plain = evaluation_to_json_dict(explanation.evaluation)
    for layer, binding in zip(plain["layers"], explanation.layers, strict=True):
        for name in ("forward", "backward", "recompute"):
            layer[f"{name}_binding"] = _binding_to_builtins(getattr(binding, name))
    plain["stage_time"] = to_builtins(explanation.stage)
    plain["memory"] = None
    if explanation.memory is not None:
        excess_bytes = explanation.memory.excess_bytes
        plain["memory"] = to_builtins(explanation.memory) | {"excess_bytes": excess_bytes}
    plain["searched_tensor"] = list(explanation.searched_tensor)
    plain["gains"] = list(to_builtins(explanation.gains))
    plain["overlap_gains"] = list(to_builtins(explanation.overlap_gains))
    plain["fixes"] = list(to_builtins(explanation.fixes))
    plain["launch_gains"] = list(to_builtins(explanation.launch_gains))
    if explanation.routing_gains:
        plain["routing_gains"] = list(to_builtins(explanation.routing_gains))
    plain["host_bound"] = list(to_builtins(explanation.host_bound))
    plain["range_by_rate_s"] = {rate: list(s) for rate, s in explanation.range_by_rate_s.items()}
    return plain


def _binding_to_builtins(binding: PassBinding | None) -> dict[str, Any] | None:
    """Return what binds a pass as plain data, with shares beside the seconds."""
    if binding is None:
        return None
    plain: dict[str, Any] = to_builtins(binding)
    plain["share"] = {resource: binding.share(resource) for resource in binding.bound_s}
    plain["schedule_s"] = binding.schedule_s
    if not binding.groups:
        del plain["groups"]
    return plain
