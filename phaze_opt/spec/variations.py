"""Studies under other constants of the cost model, one constant at a time.

A varied study has its own hash, and the key of every evaluation contains the change, so that
results are never mixed with those of the original study.
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
"""The varied constants of every chip; a chip that states its range also has ``array_rate``."""

SHARE = 0.2
"""Relative change of a constant, in both directions, unless the chip states its range."""

_RANGED: dict[RangedRate, Factor] = {"hbm": "hbm_efficiency", "arrays": "array_rate"}


@dataclass(frozen=True)
class Variation:
    """A change of one constant of the cost model.

    Attributes
    ----------
    factor
        ``lane_cycles``: cycles of every vector operator; ``pe_area``: area of processing elements
        and lanes; ``hbm_efficiency``, at most 1; ``network_bandwidth`` of every level;
        ``array_rate``: rate of the tensor cores in long runs.
    scale
        Factor of the constant.
    """

    factor: Factor
    scale: float


@dataclass(frozen=True)
class VariedStudy(ResolvedStudy):
    """A study under a variation; baselines, to which values are relative, are not varied.

    Attributes
    ----------
    variation, original
        The variation, and the study that it varies. Both are always stated; they have defaults
        because the last field of `ResolvedStudy` has one.
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
        return 1.0 / self.scale_of("lane_cycles")

    @property
    def pe_scale(self) -> float:
        """Area of processing elements and lanes relative to the area model's."""
        return self.scale_of("pe_area")

    @property
    def link_scale(self) -> float:
        """See `ResolvedStudy`: the links are the same, whatever they sustain."""
        return self.scale_of("network_bandwidth")

    def design(self, point: DesignPoint) -> Design:
        """Return the design of a point, with a varied network."""
        design = super().design(point)
        scale = self.scale_of("network_bandwidth")
        if scale == 1.0:
            return design
        levels = tuple(
            replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * scale)
            for level in design.cluster.levels
        )
        return replace(design, cluster=replace(design.cluster, levels=levels))

    def scale_of(self, factor: Factor) -> float:
        """Return by how much a constant is multiplied."""
        return self.variation.scale if self.variation.factor == factor else 1.0


def variations_of(chip: Accelerator) -> tuple[Variation, ...]:
    """Return two variations per constant: a smaller and a larger value.

    They differ by a fifth, or by the range that the chip states for chips of its name.
    """
    ends = dict.fromkeys(FACTORS, (1.0 - SHARE, 1.0 + SHARE))
    for rate, own in rate_ranges(chip).items():
        ends[_RANGED[rate]] = own.low, own.high
    return tuple(Variation(factor, scale) for factor, both in ends.items() for scale in both)


def varied(study: ResolvedStudy, variation: Variation) -> VariedStudy:
    """Return a study under a variation.

    An area limit that is the area of a chip varies with the chip; a limit in mm² does not.
    """
    own = {field.name: getattr(study, field.name) for field in fields(ResolvedStudy)}
    copy = VariedStudy(**own, variation=variation, original=study)
    base = study.base
    if variation.factor == "hbm_efficiency":
        base = at_rates(base, hbm=variation.scale)
    if variation.factor == "array_rate":
        base = at_rates(base, arrays=variation.scale)
    limit_mm2 = area_limit_mm2(study.spec, study.base, study.cluster, copy.pe_scale)
    return replace(copy, base=base, area_limit_mm2=limit_mm2)


def variation_of(study: ResolvedStudy) -> Variation | None:
    """Return the variation of a study; ``None`` for the study itself."""
    return study.variation if isinstance(study, VariedStudy) else None
