import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.units import GIB, MIB


def test_every_preset_is_valid_and_sourced() -> None:
    """Every preset can be built and says where each stated number comes from."""
    for preset in accelerator_presets().values():
        stated = {"num_tc", "pe_x", "pe_y", "num_vc", "pe_vc", "glb_bytes", "hbm_bytes", "clock_hz"}
        assert stated <= preset.provenance.keys()
        for provenance in preset.provenance.values():
            assert provenance.source
            assert provenance.confidence in ("high", "medium", "low")


@pytest.mark.parametrize(
    ("name", "peak_tflops"),
    [
        ("tpuv3", 123),
        ("tpuv4", 275),
        ("tpuv5e", 197),
        ("tpuv5p", 459),
        ("v100", 125),
        ("a100-80", 312),
        ("h100", 989.4),
        ("h200", 989.4),
        ("b200", 2250.2),
        ("l40s", 362.1),
        ("tpuv6e", 917.5),
        ("gb200", 2500),
        ("gb300", 2500),
        ("tpu7x", 2307),
        ("h20", 148),
        ("rtx-pro-6000", 503.8),
        ("mi325x", 1307.4),
        ("mi355x", 2516.6),
        ("b300", 2250),
        ("mi300x", 1307.4),
        ("trainium2", 667),
        ("mi210", 181),
        ("mi250x", 191.5),
        ("rtx-5090", 209.5),
        ("rtx-4090", 165.2),
        ("gb10", 119),
        ("trainium3", 671),
        ("wse3", 15625),
    ],
)
def test_presets_have_their_stated_peak(name: str, peak_tflops: float) -> None:
    """Units times clock give the peak that the maker states, within rounding."""
    peak = accelerator_presets()[name].accelerator.peak_flops_per_s
    assert peak / 1e12 == pytest.approx(peak_tflops, rel=0.01)


def test_a_preset_with_a_base_has_its_rows() -> None:
    """The H800 is the chip of an H100, with all its kernels and sources; its links are fewer."""
    presets = accelerator_presets()
    for name, base in (("h800", "h100"), ("a800", "a100-80")):
        assert name.upper() in presets[name].description
        assert replace(presets[name], name=base, description="") == replace(
            presets[base], description=""
        )
        assert load_cluster(f"{name}-node", 16).levels[0].bandwidth_bytes_per_s == 200e9
    assert load_cluster("h800-node", 16).levels[1] == load_cluster("dgx-h100", 16).levels[1]


def test_only_measured_chips_have_rates_of_arrays_and_bursts() -> None:
    """On every other chip the arrays work at the clock, and an isolated kernel has no burst.

    Where only the fastest product is known, all others take the ratio of chips that have a table.
    """
    same = {"a800", "h800"}  # chips of a100-80 and h100
    presets = [preset for name, preset in accelerator_presets().items() if name not in same]
    with_arrays = {p.name for p in presets if p.accelerator.calibration.array_efficiency < 1.0}
    with_burst = {p.name for p in presets if p.accelerator.calibration.burst_clock_hz is not None}
    limited = {p.name for p in presets if p.accelerator.in_burst is not p.accelerator} - with_burst
    measured = {"a100-40", "a100-80", "a100-pcie", "h100", "h100-96-500w", "h200", "b200", "l40s"}
    measured |= {"gb300", "tpu7x", "gaudi2", "gaudi3"}
    taken_over = {"tpuv6e", "gb200", "b300", "mi300x", "mi325x", "mi355x", "h20", "rtx-pro-6000"}
    taken_over |= {"gh200", "rtx-4090", "rtx-5090", "gb10"}
    assert with_arrays == measured | taken_over
    assert all(
        p.provenance["calibration.array_efficiency"].confidence == "low"
        for p in presets
        if p.name in taken_over
    )
    assert with_burst == {"h100", "h200", "l40s", "gb300"}
    assert limited == {"h100-96-500w", "b200"}  # whose long runs were measured


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"array_efficiency": 0.0}, "array_efficiency is 0.0, but it must be above 0"),  # nothing
        ({"array_efficiency": 1.01}, "at most 1"),  # more than every cycle
        ({"hbm_efficiency": 0.0}, "hbm_efficiency is 0.0, but it must be positive"),  # no HBM
        ({"collective_core_share": math.inf}, "collective_core_share is inf, but it must be from"),
        ({"burst_clock_hz": math.inf}, "burst_clock_hz is inf, but it must be positive"),
        ({"tile_overhead_cycles": -1.0}, "tile_overhead_cycles is -1.0, but it must be finite"),
        ({"usable_hbm_share": float("nan")}, "usable_hbm_share is nan"),  # not a number
        ({"operator_overhead_s": -1.0}, "operator_overhead_s is -1.0"),  # before it begins
        ({"array_efficiency": float("nan")}, "array_efficiency is nan"),  # not a number
        ({"burst_clock_hz": 1.4e9}, "between the sustained clock"),  # below the sustained one
        ({"burst_clock_hz": 1.9e9}, r"and the nominal one \(1.83e\+09\)"),  # above the nominal one
        ({"burst_clock_hz": float("nan")}, "burst_clock_hz is nan"),  # not a number
    ],
)
def test_impossible_rates_are_refused(constants: dict[str, float], message: str) -> None:
    """Shares are shares, and a burst lies between the sustained and the nominal clock."""
    chip = load_accelerator("h100")
    with pytest.raises(InputError, match=message):
        replace(chip, calibration=replace(chip.calibration, **constants))


