"""A frozen spec: every name is resolved to numbers, so that any machine can run the study.

A worker on another machine needs only the storage and the name of the study, because presets,
clusters and captured workloads are data in the database. Equal hashes mean equal studies.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.codec import to_builtins, to_json
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import link_area_mm2
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.axis_names import CHIP_ALIASES, kind_of
from phaze_opt.spec.designs import Design, chip_of, cluster_of
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import SearchSpec, StudySpec
from phaze_opt.workload.graph import Workload

_SMALLEST = 1.0 - 1e-9
"""Factor below the relative difference of the area of a chip among many and alone (last bits)."""


@dataclass(frozen=True)
class Baseline:
    """A named accelerator with which designs are compared."""

    name: str
    accelerator: Accelerator


@dataclass(frozen=True)
class ClusterChoice:
    """A network that the space names, with a number of devices.

    Attributes
    ----------
    name
        The name in the space; for a file, its path.
    """

    name: str
    devices: int
    cluster: Cluster


@dataclass(frozen=True)
class ResolvedStudy:
    """A study in which every name is resolved.

    Attributes
    ----------
    base
        The base chip: the value of every field that is not searched.
    cluster, clusters
        The network of the spec, which the baselines use; and the networks that the space names.
    area_limit_mm2
        Under the area model of the spec.
    workload_hashes
        Hashes of the JSON of the captured workloads, in the order of `freezing.captures`.
    cost_model_version
        Version of the program that created the study; other versions must not continue it.
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
        """The study with the constants of the cost model; see `phaze_opt.spec.variations`."""
        return self

    @property
    def lane_rate(self) -> float:
        """Rate of the vector lanes relative to the cost model's."""
        return 1.0

    @property
    def pe_scale(self) -> float:
        """Area of processing elements and lanes relative to the area model's."""
        return 1.0

    @property
    def link_scale(self) -> float:
        """Bandwidth of the networks of designs relative to that which their links take area for."""
        return 1.0

    def link_area_mm2(self, cluster: Cluster) -> float:
        """Return the area that the links of a network take of a chip, if the study counts it."""
        if not self.spec.area.links:
            return 0.0
        bytes_per_s = cluster.bandwidth_bytes_per_s / self.link_scale
        return link_area_mm2(bytes_per_s, self.spec.area.model)

    def area_if_known_mm2(self, chip: Accelerator, cluster: Cluster | None = None) -> float | None:
        """Return the area of a chip; ``None`` outside the table of SRAM macros.

        Parameters
        ----------
        chip
            The chip.
        cluster
            Its network, whose links may take area; ``None`` for the chip without links.
        """
        own_mm2 = chip.area_if_known(self.spec.area.model, self.pe_scale)
        if own_mm2 is None or cluster is None:
            return own_mm2
        return own_mm2 + self.link_area_mm2(cluster)

    def links_fit(self, area_mm2: FloatArray, cluster: Cluster) -> BoolArray:
        """Say which chips may be within the limit of the area beside the links of a network.

        Parameters
        ----------
        area_mm2
            Of chips without links, which may differ in the last bits from that of one alone.
        cluster
            The network.
        """
        if not self.spec.area.links:
            return np.ones(np.shape(area_mm2), dtype=np.bool_)
        beside_mm2 = area_mm2 * _SMALLEST + self.link_area_mm2(cluster)
        return np.asarray(beside_mm2 <= self.area_limit_mm2)

    @property
    def hash(self) -> str:
        """SHA-256 of everything that decides the answer, hence without the name."""
        return hash_as_written(to_builtins(self))

    @property
    def question_hash(self) -> str:
        """SHA-256 of everything that decides which design is best, hence without the search.

        Baselines count only if the values of several workloads are relative to a baseline.
        """
        search = SearchSpec(sampler="random", trials=1)
        spec = dataclasses.replace(self.spec, search=search)
        if len(spec.runs) > 1:
            return dataclasses.replace(self, spec=spec).hash
        alone = dataclasses.replace(spec, baselines=(), relative_to=None)
        return dataclasses.replace(self, spec=alone, baselines=()).hash

    def design(self, point: DesignPoint) -> Design:
        """Return the design of a point.

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
        """Return the size of the HBM of a point, without building the chip."""
        values = point.by_name
        if "hbm_gib" in values:
            return int(CHIP_ALIASES["hbm_gib"].to_field(float(values["hbm_gib"])))
        return int(values.get("hbm_bytes", self.base.hbm_bytes))

    @cached_property
    def _clusters(self) -> dict[tuple[Scalar, Scalar], Cluster]:
        """The networks that the space names, by name and number of devices."""
        return {(choice.name, choice.devices): choice.cluster for choice in self.clusters}


def content_hash(value: object) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(to_json(value)).hexdigest()


def hash_as_written(plain: Mapping[str, Any]) -> str:
    """Hash a stored study without its name, with the fields that the program wrote then.

    A solved placement is left out: older studies have no such field, and keep their hashes.
    """
    spec = {**plain["spec"], "name": "study"}
    if spec.get("placement") == "solve":
        del spec["placement"]
    return content_hash({**plain, "spec": spec})


def documents_of(resolved: ResolvedStudy, workloads: Sequence[Workload]) -> dict[str, bytes]:
    """Return the JSON of captured workloads by their hashes in the study."""
    return dict(zip(resolved.workload_hashes, map(to_json, workloads), strict=True))


def current_version() -> str:
    """Return the version of the cost model of this program."""
    from phaze_opt.cost_model_version import COST_MODEL_VERSION

    return COST_MODEL_VERSION
