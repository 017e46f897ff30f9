"""Freezes a spec: every name is resolved to numbers, so that any machine can run the study.

A worker elsewhere needs only the storage and the study's name, because presets, clusters and the
captured workloads are data in the database. Two studies are equal if their hashes are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phaze_opt.codec import to_builtins, to_json
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.expert import expert_degrees
from phaze_opt.search.axes import Scalar
from phaze_opt.search.axis_names import CHIP_ALIASES, kind_of, refuse_free_axes
from phaze_opt.search.designs import Design, chip_of, cluster_of
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.spec import SearchSpec, StudySpec, WorkloadSpec
from phaze_opt.workload.config import AttentionKind
from phaze_opt.workload.graph import Workload

MOST_CLUSTERS = 1_000
"""Combinations of network and number of devices that a space may have."""


@dataclass(frozen=True)
class Baseline:
    """A named accelerator to compare with."""

    name: str
    accelerator: Accelerator


@dataclass(frozen=True)
class ClusterChoice:
    """A network that the space names, with a number of devices.

    Attributes
    ----------
    name
        As the space names it: of a file, its path.
    """

    name: str
    devices: int
    cluster: Cluster


@dataclass(frozen=True)
class CaptureChoice:
    """A model that is captured: a workload with one kind of attention (``None`` for its own)."""

    run: int
    attention: AttentionKind | None


@dataclass(frozen=True)
class ResolvedStudy:
    """A study in which every name is looked up.

    Attributes
    ----------
    base
        Gives every number of an accelerator that is not searched.
    cluster, clusters
        The network of the spec, which the baselines have; and those that the space names.
    area_limit_mm2
        Under the area model of the spec.
    workload_hashes
        Of the JSON of the captured workloads, in the order of `captures`.
    cost_model_version
        Of the program that created the study; a program with another version may not continue it.
    """

    spec: StudySpec
    base: Accelerator
    baselines: tuple[Baseline, ...]
    cluster: Cluster
    area_limit_mm2: float
    workload_hashes: tuple[str, ...]
    cost_model_version: str
    clusters: tuple[ClusterChoice, ...] = ()

    @property
    def nominal(self) -> ResolvedStudy:
        """The study with the constants of the cost model; see `phaze_opt.search.variations`."""
        return self

    @property
    def lane_rate(self) -> float:
        """Rate of the vector lanes relative to the cost model's."""
        return 1.0

    @property
    def pe_scale(self) -> float:
        """Area of processing elements and lanes relative to the area model's."""
        return 1.0

    def area_if_known_mm2(self, chip: Accelerator) -> float | None:
        """Return the area of a chip, ``None`` outside the table of SRAM macros."""
        return chip.area_if_known(self.spec.area.model, self.pe_scale)

    @property
    def hash(self) -> str:
        """SHA-256 of all that decides the answer (the study's name does not)."""
        anonymous = dataclasses.replace(self, spec=dataclasses.replace(self.spec, name="study"))
        return _hash_of(anonymous)

    @property
    def question_hash(self) -> str:
        """SHA-256 of all that decides which design is the best, not of how it is searched for.

        Baselines belong to it only where the values of several workloads are relative to one.
        """
        search = SearchSpec(sampler="random", trials=1)
        spec = dataclasses.replace(self.spec, name="study", search=search)
        if len(spec.runs) > 1:
            return _hash_of(dataclasses.replace(self, spec=spec))
        alone = dataclasses.replace(spec, baselines=(), relative_to=None)
        return _hash_of(dataclasses.replace(self, spec=alone, baselines=()))

    def design(self, point: DesignPoint) -> Design:
        """Return what a point stands for.

        Raises
        ------
        InputError
            If there is no such chip or network.
        """
        values = point.by_name
        network = str(values.get("cluster", self.spec.cluster))
        devices = values.get("devices", self.spec.devices)
        cluster = self._clusters.get((network, devices), self.cluster)
        options = {name: value for name, value in values.items() if kind_of(name) == "training"}
        return Design(
            chip_of(self.base, values),
            cluster_of(cluster, values),
            network,
            {**self.spec.training_values, **options},
        )

    def baseline_design(self, baseline: Baseline, options: Mapping[str, Scalar]) -> Design:
        """Return a baseline under some options of the training run."""
        everything = {**self.spec.training_values, **options}
        return Design(baseline.accelerator, self.cluster, self.spec.cluster, everything)

    def hbm_bytes(self, point: DesignPoint) -> int:
        """Return the size of the HBM of a point's chip, without building the chip."""
        values = point.by_name
        if "hbm_gib" in values:
            return int(CHIP_ALIASES["hbm_gib"].to_field(float(values["hbm_gib"])))
        return int(values.get("hbm_bytes", self.base.hbm_bytes))

    @cached_property
    def _clusters(self) -> dict[tuple[Scalar, Scalar], Cluster]:
        """The networks that the space names."""
        return {(one.name, one.devices): one.cluster for one in self.clusters}