@pytest.mark.parametrize("name", accelerator_presets())
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_clocks_under_load_follow_the_nominal_one(name: str, factor: float) -> None:
    """In the ratio that they had, whether the clock or the peak is stated, up and down."""
    chip = load_accelerator(name)
    by_clock = load_accelerator(name, clock_hz=chip.clock_hz * factor)
    peak_tflops = chip.peak_flops_per_s / 1e12 * factor
    for other in (by_clock, load_accelerator(name, peak_tflops=peak_tflops)):
        for one, before in ((other, chip), (other.in_burst, chip.in_burst)):
            ratio = before.sustained_clock_hz / before.clock_hz
            assert one.sustained_clock_hz / one.clock_hz == pytest.approx(ratio, rel=1e-12)


def test_a_clock_under_load_that_is_stated_stays() -> None:
    """Beside a changed nominal one; the burst clock stays between the two."""
    changes = {"clock_ghz": 2.0, "calibration.sustained_clock_ghz": 1.9}
    chip = load_accelerator("h100", **changes)
    assert chip.sustained_clock_hz == chip.in_burst.sustained_clock_hz == 1.9e9


def test_the_rated_power_is_that_of_a_part() -> None:
    """What was measured on a part does not change it; other numbers make another part."""
    h100 = load_accelerator("h100")
    assert h100.tdp_w == 700.0
    measured = load_accelerator("h100", **{"calibration.hbm_efficiency": 0.9, "num_tc": 132})
    assert measured.tdp_w == 700.0
    for name, value in (("num_tc", 100), ("hbm_gib", 141), ("clock_ghz", 1.5)):
        assert load_accelerator("h100", **{name: value}).tdp_w is None
    assert load_accelerator("h100", num_tc=100, tdp_w=600).tdp_w == 600.0
    for name in ("tpuv4-phaze", "tpuv4-lanes"):  # nobody builds them
        assert load_accelerator(name).tdp_w is None
    with pytest.raises(InputError, match="tdp_w is -1"):
        load_accelerator("h100", tdp_w=-1)


def test_the_two_baselines_differ_only_in_lanes() -> None:
    """``tpuv4-lanes`` is ``tpuv4-phaze`` with eight times the vector lanes."""
    phaze = load_accelerator("tpuv4-phaze")
    assert load_accelerator("tpuv4-phaze", pe_vc=1024) == load_accelerator("tpuv4-lanes")
    assert (phaze.num_tc, phaze.pe_x, phaze.num_vc, phaze.pe_vc) == (8, 128, 2, 128)


def test_changed_fields_take_the_given_units() -> None:
    """The scaled keys set bytes and hertz; a default private buffer follows the array."""
    changed = load_accelerator("tpuv4-phaze", glb_mib=64, hbm_gib="80", clock_ghz=1.2, pe_x="64")
    assert changed.glb_bytes == 64 * MIB
    assert changed.hbm_bytes == 80 * GIB
    assert changed.clock_hz == pytest.approx(1.2e9)
    assert changed.l2_tc_bytes == 16 * 64 * 128


def test_a_file_is_read_like_a_preset(tmp_path: Path) -> None:
    """A TOML file with the fields of an accelerator is accepted by path, calibration included."""
    path = tmp_path / "mine.toml"
    path.write_text(
        "num_tc = 4\nnum_vc = 4\npe_x = 64\npe_y = 64\npe_vc = 64\nglb_bytes = 33554432\n"
        "[calibration]\nhbm_efficiency = 0.9\n"
    )
    accelerator = load_accelerator(str(path))
    assert accelerator.num_tc == 4
    assert accelerator.calibration.hbm_efficiency == 0.9


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("tpuv4-faze", {}, "Did you mean 'tpuv4-phaze'"),  # unknown preset
        ("tpuv4-phaze", {"pe_z": "1"}, "Did you mean 'pe_"),  # unknown field
        ("tpuv4-phaze", {"pe_x": "wide"}, "must be a number"),  # not a number
        ("tpuv4-phaze", {"pe_x": "1.5"}, "whole number"),  # not a whole number
        ("tpuv4-phaze", {"pe_x": 1.5}, "pe_x is 1.5, but it must give a whole"),  # the same number
        ("tpuv4-phaze", {"pe_x": True}, "must be a number"),  # a switch
        ("tpuv4-phaze", {"pe_x": None}, "must be a number"),  # nothing
        ("tpuv4-phaze", {"name_or_path": 3}, "Unknown accelerator field"),  # a parameter's name
        ("tpuv4-phaze", {"num_tc": "0"}, "num_tc is 0"),  # zero
        ("tpuv4-phaze", {"clock_hz": "nan"}, "clock_hz is nan"),  # not finite
        ("tpuv4-phaze", {"concurrent_operators": "maybe"}, "true or false"),  # not a Boolean
    ],
)
def test_bad_input_is_refused_with_a_sentence(
    name: str, overrides: dict[str, Any], message: str
) -> None:
    """Unknown names and impossible values raise one sentence that says what is allowed."""
    with pytest.raises(InputError, match=message):
        load_accelerator(name, **overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_tc = ", "not valid TOML"),  # broken file
        ("num_tc = 4", "does not state num_vc, pe_x"),  # incomplete
        ("num_tcs = 4", "Did you mean 'num_tc'"),  # misspelt key
    ],
)
def test_bad_files_are_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    """A broken accelerator file is refused with its place."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_accelerator(str(path))


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    """A path that does not exist is an error of its own."""
    with pytest.raises(NotFoundError, match="no accelerator file"):
        load_accelerator(str(tmp_path / "none.toml"))
