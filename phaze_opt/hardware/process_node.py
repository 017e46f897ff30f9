"""In what a chip is made: its process and its memory, and the area of its dies that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import MemoryKind, ProcessNodeName
from phaze_opt.codec import data_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.units import GIB

DEFAULT_NODE: ProcessNodeName = "n7"
DEFAULT_MEMORY: MemoryKind = "hbm2e"
"""What chips on paper cost as: the area model is calibrated on a die of 7 nm with HBM2E."""

RETICLE_MM2 = 858.0
"""Largest die that a scanner exposes at once: 26 mm × 33 mm."""

Number = TypeVar("Number", float, FloatArray)


@dataclass(frozen=True)
class ProcessNode:
    """A class of processes (``data/process_nodes.toml``).

    Attributes
    ----------
    die_area
        Area of a die relative to the area model ``chip``.
    logic_energy, sram_energy
        Energies of arithmetic and registers, and of SRAM macros, relative to their tables.
    """

    die_area: float
    logic_energy: float
    sram_energy: float
    confidence: str


@dataclass(frozen=True)
class Memory:
    """A kind of memory beside the dies (``data/memories.toml``).

    Attributes
    ----------
    pj_per_byte
        Energy of a read or write.
    stack_gib, stack_gb_per_s, stack_mm2
        Largest size and bandwidth of a stack on the interposer, and its area; 0 where the memory
        stands on the board.
    """

    pj_per_byte: float
    stack_gib: float
    stack_gb_per_s: float
    stack_mm2: float
    confidence: str


@cache
def process_nodes() -> Mapping[str, ProcessNode]:
    """Return the processes by name."""
    rows = data_table("hardware", "process_nodes.toml").items()
    return {name: ProcessNode(**row) for name, row in rows}


@cache
def memories() -> Mapping[str, Memory]:
    """Return the kinds of memory by name."""
    rows = data_table("hardware", "memories.toml").items()
    return {name: Memory(**row) for name, row in rows}


def silicon_mm2(area_chip_mm2: Number, node: ProcessNodeName | None) -> Number:
    """Return the area of all dies of a chip in its process from the area model ``chip``."""
    return area_chip_mm2 * process_nodes()[node or DEFAULT_NODE].die_area


def known_silicon_mm2(chip: Accelerator) -> float | None:
    """Return the area of all dies of a chip: that of its known dies, or what its area model gives.

    ``None`` where no die is known and a buffer lies outside the table of SRAM macros.
    """
    if chip.die_mm2 is not None:
        return chip.die_mm2 * (chip.dies_per_package or 1)
    area_mm2 = chip.area_chip_mm2
    return None if area_mm2 is None else silicon_mm2(area_mm2, chip.process_node)


def memory_stacks(hbm_bytes: Number, hbm_bytes_per_s: Number, kind: MemoryKind | None) -> Number:
    """Return how many stacks of memory hold some bytes and give some bandwidth; 0 without HBM."""
    memory = memories()[kind or DEFAULT_MEMORY]
    if memory.stack_gib == 0:
        return hbm_bytes * 0.0
    by_size = -(-hbm_bytes // (memory.stack_gib * GIB))
    by_rate = -(-hbm_bytes_per_s // (memory.stack_gb_per_s * 1e9)) * (hbm_bytes > 0)
    more: Number = by_rate - by_size
    return by_size + more * (more > 0)
