"""Freezes a spec: every name is resolved to numbers, so that any machine can run the study.

A worker elsewhere needs only the storage and the study's name, because presets, clusters and the
captured workload are data in the database. Two studies are equal if their hashes are.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from phaze_opt.codec import to_json
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import AreaModel
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.presets import load_cluster
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.spec import StudySpec
from phaze_opt.training import Recompute, Training
from phaze_opt.workload.graph import Workload


@dataclass(frozen=True)
class Baseline:
    """A named accelerator to compare with."""

    name: str
    accelerator: Accelerator


@dataclass(frozen=True)
class ResolvedStudy:
    """A study in which every name is looked up.

    Attributes
    ----------
    base
        Gives every number of an accelerator that is not searched.
    area_limit_mm2
        Under the area model of the spec.
    workload_hash
        Of the captured workload's JSON.
    cost_model_version
        Of the program that created the study; a program with another version may not continue it.
    """

    spec: StudySpec
    base: Accelerator
    baselines: tuple[Baseline, ...]
    cluster: Cluster
    area_limit_mm2: float
    workload_hash: str
    cost_model_version: str

    @property
    def hash(self) -> str:
        """SHA-256 of all that decides the answer (the study's name does not)."""
        anonymous = dataclasses.replace(self, spec=dataclasses.replace(self.spec, name="study"))
        return content_hash(anonymous)

    def training(self, microbatch: int, recompute: Recompute) -> Training:
        """Return the training options of one point.

        Raises
        ------
        InputError
            If the microbatch is above the global batch.
        """
        return Training(
            global_batch=self.spec.global_batch,
            microbatch=microbatch,
            recompute=recompute,
            optimizer=self.spec.optimizer,
            sequence_parallel=self.spec.sequence_parallel,
            residency=self.spec.residency,
        )

    def accelerator(self, point: DesignPoint) -> Accelerator:
        """Return the accelerator of one point."""
        return point.accelerator(self.base)


def content_hash(value: object) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(to_json(value)).hexdigest()


def resolve(spec: StudySpec, workload: Workload, cost_model_version: str) -> ResolvedStudy:
    """Look up all presets and the cluster that a spec names.

    Raises
    ------
    InputError
        If a preset or cluster is unknown, two baselines are the same, or one has no area.
    """
    if len(set(spec.baselines)) != len(spec.baselines):
        raise InputError(f"baselines is {list(spec.baselines)}, but it must list different ones.")
    return ResolvedStudy(
        spec=spec,
        base=load_accelerator(spec.space.base),
        baselines=tuple(_baseline(name, spec.area.model) for name in spec.baselines),
        cluster=load_cluster(spec.cluster, spec.devices),
        area_limit_mm2=area_limit_mm2(spec),
        workload_hash=content_hash(workload),
        cost_model_version=cost_model_version,
    )


def _baseline(name: str, model: AreaModel) -> Baseline:
    """Return what a study is compared with, which must have an area, as every design has.

    Raises
    ------
    InputError
        If a buffer of it lies outside the table of SRAM macros.
    """
    chip = load_accelerator(name)
    if chip.area_if_known(model) is None:
        raise InputError(
            f"The baseline {name!r} has no area, since a buffer of it lies outside the table of "
            "SRAM macros; under an area limit only chips with an area are compared."
        )
    return Baseline(name, chip)


def area_limit_mm2(spec: StudySpec) -> float:
    """Return the largest area that a study allows."""
    if spec.area.max_mm2 is not None:
        return spec.area.max_mm2
    return load_accelerator(spec.area.max_of).area_under(spec.area.model)


def check_names(spec: StudySpec) -> ResolvedStudy:
    """Look up every name of a spec, the model's too, without capturing the model.

    Raises
    ------
    InputError
        If one is unknown.
    """
    from phaze_opt.workload.zoo import widths

    allowed = widths(spec.model)
    for width in spec.tensor_parallel:
        if width not in allowed:
            raise InputError(
                f"tensor_parallel holds {width}, but {spec.model} can be split over "
                f"{', '.join(map(str, allowed))} devices."
            )
    shape_only = Workload(model=spec.model, sequence=1, parameters=0, variants=())
    return resolve(spec, shape_only, current_version())


def capture_model(spec: StudySpec) -> Workload:
    """Capture the model at every microbatch and width that the study may use."""
    from phaze_opt.workload.zoo import load_workload

    return load_workload(
        spec.model,
        tensor_parallel=spec.tensor_parallel,
        microbatch=spec.space.microbatches,
        sequence_parallel=spec.sequence_parallel,
        sequence=spec.sequence,
    )


def current_version() -> str:
    """Return the version of this program's cost model."""
    from phaze_opt.evaluation import COST_MODEL_VERSION

    return COST_MODEL_VERSION
