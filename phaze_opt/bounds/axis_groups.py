"""The chip axes of a space in groups, each of which decides some fields of a chip alone.

What a chip may be depends on its tensor cores, its vector cores and its memories together only by
the area and by the sizes of the buffers. So a space of 10^10 chips is a few thousand combinations
of each group, and its chips are pairs of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.bounds.chip_columns import chip_columns, root_of
from phaze_opt.errors import InputError
from phaze_opt.hardware.area import AREA_FIELDS, SramLevel, area_of_arrays_mm2, sram_table
from phaze_opt.hardware.buildable import tensor_cores_fit, vector_cores_fit
from phaze_opt.spec.axis_names import RATIOS, field_of, kind_of
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.units import KIB

TENSOR_CORES = ("num_tc", "pe_x", "pe_y", "l2_tc_bytes")
VECTOR_CORES = ("num_vc", "pe_vc", "l2_vc_bytes")
"""Fields of the cores of a chip. What tensor cores multiply beside bf16 is in no unit of cores, but
decides their area with them (`RATIOS`)."""

_MACROS: Mapping[str, SramLevel] = {"glb_bytes": "GLB", "l2_tc_bytes": "L2", "l2_vc_bytes": "L2"}

MOST_COMBINATIONS = 20_000_000
"""Most combinations of one group that are listed: memory limits it."""

_LISTED = 2**17
"""Number of combinations that are checked together, which limits the memory."""

NEAR = 1e-6
"""Relative distance from a limit within which each chip is checked alone."""

Columns = Mapping[str, FloatArray]


@dataclass(frozen=True, eq=False)
class AxisGroup:
    """Combinations of the values of some chip axes.

    Attributes
    ----------
    names
        The axes.
    indices : (combinations, axes)
        Index of the value on each.
    columns : mapping to (combinations,)
        The fields that they decide.
    """

    names: tuple[str, ...]
    indices: IntArray
    columns: Columns

    def __len__(self) -> int:
        """Return the number of combinations."""
        return len(self.indices)

    def some(self, which: IntArray | BoolArray) -> AxisGroup:
        """Return some of the combinations."""
        columns = {name: column[which] for name, column in self.columns.items()}
        return AxisGroup(self.names, self.indices[which], columns)

    def beside(self, other: AxisGroup) -> AxisGroup:
        """Return all pairs of combinations with another group, as one group."""
        mine = self.some(np.arange(len(self)).repeat(len(other)))
        yours = other.some(np.tile(np.arange(len(other)), len(self)))
        return AxisGroup(
            (*self.names, *other.names),
            np.concatenate([mine.indices, yours.indices], axis=1),
            {**mine.columns, **yours.columns},
        )


def allowed_groups(
    study: ResolvedStudy,
    names: Sequence[str],
    fixed: Mapping[str, int],
    clock_hz: Callable[[list[int]], float] | None,
) -> tuple[AxisGroup, AxisGroup]:
    """Return two groups of all axes, without what no allowed chip has.

    Parameters
    ----------
    study
        The study.
    names
        Its searched chip axes, but for the size of the HBM where nothing follows from it.
    fixed
        Index of the value on other axes.
    clock_hz
        Clock of the allowed chip of some indices, 0 if there is none, where it is searched: other
        fields follow from it, so that each chip is made alone. ``None`` where it is not.

    Returns
    -------
    tensor_cores, others
        Vector cores are in the first if they follow from an axis of the tensor cores; all axes are
        if the clock is searched.

    Raises
    ------
    InputError
        If a group has more than `MOST_COMBINATIONS` combinations.
    """
    parts = _parts(study, names)
    if clock_hz is not None:
        parts = [(names, set().union(*(fields for _, fields in parts)))]
    buildable = [_buildable(study, *part, fixed) for part in parts]
    least = [_of_least_area(study, group) for group in buildable]
    groups = []
    for place, group in enumerate(buildable):
        columns: dict[str, FloatArray] = {}
        for other in least[:place] + least[place + 1 :]:
            columns |= other.columns
        if any(len(other) == 0 for other in least):
            groups.append(group.some(np.zeros(0, dtype=np.int64)))
        else:
            area_mm2 = areas_mm2(study, {**columns, **group.columns})
            # Surely too large, beside whatever other groups.
            groups.append(group.some(area_mm2 <= study.area_limit_mm2 * (1.0 + NEAR)))
    if clock_hz is not None:
        (only,) = groups
        clocks_hz = np.array([clock_hz(row) for row in only.indices.tolist()])
        own = AxisGroup(only.names, only.indices, {**only.columns, "clock_hz": clocks_hz})
        groups = [own.some(clocks_hz > 0.0)]
    others = AxisGroup((), np.zeros((1, 0), dtype=np.int64), {})
    for group in groups[1:]:
        others = others.beside(group)
    return groups[0], others


def _parts(study: ResolvedStudy, names: Sequence[str]) -> list[tuple[Sequence[str], Set[str]]]:
    """Return the axes and the fields of every group: tensor cores, vector cores, the others."""
    space, fields = study.spec.space, set(chip_columns(study, {}, 1))
    decided: dict[str, set[str]] = {name: set() for name in names}
    for name in space.axes:
        root = root_of(space, name)
        if kind_of(name) == "chip" and root in decided:
            decided[root].add(field_of(name))
    tensor, vector = {*TENSOR_CORES, *RATIOS}, set(VECTOR_CORES)
    for own in decided.values():
        if own & tensor and own.intersection(VECTOR_CORES):
            tensor, vector = tensor | vector, set()
    for own in decided.values():
        (tensor if own & tensor else vector if own & vector else own).update(own)
    parts: list[tuple[Sequence[str], Set[str]]] = []
    for block in (tensor, vector, fields - tensor - vector):
        axes = [name for name in names if decided[name] & block]
        if block:
            parts.append((axes, block & fields))
    return parts


def _buildable(
    study: ResolvedStudy, names: Sequence[str], fields: Set[str], fixed: Mapping[str, int]
) -> AxisGroup:
    """Return the combinations of a group that can be built, whatever the other groups are."""
    sizes = [len(study.spec.space.searched[name].values) for name in names]
    number = math.prod(sizes)
    if number > MOST_COMBINATIONS:
        raise InputError(
            f"The axes {', '.join(names)} have {number:,} combinations, but at most "
            f"{MOST_COMBINATIONS:,} can be enumerated; fix some of them."
        )
    parts = []
    for begin in range(0, number, _LISTED):
        rows = np.arange(begin, min(begin + _LISTED, number))
        grid = np.array(np.unravel_index(rows, sizes or [1])).T[:, : len(names)].astype(np.int64)
        indices = {name: np.full(len(grid), index) for name, index in fixed.items()}
        indices |= dict(zip(names, grid.T, strict=True))
        columns = chip_columns(study, indices, len(grid))
        own = {name: column for name, column in columns.items() if name in fields}
        parts.append(AxisGroup(tuple(names), grid, own).some(_fits_alone(own, len(grid))))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in own}
    return AxisGroup(tuple(names), np.concatenate([part.indices for part in parts]), columns)


def _fits_alone(columns: Columns, number: int) -> BoolArray:
    """Return which combinations can be built and have a known area, as far as a group tells."""
    fits = np.ones(number, dtype=np.bool_)
    for name, level in _MACROS.items():
        if name in columns:
            fits &= sram_table(level).holds(columns[name])
    if "num_tc" in columns:
        fits &= tensor_cores_fit(columns)
    if "num_vc" in columns:
        fits &= vector_cores_fit(columns)
    return fits


def _of_least_area(study: ResolvedStudy, group: AxisGroup) -> AxisGroup:
    """Return the combination with the least area beside whatever other groups; none of none."""
    # Of a chip without cores.
    beside = dict.fromkeys(AREA_FIELDS, np.zeros(1))
    for name, level in _MACROS.items():
        beside[name] = np.array([sram_table(level).size_kib[0] * KIB])
    area_mm2 = areas_mm2(study, {**beside, **group.columns})
    return group.some(np.argsort(area_mm2, kind="stable")[:1] if len(group) else np.arange(0))


def areas_mm2(study: ResolvedStudy, columns: Columns) -> FloatArray:
    """Return areas under the model of a study; the fields may have any shapes that go together."""
    used = {name: columns[name] for name in AREA_FIELDS}
    return area_of_arrays_mm2(used, study.spec.area.model, study.pe_scale)
