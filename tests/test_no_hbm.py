"""Chips without HBM: all that they hold is in the global buffer, whose bandwidth alone binds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.explanation.explain import explain
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import area_constants
from phaze_opt.hardware.chip_file import chip_file_text
from phaze_opt.hardware.presets import find_accelerator, load_accelerator
from phaze_opt.spec.space import Space
from phaze_opt.training import Training
from phaze_opt.units import GIB, MIB

MODEL = "gpt:layers=2,hidden=256,heads=4,sequence=128,vocab=1024,attention=flash"
CLUSTER, DEVICES = "tpuv4-ici-flat", 8
ROOMY = 2**44
TRAINING = Training(global_batch=32, microbatch=2, optimizer="adam", zero=1)


def evaluated(chip: Accelerator, training: Training = TRAINING) -> Evaluation:
    """Evaluate the small model."""
    return evaluate(MODEL, chip, CLUSTER, training, devices=DEVICES)


@given(
    base=st.sampled_from(["tpuv4-lanes", "h100", "trainium1"]),
    glb_mib=st.sampled_from([32, 64]),
    hbm_gib=st.sampled_from([1, 32]),
    hbm_gb_per_s=st.sampled_from([100.0, 1000.0]),
    options=st.fixed_dictionaries(
        {
            "recompute": st.sampled_from(["none", "full"]),
            "zero": st.sampled_from([0, 1, 3]),
            "residency": st.booleans(),
            "overlap": st.sampled_from(["data", "all"]),
        }
    ),
)
@settings(max_examples=10, deadline=None)
def test_no_hbm_beside_a_boundless_buffer_is_never_slower(
    base: str, glb_mib: int, hbm_gib: int, hbm_gb_per_s: float, options: dict[str, object]
) -> None:
    """An operator then waits for nothing that it does not wait for with an HBM."""
    chip = load_accelerator(base, glb_mib=glb_mib, hbm_gib=hbm_gib, hbm_gb_per_s=hbm_gb_per_s)
    assert chip.memory_bytes_per_s < chip.glb_bytes_per_cycle * chip.sustained_clock_hz
    training = replace(TRAINING, **options)  # type: ignore[arg-type]
    without = evaluated(replace(chip, hbm_bytes=0, glb_bytes=ROOMY), training)
    fastest = evaluated(chip, training)
    assert without.throughput_samples_per_s >= fastest.throughput_samples_per_s * (1 - 1e-9)


def test_no_operator_waits_for_an_hbm_or_takes_its_energy() -> None:
    """The optimizer's bytes pass through the buffer, and cost what it takes."""
    chip = load_accelerator("tpuv4-lanes", hbm_gib=0, glb_mib=64)
    result = evaluated(chip)
    assert result.feasible
    assert result.energy_by_level_j["hbm"] == 0.0
    assert result.bound_by_share.get("hbm", 0.0) == 0.0
    more = evaluated(chip, replace(TRAINING, zero=0)).energy_by_level_j
    assert more["glb"] > result.energy_by_level_j["glb"]  # all replicas update all parameters
    explained = explain(MODEL, chip, CLUSTER, TRAINING, devices=DEVICES)
    resources = {gain.resource for gain in explained.gains}
    assert "glb_size" in resources
    assert not resources & {"hbm", "hbm_size"}
    for layer in explained.layers:
        for each in (layer.forward, layer.backward):
            assert each.bound_s["hbm"] == each.hbm_bytes == each.hbm_bytes_without == 0.0


def test_the_optimizer_passes_through_the_buffer() -> None:
    """Where its bandwidth is low, half of it doubles the step."""
    chip = load_accelerator("tpuv4-lanes", hbm_gib=0, glb_mib=256)
    step_s = [
        evaluated(replace(chip, glb_bytes_per_cycle=rate)).time_breakdown_s["optimizer"]
        for rate in (16.0, 8.0)
    ]
    assert step_s[1] == pytest.approx(2.0 * step_s[0])


def test_the_bandwidth_of_an_hbm_that_is_not_there_does_not_count() -> None:
    """A chip that states one equals a chip that states 0, area included."""
    chip = load_accelerator("tpuv4-lanes", hbm_gib=0, glb_mib=64)
    none = load_accelerator("tpuv4-lanes", hbm_gib=0, hbm_gb_per_s=0, glb_mib=64)
    assert evaluated(chip) == evaluated(none)
    with_hbm = replace(chip, hbm_bytes=32 * GIB)
    phy_mm2 = area_constants("chip").hbm_phy_mm2_per_gb_per_s * chip.hbm_bytes_per_s / 1e9
    assert none.area_under("chip") == pytest.approx(with_hbm.area_under("chip") - phy_mm2)
    assert none.area_mm2 == with_hbm.area_mm2


