"""What a study searches for: each objective by name, with its unit and direction.

An infeasible point gets a value worse than every feasible one in every direction, and finite:
samplers then know where the feasible points lie, and a viewer that looks at values alone never
takes an infeasible point for the best one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.errors import InputError

ObjectiveName = Literal[
    "throughput", "tokens", "throughput_per_area", "energy_per_sample", "power", "area"
]
Aggregate = Literal["geometric-mean", "weighted-mean", "minimum"]

BOUNDED_OBJECTIVES: tuple[ObjectiveName, ...] = ("throughput", "tokens", "throughput_per_area")
"""Objectives that grow with the throughput, and with nothing else that is not known exactly."""


@dataclass(frozen=True)
class Measured:
    """What objectives need to know of one workload on one design.

    Attributes
    ----------
    energy_j_per_sample, power_w_per_device
        Dynamic energy, and its average power on a device in use.
    area_mm2, devices
        Of one chip under the area model of the study, and how many there are.
    """

    throughput_samples_per_s: float
    tokens_per_s: float
    energy_j_per_sample: float
    power_w_per_device: float
    area_mm2: float
    devices: int


@dataclass(frozen=True)
class ObjectiveKind:
    """One objective.

    Attributes
    ----------
    metric
        Name with unit, as trials and the dashboard show it.
    unit
        For tables.
    maximise
        Its direction.
    ceiling
        Of a minimised objective: no feasible value reaches it, and infeasible points lie above. It
        is no limit of the search but of what is physical.
    of
        The value of one workload.
    """

    name: ObjectiveName
    metric: str
    unit: str
    maximise: bool
    ceiling: float
    of: Callable[[Measured], float]

    def told(self, value: float, violation: float) -> float:
        """Return what Optuna is told: the value, or if there is a violation one below them all.

        Raises
        ------
        InputError
            If a feasible value is not within what is physical.
        """
        if violation > 0:
            return -violation if self.maximise else self.ceiling * (1.0 + min(violation, 1e9))
        if not (value > 0 and (self.maximise or value < self.ceiling) and math.isfinite(value)):
            raise InputError(f"{self.metric} is {value}, which no design can have.")
        return value


OBJECTIVES: dict[ObjectiveName, ObjectiveKind] = {
    kind.name: kind
    for kind in (
        ObjectiveKind(
            "throughput",
            "throughput_samples_per_s",
            "samples/s",
            True,
            math.inf,
            lambda one: one.throughput_samples_per_s,
        ),
        ObjectiveKind(
            "tokens",
            "throughput_tokens_per_s",
            "tokens/s",
            True,
            math.inf,
            lambda one: one.tokens_per_s,
        ),
        ObjectiveKind(
            "throughput_per_area",
            "throughput_samples_per_s_mm2",
            "samples/s/mm²",
            True,
            math.inf,
            lambda one: one.throughput_samples_per_s / (one.devices * one.area_mm2),
        ),
        ObjectiveKind(
            "energy_per_sample",
            "energy_j_per_sample",
            "J/sample",
            False,
            1e12,
            lambda one: one.energy_j_per_sample,
        ),
        ObjectiveKind(
            "power",
            "power_w_per_device",
            "W",
            False,
            1e9,
            lambda one: one.power_w_per_device,
        ),
        ObjectiveKind("area", "area_mm2", "mm²", False, 1e9, lambda one: one.area_mm2),
    )
}


def aggregated(
    kind: ObjectiveKind,
    how: Aggregate,
    measured: Sequence[Measured],
    reference: Sequence[Measured],
    weights: Sequence[float],
) -> float:
    """Join the values of several workloads, each relative to a reference design's.

    Small models train many times as many samples per second as large ones; relative to the
    reference none dominates. The area is the same for all, and stays what it is.

    Parameters
    ----------
    kind
        The objective.
    how
        ``geometric-mean``; ``weighted-mean``, arithmetic; ``minimum``, the worst workload.
    measured, reference
        Of every workload, on the design and on the reference.
    weights
        Of every workload, for the means.
    """
    if kind.name == "area":
        return measured[0].area_mm2
    ratios = [kind.of(one) / kind.of(other) for one, other in zip(measured, reference, strict=True)]
    return float(joined(kind, how, np.array(ratios), weights))


def joined(
    kind: ObjectiveKind, how: Aggregate, ratios: FloatArray, weights: Sequence[float]
) -> FloatArray:
    """Join ratios of shape (workloads, ...) over the workloads; see `aggregated`."""
    if how == "minimum":
        worst: FloatArray = ratios.min(axis=0) if kind.maximise else ratios.max(axis=0)
        return worst
    shares = np.array(weights) / math.fsum(weights)
    if how == "weighted-mean":
        return np.asarray(np.tensordot(shares, ratios, axes=1))
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.tensordot(shares, np.log(ratios), axes=1)))
