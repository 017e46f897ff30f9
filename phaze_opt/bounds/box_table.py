"""The boxes of a space: how many allowed chips each has, and which they are.

A box is a pair of a *unit* of tensor cores and one of the other fields; a unit is all combinations
of one group of axes (`phaze_opt.bounds.axis_groups`) with equal rates. Chips are counted pair by
pair, in parts that limit the memory, and are listed box by box, when a box is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.bounds.axis_groups import (
    NEAR,
    TENSOR_CORES,
    VECTOR_CORES,
    AxisGroup,
    Columns,
    areas_mm2,
)
from phaze_opt.bounds.chip_columns import may_lack_hbm
from phaze_opt.errors import InputError
from phaze_opt.hardware.area import AREA_FIELDS
from phaze_opt.hardware.buildable import buffers_fit
from phaze_opt.spec.axes import Derived
from phaze_opt.spec.axis_names import field_of
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import MOST_CHIPS
from phaze_opt.units import GIB

MOST_BOXES = 5_000_000
"""Most boxes of a space."""

_DENSE = 2**20
"""Number of pairs that are checked together."""

Allows = Callable[[list[int], list[int]], bool]
"""Whether a study allows the chip of some indices on the axes of both groups."""


@dataclass(frozen=True, eq=False)
class Units:
    """A group of axes, sorted by the rates of its combinations.

    Attributes
    ----------
    group
        Unit by unit.
    first : (units + 1,)
        First combination of every unit, and their number.
    rates : mapping to (units,)
        See `box_rates`.
    flat : (combinations,)
        Part of the flat index of a chip on all axes.
    """

    group: AxisGroup
    first: IntArray
    rates: Columns
    flat: IntArray

    @classmethod
    def of(cls, study: ResolvedStudy, group: AxisGroup, strides: Mapping[str, int]) -> Units:
        """Sort a group; combinations of a unit keep their order."""
        rates = box_rates(study, group.columns)
        stacked = np.stack([np.zeros(len(group)), *rates.values()])
        distinct, which = np.unique(stacked, axis=1, return_inverse=True)
        which = which.reshape(-1)
        order = np.argsort(which, kind="stable")
        own = np.array([strides[name] for name in group.names], dtype=np.int64)
        return cls(
            group.some(order),
            np.concatenate([[0], np.cumsum(np.bincount(which))]).astype(np.int64),
            dict(zip(rates, distinct[1:], strict=True)),
            (group.indices @ own)[order],
        )

    def runs_of(self, units: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first combination of some units, and how many they have."""
        return self.first[units], self.first[units + 1] - self.first[units]

    def unit_of(self, combinations: IntArray) -> IntArray:
        """Return the unit of every combination."""
        return np.searchsorted(self.first, combinations, side="right") - 1


@dataclass(frozen=True, eq=False)
class OpenedBox:
    """The chips of a box, in the order of their flat index on the axes.

    Attributes
    ----------
    tensor_cores, others : (chips,)
        Combinations of both groups.
    area_mm2 : (chips,)
    """

    tensor_cores: IntArray
    others: IntArray
    area_mm2: FloatArray


