"""Chips of one name differ: what the slowest and the fastest of them do.

Boards have other power limits, coolers and clocks, and public measurements of one part differ by 30
to 40 %. A chip states by how much the rate of its arrays in long runs and that of its HBM may be
lower and higher than in its own numbers; chips on paper state nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration

RangedRate = Literal["arrays", "hbm"]
"""What may be other than stated: the arrays in long runs, or the bandwidth of the HBM."""

_OF_ARRAYS = (
    "array_efficiency",
    "sustained_peak_share",
    "attention_rate",
    "attention_backward_rate",
)


@dataclass(frozen=True)
class RateRange:
    """By how much a rate of a chip may be lower and higher than stated, as factors."""

    low: float
    high: float


def rate_ranges(chip: Accelerator) -> dict[RangedRate, RateRange]:
    """Return the ranges that a chip states, without those that say nothing."""
    own = chip.calibration
    stated: dict[RangedRate, RateRange] = {
        "arrays": RateRange(own.array_rate_low, own.array_rate_high)
    }
    if chip.has_hbm:
        stated["hbm"] = RateRange(own.hbm_rate_low, own.hbm_rate_high)
    return {rate: span for rate, span in stated.items() if span.low < 1.0 or span.high > 1.0}


def at_rates(chip: Accelerator, arrays: float = 1.0, hbm: float = 1.0) -> Accelerator:
    """Return a chip whose arrays or whose HBM are slower or faster, by factors.

    No share exceeds 1: a rate that already is the nominal one stays.
    """
    own = chip.calibration
    changed = {
        name: _scaled(getattr(own, name), arrays)
        for name in _OF_ARRAYS
        if getattr(own, name) is not None
    }
    changed["hbm_efficiency"] = _scaled(own.hbm_efficiency, hbm)
    calibration: Calibration = replace(own, **changed)
    return replace(chip, calibration=calibration)


def at_speed(chip: Accelerator, speed: float) -> Accelerator:
    """Return a chip of which every clock and the HBM run at a share of their rates.

    A throttled device, say. Times that no clock makes (between two operators) stay.
    """
    own = chip.calibration
    clocks = {
        name: hertz * speed
        for name in ("sustained_clock_hz", "burst_clock_hz")
        if (hertz := getattr(own, name)) is not None
    }
    return replace(
        chip,
        clock_hz=chip.clock_hz * speed,
        hbm_bytes_per_s=chip.hbm_bytes_per_s * speed,
        calibration=replace(own, **clocks),
    )


def _scaled(share: float, factor: float) -> float:
    """Scale a share of a nominal rate."""
    return share if factor == 1.0 else min(share * factor, max(share, 1.0))
