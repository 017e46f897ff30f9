"""Constants of one network level from measured collectives inside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.bounded import Constant, FittedConstant, fit_constants, log_errors
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import COLLECTIVES, CollectiveName, collective_terms


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


CONSTANTS = (
    Constant("launch_s", "s", 0.0, 50e-6, "a kernel launch and a barrier"),
    Constant("latency_s", "s", 0.0, 10e-6, "a message between neighbours"),
    Constant("efficiency", "", 0.3, 0.82, "headers and acknowledgements take 18 % of an NVLink"),
    Constant("ramp_bytes", "B", 0.0, 64e6, "the buffers of all channels together", "root"),
    Constant("own_part_cost", "", 0.0, 1.0, "handling a part costs no more than sending it"),
    Constant("in_switch_efficiency", "", 0.3, 0.82, "the link carries the tensor at least once"),
    Constant("in_switch_latency_s", "s", 0.0, 60e-6, "as for a launch"),
)
"""What rows may determine of a level of NVLinks.

Of the rate of a link, NCCL's own table (its file topo.h) has 20.0 of 25 GB/s on the A100, 20.6 of
25 on the H100 and 40.1 of 50 on the B200. For other links, give `fit_collectives` other bounds.
"""


@dataclass(frozen=True)
class CollectiveFit:
    """Constants of a level, and how well they agree with the rows.

    Attributes
    ----------
    level
        With the fitted constants.
    constants
        All of them, those that the rows do not determine too.
    errors
        Predicted over measured time, less one, row by row.
    """

    level: NetworkLevel
    constants: tuple[FittedConstant, ...]
    errors: tuple[float, ...]

    @property
    def undetermined(self) -> tuple[str, ...]:
        """Names of the constants that the rows do not determine."""
        return tuple(constant.name for constant in self.constants if constant.error is None)


def fit_collectives(
    rows: Sequence[CollectiveRow], level: NetworkLevel, constants: Sequence[Constant] = CONSTANTS
) -> CollectiveFit:
    """Fit the constants of one level: least squares on the logarithm of the time.

    Parameters
    ----------
    rows
        Measured collectives among devices that this level joins.
    level
        Nominal bandwidth, topology and algorithms, and the values of constants that the rows do
        not determine. The constants of an in-switch reduction are fitted only where it has one.
    constants
        What to fit, with bounds.

    Raises
    ------
    InputError
        If there are fewer rows than constants, or a row has more devices than the level joins.
    """
    most = max((row.devices for row in rows), default=0)
    if level.group_size is not None and most > level.group_size:
        raise InputError(f"A row has {most} devices, but the level joins {level.group_size}.")
    measured_s = np.array([row.latency_s for row in rows], dtype=np.float64)
    fitting = [one for one in constants if _belongs(one.name, level)]
    start = {one.name: float(getattr(level, one.name)) for one in fitting}

    def residuals(values: Mapping[str, float]) -> FloatArray:
        return log_errors(predicted_s(rows, _with_values(level, values)), measured_s)

    fit = fit_constants(fitting, start, residuals)
    errors = tuple(np.expm1(np.array(fit.residuals)).tolist())
    return CollectiveFit(_with_values(level, fit.values), fit.constants, errors)


def predicted_s(rows: Sequence[CollectiveRow], level: NetworkLevel) -> FloatArray:
    """Return the model's time of every row, by the cheapest algorithm inside the level."""
    cluster = Cluster("measured", (level,), max((row.devices for row in rows), default=1))
    groups: dict[tuple[CollectiveName, int], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.kind, row.devices), []).append(index)
    found = np.empty(len(rows))
    for (kind, devices), indices in groups.items():
        sizes = np.array([rows[index].size_bytes for index in indices])
        # Not from the cache of terms: a fit asks once for each of thousands of levels.
        terms = collective_terms.__wrapped__(kind, devices, cluster)
        found[indices] = np.minimum.reduce([term.seconds(sizes) for term in terms])
    return found


def _belongs(name: str, level: NetworkLevel) -> bool:
    """Say whether a level like this has this constant."""
    return level.in_switch_efficiency > 0.0 or not name.startswith("in_switch")


def _with_values(level: NetworkLevel, values: Mapping[str, float]) -> NetworkLevel:
    """Return the level with other constants."""
    return replace(level, **cast(dict[str, Any], dict(values)))
