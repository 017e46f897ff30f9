"""The objectives of a study by name, with unit and direction.

An infeasible point gets a finite value that is worse than every feasible value: samplers then know
where the feasible points lie, and a viewer that reads only values never shows an infeasible point
as the best.
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
    "throughput",
    "tokens",
    "throughput_per_area",
    "throughput_per_dollar",
    "throughput_per_watt",
    "energy_per_sample",
    "power",
    "area",
]
Aggregate = Literal["geometric-mean", "weighted-mean", "minimum"]

RATE_OBJECTIVES: tuple[ObjectiveName, ...] = ("throughput", "tokens", "throughput_per_area")
"""Objectives proportional to the throughput: before an evaluation, all else is known exactly."""

PAID_OBJECTIVES: tuple[ObjectiveName, ...] = ("throughput_per_dollar", "throughput_per_watt")
"""Objectives that follow from the throughput and the energy, see `phaze_opt.economics`."""

BOUNDED_OBJECTIVES: tuple[ObjectiveName, ...] = (
    *(*RATE_OBJECTIVES, *PAID_OBJECTIVES),
    *("energy_per_sample", "area"),
)
"""Objectives with a bound. The power has none: a slower placement always takes less of it."""


@dataclass(frozen=True)
class Measured:
    """The measures of one workload on one design from which objectives are computed.

    Attributes
    ----------
    energy_j_per_sample, power_w_per_device
        Dynamic energy, and its average power on a device in use.
    area_mm2, devices
        Area of one chip under the area model of the study, and the number of chips.
    wall_j_per_sample, usd_per_sample
        Energy at the wall and cost of a sample on all chips; NaN where the area of the dies is
        unknown.
    """

    throughput_samples_per_s: float
    tokens_per_s: float
    energy_j_per_sample: float
    power_w_per_device: float
    area_mm2: float
    devices: int
    wall_j_per_sample: float = math.nan
    usd_per_sample: float = math.nan


@dataclass(frozen=True)
class ObjectiveKind:
    """One objective.

    Attributes
    ----------
    metric
        Name with unit, as trials and the dashboard show it.
    unit
        Unit in tables.
    maximise
        Whether larger values are better.
    ceiling
        Physical limit of a minimised objective: feasible values lie below, infeasible ones above.
    of
        Computes the value of one workload.
    """

    name: ObjectiveName
    metric: str
    unit: str
    maximise: bool
    ceiling: float
    of: Callable[[Measured], float]

    def merit(self, value: float) -> float:
        """Return what is larger for better values: a value that is minimised is inverted."""
        return value if self.maximise else 1.0 / value

    def told(self, value: float, violation: float) -> float:
        """Return the value that Optuna gets; with a violation, one worse than every feasible value.

        Raises
        ------
        InputError
            If a feasible value is physically impossible.
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
            lambda measured: measured.throughput_samples_per_s,
        ),
        ObjectiveKind(
            "tokens",
            "throughput_tokens_per_s",
            "tokens/s",
            True,
            math.inf,
            lambda measured: measured.tokens_per_s,
        ),
        ObjectiveKind(
            "throughput_per_area",
            "throughput_samples_per_s_mm2",
            "samples/s/mm²",
            True,
            math.inf,
            lambda measured: (
                measured.throughput_samples_per_s / (measured.devices * measured.area_mm2)
            ),
        ),
        ObjectiveKind(
            "throughput_per_dollar",
            "samples_per_usd",
            "samples/USD",
            True,
            math.inf,
            lambda measured: 1.0 / measured.usd_per_sample,
        ),
        ObjectiveKind(
            "throughput_per_watt",
            "throughput_samples_per_s_w",
            "samples/s/W",
            True,
            math.inf,
            lambda measured: 1.0 / measured.wall_j_per_sample,
        ),
        ObjectiveKind(
            "energy_per_sample",
            "energy_j_per_sample",
            "J/sample",
            False,
            1e12,
            lambda measured: measured.energy_j_per_sample,
        ),
        ObjectiveKind(
            "power",
            "power_w_per_device",
            "W",
            False,
            1e9,
            lambda measured: measured.power_w_per_device,
        ),
        ObjectiveKind("area", "area_mm2", "mm²", False, 1e9, lambda measured: measured.area_mm2),
    )
}


def aggregated(
    kind: ObjectiveKind,
    how: Aggregate,
    measured: Sequence[Measured],
    reference: Sequence[Measured],
    weights: Sequence[float],
) -> float:
    """Join the values of several workloads, each relative to the value on a reference design.

    Small models train many more samples per second than large ones; relative to the reference, no
    workload dominates. The area is equal for all workloads, and is not divided.

    Parameters
    ----------
    kind
        The objective.
    how
        ``geometric-mean``; ``weighted-mean``, arithmetic; ``minimum``, the worst workload.
    measured, reference
        Measures of every workload on the design and on the reference.
    weights
        Weight of every workload in the means.
    """
    if kind.name == "area":
        return measured[0].area_mm2
    pairs = zip(measured, reference, strict=True)
    ratios = [kind.of(here) / kind.of(there) for here, there in pairs]
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
