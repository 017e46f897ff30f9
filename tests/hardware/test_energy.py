"""Joules per event and leakage: what the tables say, and nothing left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import area_constants, sram_table
from phaze_opt.hardware.energy import energy_constants, energy_per_event, static_power_w
from phaze_opt.precision import PRECISIONS
from phaze_opt.units import KIB, MIB

BASE = Accelerator(num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB)


def test_an_access_costs_what_its_macro_does() -> None:
    """Reads and writes of both levels, an eighth of a word of 64 bits for each byte."""
    l2, glb = sram_table("L2"), sram_table("GLB")
    cores = energy_per_event([replace(BASE, l2_tc_bytes=int(KIB * kib)) for kib in l2.size_kib])
    buffers = energy_per_event([replace(BASE, glb_bytes=int(KIB * kib)) for kib in glb.size_kib])
    for found_j, word_pj in (
        (cores.l2_tc_read_j_per_byte, l2.read_pj),
        (cores.l2_tc_write_j_per_byte, l2.write_pj),
        (buffers.glb_read_j_per_byte, glb.read_pj),
        (buffers.glb_write_j_per_byte, glb.write_pj),
    ):
        np.testing.assert_allclose(found_j[:, 0], word_pj / 8 * 1e-12, rtol=1e-12)


def test_a_result_needs_all_of_its_operands() -> None:
    """A multiply-accumulate reads two registers, a lane one; both write one."""
    found, stated = energy_per_event([BASE]), energy_constants()
    words_pj = 2 * stated.register_read_pj + stated.register_write_pj
    lane_pj = stated.lane_register_read_pj + stated.lane_register_write_pj
    np.testing.assert_allclose(found.mac_registers_j, words_pj * 1e-12)
    np.testing.assert_allclose(found.lane_registers_j, lane_pj * 1e-12)


def test_fewer_bits_take_less_energy() -> None:
    """A multiply-accumulate in eight bits less than one in 16, and one in four less still."""
    found = energy_per_event([BASE])
    for shares in (found.mac_shares, found.register_shares):
        by_name = dict(zip(PRECISIONS, shares.tolist(), strict=True))
        assert by_name["bf16"] == 1.0
        assert by_name["nvfp4"] < by_name["fp8"] <= by_name["mxfp8"] < 1.0
        assert by_name["int8"] <= by_name["fp8"]
    # The registers of 8 bits: two reads of half a word, and a sum as wide as ever.
    stated = energy_constants()
    of_sum = stated.register_write_pj
    share = (stated.register_read_pj + of_sum) / (2 * stated.register_read_pj + of_sum)
    assert found.register_shares[list(PRECISIONS).index("fp8")] == pytest.approx(share)


@pytest.mark.parametrize("core", ["num_tc", "num_vc"])
def test_every_core_leaks(core: str) -> None:
    """One more has the leakage of its elements or lanes and of its private buffer."""
    areas, stated = area_constants("phaze-22nm"), energy_constants()
    um2, l2_bytes = {
        "num_tc": (BASE.pe_x * BASE.pe_y * areas.tensor_pe_um2, BASE.l2_tc_bytes),
        "num_vc": (BASE.pe_vc * areas.vector_lane_um2, BASE.l2_vc_bytes),
    }[core]
    own_w = um2 * 1e-6 * stated.logic_leakage_w_per_mm2
    own_w += 8 * l2_bytes / MIB * stated.sram_leakage_w_per_mib
    more = replace(BASE, **{core: getattr(BASE, core) + 1})
    assert static_power_w(more) - static_power_w(BASE) == pytest.approx(own_w)
