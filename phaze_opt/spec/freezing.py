"""Freezes a spec: looks up every name, and captures the models.

Names are checked here, at the edge; the frozen study is data (`phaze_opt.spec.frozen`).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any, cast

from phaze_opt.activation_names import RECOMPUTE_POLICIES
from phaze_opt.checked import Named
from phaze_opt.choices import AttentionKind
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import link_area_mm2
from phaze_opt.hardware.buildable import check_attention_precision, check_precision
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.expert import expert_degrees
from phaze_opt.precision import AttentionPrecision, PrecisionName
from phaze_opt.spec import frozen
from phaze_opt.spec.axis_names import RATIOS, refuse_free_axes
from phaze_opt.spec.designs import chip_of, cluster_of
from phaze_opt.spec.frozen import (
    Baseline,
    ClusterChoice,
    ResolvedStudy,
    content_hash,
)
from phaze_opt.spec.study_spec import StudySpec, WorkloadSpec
from phaze_opt.training import Training
from phaze_opt.workload.bf16_layers import with_bf16_layers
from phaze_opt.workload.context_parallel import with_context_shared_out
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.graph import Workload, WorkloadVariant
from phaze_opt.workload.linear_precisions import check_linear_precisions
from phaze_opt.workload.recompute_parts import with_parts_run_again

MOST_CLUSTERS = 1_000
"""Largest number of combinations of network and number of devices in a space."""


def freeze(
    spec: StudySpec, workloads: Sequence[Workload | Named] | None = None
) -> tuple[ResolvedStudy, tuple[Workload, ...]]:
    """Look up all names of a spec, and capture its models.

    Parameters
    ----------
    spec
        The study.
    workloads
        Workloads, or names or paths of models, in the order of `captures`; ``None`` to capture
        the models of the spec.

    Returns
    -------
    resolved, workloads

    Raises
    ------
    InputError
        If a name is unknown, a model cannot be captured, a baseline is listed twice or has no area,
        or the area model does not charge for an axis, or
        no chip of the space has a rate for a precision.
    """
    if workloads is None:
        # Quick checks come before the captures.
        resolved = check_names(spec)
        _check_precisions(resolved)
        workloads = capture_models(spec)
    else:
        resolved = _resolve(spec)
        _check_precisions(resolved)
        workloads = _given(spec, workloads)
    _check_groups(spec, workloads)
    hashes = tuple(map(content_hash, workloads))
    return dataclasses.replace(resolved, workload_hashes=hashes), workloads


def _check_groups(spec: StudySpec, workloads: Sequence[Workload]) -> None:
    """Refuse parts and layers that a model has not, and devices that cannot share it out."""
    degrees: tuple[Any, ...] = spec.space.values_of("expert_parallel") or (spec.expert_parallel,)
    for degree in degrees:
        training = Training(1, expert_parallel=degree)
        for workload in workloads:
            with_experts_shared_out(workload.variants[0], training)
    _check_split_experts(spec, workloads)
    for parts in spec.space.values_of("recompute_parts") or (spec.recompute_parts,):
        training = Training(1, recompute="selective", recompute_parts=str(parts))
        for workload in workloads:
            with_parts_run_again(workload.variants[:1], training)
    ends: list[tuple[Any, ...]] = [
        spec.space.values_of(name) or (getattr(spec, name),)
        for name in ("bf16_layers_at_start", "bf16_layers_at_end")
    ]
    most = Training(1, bf16_layers_at_start=max(ends[0]), bf16_layers_at_end=max(ends[1]))
    for workload in workloads:
        with_bf16_layers(workload.variants[0], most)
    for training in _linear_precisions(spec):
        for workload in workloads:
            check_linear_precisions(workload.variants, training)
    kinds: tuple[Any, ...] = spec.space.values_of("context_kind") or (spec.context_kind,)
    for kind in kinds:
        training = Training(1, context_kind=kind)
        for workload in workloads:
            alike: dict[object, list[WorkloadVariant]] = {}
            for variant in workload.variants:
                shape = variant.microbatch, variant.context_parallel
                alike.setdefault(shape, []).append(variant)
            for variants in alike.values():
                with_context_shared_out(variants, training)


def _linear_precisions(spec: StudySpec) -> list[Training]:
    """Return a training with every choice of linear layers in other precisions."""
    stated = spec.space.values_of("linear_precisions") or (spec.linear_precisions,)
    names = spec.space.values_of("precision") or (spec.precision,)
    return [
        Training(1, precision=cast(PrecisionName, name), linear_precisions=str(own))
        for own, name in itertools.product(filter(None, stated), names)
        if name != "bf16"
    ]


def _check_split_experts(spec: StudySpec, workloads: Sequence[Workload]) -> None:
    """Refuse devices over which experts cannot be split at any tensor degree of a workload."""
    widths: tuple[Any, ...] = spec.space.values_of("expert_tensor_parallel")
    splits = spec.space.values_of("sequence_parallel") or (spec.sequence_parallel,)
    for width in filter(None, widths or (spec.expert_tensor_parallel,)):
        for workload, split in itertools.product(workloads, splits):
            shape = workload.variants[0].microbatch, bool(split)
            shared = workload.variants[0].context_parallel or 1
            capacity = workload.variants[0].expert_capacity or 0.0
            captured = list(workload.variants_for(*shape, shared, width, capacity))
            if not captured:
                raise InputError(
                    f"expert_tensor_parallel is {width}, but without sequence_parallel no tensor "
                    f"degree of {workload.model} is 1 or as many."
                )


def _given(spec: StudySpec, workloads: Sequence[Workload | Named]) -> tuple[Workload, ...]:
    """Return the given workloads; capture those that are given by name."""
    choices = captures(spec)
    if len(workloads) != len(choices):
        raise InputError(f"{len(workloads)} workloads are given, but the study has {len(choices)}.")
    return tuple(
        given if isinstance(given, Workload) else _capture(spec, *choice, os.fspath(given))
        for choice, given in zip(choices, workloads, strict=True)
    )


def check_names(spec: StudySpec) -> ResolvedStudy:
    """Look up every name of a spec, and check the tensor degrees, without capturing a model.

    Raises
    ------
    InputError
        If a name is unknown, or the spec must state the tokens per sample.
    """
    from phaze_opt.workload.zoo import check_sequence, tensor_degrees

    resolved = _resolve(spec)
    for run in spec.runs:
        check_sequence(run.model, run.sequence or spec.sequence)
        allowed = tensor_degrees(run.model, spec.trained)
        _check_expert(spec, run)
        for degree in tensor_parallel(spec, run):
            if degree not in allowed:
                raise InputError(
                    f"tensor_parallel holds {degree}, but {run.model} can be split over "
                    f"{', '.join(map(str, allowed))} devices."
                )
    return resolved


def _check_precisions(study: ResolvedStudy) -> None:
    """Refuse a precision for which no chip of the space states a rate."""
    space = study.spec.space
    stated = {name: space.values_of(name)[0] for name in RATIOS if space.values_of(name)}
    chip = chip_of(study.base, stated)
    for name in space.values_of("precision") or (study.spec.precision,):
        check_precision(chip, cast(PrecisionName, name))
    for training in _linear_precisions(study.spec):
        for own in training.precision_by_linear.values():
            check_precision(chip, own)
    for name in space.values_of("attention_precision") or (study.spec.attention_precision,):
        check_attention_precision(chip, cast(AttentionPrecision, name))
    _check_offload(study)


def _check_offload(study: ResolvedStudy) -> None:
    """Refuse to offload where no chip of the space states a link to its host."""
    space = study.spec.space
    parts = space.values_of("offload_parts") or (study.spec.offload_parts,)
    shares = space.values_of("offload_optimizer") or (study.spec.offload_optimizer,)
    named = space.values_of("recompute_parts") or (study.spec.recompute_parts,)
    offloads = any(parts) or any(shares)
    offloads = offloads or any(
        RECOMPUTE_POLICIES[str(name)].offloaded for name in named if name in RECOMPUTE_POLICIES
    )
    stated = study.base.host_link_bytes_per_s is not None
    link = "host_link_bytes_per_s", "host_link_gb_per_s"
    if offloads and not (stated or any(space.values_of(name) for name in link)):
        raise InputError(
            "offload_parts, offload_optimizer or a policy that offloads is given, but no chip of "
            "the space states a link to its host; write host_link_gb_per_s = 16 there."
        )


def capture_models(spec: StudySpec) -> tuple[Workload, ...]:
    """Capture the models at every microbatch and tensor degree that the study may use.

    Raises
    ------
    InputError
        If a model is unknown or cannot be captured.
    """
    return tuple(_capture(spec, *choice) for choice in captures(spec))


def captures(spec: StudySpec) -> list[tuple[int, AttentionKind | None]]:
    """Return every run with every attention that it may have; ``None`` for the model's own."""
    # The space allows only the words of `AttentionKind` on this axis.
    named: tuple[Any, ...] = spec.space.values_of("attention")
    return [
        (index, attention)
        for index, run in enumerate(spec.runs)
        for attention in named or (run.attention or spec.attention,)
    ]


