"""The chips of a space that a study allows, sorted into boxes of equal peak rates.

Chips that differ only in the size of the HBM are one architecture: only the placement depends on
that size, as long as none of them has no HBM. Architectures with equal numbers of processing
elements and lanes, and equal memories, are one box: their rooflines are equal
(`phaze_opt.estimator.rooflines`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.axis_groups import allowed_groups
from phaze_opt.bounds.box_table import BoxTable, OpenedBox, is_hbm_alone
from phaze_opt.bounds.chip_columns import (
    Build,
    chip_builder,
    may_lack_hbm,
    values_in_si,
)
from phaze_opt.estimator.chips import Chips
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.axis_names import CHIP_FIELDS, PRIVATE_BUFFERS, kind_of
from phaze_opt.spec.constraints import chip_violation
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import Space, combinations
from phaze_opt.units import GIB

_KEPT_ROWS = 2**21
"""Number of architectures whose boxes are kept."""

_BOXES = 2**12
"""Number of boxes whose kinds of energy are found together."""

_NO_ENERGY = ("num_vc", "pe_vc", "l2_vc_bytes", "hbm_bytes", "hbm_bytes_per_s")
"""Fields of chips without a cache that change no energy, but that smaller private buffers of vector
cores may take more of it: they read long rows again."""


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


@dataclass(eq=False)
class SpaceChips:
    """The chips of a space that are buildable and within the limits of a study.

    An architecture has a number, box by box. The architectures of a box are listed when one of them
    is asked for, and those of the last boxes are kept.

    Parameters
    ----------
    study
        The study.
    axes
        The searched chip axes, in the order of the space, but for the size of the HBM if nothing
        follows from it but what fits.
    hbm_axes
        The others.
    table
        All boxes.
    hbm_sizes : (sizes,)
        All sizes of the HBM within the limits, the same for all architectures; a single one if it
        is not searched, or another axis follows from it.
    hbm_indices : (sizes,)
        Index of each size on its axis; a single 0 if there is no such axis.
    build
        Makes a chip from the indices on all axes.
    """

    study: ResolvedStudy
    axes: tuple[str, ...]
    hbm_axes: tuple[str, ...]
    table: BoxTable
    hbm_sizes: IntArray
    hbm_indices: IntArray
    build: Build
    _opened: OrderedDict[int, OpenedBox] = field(default_factory=OrderedDict)
    _kept: int = 0

    def __len__(self) -> int:
        """Return the number of architectures."""
        return int(self.first[-1])

    @cached_property
    def first(self) -> IntArray:
        """The first architecture of every box, and the number of architectures: (boxes + 1,)."""
        return np.concatenate([[0], np.cumsum(self.table.chips)]).astype(np.int64)

    def boxes_of(self, rows: IntArray) -> IntArray:
        """Return the box of every architecture."""
        return np.searchsorted(self.first, rows, side="right") - 1

    def areas_mm2(self, rows: IntArray) -> FloatArray:
        """Return the areas of architectures, under the area model of the study."""
        return self._combinations(rows)[1]

    def hbm_bytes(self, rows: IntArray) -> IntArray:
        """Return all sizes of the HBM of architectures: (sizes, architectures)."""
        return self._hbm_bytes(self._combinations(rows)[0])

    def architecture(self, row: int) -> Accelerator:
        """Return the chip of an architecture with the smallest HBM."""
        (chip,) = self.architectures(np.array([row]))
        return chip

    def architectures(self, rows: IntArray) -> Chips:
        """Return the chips of some architectures with the smallest HBM."""
        return self._built(self._combinations(rows)[0])

    def of_boxes(self, boxes: IntArray) -> Chips:
        """Return chips with the rates of some boxes, which the limits may exclude."""
        return self._built(self._first_of(boxes))

    def hbm_bytes_of_boxes(self, boxes: IntArray) -> IntArray:
        """Return all sizes of the HBM of boxes: (sizes, boxes)."""
        return self._hbm_bytes(self._first_of(boxes))

    def point_indices(self, architecture: int, size: int) -> dict[str, int]:
        """Return the index on every searched chip axis of an architecture with one HBM size."""
        combinations, _ = self._combinations(np.array([architecture]))
        (indices,) = self._indices(combinations, size).tolist()
        return dict(zip((*self.axes, *self.hbm_axes), indices, strict=True))

    @cached_property
    def energy_kinds(self) -> EnergyKinds:
        """The kinds, each by its architecture with the largest private buffers."""
        unseen = set(_NO_ENERGY if self.study.base.concurrent_operators else ())
        if may_lack_hbm(self.study):
            unseen.discard("hbm_bytes")
        numbers = []
        for group in self.table.groups:
            seen = [column for name, column in group.group.columns.items() if name not in unseen]
            stacked = np.stack([np.zeros(len(group.group)), *seen])
            numbers.append(np.unique(stacked, axis=1, return_inverse=True)[1].reshape(-1))
        kinds, private_bytes = np.empty(len(self), np.int64), np.empty(len(self))
        for begin in range(0, len(self.table.chips), _BOXES):
            end = min(begin + _BOXES, len(self.table.chips))
            rows = np.arange(self.first[begin], self.first[end])
            combinations, _ = self._combinations(rows)
            of_tensor_cores, of_others = (
                number[own] for number, own in zip(numbers, combinations, strict=True)
            )
            kinds[rows] = of_tensor_cores * len(numbers[1]) + of_others
            private_bytes[rows] = self._columns("l2_vc_bytes", combinations)
        _, kind = np.unique(kinds, return_inverse=True)
        order = np.argsort(-private_bytes, kind="stable")
        _, first = np.unique(kind[order], return_index=True)
        return EnergyKinds(self.architectures(order[first]), kind.astype(np.int64))

    def _first_of(self, boxes: IntArray) -> IntArray:
        """Return the first combinations of the units of some boxes: (2, boxes)."""
        units = zip(self.table.groups, self.table.units[:, boxes], strict=True)
        return np.stack([group.first[own] for group, own in units])

    @cached_property
    def _varying(self) -> list[str]:
        """The fields that vary, but for private buffers and a size of the HBM that is searched."""
        unset = (*PRIVATE_BUFFERS, *(["hbm_bytes"] if self.hbm_axes else []))
        columns = {name for group in self.table.groups for name in group.group.columns}
        varying = self.study.spec.space.varying_fields
        return [name for name in varying if name in columns and name not in unset]

    def _hbm_bytes(self, combinations: IntArray) -> IntArray:
        """Return all sizes of the HBM of chips: (sizes, chips)."""
        if self.hbm_axes or "hbm_bytes" not in self.study.spec.space.varying_fields:
            shape = len(self.hbm_sizes), combinations.shape[1]
            return np.broadcast_to(self.hbm_sizes[:, np.newaxis], shape)
        return self._columns("hbm_bytes", combinations)[np.newaxis].astype(np.int64)

    def _columns(self, name: str, combinations: IntArray) -> FloatArray:
        """Return a field of pairs of combinations."""
        for group, own in zip(self.table.groups, combinations, strict=True):
            if name in group.group.columns:
                column: FloatArray = group.group.columns[name][own]
                return column
        raise KeyError(name)

    def _combinations(self, rows: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the combinations of both groups, (2, architectures), and the areas."""
        boxes, which = np.unique(self.boxes_of(rows), return_inverse=True)
        missing = np.array([box for box in boxes.tolist() if box not in self._opened], np.int64)
        for box, chips in zip(missing.tolist(), self.table.opened(missing), strict=True):
            self._opened[box] = chips
            self._kept += len(chips.area_mm2)
        combinations, area_mm2 = np.empty((2, len(rows)), np.int64), np.empty(len(rows))
        order = np.argsort(which.reshape(-1), kind="stable")
        ends = np.cumsum(np.bincount(which.reshape(-1), minlength=len(boxes))).tolist()
        for box, begin, end in zip(boxes.tolist(), [0, *ends], ends, strict=False):
            own, chips = order[begin:end], self._opened[box]
            self._opened.move_to_end(box)
            within = rows[own] - self.first[box]
            combinations[0, own] = chips.tensor_cores[within]
            combinations[1, own] = chips.others[within]
            area_mm2[own] = chips.area_mm2[within]
        while self._kept > _KEPT_ROWS:
            _, oldest = self._opened.popitem(last=False)
            self._kept -= len(oldest.area_mm2)
        return combinations, area_mm2

    def _indices(self, combinations: IntArray, size: int) -> IntArray:
        """Return the index of chips on all axes: (chips, axes)."""
        columns: dict[str, IntArray] = {}
        for group, own in zip(self.table.groups, combinations, strict=True):
            columns |= dict(zip(group.group.names, group.group.indices[own].T, strict=True))
        number = combinations.shape[1]
        columns |= {name: np.full(number, self.hbm_indices[size]) for name in self.hbm_axes}
        names = (*self.axes, *self.hbm_axes)
        return np.stack([np.zeros(number, np.int64), *(columns[name] for name in names)])[1:].T

    def _built(self, combinations: IntArray) -> Chips:
        """Make chips with the smallest HBM."""
        if "clock_hz" in self.study.spec.space.varying_fields:
            built = map(self.build, self._indices(combinations, 0).tolist())
            return Chips([chip for chip in built if chip is not None])
        (first,) = self._indices(combinations[:, :1], 0).tolist() or [None]
        chip = None if first is None else self.build(first)
        if chip is None:
            return Chips([])
        names = [*self._varying, *PRIVATE_BUFFERS]
        columns = [self._columns(name, combinations) for name in names]
        fields = [
            (column.astype(np.int64) if CHIP_FIELDS[name] == "int" else column).tolist()
            for name, column in zip(names, columns, strict=True)
        ]
        changed = (dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True))
        return Chips([chip.with_checked(values) for values in changed])


