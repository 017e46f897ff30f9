"""Chips of one name differ: rates at the ends of their ranges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.errors import InputError
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from phaze_opt.hardware.ranges import at_rates, rate_ranges


def test_only_chips_that_were_measured_state_a_range() -> None:
    """Those on paper and TPUs do not; a range holds what is stated and is marked with a source.

    Nor do chips of which nobody published an operator.
    """
    for name, preset in accelerator_presets().items():
        ranges = rate_ranges(preset.accelerator)
        assert bool(ranges) == (not name.startswith(("tpu", "trainium", "groq", "wse")))
        for rate in ("array", "hbm"):
            if ranges:
                assert preset.provenance[f"calibration.{rate}_rate_low"].source
        for one in ranges.values():
            # No time per batch is more than 15 % off.
            assert 1 / 1.15 - 1e-3 <= one.low <= 1.0 <= one.high <= 1 / 0.85


def test_all_rates_of_the_arrays_move_together() -> None:
    """Products, what the power limit leaves, and both directions of attention; not the HBM."""
    chip = load_accelerator("b200")
    before, slow = chip.calibration, at_rates(chip, arrays=0.9).calibration
    names = ("array_efficiency", "sustained_peak_share", "attention_rate")
    for name in (*names, "attention_backward_rate"):
        assert getattr(slow, name) == pytest.approx(0.9 * getattr(before, name))
    assert slow.hbm_efficiency == before.hbm_efficiency
    assert at_rates(chip, hbm=2.0).calibration.hbm_efficiency == 1.0
    assert at_rates(chip) == chip


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"array_rate_low": 1.1}, "array_rate_low is 1.1, but it must be above 0 and at most 1"),
        ({"hbm_rate_high": 0.9}, "hbm_rate_high is 0.9, but it must be from 1 to 10"),
    ],
)
def test_a_range_that_does_not_hold_the_chip_is_refused(
    constants: dict[str, float], message: str
) -> None:
    """The slowest chip is not faster than the stated one, nor the fastest slower."""
    with pytest.raises(InputError, match=message):
        replace(Calibration(), **constants)