def tensor_parallel(spec: StudySpec, run: WorkloadSpec) -> tuple[int, ...]:
    """Return the tensor degrees that the placement of a workload may choose."""
    from phaze_opt.workload.zoo import tensor_degrees

    stated = run.tensor_parallel or spec.tensor_parallel
    return tensor_degrees(run.model, spec.trained) if stated == "all" else stated


def area_limit_mm2(
    spec: StudySpec, base: Accelerator, cluster: Cluster, pe_scale: float = 1.0
) -> float:
    """Return the largest area that a study allows.

    Parameters
    ----------
    spec
        The study.
    base
        The base chip of its space.
    cluster
        The network of the study, whose links count with the chip that has the limit, if any do.
    pe_scale
        Area of processing elements and lanes relative to the area model's.

    Returns
    -------
    limit_mm2

    Raises
    ------
    InputError
        If the limit is the area of a chip that has none.
    """
    if spec.area.max_mm2 is not None:
        return spec.area.max_mm2
    name = spec.space.base if spec.area.max_of is None else spec.area.max_of
    chip = base if spec.area.max_of is None else load_accelerator(name)
    limit_mm2 = chip.area_if_known(spec.area.model, pe_scale)
    if limit_mm2 is None:
        raise InputError(
            f"The area limit is that of {name!r}, which has no area, since a buffer of it lies "
            "outside the table of SRAM macros; write max_mm2 or max_of under [area]."
        )
    if not spec.area.links:
        return limit_mm2
    return limit_mm2 + link_area_mm2(cluster.bandwidth_bytes_per_s, spec.area.model)