def allowed_chips(study: ResolvedStudy) -> SpaceChips:
    """Return the chips of a study's space that are buildable and within its limits.

    Raises
    ------
    InputError
        If the space is too large; see `phaze_opt.bounds.box_table`.
    """
    space = study.spec.space
    chip_axes = [name for name in space.searched if kind_of(name) == "chip"]
    hbm_axes = [name for name in chip_axes if is_hbm_alone(study, name)]
    axes = [name for name in chip_axes if name not in hbm_axes]
    build = chip_builder(study, [*axes, *hbm_axes])
    sizes_bytes, hbm_indices, fits = _hbm_sizes(study, hbm_axes)
    smallest = [int(hbm_indices[0])] * len(hbm_axes)

    def allowed(indices: Sequence[int]) -> Accelerator | None:
        chip = build([*indices, *smallest])
        return None if chip is None or chip_violation(study, chip) is not None else chip

    def clock_hz(indices: list[int]) -> float:
        chip = allowed(indices)
        return 0.0 if chip is None else chip.clock_hz

    fixed = dict(zip(hbm_axes, smallest, strict=True))
    varies = "clock_hz" in space.varying_fields
    groups = allowed_groups(study, axes, fixed, clock_hz if varies else None)
    if not fits:
        groups = groups[0].some(np.arange(0)), groups[1]
    names = [name for group in groups for name in group.names]
    place = [names.index(name) for name in axes]

    def allows(tensor_cores: list[int], others: list[int]) -> bool:
        indices = [*tensor_cores, *others]
        return allowed([indices[at] for at in place]) is not None

    sizes = [len(space.searched[name].values) for name in axes]
    strides = {name: math.prod(sizes[at + 1 :]) for at, name in enumerate(axes)}
    table = BoxTable.of(study, groups, strides, allows)
    return SpaceChips(study, tuple(axes), tuple(hbm_axes), table, sizes_bytes, hbm_indices, build)


