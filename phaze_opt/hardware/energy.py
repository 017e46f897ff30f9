"""Energy per event, from published per-access energies and CACTI macros at 22 nm."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from phaze_opt.hardware.area import FloatArray, SramLevel, sram_table
from phaze_opt.units import J_PER_PJ

if TYPE_CHECKING:
    from phaze_opt.hardware.accelerator import Accelerator

_BYTES_PER_SRAM_ACCESS = 8


@dataclass(frozen=True)
class EnergyConstants:
    """Energies that do not depend on the accelerator, in picojoules (``data/energy.toml``)."""

    mac_pj: float
    register_read_pj: float
    register_write_pj: float
    lane_operation_pj: float
    lane_register_read_pj: float
    lane_register_write_pj: float
    hbm_pj_per_byte: float
    network_pj_per_byte: float
    source: str


@dataclass(frozen=True, eq=False)
class EnergyPerEvent:
    """Joules per event; those of SRAM macros have shape (accelerators, 1).

    Attributes
    ----------
    mac_j
        One multiply-accumulate with its registers (two operands read, one result written).
    lane_cycle_j
        One vector lane for one cycle with its registers (one operand read, one result written).
    l2_tc_j_per_byte, glb_j_per_byte
        Mean of read and write.
    hbm_j_per_byte, network_j_per_byte
        Either direction.
    """

    mac_j: float
    lane_cycle_j: float
    l2_tc_j_per_byte: FloatArray
    glb_j_per_byte: FloatArray
    hbm_j_per_byte: float
    network_j_per_byte: float


@cache
def energy_constants() -> EnergyConstants:
    """Return the constants of ``data/energy.toml``."""
    path = resources.files("phaze_opt.hardware").joinpath("data/energy.toml")
    return EnergyConstants(**tomllib.loads(path.read_text("utf-8")))


def energy_per_event(accelerators: Sequence[Accelerator]) -> EnergyPerEvent:
    """Look up the energies of the macros of some accelerators."""
    constants = energy_constants()
    mac_pj = constants.mac_pj + 2 * constants.register_read_pj + constants.register_write_pj
    lane_pj = (
        constants.lane_operation_pj
        + constants.lane_register_read_pj
        + constants.lane_register_write_pj
    )
    return EnergyPerEvent(
        mac_j=mac_pj * J_PER_PJ,
        lane_cycle_j=lane_pj * J_PER_PJ,
        l2_tc_j_per_byte=_sram_j_per_byte("L2", [chip.l2_tc_bytes for chip in accelerators]),
        glb_j_per_byte=_sram_j_per_byte("GLB", [chip.glb_bytes for chip in accelerators]),
        hbm_j_per_byte=constants.hbm_pj_per_byte * J_PER_PJ,
        network_j_per_byte=constants.network_pj_per_byte * J_PER_PJ,
    )


def _sram_j_per_byte(level: SramLevel, sizes_bytes: Sequence[int]) -> FloatArray:
    """Mean of read and write energy per byte of some macros, of shape (sizes, 1)."""
    table = sram_table(level)
    pj = (
        table.interpolate(sizes_bytes, table.read_pj)
        + table.interpolate(sizes_bytes, table.write_pj)
    ) / 2
    return np.asarray(pj / _BYTES_PER_SRAM_ACCESS * J_PER_PJ)[:, np.newaxis]
