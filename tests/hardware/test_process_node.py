"""Dies that follow from the area model, and energies of a process."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from phaze_opt.hardware.process_node import (
    known_silicon_mm2,
    memory_stacks,
    process_nodes,
    silicon_mm2,
)
from phaze_opt.units import GIB, MIB

PAPER = Accelerator(num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB)

CUT = ("h20", "rtx-4090", "tpuv3", "tpuv4", "tpuv5e")
"""A die of which most is switched off, one that lacks a ninth of its multiprocessors and a quarter
of its L2, and three of which only a limit or a span is known."""


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, preset in accelerator_presets().items()
        if preset.accelerator.die_mm2 is not None
        and preset.accelerator.area_chip_mm2 is not None
        and name not in CUT
    ],
)
def test_known_dies_follow_from_the_area_model(name: str) -> None:
    """Within 15 %."""
    chip = load_accelerator(name)
    assert chip.area_chip_mm2 is not None
    model_mm2 = silicon_mm2(chip.area_chip_mm2, chip.process_node)
    assert model_mm2 == pytest.approx(known_silicon_mm2(chip), rel=0.15)


def test_a_finer_process_makes_smaller_dies_of_less_energy() -> None:
    """From 28 nm to 3 nm, each no worse than the one before."""
    nodes = list(process_nodes().values())
    for coarse, fine in itertools.pairwise(nodes):
        assert fine.die_area < coarse.die_area
        assert fine.logic_energy < coarse.logic_energy
        assert fine.sram_energy < coarse.sram_energy


@pytest.mark.parametrize(
    ("name", "stacks"), [("a100-80", 5), ("h100", 5), ("b200", 8), ("b300", 8), ("mi300x", 8)]
)
def test_real_stacks_of_memory(name: str, stacks: int) -> None:
    """As many as these chips have."""
    chip = load_accelerator(name)
    assert memory_stacks(float(chip.hbm_bytes), chip.hbm_bytes_per_s, chip.memory_kind) == stacks


@given(st.integers(0, 512), st.integers(0, 64), st.floats(1e9, 1e13))
def test_more_memory_is_never_in_fewer_stacks(gib: int, more: int, rate: float) -> None:
    """And chips without HBM, or with GDDR, have none on the package."""
    few = memory_stacks(float(gib * GIB), rate, "hbm3")
    assert few <= memory_stacks(float((gib + more) * GIB), rate * 1.5, "hbm3")
    assert (few == 0) == (gib == 0)
    assert memory_stacks(float(gib * GIB), rate, "gddr") == 0


def test_a_chip_on_paper_has_the_energies_of_the_tables() -> None:
    """A process scales arithmetic and macros, a memory its bytes, and nothing else changes."""
    paper = energy_per_event([PAPER])
    made = energy_per_event([replace(PAPER, process_node="n5", memory_kind="hbm3")])
    assert made.mac_j == pytest.approx(0.7 * paper.mac_j)
    assert made.glb_read_j_per_byte[0, 0] == pytest.approx(0.2 * paper.glb_read_j_per_byte[0, 0])
    assert made.hbm_j_per_byte == pytest.approx(26e-12)
    assert made.network_j_per_byte == paper.network_j_per_byte


def test_a_gpu_spends_energy_on_its_instructions() -> None:
    """A fifth of a matrix instruction, twenty times that of a lane (Dally, DAC 2021)."""
    chip = replace(PAPER, process_node="n7")
    systolic, gpu = (
        energy_per_event([each]) for each in (chip, replace(chip, concurrent_operators=False))
    )
    assert gpu.mac_j == pytest.approx(1.2 * systolic.mac_j)
    assert gpu.lane_cycle_j == pytest.approx(21 * systolic.lane_cycle_j)


def test_chips_of_several_processes_are_told_apart() -> None:
    """Together each has what it has alone."""
    chips = [replace(PAPER, process_node=node) for node in ("n16", "n3")]
    both = energy_per_event(chips)
    for row, chip in enumerate(chips):
        alone = energy_per_event([chip])
        np.testing.assert_allclose(both.mac_j[row, 0], alone.mac_j)
        np.testing.assert_allclose(both.glb_write_j_per_byte[row], alone.glb_write_j_per_byte[0])


def test_another_chip_has_no_known_die() -> None:
    """One that a photograph showed is not that of a chip with other numbers."""
    changed = load_accelerator("h100", num_tc=100)
    assert (changed.die_mm2, changed.dies_per_package) == (None, None)
    assert changed.process_node == "n4"
    assert load_accelerator("h100", die_mm2=700, glb_mib=64).die_mm2 == 700


def test_a_process_is_one_of_those_known() -> None:
    """As ``--set`` gives it."""
    assert load_accelerator("h100", process_node="n5").process_node == "n5"
    assert load_accelerator("h100", memory_kind="none").memory_kind is None
    with pytest.raises(InputError, match="process_node"):
        load_accelerator("h100", process_node="n6")
    with pytest.raises(InputError, match="die_mm2"):
        load_accelerator("h100", die_mm2=-1)
