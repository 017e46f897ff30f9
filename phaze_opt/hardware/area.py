"""Chip area of an accelerator from a table of SRAM macros and areas per block.

There are two models (``data/area_models.toml``). ``phaze-22nm``, the published one of Phaze (ICML
2024), is a relative area budget: it has no network, PHY or control, and its multiply-accumulate is
close to 7 nm logic. ``chip`` adds these blocks, partly from die photographs, partly estimated, and
has larger vector lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import AreaModel
from phaze_opt.codec import data_rows, data_table
from phaze_opt.errors import InputError, look_up
from phaze_opt.units import KIB, MM2_PER_UM2

SramLevel = Literal["L2", "GLB"]

AREA_FIELDS = (
    "num_tc", "pe_x", "pe_y", "num_vc", "pe_vc", "l2_tc_bytes", "l2_vc_bytes",
    "glb_bytes", "glb_bytes_per_cycle", "hbm_bytes", "hbm_bytes_per_s",
    "fp8_ratio", "fp4_ratio", "int8_ratio",
)  # fmt: skip
"""Fields of `Accelerator` that take area."""


@dataclass(frozen=True)
class AreaConstants:
    """Area of each block under one model.

    Attributes
    ----------
    tensor_pe_um2, vector_lane_um2
        One processing element of a tensor core, and one lane of a vector core.
    core_mm2
        Control, DMA and router of each core.
    hbm_phy_mm2_per_gb_per_s
        PHY and controller per GB/s of HBM bandwidth.
    noc_mm2_per_byte_per_cycle
        On-chip network per byte and cycle of global-buffer bandwidth.
    link_phy_mm2_per_gb_per_s
        PHYs of the links to other devices per GB/s and direction, see `link_area_mm2`.
    narrow_multipliers
        Whether what multiplies fewer bits than 16 takes area beside what multiplies bf16.
    source
        Origin of the numbers.
    """

    tensor_pe_um2: float
    vector_lane_um2: float
    core_mm2: float
    hbm_phy_mm2_per_gb_per_s: float
    noc_mm2_per_byte_per_cycle: float
    link_phy_mm2_per_gb_per_s: float
    narrow_multipliers: bool
    source: str


@dataclass(frozen=True)
class NarrowMultiplier:
    """A multiply-accumulate in fewer bits than 16, relative to one in bf16, without registers."""

    area: float
    energy: float
    source: str
    confidence: str


@cache
def narrow_multipliers() -> dict[str, NarrowMultiplier]:
    """Return the constants of ``data/narrow_multipliers.toml`` by kind: fp8, fp4, int8."""
    rows = data_table("hardware", "narrow_multipliers.toml").items()
    return {kind: NarrowMultiplier(**row) for kind, row in rows}


def narrow_share(ratios: Mapping[str, npt.ArrayLike]) -> FloatArray:
    """Return the area of what multiplies fewer bits, relative to what multiplies bf16.

    Multipliers of their own, as many as there are of the kind that takes most: other kinds use
    these. Real arrays also share them with bf16, so that this is an upper bound.

    Parameters
    ----------
    ratios
        ``fp8_ratio``, ``fp4_ratio`` and ``int8_ratio`` of some chips, 0 where there are none; one
        that is left out is 0.
    """
    share: FloatArray = np.zeros(())
    for kind, multiplier in narrow_multipliers().items():
        ratio = np.asarray(ratios.get(f"{kind}_ratio", 0.0), dtype=np.float64)
        share = np.maximum(share, ratio * multiplier.area)
    return share


@dataclass(frozen=True)
class SramTable:
    """Area and access energy of the macros of one level, by rising size.

    Attributes
    ----------
    size_kib, area_um2, read_pj, write_pj : (sizes,)
        Energies are per access of 64 bits.
    """

    level: SramLevel
    size_kib: FloatArray
    area_um2: FloatArray
    read_pj: FloatArray
    write_pj: FloatArray

    def holds(self, size_bytes: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell which sizes lie within the table."""
        size_kib = np.asarray(size_bytes, dtype=np.float64) / KIB
        return np.asarray((size_kib >= self.size_kib[0]) & (size_kib <= self.size_kib[-1]))

    def interpolate(
        self, size_bytes: npt.ArrayLike, column: FloatArray, *, beyond: bool = False
    ) -> FloatArray:
        """Interpolate a column between the tabulated sizes, linearly in both logarithms.

        Parameters
        ----------
        size_bytes : any shape
        column : (sizes,)
            One of the table's arrays after the first.
        beyond
            Whether sizes outside the table go on along the line of the nearest two; they are
            refused else. Energy and leakage do so; areas are never guessed.

        Returns
        -------
        values
            In the shape of ``size_bytes`` and the unit of the column.

        Raises
        ------
        InputError
            If a size lies outside the table.
        """
        size_kib = np.asarray(size_bytes, dtype=np.float64) / KIB
        held = self.holds(size_bytes)
        if not (beyond or np.all(held)):
            value = float(np.extract(~held, size_kib)[0])
            raise InputError(
                f"A {self.level} of {value:g} KiB lies outside the SRAM table, which holds "
                f"{self.size_kib[0]:g} to {self.size_kib[-1]:g} KiB."
            )
        exact = np.minimum(np.searchsorted(self.size_kib, size_kib), len(self.size_kib) - 1)
        x, y = np.log(self.size_kib), np.log(column)
        logarithm = np.interp(np.log(size_kib), x, y)
        if not np.all(held):
            end = np.where(size_kib < self.size_kib[0], 0, len(x) - 2)
            slope = (y[end + 1] - y[end]) / (x[end + 1] - x[end])
            logarithm = np.where(held, logarithm, y[end] + slope * (np.log(size_kib) - x[end]))
        return np.where(self.size_kib[exact] == size_kib, column[exact], np.exp(logarithm))


