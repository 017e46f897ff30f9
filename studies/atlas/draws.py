"""Joint draws of all uncertain constants of the cost model, and a study under one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil, log2

import numpy as np
from scipy.stats.qmc import Sobol

from phaze_opt.arrays import FloatArray
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import accelerator_presets
from phaze_opt.hardware.ranges import at_rates
from phaze_opt.spec.freezing import area_limit_mm2
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.variations import FACTORS, SHARE, Factor, VariedStudy, variations_of

SEED = 0
BUILT_RANGES = ("operator_overhead_s", "attention_overlap", "collective_core_share")
"""Measured constants that a chip on paper has as defaults: from the least to the most of any chip
that was built."""


@dataclass(frozen=True)
class Constant:
    """A constant of the cost model, and its range.

    Attributes
    ----------
    name
        One of `phaze_opt.spec.variations.Factor`, of which the range is one of factors; or a field
        of `phaze_opt.hardware.measured_constants.Calibration`, in its unit.
    """

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class DrawnStudy(VariedStudy):
    """A study in which several constants are others at once."""

    scales: Mapping[str, float] = field(default_factory=dict)

    def scale_of(self, factor: Factor) -> float:
        """Return by how much a constant is multiplied."""
        return self.scales.get(factor, 1.0)


def constants_of(chip: Accelerator) -> tuple[Constant, ...]:
    """Return the constants of the cost model that are drawn for the chips of a base.

    No share of a rate exceeds 1.
    """
    ends: dict[str, list[float]] = {name: [] for name in (*FACTORS, "array_rate")}
    for variation in variations_of(chip):
        ends[variation.factor].append(variation.scale)
    own, ends["array_rate"] = chip.calibration, ends["array_rate"] or [1.0 - SHARE, 1.0 + SHARE]
    most = {"hbm_efficiency": 1.0 / own.hbm_efficiency, "array_rate": 1.0 / own.array_efficiency}
    for name in BUILT_RANGES:
        ends[name] = [
            getattr(preset.accelerator.calibration, name)
            for preset in accelerator_presets().values()
            if preset.accelerator.process_node is not None
        ]
    return tuple(
        Constant(name, min(each), min(max(each), most.get(name, np.inf)))
        for name, each in ends.items()
    )


def draws_of(constants: Sequence[Constant], draws: int) -> FloatArray:
    """Return scrambled Sobol' points of the constants (Owen 1998): (draws, constants).

    The first draws are the same, however many there are.
    """
    sequence = Sobol(len(constants), scramble=True, rng=np.random.default_rng(SEED))
    shares = sequence.random_base2(ceil(log2(draws)))[:draws]
    low, high = np.array([(each.low, each.high) for each in constants]).T
    return np.asarray(low + shares * (high - low))


def drawn_study(study: ResolvedStudy, values: Mapping[str, float]) -> DrawnStudy:
    """Return a study under other constants; an area that is a chip's varies with it."""
    own = {entry.name: getattr(study, entry.name) for entry in fields(ResolvedStudy)}
    changed = {name: value for name, value in values.items() if name in BUILT_RANGES}
    base = at_rates(study.base, values.get("array_rate", 1.0), values.get("hbm_efficiency", 1.0))
    base = replace(base, calibration=replace(base.calibration, **changed))
    copy = DrawnStudy(**own, original=study, scales=values)
    limit_mm2 = area_limit_mm2(study.spec, study.base, study.cluster, copy.pe_scale)
    return replace(copy, base=base, area_limit_mm2=limit_mm2)
