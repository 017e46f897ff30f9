"""The fields of all chips of a space as arrays, and single chips from their indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator, default_l2_bytes
from phaze_opt.hardware.area import AREA_FIELDS
from phaze_opt.spec.axes import RULE, Fixed, Scalar
from phaze_opt.spec.axis_names import (
    CHIP_ALIASES,
    CHIP_FIELDS,
    PRIVATE_BUFFERS,
    field_of,
    kind_of,
)
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import Space, point_at

Build = Callable[[list[int]], Accelerator | None]
"""Makes a chip from the indices on its axes; ``None`` if there is no such chip."""


def chip_builder(study: ResolvedStudy, names: list[str]) -> Build:
    """Return a function that makes a chip from the indices of its values on the named axes.

    A chip differs from the first chip in the fields of its axes, and in the private buffers whose
    size follows from the cores. A searched clock changes further fields.
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
    rules: dict[str, Any] = {name: 0 for name in PRIVATE_BUFFERS if _follows_cores(study, name)}
    place = {name: at for at, name in enumerate(names)}

    def build(indices: list[int]) -> Accelerator | None:
        changed = {field: values[indices[place[root]]] for field, root, values in fields}
        try:
            return replace(first, **rules, **changed)
        except InputError:
            return None

    return build


def chip_columns(
    study: ResolvedStudy, indices: Mapping[str, IntArray], number: int
) -> dict[str, FloatArray]:
    """Return the fields that take area or vary, except the clock, each of shape (chips,).

    Parameters
    ----------
    indices : mapping to (chips,)
        Index of the value on each chip axis, by name.
    number
        Number of chips.
    """
    base, space = study.base, study.spec.space
    varying = [name for name in space.varying_fields if name in CHIP_FIELDS]
    names = [name for name in dict.fromkeys((*AREA_FIELDS, *varying)) if name != "clock_hz"]
    columns = {name: np.full(number, float(getattr(base, name) or 0.0)) for name in names}
    for name in space.axes:
        field = field_of(name)
        if kind_of(name) == "chip" and field in columns:
            root, values = _values_of(space, name)
            numbers = np.array([float(_in_si(name, value)) for value in values])
            chosen = indices.get(root)
            columns[field] = np.full(number, numbers[0]) if chosen is None else numbers[chosen]
    elements = {"l2_tc_bytes": columns["pe_x"] * columns["pe_y"], "l2_vc_bytes": columns["pe_vc"]}
    for field, count in elements.items():
        if _has_rule(study, field):
            columns[field][:] = 0.0
        rows = np.flatnonzero(columns[field] == 0.0)
        sizes, which = np.unique(count[rows], return_inverse=True)
        columns[field][rows] = np.array([float(default_l2_bytes(int(n))) for n in sizes])[which]
    return columns


def _follows_cores(study: ResolvedStudy, field: str) -> bool:
    """Whether the size of a private buffer follows the rule on every chip."""
    stated = [axis for name, axis in study.spec.space.axes.items() if field_of(name) == field]
    return _has_rule(study, field) or stated == [Fixed(RULE)]


def _has_rule(study: ResolvedStudy, field: str) -> bool:
    """Whether no axis states the size of a private buffer, and the base has that of the rule."""
    if any(field_of(name) == field for name in study.spec.space.axes):
        return False
    base = study.base
    elements = base.pe_x * base.pe_y if field == "l2_tc_bytes" else base.pe_vc
    return bool(getattr(base, field) == default_l2_bytes(elements))


def _in_si(name: str, value: Scalar) -> Any:
    """Return the value of a field in SI units; 0 for the rule."""
    if value == RULE:
        return 0
    alias = CHIP_ALIASES.get(name)
    if alias is not None:
        return alias.to_field(float(value))
    return value if CHIP_FIELDS.get(name) == "int" else float(value)


def root_of(space: Space, name: str) -> str:
    """Return the axis from which an axis follows, in any number of steps, else itself."""
    while name in space.derived:
        name = space.derived[name].source
    return name


def values_in_si(space: Space, field: str) -> list[Any]:
    """Return all values of a field in SI units; none if no axis states it."""
    names = [name for name in space.axes if kind_of(name) == "chip" and field_of(name) == field]
    return [_in_si(name, value) for name in names for value in _values_of(space, name)[1]]


def may_lack_hbm(study: ResolvedStudy) -> bool:
    """Whether chips of a study's space may have no HBM, so that more than memory follows from it.

    Their operators read nothing from it, and the size of the global buffer is that of the memory.
    """
    return 0 in (values_in_si(study.spec.space, "hbm_bytes") or [study.base.hbm_bytes])


def _values_of(space: Space, name: str) -> tuple[str, list[Scalar]]:
    """Return the root of an axis, and the value of the axis for each value of the root.

    A root that is not searched gives a single value.
    """
    root = root_of(space, name)
    others = dict.fromkeys(space.searched, 0)
    if root not in space.searched:
        return root, [point_at(space, others)[name]]
    number = len(space.searched[root].values)
    return root, [point_at(space, {**others, root: index})[name] for index in range(number)]