def content_hash(value: object) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(to_json(value)).hexdigest()


def _hash_of(study: ResolvedStudy) -> str:
    """Hash a study; one that solves its placement as programs did before there was a choice."""
    plain = to_builtins(study)
    if study.spec.placement == "solve":
        del plain["spec"]["placement"]
    return content_hash(plain)


def documents_of(resolved: ResolvedStudy, workloads: Sequence[Workload]) -> dict[str, bytes]:
    """Return the JSON of captured workloads by the hashes under which a study names them."""
    return dict(zip(resolved.workload_hashes, map(to_json, workloads), strict=True))


def freeze(
    spec: StudySpec, workloads: Sequence[Workload] | None = None
) -> tuple[ResolvedStudy, tuple[Workload, ...]]:
    """Look up all names of a spec, and capture its models.

    Parameters
    ----------
    spec
        The study.
    workloads
        Instead of capturing, in the order of `captures`.

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
    if len(workloads) != len(captures(spec)):
        raise InputError(
            f"{len(workloads)} workloads are given, but the study has {len(captures(spec))}."
        )
    hashes = tuple(map(content_hash, workloads))
    return dataclasses.replace(resolved, workload_hashes=hashes), tuple(workloads)


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
        cost_model_version=current_version(),
        clusters=clusters,
    )


def _check_expert(spec: StudySpec, run: WorkloadSpec) -> None:
    """Refuse an expert placement that is not known, or of a width that is not captured."""
    if spec.placement == "solve":
        return
    _, _, width = expert_degrees(run.model, spec.devices)
    if width not in tensor_parallel(spec, run):
        raise InputError(
            f"placement is expert, but the expert splits {run.model} over {width} devices, which "
            "tensor_parallel does not hold."
        )


def captures(spec: StudySpec) -> tuple[CaptureChoice, ...]:
    """Return what a study captures: every workload with every attention that it may have."""
    # The space holds nothing but words of `AttentionKind` there.
    named: tuple[Any, ...] = spec.space.values_of("attention")
    return tuple(
        CaptureChoice(index, attention)
        for index, run in enumerate(spec.runs)
        for attention in named or (run.attention or spec.attention,)
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


def check_names(spec: StudySpec) -> ResolvedStudy:
    """Look up every name of a spec, models and their widths too, without capturing anything.

    Raises
    ------
    InputError
        If one is unknown.
    """
    from phaze_opt.workload.zoo import widths

    resolved = _resolve(spec)
    for run in spec.runs:
        allowed = widths(run.model)
        _check_expert(spec, run)
        for width in tensor_parallel(spec, run):
            if width not in allowed:
                raise InputError(
                    f"tensor_parallel holds {width}, but {run.model} can be split over "
                    f"{', '.join(map(str, allowed))} devices."
                )
    return resolved


def tensor_parallel(spec: StudySpec, run: WorkloadSpec) -> tuple[int, ...]:
    """Return the tensor-parallel widths that the placement of a workload may choose."""
    from phaze_opt.workload.zoo import widths

    stated = run.tensor_parallel or spec.tensor_parallel
    return widths(run.model) if stated == "all" else stated


def capture_models(spec: StudySpec) -> tuple[Workload, ...]:
    """Capture the models at every microbatch and width that the study may use.

    Raises
    ------
    InputError
        If a model is unknown or cannot be captured so.
    """
    return tuple(_capture(spec, choice) for choice in captures(spec))


def _capture(spec: StudySpec, choice: CaptureChoice) -> Workload:
    """Capture one workload, with and without sequence parallelism where that is an axis."""
    from phaze_opt.workload.zoo import load_workload

    run, space = spec.runs[choice.run], spec.space
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


def current_version() -> str:
    """Return the version of this program's cost model."""
    from phaze_opt.evaluation import COST_MODEL_VERSION

    return COST_MODEL_VERSION