@dataclass(frozen=True, eq=False)
class BoxTable:
    """All boxes of a space that have a chip.

    Attributes
    ----------
    tensor_cores, others
        Both groups of axes.
    units : (2, boxes)
        Unit of either group.
    chips : (boxes,)
        Number of chips.
    least_mm2 : (boxes,)
        Smallest area of a chip.
    refused : (chips,)
        Flat indices of chips near a limit that are not allowed.
    """

    study: ResolvedStudy
    tensor_cores: Units
    others: Units
    units: IntArray
    chips: IntArray
    least_mm2: FloatArray
    refused: IntArray

    @classmethod
    def of(
        cls,
        study: ResolvedStudy,
        groups: tuple[AxisGroup, AxisGroup],
        strides: Mapping[str, int],
        allows: Allows,
    ) -> BoxTable:
        """Count the chips of all boxes.

        Parameters
        ----------
        study, groups
            The study, and its axes.
        strides
            Of the flat index, by axis.
        allows
            Checks a single chip.

        Raises
        ------
        InputError
            If there are too many boxes, or pairs to check.
        """
        tensor_cores, others = (Units.of(study, group, strides) for group in groups)
        pairs = len(tensor_cores.group) * len(others.group)
        if pairs > MOST_CHIPS:
            raise InputError(
                f"The space has {pairs:,} chips to check against the limits, but at most "
                f"{MOST_CHIPS:,} can be; fix some of its axes."
            )
        table = cls(study, tensor_cores, others, *_NO_BOXES)
        parts: list[tuple[IntArray, IntArray, FloatArray]] = []
        refused: list[int] = []
        number = 0
        for part in table._counted(allows, refused) if pairs else ():
            parts.append(part)
            number += len(part[1])
            if number > MOST_BOXES:
                raise InputError(
                    f"The space has more than {MOST_BOXES:,} boxes of chips; fix some of its axes."
                )
        units, chips, least_mm2 = table._sorted(parts) if parts else _NO_BOXES[:3]
        return cls(
            study,
            tensor_cores,
            others,
            units,
            chips,
            least_mm2,
            np.array(sorted(refused), np.int64),
        )

    @property
    def groups(self) -> tuple[Units, Units]:
        """Both groups."""
        return self.tensor_cores, self.others

    @property
    def rates(self) -> Columns:
        """The rates of every box: mapping to (boxes,), in the order of `box_rates`."""
        tensor_unit, other_unit = self.units
        found = {name: rate[tensor_unit] for name, rate in self.tensor_cores.rates.items()}
        found |= {name: rate[other_unit] for name, rate in self.others.rates.items()}
        return {name: found[name] for name in _rate_names(self.study) if name in found}

    def opened(self, boxes: IntArray) -> Iterator[OpenedBox]:
        """Yield the chips of some boxes."""
        if len(boxes) == 0:
            return
        (begin, rows), (other_begin, columns) = (
            group.runs_of(units)
            for group, units in zip(self.groups, self.units[:, boxes], strict=True)
        )
        box = np.arange(len(boxes)).repeat(rows * columns)
        within = np.arange(len(box)) - (np.cumsum(rows * columns) - rows * columns)[box]
        tensor_cores = begin[box] + within // columns[box]
        others = other_begin[box] + within % columns[box]
        together = {
            **self.tensor_cores.group.some(tensor_cores).columns,
            **self.others.group.some(others).columns,
        }
        area_mm2 = areas_mm2(self.study, together)
        flat = self.tensor_cores.flat[tensor_cores] + self.others.flat[others]
        perhaps, _ = _allowed(self.study, together, area_mm2)
        if len(self.refused):
            perhaps &= ~np.isin(flat, self.refused)
        kept = np.flatnonzero(perhaps)
        kept = kept[np.lexsort((flat[kept], box[kept]))]
        ends = np.cumsum(self.chips[boxes])
        assert len(kept) == ends[-1]  # as many as were counted
        for own in np.split(kept, ends[:-1]):
            yield OpenedBox(tensor_cores[own], others[own], area_mm2[own])

    def _counted(
        self, allows: Allows, refused: list[int]
    ) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Yield units, counts and least areas of boxes, some several times; add refused chips."""
        others = self.others.group
        step = max(1, _DENSE // len(others))
        wide = {name: column[np.newaxis] for name, column in others.columns.items()}
        for begin in range(0, len(self.tensor_cores.group), step):
            rows = np.arange(begin, min(begin + step, len(self.tensor_cores.group)))
            some = self.tensor_cores.group.some(rows)
            together = {name: column[:, np.newaxis] for name, column in some.columns.items()} | wide
            area_mm2 = areas_mm2(self.study, together)
            allowed, surely = _allowed(self.study, together, area_mm2)
            for row, column in np.argwhere(allowed & ~surely).tolist():
                if not allows(some.indices[row].tolist(), others.indices[column].tolist()):
                    allowed[row, column] = False
                    refused.append(
                        int(self.tensor_cores.flat[begin + row] + self.others.flat[column])
                    )
            units, first = np.unique(self.tensor_cores.unit_of(rows), return_index=True)
            by_unit = first, self.others.first[:-1]
            chips = np.add.reduceat(allowed, by_unit[1], axis=1, dtype=np.int64)
            chips = np.add.reduceat(chips, by_unit[0], axis=0)
            least_mm2 = np.minimum.reduceat(np.where(allowed, area_mm2, np.inf), by_unit[1], axis=1)
            least_mm2 = np.minimum.reduceat(least_mm2, by_unit[0], axis=0)
            here = np.nonzero(chips)
            yield np.stack([units[here[0]], here[1]]), chips[here], least_mm2[here]

    def _sorted(
        self, parts: Sequence[tuple[IntArray, IntArray, FloatArray]]
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Join boxes that were counted in parts, and sort all by their rates."""
        units = np.concatenate([part[0] for part in parts], axis=1)
        places = units[0] * (len(self.others.first) - 1) + units[1]
        _, first, which = np.unique(places, return_index=True, return_inverse=True)
        chips = np.zeros(len(first), dtype=np.int64)
        np.add.at(chips, which, np.concatenate([part[1] for part in parts]))
        least_mm2 = np.full(len(first), np.inf)
        np.minimum.at(least_mm2, which, np.concatenate([part[2] for part in parts]))
        units = units[:, first]
        rates = replace(self, units=units).rates
        order = np.lexsort(list(rates.values())[::-1])
        return units[:, order], chips[order], least_mm2[order]


