"""The chips of a space that a study allows, sorted into boxes of equal peak rates.

Chips that differ only in the size of the HBM are one architecture: only the placement depends on
that size. Architectures with equal numbers of processing elements and lanes, and equal memories,
are one box: their rooflines are equal (`phaze_opt.estimator.rooflines`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.bounds.chip_columns import Build, chip_builder, chip_columns
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import AREA_FIELDS, area_of_arrays_mm2, sram_table
from phaze_opt.hardware.buildable import are_buildable
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.axes import Derived
from phaze_opt.spec.axis_names import field_of, kind_of
from phaze_opt.spec.constraints import chip_violation
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import MOST_CHIPS, Space, combinations
from phaze_opt.units import GIB

_CANDIDATES = 2**17
"""Number of chips that are checked together, which limits the memory."""

_NEAR = 1e-6
"""Relative distance from a limit within which each chip is checked alone."""

_NO_ENERGY = ("num_vc", "pe_vc", "l2_vc_bytes", "hbm_bytes", "hbm_bytes_per_s")
"""Fields of chips without a cache that change no energy, but that smaller private buffers of vector
cores may take more of it: they read long rows again."""

_SHAPES = ("num_tc", "pe_x", "pe_y", "num_vc", "pe_vc", "l2_tc_bytes", "l2_vc_bytes")
"""Fields on which rooflines depend only by the numbers of processing elements and lanes."""


@dataclass(frozen=True, eq=False)
class EnergyKinds:
    """The chips of a space by what decides the least energy of a batch.

    Attributes
    ----------
    chips
        One of each kind, that takes the least energy.
    of : (architectures,)
        The kind of each architecture of the space.
    """

    chips: Chips
    of: IntArray


@dataclass(frozen=True, eq=False)
class SpaceChips:
    """The chips of a space that are buildable and within the limits of a study.

    Attributes
    ----------
    names
        The searched chip axes, in the order of the space, the size of the HBM last.
    indices : (architectures, chip axes except the size of the HBM)
        Index of the value on each axis; box by box.
    area_mm2 : (architectures,)
        Under the area model of the study.
    hbm_bytes : (sizes, architectures)
        All sizes of the HBM within the limits, equal for all architectures; a single size, each
        architecture's own, if it is not searched or another axis follows from it.
    hbm_indices : (sizes,)
        Index of each size on its axis; a single 0 if there is no such axis.
    first : (boxes + 1,)
        The first architecture of every box, and the number of architectures.
    kind : (architectures,)
        Architectures of one kind take equal energies, or more with smaller private buffers.
    private_bytes : (architectures,)
        Of the private buffer of a vector core.
    build
        Makes a chip from the indices on the axes of ``names``.
    """

    names: tuple[str, ...]
    indices: IntArray
    area_mm2: FloatArray
    hbm_bytes: IntArray
    hbm_indices: IntArray
    first: IntArray
    kind: IntArray
    private_bytes: FloatArray
    build: Build

    def __len__(self) -> int:
        """Return the number of architectures."""
        return len(self.indices)

    def architecture(self, row: int) -> Accelerator:
        """Return the chip of an architecture with the smallest HBM."""
        chip = self.build(self._row(row, 0))
        assert chip is not None
        return chip

    @cached_property
    def energy_kinds(self) -> EnergyKinds:
        """The kinds, each by its architecture with the largest private buffers."""
        order = np.argsort(-self.private_bytes, kind="stable")
        _, first = np.unique(self.kind[order], return_index=True)
        rows = order[first]
        return EnergyKinds(Chips([self.architecture(row) for row in rows.tolist()]), self.kind)

    def point_indices(self, architecture: int, size: int) -> dict[str, int]:
        """Return the index on every searched chip axis of an architecture with one HBM size."""
        return dict(zip(self.names, self._row(architecture, size), strict=True))

    def _row(self, architecture: int, size: int) -> list[int]:
        row: list[int] = self.indices[architecture].tolist()
        searched_hbm = len(self.names) > len(row)
        return [*row, int(self.hbm_indices[size])] if searched_hbm else row


def allowed_chips(study: ResolvedStudy) -> SpaceChips:
    """Return the chips of a study's space that are buildable and within its limits.

    Raises
    ------
    InputError
        If the space has more than `MOST_CHIPS` architectures.
    """
    space = study.spec.space
    chip_axes = [name for name in space.searched if kind_of(name) == "chip"]
    hbm_axes = [name for name in chip_axes if _is_hbm_alone(space, name)]
    names = [name for name in chip_axes if name not in hbm_axes]
    sizes = [len(space.searched[name].values) for name in names]
    number = int(np.prod(sizes, dtype=np.float64)) if sizes else 1
    if number > MOST_CHIPS:
        raise InputError(
            f"The space has {number:,} architectures, but at most {MOST_CHIPS:,} can be "
            "enumerated; fix some of its axes."
        )
    build = chip_builder(study, [*names, *hbm_axes])
    sizes_bytes, hbm_indices = _hbm_sizes(study, hbm_axes, build, len(names))
    hbm_row = [int(hbm_indices[0])] * len(hbm_axes)
    parts = []
    for begin in range(0, number, _CANDIDATES):
        rows = np.arange(begin, min(begin + _CANDIDATES, number))
        grid = np.array(np.unravel_index(rows, sizes or [1])).T[:, : len(names)]
        parts.append(_allowed_of(study, names, grid, build, hbm_row))
    grid = np.concatenate([part[0] for part in parts])
    columns = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
    area_mm2 = np.concatenate([part[2] for part in parts])
    if "clock_hz" in space.varying_fields:
        built = (build([*indices, *hbm_row]) for indices in grid.tolist())
        columns["clock_hz"] = np.array([0.0 if chip is None else chip.clock_hz for chip in built])
    order, first = _boxes(study, columns)
    own_bytes = sizes_bytes[:, np.newaxis]
    if not hbm_axes and "hbm_bytes" in columns:
        own_bytes = columns["hbm_bytes"][np.newaxis, order].astype(np.int64)
    return SpaceChips(
        names=(*names, *hbm_axes),
        indices=grid[order],
        area_mm2=area_mm2[order],
        hbm_bytes=np.broadcast_to(own_bytes, (len(own_bytes), len(grid))),
        hbm_indices=hbm_indices,
        first=first,
        kind=_energy_kinds(study, columns)[order],
        private_bytes=columns["l2_vc_bytes"][order],
        build=build,
    )


def _allowed_of(
    study: ResolvedStudy, names: list[str], grid: IntArray, build: Build, hbm_row: list[int]
) -> tuple[IntArray, dict[str, FloatArray], FloatArray]:
    """Return the rows of a grid whose chips are allowed, with their columns and areas."""
    columns = chip_columns(study, dict(zip(names, grid.T, strict=True)), len(grid))
    area_mm2 = _areas_mm2(study, columns)
    allowed, surely = _allowed(study, columns, area_mm2)
    for row in np.flatnonzero(allowed & ~surely).tolist():
        chip = build([*grid[row].tolist(), *hbm_row])
        allowed[row] = chip is not None and chip_violation(study, chip) is None
    columns = {name: column[allowed] for name, column in columns.items()}
    return grid[allowed], columns, area_mm2[allowed]


def option_indices(space: Space) -> list[dict[str, int]]:
    """Return every combination of the searched axes that do not belong to the chip, by index."""
    axes = {name: axis for name, axis in space.searched.items() if kind_of(name) != "chip"}
    return combinations({name: range(len(axis.values)) for name, axis in axes.items()})


def _is_hbm_alone(space: Space, name: str) -> bool:
    """Whether an axis is the size of the HBM, from which nothing else follows."""
    follows = any(isinstance(a, Derived) and a.source == name for a in space.axes.values())
    return field_of(name) == "hbm_bytes" and not follows


def _hbm_sizes(
    study: ResolvedStudy, hbm_axes: list[str], build: Build, others: int
) -> tuple[IntArray, IntArray]:
    """Return the sizes of the HBM within the limits, and their indices, the smallest first."""
    values = len(study.spec.space.searched[hbm_axes[0]].values) if hbm_axes else 1
    allowed = []
    for index in range(values):
        chip = build([0] * others + [index] * len(hbm_axes))
        size = study.base.hbm_bytes if chip is None else chip.hbm_bytes
        limit_gib = study.spec.constraints.max_hbm_gib
        if limit_gib is None or size <= limit_gib * GIB:
            allowed.append((size, index))
    sizes, indices = zip(*(sorted(allowed) or [(study.base.hbm_bytes, 0)]), strict=True)
    return np.array(sizes, dtype=np.int64), np.array(indices, dtype=np.int64)


def _areas_mm2(study: ResolvedStudy, columns: dict[str, FloatArray]) -> FloatArray:
    """Return the area of every chip; infinite if a buffer lies outside the table of macros."""
    l2, glb = sram_table("L2"), sram_table("GLB")
    held = glb.holds(columns["glb_bytes"])
    held &= l2.holds(columns["l2_tc_bytes"]) & l2.holds(columns["l2_vc_bytes"])
    area_mm2 = np.full(len(held), np.inf)
    inside = {name: columns[name][held] for name in AREA_FIELDS}
    area_mm2[held] = area_of_arrays_mm2(inside, study.spec.area.model, study.pe_scale)
    return area_mm2


def _allowed(
    study: ResolvedStudy, columns: dict[str, FloatArray], area_mm2: FloatArray
) -> tuple[BoolArray, BoolArray]:
    """Return which chips may be within the limits, and which surely are; see `chip_violation`."""
    limit_mm2 = study.area_limit_mm2
    several = (columns["num_tc"] > 1) & (columns["num_vc"] > 1)
    least_mm2 = np.where(several, study.spec.area.min_share * limit_mm2, 0.0)
    perhaps = (area_mm2 <= limit_mm2 * (1 + _NEAR)) & (area_mm2 >= least_mm2 * (1 - _NEAR))
    surely = (area_mm2 < limit_mm2 * (1 - _NEAR)) & (area_mm2 >= least_mm2 * (1 + _NEAR))
    surely &= are_buildable(columns)
    limit_gib = study.spec.constraints.max_hbm_gib
    if limit_gib is not None:
        surely &= columns.get("hbm_bytes", study.base.hbm_bytes) <= limit_gib * GIB
    if "clock_hz" in study.spec.space.varying_fields:
        surely[:] = False
    return perhaps, surely


def box_rates(study: ResolvedStudy, columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the fields in which the chips of one box are equal.

    Parameters
    ----------
    columns : mapping to (chips,)
        The fields of `phaze_opt.hardware.area.AREA_FIELDS`, and those that vary.

    Returns
    -------
    rates : mapping to (chips,)
        Processing elements and lanes of all cores together, and the other fields that vary.
    """
    # Without residency, no roofline depends on the size of the global buffer.
    options = (*study.spec.space.values_of("residency"), study.spec.residency)
    unseen = _SHAPES if any(options) else (*_SHAPES, "glb_bytes")
    varying = [name for name in columns if name in study.spec.space.varying_fields]
    if any(_is_hbm_alone(study.spec.space, name) for name in study.spec.space.searched):
        unseen = (*unseen, "hbm_bytes")
    rates = {name: columns[name] for name in varying if name not in unseen}
    rates["processing_elements"] = columns["num_tc"] * columns["pe_x"] * columns["pe_y"]
    rates["lanes"] = columns["num_vc"] * columns["pe_vc"]
    if study.base.exponentials_per_cycle is not None:
        # Each core has its own unit for exponentials, however many lanes it has.
        rates["vector_cores"] = columns["num_vc"]
    return rates


def _boxes(study: ResolvedStudy, columns: dict[str, FloatArray]) -> tuple[IntArray, IntArray]:
    """Sort chips into boxes.

    Returns
    -------
    order : (chips,)
        Box by box; chips of a box keep their order.
    first : (boxes + 1,)
        The first chip of each box, and the number of chips.
    """
    rates = np.stack(list(box_rates(study, columns).values()))
    _, which = np.unique(rates, axis=1, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    counts = np.bincount(which)
    return order.astype(np.int64), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _energy_kinds(study: ResolvedStudy, columns: Mapping[str, FloatArray]) -> IntArray:
    """Return a number for all chips with equal fields, but for those that change no energy."""
    unseen = _NO_ENERGY if study.base.concurrent_operators else ()
    seen = [column for name, column in columns.items() if name not in unseen]
    _, which = np.unique(np.stack(seen), axis=1, return_inverse=True)
    return which.reshape(-1).astype(np.int64)
