"""The points of a study: which values are searched, how a sampler sees them, and their chips.

A power of two is searched as its exponent, an ordered integer: a sampler then knows that 64 lies
between 32 and 128. (Measured: with categorical values the same sampler finds slower designs.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from phaze_opt.codec import convert_fields
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.printing import short_repr
from phaze_opt.training import Recompute
from phaze_opt.units import GIB, MIB

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

POWER_KEYS = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_mib", "microbatch")
CHOICE_KEYS = ("hbm_gib", "recompute")
_CORE_KEYS = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc")
"""Fields that a point and an accelerator share, name and unit included."""

_LOG2 = "log2_"


@dataclass(frozen=True)
class PowerRange:
    """All powers of two from ``min`` to ``max``, both included."""

    min: int
    max: int

    def __post_init__(self) -> None:
        for name in ("min", "max"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise InputError(f"{name} is {value}, but it must be a power of two, at least 1.")
        if self.min > self.max:
            raise InputError(f"min is {self.min}, but it must not be above max, {self.max}.")

    def __repr__(self) -> str:
        return f"({self.min}, {self.max})"

    @property
    def exponents(self) -> tuple[int, int]:
        """Smallest and largest binary logarithm."""
        return self.min.bit_length() - 1, self.max.bit_length() - 1

    @property
    def values(self) -> tuple[int, ...]:
        """The powers of two themselves."""
        low, high = self.exponents
        return tuple(2**exponent for exponent in range(low, high + 1))


Powers = PowerRange | tuple[int, int]
"""A range of powers of two; a pair (min, max) becomes a `PowerRange` in a `Space`."""


@dataclass(frozen=True, repr=False)
class Space:
    """The values that are searched; the defaults are the architecture space of Phaze (ICML 2024).

    Ranges may be given as pairs: ``Space(num_tc=(1, 64), hbm_gib=[32, 80])``.

    Attributes
    ----------
    base
        Preset, or TOML file, that gives every number that is not searched (clock, bandwidths,
        calibration).
    num_tc, num_vc
        Tensor cores and vector cores.
    pe_x, pe_y
        Width and height of a tensor core's PE array.
    pe_vc
        Lanes of a vector core, or ``"pe_x"`` to tie them to the PE array as the paper does.
    glb_mib
        Size of the global buffer in MiB.
    hbm_gib
        Sizes of the HBM in GiB.
    microbatch, recompute
        Training options that are searched along with the accelerator.
    """

    base: str = "tpuv4-phaze"
    num_tc: Powers = PowerRange(1, 4096)
    num_vc: Powers = PowerRange(1, 4096)
    pe_x: Powers = PowerRange(2, 256)
    pe_y: Powers = PowerRange(2, 256)
    pe_vc: Powers | Literal["pe_x"] = "pe_x"
    glb_mib: Powers = PowerRange(2, 128)
    hbm_gib: tuple[int, ...] = (32, 64, 80)
    microbatch: Powers = PowerRange(1, 8)
    recompute: tuple[Recompute, ...] = ("none", "full")

    def __post_init__(self) -> None:
        for name in POWER_KEYS:
            value = getattr(self, name)
            if isinstance(value, (tuple, list)) and len(value) == 2:
                object.__setattr__(self, name, {"min": value[0], "max": value[1]})
        convert_fields(self, "space")
        for name in CHOICE_KEYS:
            choices = getattr(self, name)
            if not choices or len(set(choices)) != len(choices):
                raise InputError(f"{name} is {list(choices)}, but it must list different choices.")
        if min(self.hbm_gib) < 1:
            raise InputError(f"hbm_gib holds {min(self.hbm_gib)}, but it must be at least 1.")

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def ranges(self) -> dict[str, PowerRange]:
        """The ranges that a sampler chooses from by name; tied lanes are left out."""
        ranges = {name: getattr(self, name) for name in POWER_KEYS}
        return {name: value for name, value in ranges.items() if isinstance(value, PowerRange)}

    @property
    def microbatches(self) -> tuple[int, ...]:
        """All microbatches, the smallest first."""
        return self.ranges["microbatch"].values

    @property
    def points(self) -> int:
        """Number of points, those above the area limit included."""
        axes = [len(axis.values) for axis in self.ranges.values()]
        return math.prod(axes) * math.prod(len(getattr(self, key)) for key in CHOICE_KEYS)


@dataclass(frozen=True, order=True)
class DesignPoint:
    """One accelerator with the training options that are searched along with it."""

    num_tc: int
    num_vc: int
    pe_x: int
    pe_y: int
    pe_vc: int
    glb_mib: int
    hbm_gib: int
    microbatch: int
    recompute: Recompute

    def accelerator(self, base: Accelerator) -> Accelerator:
        """Return the accelerator: the searched fields over those of ``base``.

        Private buffers follow the PE array by rule, as the space has no size for them.
        """
        return dataclasses.replace(
            base,
            **{key: getattr(self, key) for key in _CORE_KEYS},
            glb_bytes=self.glb_mib * MIB,
            hbm_bytes=self.hbm_gib * GIB,
            l2_tc_bytes=0,
            l2_vc_bytes=0,
        )

    @property
    def configuration(self) -> tuple[Any, ...]:
        """All values in order, to decide between designs that are equal in everything else."""
        return dataclasses.astuple(self)


def point_of_accelerator(
    accelerator: Accelerator, microbatch: int, recompute: Recompute
) -> DesignPoint:
    """Return the point of an accelerator; the space may or may not contain it."""
    return DesignPoint(
        **{key: getattr(accelerator, key) for key in _CORE_KEYS},
        glb_mib=accelerator.glb_bytes // MIB,
        hbm_gib=accelerator.hbm_bytes // GIB,
        microbatch=microbatch,
        recompute=recompute,
    )


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the space as Optuna takes it: a distribution per parameter of a trial."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    result: dict[str, BaseDistribution] = {
        _LOG2 + key: IntDistribution(*axis.exponents) for key, axis in space.ranges.items()
    }
    for key in CHOICE_KEYS:
        result[key] = CategoricalDistribution(getattr(space, key))
    return result


def point_of(space: Space, params: Mapping[str, Any]) -> DesignPoint:
    """Turn a sampler's parameters into a point.

    Raises
    ------
    InputError
        If a parameter is missing or lies outside the space, as in a row that another program wrote.
    """
    values: dict[str, Any] = {}
    for key, axis in space.ranges.items():
        exponent = params.get(_LOG2 + key)
        low, high = axis.exponents
        if type(exponent) is not int or not low <= exponent <= high:
            raise InputError(f"{_LOG2 + key} is {exponent!r}, but it must be in {low} to {high}.")
        values[key] = 2**exponent
    for key in CHOICE_KEYS:
        choice = params.get(key)
        if choice not in getattr(space, key):
            raise InputError(f"{key} is {choice!r}, but it must be in {getattr(space, key)}.")
        values[key] = choice
    values.setdefault("pe_vc", values["pe_x"])
    return DesignPoint(**values)


def params_of(space: Space, point: DesignPoint) -> dict[str, Any]:
    """Turn a point into the parameters of a sampler; the inverse of `point_of`."""
    params: dict[str, Any] = {
        _LOG2 + key: getattr(point, key).bit_length() - 1 for key in space.ranges
    }
    return params | {key: getattr(point, key) for key in CHOICE_KEYS}


def contains(space: Space, point: DesignPoint) -> bool:
    """Whether a point can be chosen by a sampler."""
    if space.pe_vc == "pe_x" and point.pe_vc != point.pe_x:
        return False
    in_ranges = all(getattr(point, key) in axis.values for key, axis in space.ranges.items())
    return in_ranges and all(getattr(point, key) in getattr(space, key) for key in CHOICE_KEYS)


def training_choices(space: Space) -> Iterator[tuple[int, Recompute]]:
    """Yield every microbatch with every recompute."""
    for microbatch in space.microbatches:
        for recompute in space.recompute:
            yield microbatch, recompute
