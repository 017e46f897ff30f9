"""Numbers of an accelerator by name and unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.hardware.chip_file import chip_file_text
from phaze_opt.hardware.fields import ALIASES, CALIBRATION, FIELD_TYPES, NAMES, chip_values
from phaze_opt.hardware.presets import (
    accelerator_presets,
    configure_accelerator,
    find_accelerator,
    load_accelerator,
)

STATED = {
    "glb_mib": 61.5,
    "hbm_gib": 96,
    "hbm_gb_per_s": 2400.5,
    "host_link_gb_per_s": 63.5,
    "clock_ghz": 1.61,
    "l2_tc_kib": 300,
    "l2_vc_kib": 12,
    "calibration.sustained_clock_ghz": 1.37,
    "calibration.burst_clock_ghz": 1.71,
    "calibration.operator_overhead_us": 2.5,
    "calibration.vector_core_gb_per_s": 40.0,
    "calibration.scan_core_gb_per_s": 25.0,
    "peak_tflops": 900.0,
}
"""A value for every alias, within what an H100 allows."""


def test_every_alias_has_a_value_here() -> None:
    """So that a new one is tested too."""
    assert {*ALIASES, "peak_tflops"} == STATED.keys()
    assert {alias.field for alias in ALIASES.values()} <= FIELD_TYPES.keys()
    assert set(NAMES) == {*FIELD_TYPES, *STATED}


def _table(name: str, value: object) -> str:
    """Return a file's line, in its table."""
    own = name.removeprefix(CALIBRATION)
    return f"{'[calibration]' if own != name else ''}\n{own} = {value}\n"


@pytest.mark.parametrize("name", STATED)
def test_an_alias_means_the_same_in_a_file_in_a_change_and_in_a_new_file(
    tmp_path: Path, name: str
) -> None:
    """It sets its field, and nothing else but the clocks under load, which follow.

    A part with other numbers has no rating and no known die.
    """
    value = STATED[name]
    changed = configure_accelerator("h100", {name: str(value)})
    path = tmp_path / "file.toml"
    path.write_text(f'base = "h100"\n{_table(name, value)}')
    assert find_accelerator(str(path)).accelerator == changed.accelerator
    path.write_text(chip_file_text(changed), encoding="utf-8")
    assert find_accelerator(str(path)).accelerator == changed.accelerator
    assert load_accelerator("h100", **{name: value}) == changed.accelerator
    field = ALIASES[name].field if name in ALIASES else "clock_hz"
    before, after = (chip_values(each) for each in (load_accelerator("h100"), changed.accelerator))
    differs = {key for key in after if before[key] != after[key]}
    assert field in differs
    clocks = {"calibration.burst_clock_hz", "calibration.sustained_clock_hz"}
    assert differs <= {field, *clocks, "tdp_w", "die_mm2"}
    for known in ("tdp_w", "die_mm2"):
        assert (known in differs) != field.startswith("calibration.")


def test_the_peak_gives_the_clock() -> None:
    """Of the arrays as they are changed, not as they were."""
    chip = load_accelerator("h100", peak_tflops=1200, num_tc=100)
    assert chip.peak_flops_per_s == pytest.approx(1200e12, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"glb_mib": 8, "glb_bytes": 2**23}, "glb_mib and glb_bytes state the same number"),
        ({"hbm_gb_per_s": 800, "hbm_bytes_per_s": 8e11}, "state the same number"),
        ({"peak_tflops": 100, "clock_ghz": 1}, "peak_tflops and clock_ghz both state the clock"),
        ({"peak_tflops": 100, "clock_hz": 1e9}, "peak_tflops and clock_hz both state the clock"),
        ({"peak_tflops": "nan"}, "peak_tflops is nan"),
        ({"hbm_gb": 80}, "Did you mean 'hbm_gib'"),
        ({"glb_kib": 80}, "Did you mean 'glb_mib'"),
        ({"hbm_tb_per_s": 8}, "Did you mean 'hbm_gb_per_s'"),
        ({"clock_mhz": 8}, "Did you mean 'clock_hz'"),
        ({"calibration.hbm_efficency": 0.9}, "Did you mean 'calibration.hbm_efficiency'"),
        ({"calibration": 0.9}, "Unknown accelerator field 'calibration'"),
        ({"glb_mib": "much"}, "glb_mib is 'much', but it must be a number"),
    ],
)
def test_wrong_and_doubled_units_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """With the nearest name that exists."""
    with pytest.raises(InputError, match=message):
        load_accelerator("h100", **changes)


def test_the_calibration_is_changed_by_name() -> None:
    """One measured property of a chip; the others stay. A clock may be taken away."""
    chip = load_accelerator("h100", **{"calibration.hbm_efficiency": "0.7"})
    assert chip.calibration.hbm_efficiency == 0.7
    assert (
        chip.calibration.array_efficiency == load_accelerator("h100").calibration.array_efficiency
    )
    free = load_accelerator("a100-80", **{"calibration.sustained_clock_hz": "none"})
    assert free.sustained_clock_hz == free.clock_hz


def test_a_preset_without_changes_is_itself() -> None:
    """Nothing is built anew."""
    for name, preset in accelerator_presets().items():
        assert load_accelerator(name) is preset.accelerator


def test_every_number_has_a_meaning() -> None:
    """A written file explains each of them."""
    numbers, _, _ = chip_file_text(accelerator_presets()["h100"]).partition("\n[provenance]")
    stated = [line for line in numbers.splitlines() if " = " in line or " =  " in line][1:]
    assert len(stated) == len(FIELD_TYPES)
    assert all(line.rpartition("# ")[2] for line in stated)