def _resolve(spec: StudySpec) -> ResolvedStudy:
    """Look up all presets and clusters that a spec names."""
    if len(set(spec.baselines)) != len(spec.baselines):
        raise InputError(
            f"baselines is {list(spec.baselines)}, but it must list different baselines."
        )
    has_power_limit = spec.constraints.limits_power
    refuse_free_axes(spec.space.varying_fields, spec.area.model, has_power_limit=has_power_limit)
    base = load_accelerator(spec.space.base)
    cluster = load_cluster(spec.cluster, spec.devices)
    clusters = _clusters(spec)
    network = {
        name: spec.space.values_of(name)[0]
        for name in spec.space.axes
        if name.startswith("network.")
    }
    for network_choice in (cluster, *(choice.cluster for choice in clusters)):
        cluster_of(network_choice, network)
    return ResolvedStudy(
        spec=spec,
        base=base,
        baselines=tuple(_baseline(name, spec) for name in spec.baselines),
        cluster=cluster,
        area_limit_mm2=area_limit_mm2(spec, base, cluster),
        workload_hashes=(),
        # Called through its module: tests replace it there.
        cost_model_version=frozen.current_version(),
        clusters=clusters,
    )


def _check_expert(spec: StudySpec, run: WorkloadSpec) -> None:
    """Refuse an expert placement that is unknown, or whose tensor degree is not captured."""
    if spec.placement == "solve":
        return
    degree = expert_degrees(run.model, spec.devices).tensor
    if degree not in tensor_parallel(spec, run):
        raise InputError(
            f"placement is expert, but the expert splits {run.model} over {degree} devices, which "
            "tensor_parallel does not hold."
        )


def _clusters(spec: StudySpec) -> tuple[ClusterChoice, ...]:
    """Load every network of the space at every number of devices."""
    if not {"cluster", "devices"} & spec.space.axes.keys():
        return ()
    names = spec.space.values_of("cluster") or (spec.cluster,)
    counts = spec.space.values_of("devices") or (spec.devices,)
    if len(names) * len(counts) > MOST_CLUSTERS:
        raise InputError(
            f"The space has {len(names) * len(counts):,} combinations of cluster and devices, but "
            f"at most {MOST_CLUSTERS:,} are allowed."
        )
    return tuple(
        ClusterChoice(str(name), int(count), load_cluster(str(name), int(count)))
        for name, count in itertools.product(names, counts)
    )


def _baseline(name: str, spec: StudySpec) -> Baseline:
    """Load a baseline, which must have an area, as every design has.

    Raises
    ------
    InputError
        If one of its buffers lies outside the table of SRAM macros.
    """
    chip = load_accelerator(name)
    if chip.area_if_known(spec.area.model) is None:
        raise InputError(
            f"The baseline {name!r} has no area, since a buffer of it lies outside the table of "
            "SRAM macros; under an area limit only chips with an area are compared."
        )
    return Baseline(name, chip)


def _capture(
    spec: StudySpec, run_index: int, attention: AttentionKind | None, model: str | None = None
) -> Workload:
    """Capture one workload, with and without sequence parallelism if that is an axis.

    Parameters
    ----------
    spec
        The study.
    run_index, attention
        As in `captures`.
    model
        Name or path of a model that replaces the workload's own; ``None`` for the own model.
    """
    from phaze_opt.workload.zoo import load_workload

    run, space = spec.runs[run_index], spec.space
    run = dataclasses.replace(run, model=model or run.model)
    microbatches = space.values_of("microbatch") or (spec.microbatch,)
    split = space.values_of("sequence_parallel") or (spec.sequence_parallel,)
    options: dict[str, Any] = {
        "tensor_parallel": tensor_parallel(spec, run),
        "microbatch": tuple(map(int, microbatches)),
        "sequence": run.sequence or spec.sequence,
        "attention": attention,
        "context_parallel": space.values_of("context_parallel") or (spec.context_parallel,),
        "expert_tensor_parallel": (
            space.values_of("expert_tensor_parallel") or (spec.expert_tensor_parallel,)
        ),
        "expert_capacity": tuple(
            float(each) for each in space.values_of("expert_capacity") or (spec.expert_capacity,)
        ),
        "frozen": spec.frozen,
        "lora_rank": spec.lora_rank,
        "lora_targets": spec.lora_targets,
    }
    captured = [load_workload(run.model, sequence_parallel=bool(sp), **options) for sp in split]
    if len(captured) == 1:
        return captured[0]
    different = {variant.options: variant for workload in captured for variant in workload.variants}
    return dataclasses.replace(captured[0], variants=tuple(different.values()))
