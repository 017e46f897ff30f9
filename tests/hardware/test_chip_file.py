import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.codec import to_builtins, toml_value
from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.estimator.single import estimate_gemm
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.chip_file import (
    AcceleratorPreset,
    chip_file_text,
    derived_numbers,
    glb_bytes_per_cycle_for,
)
from phaze_opt.hardware.energy import energy_per_event, static_power_w
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import accelerator_presets, find_accelerator, load_accelerator
from phaze_opt.units import MIB
from phaze_opt.workload.graph import Gemm


@pytest.mark.parametrize("name", accelerator_presets())
def test_a_chip_is_read_back_with_its_sources(tmp_path: Path, name: str) -> None:
    """Every number to the last bit, and where it comes from."""
    path = tmp_path / "chip.toml"
    preset = accelerator_presets()[name]
    path.write_text(chip_file_text(preset), encoding="utf-8")
    found = find_accelerator(str(path))
    assert replace(found, origins={}) == replace(preset, name=str(path))
    assert not found.assumed


def test_text_that_a_terminal_obeys_is_not_written(tmp_path: Path) -> None:
    """Quotes, backslashes and control characters of a description do not break the file."""
    path = tmp_path / "chip.toml"
    preset = replace(accelerator_presets()["tpuv4"], description='a "quoted\\" \x1b[31m\x7f line\n')
    path.write_text(chip_file_text(preset), encoding="utf-8")
    assert find_accelerator(str(path)).description == 'a "quoted\\" ?[31m? line?'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('[provenance]\nnum_tcs = { source = "a", confidence = "low" }', "Did you mean 'num_tc'"),
        ('[provenance]\nnum_tc = { source = "a", confidence = "sure" }', "confidence"),
        ("[provenance]\nnum_tc = 3", "not valid"),  # no table
        ("provenance = 3", "not valid"),  # no table of tables
        ("description = 3", "not valid"),  # no text
    ],
)
def test_impossible_sources_are_refused(tmp_path: Path, line: str, message: str) -> None:
    """With the place in the file."""
    path = tmp_path / "chip.toml"
    chip = "num_tc = 4\nnum_vc = 4\npe_x = 64\npe_y = 64\npe_vc = 64\nglb_bytes = 33554432\n"
    path.write_text(f"{chip}{line}\n")
    with pytest.raises(InputError, match=message):
        find_accelerator(str(path))


CORES = "num_tc = 148\npe_x = 64\npe_y = 64\nnum_vc = 148\npe_vc = 128\n"
NAIVE = f"{CORES}glb_mib = 126\nhbm_gib = 180\nhbm_gb_per_s = 8000\nclock_ghz = 1.856\n"
"""A B200 as somebody writes it who has read a data sheet."""


