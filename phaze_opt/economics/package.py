"""What it costs to make a chip: its dies, its memory, and the package around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from phaze_opt.choices import MemoryKind, ProcessNodeName
from phaze_opt.economics.constants import Case, package, wafer
from phaze_opt.economics.die import Number, die_usd
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.process_node import (
    DEFAULT_MEMORY,
    DEFAULT_NODE,
    RETICLE_MM2,
    known_silicon_mm2,
    memories,
    memory_stacks,
)
from phaze_opt.units import GIB

MADE = ("silicon", "memory", "packaging", "loss", "assembly")
"""Parts of what a chip costs to make."""

_MOST_DIES = 8
"""So many dies are tried, unless the reticle needs more."""


@dataclass(frozen=True)
class Parts(Generic[Number]):
    """The parts of one chip, or of many: numbers, or arrays of one shape.

    Attributes
    ----------
    silicon_mm2
        Area of all dies together, without what links several of them.
    memory_gib, stacks
        Its memory beside the dies, and in how many stacks on the interposer.
    node, memory
        In what they are made.
    dies
        Number of dies where it is known; they then hold what links them.
    """

    silicon_mm2: Number
    memory_gib: Number
    stacks: Number
    node: ProcessNodeName
    memory: MemoryKind
    dies: int | None = None

    @classmethod
    def of(cls, chip: Accelerator) -> Parts[float] | None:
        """Return the parts of a chip; ``None`` where the area of its dies is unknown."""
        area_mm2 = known_silicon_mm2(chip)
        if area_mm2 is None:
            return None
        return Parts.made_as(chip, area_mm2, float(chip.hbm_bytes), chip.hbm_bytes_per_s)

    @staticmethod
    def made_as(
        chip: Accelerator, silicon_mm2: Number, hbm_bytes: Number, hbm_bytes_per_s: Number
    ) -> Parts[Number]:
        """Return the parts of chips with the process, kind of memory and known dies of one.

        Parameters
        ----------
        chip
            That one; its size, memory and bandwidth do not count.
        silicon_mm2
            Area of all dies of each chip.
        hbm_bytes, hbm_bytes_per_s
            Size and bandwidth of the memory of each.
        """
        dies = chip.dies_per_package
        if dies is None and chip.die_mm2 is not None:
            dies = 1
        return Parts(
            silicon_mm2,
            hbm_bytes / GIB,
            memory_stacks(hbm_bytes, hbm_bytes_per_s, chip.memory_kind),
            chip.process_node or DEFAULT_NODE,
            chip.memory_kind or DEFAULT_MEMORY,
            dies,
        )


def package_usd(parts: Parts[Number], dies: Number, case: Case) -> Mapping[str, Number]:
    """Return what a chip costs to make by part, in US dollars, in some number of dies.

    ``loss`` is what is lost with packages in which one of the attached parts fails.
    """
    own, of_wafer = package(case), wafer(parts.node, case)
    die_mm2 = die_area_mm2(parts, dies)
    silicon = dies * die_usd(die_mm2, of_wafer, own)
    # What is sold as a GB of memory beside a chip is a GiB.
    memory = parts.memory_gib * own.memory_usd_per_gb[parts.memory]
    attached = dies + parts.stacks
    on_interposer = attached > 1.0
    of_area = own.interposer_usd_per_mm2 - own.organic_usd_per_mm2
    usd_per_mm2 = own.organic_usd_per_mm2 + of_area * on_interposer
    area_mm2 = dies * die_mm2 + parts.stacks * memories()[parts.memory].stack_mm2
    packaging = usd_per_mm2 * area_mm2
    mounted = packaging + silicon + memory * (parts.stacks > 0.0)
    loss = mounted * (own.attached_share**-attached - 1.0)
    assembly = own.assembly_usd + 0.0 * silicon
    return dict(zip(MADE, (silicon, memory, packaging, loss, assembly), strict=True))


def die_area_mm2(parts: Parts[Number], dies: Number) -> Number:
    """Return the area of one die: several of a hypothetical chip also hold what links them."""
    die_mm2 = parts.silicon_mm2 / dies
    if parts.dies is not None:
        return die_mm2
    return die_mm2 * (1.0 + package("central").die_to_die_share * (dies > 1.0))


def cheapest_dies(parts: Parts[float]) -> float:
    """Return the number of dies in which a chip is cheapest to make: the known one, if there is.

    From as few as the reticle allows to `_MOST_DIES`: a chip of larger area has fewer choices, so
    that it never costs less.
    """
    return min(
        numbers_of_dies(parts), key=lambda dies: sum(package_usd(parts, dies, "central").values())
    )


def numbers_of_dies(parts: Parts[Number]) -> list[Number]:
    """Return the numbers of dies that are tried; only the known one, where there is one."""
    if parts.dies is not None:
        return [0.0 * parts.silicon_mm2 + parts.dies]
    share = 1.0 + package("central").die_to_die_share
    alone = -(-parts.silicon_mm2 // RETICLE_MM2)
    linked = -(-parts.silicon_mm2 * share // RETICLE_MM2)
    fewest = alone + (linked - alone) * (alone > 1.0)
    return [fewest + (dies - fewest) * (dies > fewest) for dies in range(1, _MOST_DIES + 1)]