def test_what_fits_is_the_usable_share_of_the_buffer() -> None:
    """Weights, states, stashes and the working set; the sentence says what is missing."""
    chip = load_accelerator("tpuv4-lanes", hbm_gib=0, glb_mib=64)
    held = evaluated(chip)
    assert held.placement is not None
    needed = held.placement.stages[0].memory_bytes
    assert needed.transient > 0
    whole = replace(chip.calibration, usable_hbm_share=1.0)
    enough = replace(chip, glb_bytes=needed.total, calibration=whole)
    assert enough.usable_memory_bytes == needed.total
    degrees = held.placement.pipeline, held.placement.data, held.placement.tensor

    def placed(size_bytes: int) -> Evaluation:
        sized = replace(enough, glb_bytes=size_bytes)
        return evaluate(MODEL, sized, CLUSTER, TRAINING, devices=DEVICES, placement=degrees)

    assert placed(needed.total).feasible
    short = placed(needed.total - MIB)
    assert not short.feasible
    assert short.misfit is not None
    assert short.misfit.excess_bytes == MIB
    assert "1 MiB more than the usable" in str(short.reason)


def test_a_larger_buffer_is_proposed_where_it_is_the_memory() -> None:
    """The fewest whole MiB that fit, as an option of the command line."""
    chip = load_accelerator("tpuv4-lanes", hbm_gib=0, glb_mib=4)
    explained = explain(MODEL, chip, CLUSTER, TRAINING, devices=1)
    (larger,) = [fix for fix in explained.fixes if "glb_size" in fix.kinds]
    assert larger.feasible
    (option,) = larger.options
    name, size = option.removeprefix("--set ").split("=")
    assert name == "glb_mib"
    fits, fails = (
        evaluate(MODEL, replace(chip, glb_bytes=mib * MIB), CLUSTER, TRAINING, devices=1)
        for mib in (int(size), int(size) - 1)
    )
    assert fits.feasible
    assert not fails.feasible


def test_the_recompute_that_is_solved_sees_a_roomy_buffer() -> None:
    """It is what `full` and `none` give, whichever is faster of those that fit."""
    chip = load_accelerator("groq-lpu")
    solved = evaluated(chip, replace(TRAINING, recompute="solve"))
    times = [evaluated(chip, replace(TRAINING, recompute=kind)) for kind in ("none", "full")]
    assert solved.throughput_samples_per_s >= max(e.throughput_samples_per_s for e in times)


def test_files_state_it(tmp_path: Path) -> None:
    """A chip without HBM is written and read back; nothing is derived from its bandwidth."""
    path = tmp_path / "sram.toml"
    path.write_text(chip_file_text(find_accelerator("groq-lpu")))
    assert find_accelerator(str(path)).accelerator == load_accelerator("groq-lpu")
    cores = "num_tc = 2\nnum_vc = 2\npe_x = 64\npe_y = 64\npe_vc = 64\nglb_mib = 64\n"
    path.write_text(f"{cores}hbm_gib = 0\nhbm_gb_per_s = 1e6\n")
    slow = find_accelerator(str(path)).accelerator
    path.write_text(f"{cores}hbm_gb_per_s = 1e6\n")
    assert slow.glb_bytes_per_cycle < find_accelerator(str(path)).accelerator.glb_bytes_per_cycle


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hbm_gib": -1}, "hbm_bytes is -1073741824, but it must be finite, and positive, or 0"),
        ({"hbm_gb_per_s": 0}, "hbm_bytes_per_s is 0, but it must be positive where hbm_bytes is"),
        ({"glb_mib": 0}, "glb_bytes is 0, but it must be positive"),
    ],
)
def test_other_sizes_are_refused(changes: dict[str, float], message: str) -> None:
    """In one sentence that says what is allowed."""
    with pytest.raises(InputError, match=message):
        load_accelerator("h100", **changes)


def test_spaces_may_hold_it() -> None:
    """An HBM of 0 is a value of its axis, and of no other."""
    assert Space(hbm_gib=[0, 32]).values_of("hbm_gib") == (0, 32)
    with pytest.raises(InputError, match="glb_mib of the space holds 0, but it must be a positive"):
        Space(glb_mib=[0, 32])