def written(tmp_path: Path, text: str, name: str = "chip.toml") -> AcceleratorPreset:
    """Write a file and read it."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return find_accelerator(str(path))


def test_what_a_file_leaves_out_is_derived_or_a_default_and_listed(tmp_path: Path) -> None:
    """Private buffers by the rule, a global buffer that slows nothing, defaults elsewhere."""
    preset = written(tmp_path, NAIVE)
    assert preset.accelerator.l2_tc_bytes == 16 * 64 * 64
    assert preset.origins["num_tc"] == preset.origins["hbm_bytes_per_s"] == "stated"
    assert {"l2_tc_bytes", "l2_vc_bytes", "glb_bytes_per_cycle"} <= preset.assumed.keys()
    assert preset.assumed["glb_bytes_per_cycle"].startswith("derived")
    assert preset.assumed["calibration.hbm_efficiency"] == "default"
    assert "l2_bytes_per_cycle" not in preset.assumed  # no limit assumes nothing
    assert not preset.assumed.keys() & {"num_tc", "glb_bytes", "hbm_bytes_per_s", "clock_hz"}


@given(
    st.integers(1, 256), st.sampled_from([16, 64, 128, 256]), st.sampled_from([16, 64, 128, 256])
)
def test_a_derived_global_buffer_slows_no_large_product(num_tc: int, pe_x: int, pe_y: int) -> None:
    """An isolated large product is bound by the arrays, whatever the cores."""
    chip = Accelerator(num_tc, 1, pe_x, pe_y, 128, 128 * MIB, hbm_bytes_per_s=1e15, clock_hz=1e9)
    roomy = replace(chip, hbm_bytes_per_s=1e12)
    derived = replace(chip, glb_bytes_per_cycle=glb_bytes_per_cycle_for(roomy))
    endless = replace(chip, glb_bytes_per_cycle=1e12)
    product = Gemm(16384, 16384, 16384)
    fast, slow = (estimate_gemm(product, one).latency_s for one in (endless, derived))
    assert fast <= slow <= 1.1 * fast


def test_the_published_point_has_the_bandwidth_that_is_derived() -> None:
    """The rule gives the 4096 bytes per cycle of Phaze."""
    chip = accelerator_presets()["tpuv4-phaze"].accelerator
    assert glb_bytes_per_cycle_for(chip) == chip.glb_bytes_per_cycle == 4096


def test_a_file_changes_its_base(tmp_path: Path) -> None:
    """A preset or another file, number by number; sources of what is kept are kept."""
    h100 = accelerator_presets()["h100"]
    preset = written(tmp_path, 'base = "h100"\nhbm_gib = 96\n[calibration]\nhbm_efficiency = 0.8\n')
    changed = {"hbm_gib": 96, "calibration.hbm_efficiency": 0.8}
    assert preset.accelerator == load_accelerator("h100", **changed)
    assert preset.origins["hbm_bytes"] == "stated"
    assert preset.origins["num_tc"] == "from h100"
    assert not preset.assumed
    assert preset.provenance["num_tc"] == h100.provenance["num_tc"]
    assert "hbm_bytes" not in preset.provenance
    again = written(tmp_path, 'base = "chip.toml"\nnum_tc = 100\n', "second.toml")
    assert again.accelerator == load_accelerator("h100", num_tc=100, **changed)
    assert again.origins["hbm_bytes"] == "stated"
    assert again.origins["num_vc"] == "from h100"


def test_a_base_keeps_what_it_assumes(tmp_path: Path) -> None:
    """A number that neither file states is still assumed."""
    written(tmp_path, NAIVE, "naive.toml")
    preset = written(tmp_path, 'base = "naive.toml"\nnum_tc = 100\n')
    assert preset.assumed["glb_bytes_per_cycle"].startswith("derived")


@pytest.mark.parametrize("name", accelerator_presets())
def test_what_is_shown_as_json_is_the_same_chip_as_a_file(tmp_path: Path, name: str) -> None:
    """With its name and the numbers that follow from the others, as JSON and as TOML."""
    preset = accelerator_presets()[name]
    shown = {
        "name": name,
        **to_builtins(preset.accelerator),
        **derived_numbers(preset.accelerator),
        "description": preset.description,
        "provenance": to_builtins(preset.provenance),
    }
    found = written(tmp_path, json.dumps(shown), "chip.json")
    assert found.accelerator == preset.accelerator
    assert found.provenance == preset.provenance
    lines = [f"{key} = {toml_value(value)}" for key, value in shown.items()
             if isinstance(value, str | bool | int | float)]  # fmt: skip
    lines += ["[calibration]"] + [f"{key} = {toml_value(value)}"
              for key, value in shown["calibration"].items() if value is not None]  # fmt: skip
    assert written(tmp_path, "\n".join(lines)).accelerator == preset.accelerator


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{NAIVE}peak_tflops = 2250\n", "peak_tflops and clock_ghz both state the clock"),
        (f"{NAIVE}hbm_bytes = 1\n", "hbm_gib and hbm_bytes state the same number"),
        (f"{NAIVE}glb_gib = 1\n", "Did you mean 'glb_mib'"),
        (f"{NAIVE}peak_flops_per_s = 1e15\n", "peak_flops_per_s is 1000000000000000.0 in the"),
        (f"{NAIVE}area_mm2 = 5\n", "area_mm2 is 5 in the"),
        (f"{NAIVE}[calibration]\nhbm_efficency = 1\n", "Did you mean 'calibration.hbm_efficiency'"),
        (f"calibration = 3\n{NAIVE}", "Unknown key"),
        (f"{CORES}glb_mib = 126\nnum_tc2 = 3", "Did you mean 'num_tc'"),
        ("peak_tflops = 100\npe_x = 4\n", "does not state num_tc, num_vc, pe_y, pe_vc, glb_bytes;"),
        (NAIVE.replace("num_tc", "num_tcs"), "Did you mean 'num_tc'"),
        (NAIVE.replace("glb_mib = 126", ""), r'does not state glb_bytes; .* base = "h100"\.$'),
        (
            f"{NAIVE.replace('clock_ghz', 'peak_tflops').replace('pe_x = 64', 'pe_x = 0')}",
            "pe_x is 0",
        ),
        (f"{NAIVE.replace('pe_x = 64', 'pe_x = 1.5')}", "pe_x"),
        ('base = "h1000"', "Did you mean 'h100'"),
        ("base = 3", "base in the accelerator file"),
        ('base = "h100"\nnum_tcs = 3', "Did you mean 'num_tc'"),
        ('base = "chip.toml"', "based on it again"),
        (f"name = 3\n{NAIVE}", "name in the"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    """With the number and the file."""
    with pytest.raises(InputError, match=message):
        written(tmp_path, text)


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    """By its path."""
    with pytest.raises(NotFoundError, match=r"other\.toml"):
        written(tmp_path, 'base = "other.toml"')


def test_a_chip_outside_the_area_table_has_no_area() -> None:
    """It has energies and leakage, on the line of the nearest two macros."""
    mi300x, h100 = (accelerator_presets()[name].accelerator for name in ("mi300x", "h100"))
    assert mi300x.area_mm2 is None and mi300x.area_if_known("chip") is None
    with pytest.raises(InputError, match="outside the SRAM table"):
        mi300x.area_under("phaze-22nm")
    assert static_power_w(mi300x) > 0.0
    sizes = [replace(h100, glb_bytes=size * MIB) for size in (1, 2, 64, 128, 256, 512)]
    joules = energy_per_event(sizes).glb_read_j_per_byte[:, 0]
    assert np.all(np.diff(joules) > 0.0)
    assert joules[4] / joules[3] == pytest.approx(joules[3] / joules[2], rel=1e-9)


def test_a_file_states_kernels_of_its_own(tmp_path: Path) -> None:
    """They join those of the base; a constant that no kernel has is refused."""
    path = tmp_path / "chip.toml"
    path.write_text('base = "h100"\n[kernels.te]\nattention_rate = 0.5\n', encoding="utf-8")
    found = find_accelerator(str(path))
    assert {"te", "fa2", "cudnn"} <= found.kernels.keys()
    own = with_kernel(found, "te").accelerator.calibration
    assert (own.attention_rate, own.exponentials_per_cycle) == (0.5, 16)
    path.write_text('base = "h100"\n[kernels.te]\nattention_rates = 0.5\n', encoding="utf-8")
    with pytest.raises(InputError, match="Did you mean 'attention_rate'"):
        find_accelerator(str(path))
