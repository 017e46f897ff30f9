"""All chips of a space at once: their areas as arrays, and those that a study allows.

Chips that differ in the size of the HBM only are one architecture: nothing but the placement sees
that size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator, default_l2_bytes
from phaze_opt.hardware.area import AREA_FIELDS, area_of_arrays_mm2, sram_table
from phaze_opt.search.axes import RULE, Derived, Scalar
from phaze_opt.search.axis_names import (
    CHIP_ALIASES,
    CHIP_FIELDS,
    PRIVATE_BUFFERS,
    field_of,
    kind_of,
)
from phaze_opt.search.constraints import chip_violation
from phaze_opt.search.designs import chip_of
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.space import Space, point_at
from phaze_opt.units import GIB

MOST_CHIPS = 20_000_000
"""Chips of a space, those above the area limit included, that fit the memory of a machine."""

_NEAR = 1e-6
"""Relative distance from a limit within which chips are looked at one by one."""


@dataclass(frozen=True, eq=False)
class Chips:
    """The chips of a space that are buildable and within the limits of a study.

    Attributes
    ----------
    names
        Of the searched chip axes, in the order of the space, the HBM's size last.
    indices : (architectures, chip axes but the HBM's size)
        Of the value on each axis.
    architectures
        One chip for each, with the smallest HBM.
    area_mm2 : (architectures,)
        Under the area model of the study.
    hbm_bytes : (sizes, architectures)
        All sizes of the HBM that are within the limits, the same for all architectures; one size,
        each architecture's own, where it is not searched, or more follows from it.
    hbm_indices : (sizes,)
        Of these sizes on their axis; a single 0 where there is none.
    """

    names: tuple[str, ...]
    indices: IntArray
    architectures: tuple[Accelerator, ...]
    area_mm2: FloatArray
    hbm_bytes: IntArray
    hbm_indices: IntArray

    def point_indices(self, architecture: int, size: int) -> dict[str, int]:
        """Return the index on every searched chip axis of an architecture with one HBM size."""
        row = [*self.indices[architecture].tolist(), int(self.hbm_indices[size])]
        return dict(zip(self.names, row, strict=False))


def allowed_chips(study: ResolvedStudy) -> Chips:
    """Return the chips of a study's space that are buildable and within its limits.

    Raises
    ------
    InputError
        If the space has more than `MOST_CHIPS` of them.
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
    grid = np.array(np.unravel_index(np.arange(number), sizes or [1])).T[:, : len(names)]
    grid = grid[_perhaps_allowed(study, dict(zip(names, grid.T, strict=True)), number)]
    build = _builder(study, [*names, *hbm_axes])
    sizes_bytes, hbm_indices = _hbm_sizes(study, hbm_axes, build, len(names))
    kept: list[int] = []
    chips: list[Accelerator] = []
    for row, indices in enumerate(grid.tolist()):
        chip = build([*indices, *[int(hbm_indices[0])] * len(hbm_axes)])
        if chip is not None and chip_violation(study, chip) is None:
            kept.append(row)
            chips.append(chip)
    columns = {
        name: np.array([getattr(chip, name) for chip in chips], dtype=np.float64)
        for name in AREA_FIELDS
    }
    area_mm2 = area_of_arrays_mm2(columns, study.spec.area.model) if chips else np.zeros(0)
    own_bytes = np.array([[chip.hbm_bytes for chip in chips]], dtype=np.int64)
    hbm_bytes = np.repeat(sizes_bytes[:, np.newaxis], len(chips), axis=1) if hbm_axes else own_bytes
    return Chips((*names, *hbm_axes), grid[kept], tuple(chips), area_mm2, hbm_bytes, hbm_indices)


def option_indices(space: Space) -> list[dict[str, int]]:
    """Return every combination of the searched axes that are none of the chip, by index."""
    axes = {name: axis for name, axis in space.searched.items() if kind_of(name) != "chip"}
    ranges = [range(len(axis.values)) for axis in axes.values()]
    return [dict(zip(axes, indices, strict=True)) for indices in itertools.product(*ranges)]


def _is_hbm_alone(space: Space, name: str) -> bool:
    """Whether an axis is the size of the HBM, from which nothing else follows."""
    follows = any(isinstance(a, Derived) and a.source == name for a in space.axes.values())
    return field_of(name) == "hbm_bytes" and not follows


def _hbm_sizes(
    study: ResolvedStudy,
    hbm_axes: list[str],
    build: Callable[[list[int]], Accelerator | None],
    others: int,
) -> tuple[IntArray, IntArray]:
    """Return the sizes of the HBM within the limits, and their indices, the smallest first."""
    values = len(study.spec.space.searched[hbm_axes[0]].values) if hbm_axes else 1
    found = []
    for index in range(values):
        chip = build([0] * others + [index] * len(hbm_axes))
        size = study.base.hbm_bytes if chip is None else chip.hbm_bytes
        limit_gib = study.spec.constraints.max_hbm_gib
        if limit_gib is None or size <= limit_gib * GIB:
            found.append((size, index))
    found = sorted(found) or [(study.base.hbm_bytes, 0)]
    sizes, indices = zip(*found, strict=True)
    return np.array(sizes, dtype=np.int64), np.array(indices, dtype=np.int64)


def _builder(study: ResolvedStudy, names: list[str]) -> Callable[[list[int]], Accelerator | None]:
    """Return what makes a chip from the indices on its axes; ``None`` where there is none.

    A chip differs from the first one in the fields of its axes, and in the private buffers that
    follow the cores; only a clock changes more.
    """
    space = study.spec.space
    others = dict.fromkeys(space.searched, 0)
    varying = set(space.varying_fields)
    fields: list[tuple[str, str, list[Any]]] = []
    for name in space.axes:
        field = field_of(name)
        if kind_of(name) == "chip" and field in varying:
            root, values = _values_of(space, name)
            fields.append((field, root, [_in_si(name, value) for value in values]))

    def one_by_one(indices: list[int]) -> Accelerator | None:
        point = point_at(space, {**others, **dict(zip(names, indices, strict=True))})
        try:
            return chip_of(study.base, point.by_name)
        except InputError:
            return None

    if "clock_hz" in varying:
        return one_by_one
    first = one_by_one([0] * len(names))
    if first is None:
        return one_by_one
    rules: dict[str, Any] = {
        name: 0 for name in PRIVATE_BUFFERS if _has_rule(study, name) and name not in varying
    }
    place = {name: at for at, name in enumerate(names)}

    def build(indices: list[int]) -> Accelerator | None:
        changed = {field: values[indices[place[root]]] for field, root, values in fields}
        try:
            return replace(first, **rules, **changed)
        except InputError:
            return None

    return build


def _has_rule(study: ResolvedStudy, field: str) -> bool:
    """Whether a private buffer follows the cores: the base's does, or the space says so."""
    for name, axis in study.spec.space.axes.items():
        if field_of(name) == field:
            return RULE in study.spec.space.values_of(name) if axis else False
    base = study.base
    elements = base.pe_x * base.pe_y if field == "l2_tc_bytes" else base.pe_vc
    return bool(getattr(base, field) == default_l2_bytes(elements))


def _in_si(name: str, value: Scalar) -> Any:
    """Return the value of a field, 0 for the rule."""
    if value == RULE:
        return 0
    alias = CHIP_ALIASES.get(name)
    if alias is not None:
        return alias.to_field(float(value))
    return value if CHIP_FIELDS.get(name) == "int" else float(value)


def _perhaps_allowed(
    study: ResolvedStudy, indices: Mapping[str, IntArray], number: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell which chips may be within the limits of the area; the others are surely not."""
    columns = _area_columns(study, indices, number)
    l2, glb = sram_table("L2"), sram_table("GLB")
    held = glb.holds(columns["glb_bytes"])
    held &= l2.holds(columns["l2_tc_bytes"]) & l2.holds(columns["l2_vc_bytes"])
    area_mm2 = np.full(number, np.inf)
    inside = {name: column[held] for name, column in columns.items()}
    area_mm2[held] = area_of_arrays_mm2(inside, study.spec.area.model)
    limit_mm2 = study.area_limit_mm2
    several = (columns["num_tc"] > 1) & (columns["num_vc"] > 1)
    least_mm2 = np.where(several, study.spec.area.min_share * limit_mm2, 0.0)
    return (area_mm2 <= limit_mm2 * (1 + _NEAR)) & (area_mm2 >= least_mm2 * (1 - _NEAR))


def _area_columns(
    study: ResolvedStudy, indices: Mapping[str, IntArray], number: int
) -> dict[str, FloatArray]:
    """Return the fields that take area, each of shape (chips,)."""
    base, space = study.base, study.spec.space
    columns = {name: np.full(number, float(getattr(base, name))) for name in AREA_FIELDS}
    for name in space.axes:
        field = field_of(name)
        if kind_of(name) == "chip" and field in columns:
            root, values = _values_of(space, name)
            numbers = np.array([float(_in_si(name, value)) for value in values])
            at = indices.get(root)
            columns[field] = np.full(number, numbers[0]) if at is None else numbers[at]
    elements = {"l2_tc_bytes": columns["pe_x"] * columns["pe_y"], "l2_vc_bytes": columns["pe_vc"]}
    for field, count in elements.items():
        if _has_rule(study, field):
            columns[field] = np.array([default_l2_bytes(int(n)) for n in count], dtype=np.float64)
    return columns


def _values_of(space: Space, name: str) -> tuple[str, list[Scalar]]:
    """Return the axis that an axis follows, itself if none, and its value for each of that one's.

    A single value where the axis that it follows is not searched.
    """
    root = name
    while root in space.derived:
        root = space.derived[root].source
    others = dict.fromkeys(space.searched, 0)
    if root not in space.searched:
        return root, [point_at(space, others)[name]]
    number = len(space.searched[root].values)
    return root, [point_at(space, {**others, root: index})[name] for index in range(number)]
