"""Freezes a spec: looks up every name, and captures the models.

What names stand for is checked here, at the edge; from then on a study is data
(`phaze_opt.spec.frozen.ResolvedStudy`).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

from phaze_opt.checked import Named
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.expert import expert_degrees
from phaze_opt.spec import frozen
from phaze_opt.spec.axis_names import refuse_free_axes
from phaze_opt.spec.designs import cluster_of
from phaze_opt.spec.frozen import (
    Baseline,
    CaptureChoice,
    ClusterChoice,
    ResolvedStudy,
    content_hash,
)
from phaze_opt.spec.study_spec import StudySpec, WorkloadSpec
from phaze_opt.workload.graph import Workload

MOST_CLUSTERS = 1_000
"""Combinations of network and number of devices that a space may have."""


def freeze(
    spec: StudySpec, workloads: Sequence[Workload | Named] | None = None
) -> tuple[ResolvedStudy, tuple[Workload, ...]]:
    """Look up all names of a spec, and capture its models.

    Parameters
    ----------
    spec
        The study.
    workloads
        Instead of capturing, in the order of `captures`; or names or paths of other models.

    Returns
    -------
    resolved, workloads

    Raises
    ------
    InputError
        If a name is unknown, a model cannot be captured so, two baselines are the same, one has no
        area, or an axis costs nothing under the area model.
    """
    if workloads is None:
        # What is quick to find wrong comes before the captures.
        resolved = check_names(spec)
        workloads = capture_models(spec)
    else:
        resolved = _resolve(spec)
        workloads = _given(spec, workloads)
    hashes = tuple(map(content_hash, workloads))
    return dataclasses.replace(resolved, workload_hashes=hashes), workloads


def _given(spec: StudySpec, workloads: Sequence[Workload | Named]) -> tuple[Workload, ...]:
    """Return workloads that are given, those that are named captured as the study needs them."""
    choices = captures(spec)
    if len(workloads) != len(choices):
        raise InputError(f"{len(workloads)} workloads are given, but the study has {len(choices)}.")
    return tuple(
        one if isinstance(one, Workload) else _capture(spec, choice, os.fspath(one))
        for choice, one in zip(choices, workloads, strict=True)
    )


def check_names(spec: StudySpec) -> ResolvedStudy:
    """Look up every name of a spec, models and their widths too, without capturing anything.

    Raises
    ------
    InputError
        If one is unknown, or tokens per sample must be stated.
    """
    from phaze_opt.workload.zoo import check_sequence, widths

    resolved = _resolve(spec)
    for run in spec.runs:
        check_sequence(run.model, run.sequence or spec.sequence)
        allowed = widths(run.model)
        _check_expert(spec, run)
        for width in tensor_parallel(spec, run):
            if width not in allowed:
                raise InputError(
                    f"tensor_parallel holds {width}, but {run.model} can be split over "
                    f"{', '.join(map(str, allowed))} devices."
                )
    return resolved


def capture_models(spec: StudySpec) -> tuple[Workload, ...]:
    """Capture the models at every microbatch and width that the study may use.

    Raises
    ------
    InputError
        If a model is unknown or cannot be captured so.
    """
    return tuple(_capture(spec, choice) for choice in captures(spec))


def captures(spec: StudySpec) -> tuple[CaptureChoice, ...]:
    """Return what a study captures: every workload with every attention that it may have."""
    # The space holds nothing but words of `AttentionKind` there.
    named: tuple[Any, ...] = spec.space.values_of("attention")
    return tuple(
        CaptureChoice(index, attention)
        for index, run in enumerate(spec.runs)
        for attention in named or (run.attention or spec.attention,)
    )


def tensor_parallel(spec: StudySpec, run: WorkloadSpec) -> tuple[int, ...]:
    """Return the tensor-parallel widths that the placement of a workload may choose."""
    from phaze_opt.workload.zoo import widths

    stated = run.tensor_parallel or spec.tensor_parallel
    return widths(run.model) if stated == "all" else stated


def area_limit_mm2(spec: StudySpec, base: Accelerator, pe_scale: float = 1.0) -> float:
    """Return the largest area that a study allows.

    Parameters
    ----------
    spec
        The study.
    base
        Of its chips.
    pe_scale
        Area of processing elements and lanes relative to the area model's.
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
    return limit_mm2