def option_indices(space: Space) -> list[dict[str, int]]:
    """Return every combination of the searched axes that do not belong to the chip, by index."""
    axes = {name: axis for name, axis in space.searched.items() if kind_of(name) != "chip"}
    return combinations({name: range(len(axis.values)) for name, axis in axes.items()})


def _hbm_sizes(study: ResolvedStudy, hbm_axes: list[str]) -> tuple[IntArray, IntArray, bool]:
    """Return the sizes of the HBM within the limits, and their indices, the smallest first.

    Where the size follows from another axis, each architecture has its own, and these do not count.
    If no size is within the limits, that is said, and the first is returned.
    """
    space, limit_gib = study.spec.space, study.spec.constraints.max_hbm_gib
    sizes = values_in_si(space, "hbm_bytes") or [study.base.hbm_bytes]
    varies = "hbm_bytes" in space.varying_fields
    if not hbm_axes:
        sizes = sizes[:1]
    most_bytes = math.inf if limit_gib is None or (varies and not hbm_axes) else limit_gib * GIB
    allowed = sorted((int(size), at) for at, size in enumerate(sizes) if size <= most_bytes)
    own_bytes, indices = zip(*(allowed or [(int(sizes[0]), 0)]), strict=True)
    return np.array(own_bytes, dtype=np.int64), np.array(indices, dtype=np.int64), bool(allowed)