_NO_BOXES = (
    np.zeros((2, 0), dtype=np.int64),
    np.zeros(0, dtype=np.int64),
    np.zeros(0),
    np.zeros(0, dtype=np.int64),
)


def box_rates(study: ResolvedStudy, columns: Columns) -> dict[str, FloatArray]:
    """Return the fields in which the chips of one box are equal.

    Parameters
    ----------
    columns : mapping to (chips,)
        The fields of `phaze_opt.hardware.area.AREA_FIELDS`, and those that vary; or those that some
        axes decide, for the rates that follow from these.

    Returns
    -------
    rates : mapping to (chips,)
        Processing elements and lanes of all cores together, and the other fields that vary.
    """
    rates = {}
    for name in _rate_names(study):
        if name == "processing_elements" and "num_tc" in columns:
            rates[name] = columns["num_tc"] * columns["pe_x"] * columns["pe_y"]
        elif name == "lanes" and "num_vc" in columns:
            rates[name] = columns["num_vc"] * columns["pe_vc"]
        elif name == "vector_cores" and "num_vc" in columns:
            rates[name] = columns["num_vc"]
        elif name in columns:
            rates[name] = columns[name]
    return rates


def _rate_names(study: ResolvedStudy) -> list[str]:
    """Return the names of the rates, as `box_rates` has them."""
    space = study.spec.space
    # On cores, rooflines depend only by the numbers of processing elements and lanes; on the size
    # of the global buffer, only with residency, or where it is the memory.
    unseen = {*TENSOR_CORES, *VECTOR_CORES}
    residency = any((*space.values_of("residency"), study.spec.residency))
    if not (residency or may_lack_hbm(study)):
        unseen.add("glb_bytes")
    if any(is_hbm_alone(study, name) for name in space.searched):
        unseen.add("hbm_bytes")
    seen = [name for name in space.varying_fields if name not in unseen]
    names = [name for name in AREA_FIELDS if name in seen]
    names += [name for name in seen if name not in (*AREA_FIELDS, "clock_hz")]
    names += [name for name in seen if name == "clock_hz"]
    names += ["processing_elements", "lanes"]
    # Each core has its own unit for exponentials, however many lanes it has.
    return names if study.base.exponentials_per_cycle is None else [*names, "vector_cores"]


def is_hbm_alone(study: ResolvedStudy, name: str) -> bool:
    """Whether an axis is the size of the HBM, from which nothing follows but what fits."""
    axes = study.spec.space.axes.values()
    follows = any(isinstance(axis, Derived) and axis.source == name for axis in axes)
    return field_of(name) == "hbm_bytes" and not (follows or may_lack_hbm(study))


def _allowed(
    study: ResolvedStudy, columns: Columns, area_mm2: FloatArray
) -> tuple[BoolArray, BoolArray]:
    """Return which chips may be within the limits, and which surely are; see `chip_violation`.

    The cores fit, and a size of the HBM that does not vary: what cannot be, whatever the other
    group is, is left out before.
    """
    limit_mm2 = study.area_limit_mm2
    several = (columns["num_tc"] > 1) & (columns["num_vc"] > 1)
    least_mm2 = np.where(several, study.spec.area.min_share * limit_mm2, 0.0)
    fits = buffers_fit(columns)
    limit_gib = study.spec.constraints.max_hbm_gib
    if limit_gib is not None and "hbm_bytes" in columns:
        fits = fits & (columns["hbm_bytes"] <= limit_gib * GIB)
    perhaps = (area_mm2 <= limit_mm2 * (1 + NEAR)) & (area_mm2 >= least_mm2 * (1 - NEAR))
    surely = (area_mm2 < limit_mm2 * (1 - NEAR)) & (area_mm2 >= least_mm2 * (1 + NEAR))
    return perhaps & fits, surely & fits
