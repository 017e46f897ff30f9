"""Studies under other constants of the cost model, one constant at a time.

A varied study has a hash of its own, and what the constant changes is part of the key of every
evaluation, so that nothing is ever mixed up with the study itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.ranges import RangedRate, at_rates, rate_ranges
from phaze_opt.spec.designs import Design
from phaze_opt.spec.freezing import area_limit_mm2
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import DesignPoint

Factor = Literal["lane_cycles", "pe_area", "hbm_efficiency", "network_bandwidth", "array_rate"]
FACTORS: tuple[Factor, ...] = ("lane_cycles", "pe_area", "hbm_efficiency", "network_bandwidth")
"""What is varied of every chip; the rate of the arrays too where the chip states its range."""

SHARE = 0.2
"""Relative change of a constant, in both directions, where the chip states no range of it."""

_RANGED: dict[RangedRate, Factor] = {"hbm": "hbm_efficiency", "arrays": "array_rate"}


@dataclass(frozen=True)
class Variation:
    """One constant of the cost model that is another one.

    Attributes
    ----------
    factor
        ``lane_cycles`` of every vector operator; ``pe_area``, of processing elements and lanes;
        ``hbm_efficiency``, at most 1; ``network_bandwidth`` of every level; ``array_rate``, that of
        the tensor cores in long runs.
    scale
        What it is multiplied by.
    """

    factor: Factor
    scale: float


@dataclass(frozen=True)
class VariedStudy(ResolvedStudy):
    """A study under a variation; baselines, to which values are relative, stay as they are.

    Attributes
    ----------
    variation, original
        What differs, and from which study. Both are always stated; they have defaults because the
        last field of `ResolvedStudy` has one.
    """

    variation: Variation = Variation("lane_cycles", 1.0)
    original: ResolvedStudy | None = None

    @property
    def nominal(self) -> ResolvedStudy:
        """The study with the constants of the cost model."""
        return self.original or self

    @property
    def lane_rate(self) -> float:
        """Rate of the vector lanes relative to the cost model's."""
        return 1.0 / self._scale_of("lane_cycles")

    @property
    def pe_scale(self) -> float:
        """Area of processing elements and lanes relative to the area model's."""
        return self._scale_of("pe_area")

    def design(self, point: DesignPoint) -> Design:
        """Return what a point stands for, its network varied too."""
        design = super().design(point)
        scale = self._scale_of("network_bandwidth")
        if scale == 1.0:
            return design
        levels = tuple(
            replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * scale)
            for level in design.cluster.levels
        )
        return replace(design, cluster=replace(design.cluster, levels=levels))

    def _scale_of(self, factor: Factor) -> float:
        return self.variation.scale if self.variation.factor == factor else 1.0


def variations_of(chip: Accelerator) -> tuple[Variation, ...]:
    """Return every constant smaller and larger, one at a time.

    By a fifth, or as far as the chip says that others of its name differ.
    """
    ends = dict.fromkeys(FACTORS, (1.0 - SHARE, 1.0 + SHARE))
    for rate, own in rate_ranges(chip).items():
        ends[_RANGED[rate]] = own.low, own.high
    return tuple(Variation(factor, scale) for factor, both in ends.items() for scale in both)


def varied(study: ResolvedStudy, variation: Variation) -> VariedStudy:
    """Return a study under a variation.

    An area limit that is that of a chip varies with it; one in mm² does not.
    """
    own = {field.name: getattr(study, field.name) for field in fields(ResolvedStudy)}
    found = VariedStudy(**own, variation=variation, original=study)
    if variation.factor == "hbm_efficiency":
        found = replace(found, base=at_rates(study.base, hbm=variation.scale))
    if variation.factor == "array_rate":
        found = replace(found, base=at_rates(study.base, arrays=variation.scale))
    limit_mm2 = area_limit_mm2(study.spec, study.base, found.pe_scale)
    return replace(found, area_limit_mm2=limit_mm2)


def variation_of(study: ResolvedStudy) -> Variation | None:
    """Return the variation of a study; ``None`` for the study itself."""
    return study.variation if isinstance(study, VariedStudy) else None
