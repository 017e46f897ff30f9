"""Energy of each event, from published energies per access and CACTI macros at 22 nm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.codec import data_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import (
    SramTable,
    area_constants,
    macro_um2,
    narrow_multipliers,
    sram_table,
)
from phaze_opt.precision import PRECISIONS, ProductPrecision
from phaze_opt.units import J_PER_PJ, MIB, MM2_PER_UM2

_BYTES_PER_SRAM_ACCESS = 8


@dataclass(frozen=True)
class EnergyConstants:
    """Energies and leakage that do not depend on the accelerator (``data/energy.toml``).

    The leakage of SRAM, ``sram_leakage_w_per_mib``, is per mebibit.
    """

    mac_pj: float
    register_read_pj: float
    register_write_pj: float
    lane_operation_pj: float
    lane_register_read_pj: float
    lane_register_write_pj: float
    hbm_pj_per_byte: float
    network_pj_per_byte: float
    logic_leakage_w_per_mm2: float
    sram_leakage_w_per_mib: float
    source: str


@dataclass(frozen=True, eq=False)
class EnergyPerEvent:
    """Joules per event; those of SRAM macros have shape (accelerators, 1).

    Attributes
    ----------
    mac_j, mac_registers_j
        One multiply-accumulate in bf16, and its registers: two operands read, one result written.
    mac_shares, register_shares : (precisions,)
        The same in other precisions, relative to bf16, in the order of
        `phaze_opt.precision.PRECISIONS`: narrow operands are read in fewer bits, and sums are as
        wide as ever.
    lane_cycle_j, lane_registers_j
        One vector lane for one cycle, and its registers: one operand read, one result written.
    l2_tc_read_j_per_byte, l2_tc_write_j_per_byte, glb_read_j_per_byte, glb_write_j_per_byte
        Access to the SRAM macro of that size.
    hbm_j_per_byte
        Read or write.
    network_j_per_byte
        Sent from one device to another.
    """

    mac_j: float
    mac_registers_j: float
    mac_shares: FloatArray
    register_shares: FloatArray
    lane_cycle_j: float
    lane_registers_j: float
    l2_tc_read_j_per_byte: FloatArray
    l2_tc_write_j_per_byte: FloatArray
    glb_read_j_per_byte: FloatArray
    glb_write_j_per_byte: FloatArray
    hbm_j_per_byte: float
    network_j_per_byte: float


@cache
def energy_constants() -> EnergyConstants:
    """Return the constants of ``data/energy.toml``."""
    return EnergyConstants(**data_table("hardware", "energy.toml"))


def energy_per_event(accelerators: Sequence[Accelerator]) -> EnergyPerEvent:
    """Return the energies of the events on some accelerators."""
    return _energy_per_event(
        tuple(chip.l2_tc_bytes for chip in accelerators),
        tuple(chip.glb_bytes for chip in accelerators),
    )


@lru_cache(maxsize=64)
def _energy_per_event(l2_sizes: tuple[int, ...], glb_sizes: tuple[int, ...]) -> EnergyPerEvent:
    """Return the energies for some sizes of macros, cached: a search asks for every graph again."""
    constants = energy_constants()
    l2, glb = sram_table("L2"), sram_table("GLB")
    return EnergyPerEvent(
        mac_j=constants.mac_pj * J_PER_PJ,
        mac_registers_j=(2 * constants.register_read_pj + constants.register_write_pj) * J_PER_PJ,
        mac_shares=np.array([mac_energy_share(name) for name in PRECISIONS]),
        register_shares=_register_shares(constants),
        lane_cycle_j=constants.lane_operation_pj * J_PER_PJ,
        lane_registers_j=(constants.lane_register_read_pj + constants.lane_register_write_pj)
        * J_PER_PJ,
        l2_tc_read_j_per_byte=_per_byte_j(l2, l2.read_pj, l2_sizes),
        l2_tc_write_j_per_byte=_per_byte_j(l2, l2.write_pj, l2_sizes),
        glb_read_j_per_byte=_per_byte_j(glb, glb.read_pj, glb_sizes),
        glb_write_j_per_byte=_per_byte_j(glb, glb.write_pj, glb_sizes),
        hbm_j_per_byte=constants.hbm_pj_per_byte * J_PER_PJ,
        network_j_per_byte=constants.network_pj_per_byte * J_PER_PJ,
    )


def _register_shares(constants: EnergyConstants) -> FloatArray:
    """Return the energy of the registers of a multiply-accumulate, relative to bf16."""
    pj = [
        precision.operand_bytes * constants.register_read_pj + constants.register_write_pj
        for precision in PRECISIONS.values()
    ]
    return np.array(pj) / pj[tuple(PRECISIONS).index("bf16")]


def mac_energy_share(precision: ProductPrecision) -> float:
    """Return the energy of a multiply-accumulate in a precision, relative to bf16."""
    kind = PRECISIONS[precision].element
    return 1.0 if kind == "bf16" else narrow_multipliers()[kind].energy


def _per_byte_j(table: SramTable, column: FloatArray, sizes_bytes: Sequence[int]) -> FloatArray:
    """Return the energy per byte of macros of some sizes, as an array of shape (sizes, 1)."""
    pj_per_access = table.interpolate(sizes_bytes, column, beyond=True)
    return np.asarray(pj_per_access / _BYTES_PER_SRAM_ACCESS * J_PER_PJ)[:, np.newaxis]


def static_power_w(accelerator: Accelerator) -> float:
    """Leakage of logic and SRAM at operating temperature, in watts.

    A rough figure (``data/energy.toml``), reported beside the dynamic energy and never added to it.
    """
    constants = energy_constants()
    sram_bytes = (
        accelerator.glb_bytes
        + accelerator.num_tc * accelerator.l2_tc_bytes
        + accelerator.num_vc * accelerator.l2_vc_bytes
    )
    logic_mm2 = _logic_mm2(accelerator)
    sram_mib = 8 * sram_bytes / MIB
    return (
        logic_mm2 * constants.logic_leakage_w_per_mm2 + sram_mib * constants.sram_leakage_w_per_mib
    )


def _logic_mm2(accelerator: Accelerator) -> float:
    """Return the area of processing elements and lanes, without the SRAM macros."""
    area_mm2 = accelerator.area_mm2
    if area_mm2 is not None:
        return max(0.0, area_mm2 - _sram_area_mm2(accelerator))
    constants = area_constants("phaze-22nm")
    elements = accelerator.num_tc * accelerator.pe_x * accelerator.pe_y
    lanes = accelerator.num_vc * accelerator.pe_vc
    return MM2_PER_UM2 * (elements * constants.tensor_pe_um2 + lanes * constants.vector_lane_um2)


def _sram_area_mm2(accelerator: Accelerator) -> float:
    """Return the area of all SRAM macros of an accelerator."""
    um2 = (
        macro_um2("GLB", accelerator.glb_bytes)
        + accelerator.num_tc * macro_um2("L2", accelerator.l2_tc_bytes)
        + accelerator.num_vc * macro_um2("L2", accelerator.l2_vc_bytes)
    )
    return um2 * MM2_PER_UM2