@cache
def sram_table(level: SramLevel) -> SramTable:
    """Return the CACTI 7 macros at 22 nm of one level (``data/sram_22nm.csv``)."""
    rows = [row for row in data_rows("hardware", "sram_22nm.csv") if row["level"] == level]

    def column(name: str) -> FloatArray:
        return np.array([float(row[name]) for row in rows])

    return SramTable(
        level,
        column("size_kib"),
        column("area_um2"),
        column("read_pj_per_64bit"),
        column("write_pj_per_64bit"),
    )


@lru_cache(maxsize=4096)
def macro_um2(level: SramLevel, size_bytes: float) -> float:
    """Return the area of one macro, cached: chips of a search have few sizes.

    Raises
    ------
    InputError
        If the size lies outside the table.
    """
    table = sram_table(level)
    return float(table.interpolate(size_bytes, table.area_um2))


@lru_cache(maxsize=4096)
def has_macro(level: SramLevel, size_bytes: float) -> bool:
    """Tell whether a size lies within the table of a level, cached."""
    return bool(sram_table(level).holds(size_bytes))


def _macros_um2(level: SramLevel, size_bytes: npt.ArrayLike) -> FloatArray | float:
    """Return the areas of macros of some sizes."""
    if np.ndim(size_bytes) == 0:
        return macro_um2(level, float(np.asarray(size_bytes)))
    table = sram_table(level)
    return table.interpolate(size_bytes, table.area_um2)


@cache
def area_constants(model: str) -> AreaConstants:
    """Return the constants of an area model.

    Raises
    ------
    InputError
        If there is no such model.
    """
    return AreaConstants(**look_up(data_table("hardware", "area_models.toml"), model, "area model"))


def tensor_core_um2(
    pe_x: npt.ArrayLike, pe_y: npt.ArrayLike, l2_bytes: npt.ArrayLike, constants: AreaConstants
) -> FloatArray:
    """Area of one tensor core: its processing elements and its private buffer.

    The control of a core (``core_mm2``) is not included.
    """
    pe_um2 = np.asarray(pe_x) * np.asarray(pe_y) * constants.tensor_pe_um2
    return np.asarray(pe_um2 + _macros_um2("L2", l2_bytes))


def vector_core_um2(
    pe_vc: npt.ArrayLike, l2_bytes: npt.ArrayLike, constants: AreaConstants
) -> FloatArray:
    """Area of one vector core: its lanes and its private buffer.

    The control of a core (``core_mm2``) is not included.
    """
    lanes_um2 = np.asarray(pe_vc) * constants.vector_lane_um2
    return np.asarray(lanes_um2 + _macros_um2("L2", l2_bytes))


def link_area_mm2(bytes_per_s: float, model: AreaModel) -> float:
    """Return the area of the PHYs of links to other devices, which is no part of a chip's own.

    Parameters
    ----------
    bytes_per_s
        Nominal bandwidth per direction, of all levels of the network together: what goes through a
        network adapter leaves the chip, too.
    model
        Area model; 0 under ``phaze-22nm``.
    """
    return area_constants(model).link_phy_mm2_per_gb_per_s * bytes_per_s / 1e9


def area_of_arrays_mm2(
    columns: Mapping[str, npt.ArrayLike], model: AreaModel, pe_scale: float = 1.0
) -> FloatArray:
    """Area of many accelerators at once.

    GLB + num_tc · tensor core + num_vc · vector core + control of all cores + HBM PHY, where there
    is an HBM, + network; the last three are zero under ``phaze-22nm``, which reproduces the
    published list of Phaze (ICML 2024) and knows no multipliers but those of bf16.

    Parameters
    ----------
    columns
        The fields of `AREA_FIELDS`, each of shape (accelerators,) or a scalar; ratios that are left
        out are 0.
    model
        Area model.
    pe_scale
        Area of processing elements and vector lanes relative to the model's, for what-if questions.

    Returns
    -------
    area_mm2 : (accelerators,)

    Raises
    ------
    InputError
        If a buffer lies outside the table of SRAM macros.
    """
    constants = area_constants(model)
    if pe_scale != 1.0:
        constants = replace(
            constants,
            tensor_pe_um2=constants.tensor_pe_um2 * pe_scale,
            vector_lane_um2=constants.vector_lane_um2 * pe_scale,
        )
    value = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    elements = value["pe_x"] * value["pe_y"]
    if constants.narrow_multipliers:
        elements = elements * (1.0 + narrow_share(value))
    blocks_um2 = (
        _macros_um2("GLB", value["glb_bytes"])
        + value["num_tc"] * tensor_core_um2(elements, 1.0, value["l2_tc_bytes"], constants)
        + value["num_vc"] * vector_core_um2(value["pe_vc"], value["l2_vc_bytes"], constants)
    )
    # A chip without HBM has no PHY, whatever bandwidth it states.
    hbm_gb_per_s = np.where(value["hbm_bytes"] > 0.0, value["hbm_bytes_per_s"], 0.0) / 1e9
    rest_mm2 = (
        (value["num_tc"] + value["num_vc"]) * constants.core_mm2
        + hbm_gb_per_s * constants.hbm_phy_mm2_per_gb_per_s
        + value["glb_bytes_per_cycle"] * constants.noc_mm2_per_byte_per_cycle
    )
    return np.asarray(blocks_um2 * MM2_PER_UM2 + rest_mm2)
