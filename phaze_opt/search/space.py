"""The points of a study: which there are, how a sampler sees them, which accelerator each means.

Powers of two are searched as their exponents, ordered integers: a sampler then knows that 64 lies
between 32 and 128 (on categorical values the same sampler gets less far).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.search.spec import PowerRange, SpaceSpec
from phaze_opt.training import Recompute
from phaze_opt.units import GIB, MIB

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

POWER_KEYS = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_mib", "microbatch")
CHOICE_KEYS = ("hbm_gib", "recompute")
_LOG2 = "log2_"


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
            num_tc=self.num_tc,
            num_vc=self.num_vc,
            pe_x=self.pe_x,
            pe_y=self.pe_y,
            pe_vc=self.pe_vc,
            glb_bytes=self.glb_mib * MIB,
            hbm_bytes=self.hbm_gib * GIB,
            l2_tc_bytes=0,
            l2_vc_bytes=0,
        )

    @property
    def configuration(self) -> tuple[Any, ...]:
        """All values in order, to decide between designs that are equal in everything else."""
        return dataclasses.astuple(self)


def searched_ranges(space: SpaceSpec) -> dict[str, PowerRange]:
    """Return the power-of-two axes that a sampler chooses, by name (tied ones are left out)."""
    ranges = {key: getattr(space, key) for key in POWER_KEYS}
    return {key: value for key, value in ranges.items() if isinstance(value, PowerRange)}


def distributions(space: SpaceSpec) -> dict[str, BaseDistribution]:
    """Return the space as Optuna takes it."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    result: dict[str, BaseDistribution] = {
        _LOG2 + key: IntDistribution(*axis.exponents)
        for key, axis in searched_ranges(space).items()
    }
    for key in CHOICE_KEYS:
        result[key] = CategoricalDistribution(getattr(space, key))
    return result


def point_of(space: SpaceSpec, params: Mapping[str, Any]) -> DesignPoint:
    """Turn a sampler's parameters into a point.

    Raises
    ------
    InputError
        If a parameter is missing or lies outside the space, as a row of a foreign database may.
    """
    values: dict[str, Any] = {}
    for key, axis in searched_ranges(space).items():
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


def params_of(space: SpaceSpec, point: DesignPoint) -> dict[str, Any]:
    """Turn a point into the parameters of a sampler; the inverse of `point_of`."""
    params: dict[str, Any] = {
        _LOG2 + key: getattr(point, key).bit_length() - 1 for key in searched_ranges(space)
    }
    return params | {key: getattr(point, key) for key in CHOICE_KEYS}


def size_of(space: SpaceSpec) -> int:
    """Count the points, those above the area limit included."""
    axes = [len(axis.values) for axis in searched_ranges(space).values()]
    return math.prod(axes) * math.prod(len(getattr(space, key)) for key in CHOICE_KEYS)


def contains(space: SpaceSpec, point: DesignPoint) -> bool:
    """Whether a point can be chosen by a sampler."""
    if space.pe_vc == "pe_x" and point.pe_vc != point.pe_x:
        return False
    in_ranges = all(
        getattr(point, key) in axis.values for key, axis in searched_ranges(space).items()
    )
    return in_ranges and all(getattr(point, key) in getattr(space, key) for key in CHOICE_KEYS)


def training_choices(space: SpaceSpec) -> Iterator[tuple[int, Recompute]]:
    """Yield every microbatch with every recompute."""
    for microbatch in space.microbatch.values:
        for recompute in space.recompute:
            yield microbatch, recompute


def point_of_accelerator(
    accelerator: Accelerator, microbatch: int, recompute: Recompute
) -> DesignPoint:
    """Describe an accelerator as a point (whether the space contains it is another matter)."""
    return DesignPoint(
        num_tc=accelerator.num_tc,
        num_vc=accelerator.num_vc,
        pe_x=accelerator.pe_x,
        pe_y=accelerator.pe_y,
        pe_vc=accelerator.pe_vc,
        glb_mib=accelerator.glb_bytes // MIB,
        hbm_gib=accelerator.hbm_bytes // GIB,
        microbatch=microbatch,
        recompute=recompute,
    )
