"""Constants of one network level from measured collectives inside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit, Scale
from phaze_opt.calibration.least_squares import fit
from phaze_opt.choices import CollectiveName
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import COLLECTIVES, collective_terms
from phaze_opt.network.estimate import bus_bandwidth_bytes_per_s


@dataclass(frozen=True)
class CollectiveRow:
    """One measured collective.

    Attributes
    ----------
    kind
        One of `COLLECTIVES`.
    devices
        That took part, all inside one network level.
    size_bytes
        Of the whole tensor, as `phaze_opt.network.collective.collective_s` takes it.
    latency_s
        Measured.
    """

    kind: CollectiveName
    devices: int
    size_bytes: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise unknown_name("collective", self.kind, COLLECTIVES)
        if self.devices < 2:
            raise InputError(f"devices is {self.devices}, but it must be at least 2.")
        for name in ("size_bytes", "latency_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}, but it must be positive.")


NVLINK_EFFICIENCY = 0.82
"""Headers and acknowledgements take 18 % of an NVLink: of the rate of a link, NCCL's own table (its
file topo.h) has 20.0 of 25 GB/s on the A100, 20.6 of 25 on the H100 and 40.1 of 50 on the B200."""


def level_constants(
    level: NetworkLevel, greatest_efficiency: float = NVLINK_EFFICIENCY
) -> tuple[Constant, ...]:
    """Return what collectives may determine of a level, with what physics allows.

    The constants of an in-switch reduction belong only to a level that has one.

    Parameters
    ----------
    level
        With the stated values.
    greatest_efficiency
        Share of the nominal bandwidth that payload can reach.
    """

    def constant(name: str, lower: float, upper: float, unit: str, scale: Scale) -> Constant:
        return Constant(name, getattr(level, name), lower, upper, False, scale, unit)

    constants = (
        # A kernel launch and a barrier.
        constant("launch_s", 0.0, 50e-6, "s", "linear"),
        # A message between neighbours.
        constant("latency_s", 0.0, 10e-6, "s", "linear"),
        constant("efficiency", 0.3, greatest_efficiency, "", "linear"),
        # The buffers of all channels together.
        constant("ramp_bytes", 0.0, 64e6, "B", "root"),
        # Handling a part costs no more than sending it.
        constant("own_part_cost", 0.0, 1.0, "", "linear"),
    )
    if level.in_switch_efficiency == 0.0:
        return constants
    return (
        *constants,
        # The link carries the tensor at least once.
        constant("in_switch_efficiency", 0.3, greatest_efficiency, "", "linear"),
        # As for a launch.
        constant("in_switch_latency_s", 0.0, 60e-6, "s", "linear"),
    )


def level_of_rows(rows: Sequence[CollectiveRow]) -> NetworkLevel:
    """Return a switch with the largest bandwidth per device that shows in a row.

    For a network that nobody describes: only the product of bandwidth and efficiency shows in
    times, so that the bandwidth is the sustained one and the efficiency is 1.
    """
    shown = (
        bus_bandwidth_bytes_per_s(row.kind, row.size_bytes, row.devices, row.latency_s)
        for row in rows
    )
    return NetworkLevel(max(shown), 0.0, "switch", halving=False)


def constants_of_unknown_level(level: NetworkLevel) -> tuple[Constant, ...]:
    """Return what collectives may determine where nobody states the bandwidth: `level_of_rows`."""
    shown = level.bandwidth_bytes_per_s
    bandwidth = Constant("bandwidth_bytes_per_s", shown, shown / 2, 4 * shown, False, unit="B/s")
    return tuple(bandwidth if c.name == "efficiency" else c for c in level_constants(level))


def fit_collectives(
    rows: Sequence[CollectiveRow], level: NetworkLevel, constants: Sequence[Constant] | None = None
) -> Fit:
    """Fit the constants of one level.

    Parameters
    ----------
    rows
        Measured collectives among devices that this level joins.
    level
        Nominal bandwidth, topology and algorithms, and the values of constants that the rows do
        not determine.
    constants
        What to fit; those of `level_constants` by default.

    Raises
    ------
    InputError
        If there are fewer rows than constants, or a row has more devices than the level joins.
    """
    most = max((row.devices for row in rows), default=0)
    if level.group_size is not None and most > level.group_size:
        raise InputError(f"A row has {most} devices, but the level joins {level.group_size}.")

    def predict(values: Mapping[str, float]) -> FloatArray:
        return predicted_s(rows, with_level_constants(level, values))

    measured_s = np.array([row.latency_s for row in rows], dtype=np.float64)
    return fit(level_constants(level) if constants is None else constants, predict, measured_s)


def with_level_constants(level: NetworkLevel, values: Mapping[str, float]) -> NetworkLevel:
    """Return the level with other constants."""
    return replace(level, **cast(dict[str, Any], dict(values)))


def predicted_s(rows: Sequence[CollectiveRow], level: NetworkLevel) -> FloatArray:
    """Return the model's time of every row, by the cheapest algorithm inside the level."""
    cluster = Cluster("measured", (level,), max((row.devices for row in rows), default=1))
    groups: dict[tuple[CollectiveName, int], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.kind, row.devices), []).append(index)
    least_s = np.empty(len(rows))
    for (kind, devices), indices in groups.items():
        sizes = np.array([rows[index].size_bytes for index in indices])
        # Not from the cache of terms: a fit asks once for each of thousands of levels.
        terms = collective_terms.__wrapped__(kind, devices, cluster)
        least_s[indices] = np.minimum.reduce([term.seconds(sizes) for term in terms])
    return least_s