def _resolve(spec: StudySpec) -> ResolvedStudy:
    """Look up all presets and clusters that a spec names."""
    if len(set(spec.baselines)) != len(spec.baselines):
        raise InputError(f"baselines is {list(spec.baselines)}, but it must list different ones.")
    has_power_limit = spec.constraints.max_power_w is not None
    refuse_free_axes(spec.space.varying_fields, spec.area.model, has_power_limit=has_power_limit)
    base = load_accelerator(spec.space.base)
    cluster = load_cluster(spec.cluster, spec.devices)
    clusters = _clusters(spec)
    network = {
        name: spec.space.values_of(name)[0]
        for name in spec.space.axes
        if name.startswith("network.")
    }
    for one in (cluster, *(choice.cluster for choice in clusters)):
        cluster_of(one, network)
    return ResolvedStudy(
        spec=spec,
        base=base,
        baselines=tuple(_baseline(name, spec) for name in spec.baselines),
        cluster=cluster,
        area_limit_mm2=area_limit_mm2(spec, base),
        workload_hashes=(),
        # By its module, so that whoever replaces it there replaces it here, too.
        cost_model_version=frozen.current_version(),
        clusters=clusters,
    )


def _check_expert(spec: StudySpec, run: WorkloadSpec) -> None:
    """Refuse an expert placement that is not known, or of a width that is not captured."""
    if spec.placement == "solve":
        return
    width = expert_degrees(run.model, spec.devices).tensor
    if width not in tensor_parallel(spec, run):
        raise InputError(
            f"placement is expert, but the expert splits {run.model} over {width} devices, which "
            "tensor_parallel does not hold."
        )


def _clusters(spec: StudySpec) -> tuple[ClusterChoice, ...]:
    """Load every network of the space with every number of devices."""
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
    """Return what a study is compared with, which must have an area, as every design has.

    Raises
    ------
    InputError
        If a buffer of it lies outside the table of SRAM macros.
    """
    chip = load_accelerator(name)
    if chip.area_if_known(spec.area.model) is None:
        raise InputError(
            f"The baseline {name!r} has no area, since a buffer of it lies outside the table of "
            "SRAM macros; under an area limit only chips with an area are compared."
        )
    return Baseline(name, chip)


def _capture(spec: StudySpec, choice: CaptureChoice, model: str | None = None) -> Workload:
    """Capture one workload, with and without sequence parallelism where that is an axis.

    Parameters
    ----------
    spec, choice
        The study, and which of its workloads.
    model
        Instead of the workload's own.
    """
    from phaze_opt.workload.zoo import load_workload

    run, space = spec.runs[choice.run], spec.space
    run = dataclasses.replace(run, model=model or run.model)
    microbatches = space.values_of("microbatch") or (spec.microbatch,)
    split = space.values_of("sequence_parallel") or (spec.sequence_parallel,)
    options: dict[str, Any] = {
        "tensor_parallel": tensor_parallel(spec, run),
        "microbatch": tuple(map(int, microbatches)),
        "sequence": run.sequence or spec.sequence,
        "attention": choice.attention,
    }
    parts = [load_workload(run.model, sequence_parallel=bool(one), **options) for one in split]
    different = {
        (one.tensor_parallel, one.microbatch, one.sequence_parallel): one
        for part in parts
        for one in part.variants
    }
    if len(parts) == 1:
        return parts[0]
    return dataclasses.replace(parts[0], variants=tuple(different.values()))
