"""Energy of each event, from published energies per access and CACTI macros at 22 nm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import MemoryKind, ProcessNodeName
from phaze_opt.codec import data_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import (
    SramTable,
    area_constants,
    macro_um2,
    narrow_multipliers,
    sram_table,
)
from phaze_opt.hardware.process_node import memories, process_nodes
from phaze_opt.precision import PRECISIONS, ProductPrecision
from phaze_opt.units import J_PER_PJ, MIB, MM2_PER_UM2

_BYTES_PER_SRAM_ACCESS = 8


@dataclass(frozen=True)
class EnergyConstants:
    """Energies and leakage that do not depend on the accelerator (``data/energy.toml``).

    The leakage of SRAM, ``sram_leakage_w_per_mib``, is per mebibit. What a GPU spends on the
    instruction beside an operation is relative to the operation.
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
    instruction_per_mac: float
    instruction_per_lane_operation: float
    source: str


Joules = Any
"""A number, or an array of shape (accelerators, 1)."""


@dataclass(frozen=True, eq=False)
class EnergyPerEvent:
    """Joules per event; those of SRAM macros have shape (accelerators, 1).

    The others have it too where the accelerators differ in their process or memory.

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

    mac_j: Joules
    mac_registers_j: Joules
    mac_shares: FloatArray
    register_shares: FloatArray
    lane_cycle_j: Joules
    lane_registers_j: Joules
    l2_tc_read_j_per_byte: FloatArray
    l2_tc_write_j_per_byte: FloatArray
    glb_read_j_per_byte: FloatArray
    glb_write_j_per_byte: FloatArray
    hbm_j_per_byte: Joules
    network_j_per_byte: float


@cache
def energy_constants() -> EnergyConstants:
    """Return the constants of ``data/energy.toml``."""
    return EnergyConstants(**data_table("hardware", "energy.toml"))


def energy_per_event(accelerators: Sequence[Accelerator]) -> EnergyPerEvent:
    """Return the energies of the events on some accelerators, in the process of each.

    Chips on paper, which state no process or memory, have the energies of the tables.
    """
    return _energy_per_event(
        tuple([chip.l2_tc_bytes for chip in accelerators]),
        tuple([chip.glb_bytes for chip in accelerators]),
        tuple([chip.process_node for chip in accelerators]),
        tuple([chip.memory_kind for chip in accelerators]),
        tuple([_is_programmed(chip) for chip in accelerators]),
    )


@lru_cache(maxsize=64)
def _energy_per_event(
    l2_sizes: tuple[int, ...],
    glb_sizes: tuple[int, ...],
    nodes: tuple[ProcessNodeName | None, ...],
    kinds: tuple[MemoryKind | None, ...],
    programmed: tuple[bool, ...],
) -> EnergyPerEvent:
    """Return the energies for some macros, cached: a search asks for every graph again."""
    constants = energy_constants()
    l2, glb = sram_table("L2"), sram_table("GLB")
    of_node = process_nodes()
    logic = _each([1.0 if node is None else of_node[node].logic_energy for node in nodes])
    sram = _each([1.0 if node is None else of_node[node].sram_energy for node in nodes])
    hbm_pj = _each(
        [
            constants.hbm_pj_per_byte if kind is None else memories()[kind].pj_per_byte
            for kind in kinds
        ]
    )
    issued = _each([1.0 + constants.instruction_per_mac * each for each in programmed])
    lane_issued = _each(
        [1.0 + constants.instruction_per_lane_operation * each for each in programmed]
    )
    registers_pj = 2 * constants.register_read_pj + constants.register_write_pj
    lane_registers_pj = constants.lane_register_read_pj + constants.lane_register_write_pj
    return EnergyPerEvent(
        mac_j=constants.mac_pj * J_PER_PJ * logic * issued,
        mac_registers_j=registers_pj * J_PER_PJ * logic,
        mac_shares=np.array([mac_energy_share(name) for name in PRECISIONS]),
        register_shares=_register_shares(constants),
        lane_cycle_j=constants.lane_operation_pj * J_PER_PJ * logic * lane_issued,
        lane_registers_j=lane_registers_pj * J_PER_PJ * logic,
        l2_tc_read_j_per_byte=_per_byte_j(l2, l2.read_pj, l2_sizes) * sram,
        l2_tc_write_j_per_byte=_per_byte_j(l2, l2.write_pj, l2_sizes) * sram,
        glb_read_j_per_byte=_per_byte_j(glb, glb.read_pj, glb_sizes) * sram,
        glb_write_j_per_byte=_per_byte_j(glb, glb.write_pj, glb_sizes) * sram,
        hbm_j_per_byte=hbm_pj * J_PER_PJ,
        network_j_per_byte=constants.network_pj_per_byte * J_PER_PJ,
    )


def _is_programmed(chip: Accelerator) -> bool:
    """Whether a real chip fetches an instruction for each few operations, as GPUs do."""
    return chip.process_node is not None and not chip.concurrent_operators


def _each(values: Sequence[float]) -> Joules:
    """Return the one value of all accelerators, or an array of shape (accelerators, 1)."""
    alike = len({*values}) == 1
    return values[0] if alike else np.array(values)[:, np.newaxis]


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
