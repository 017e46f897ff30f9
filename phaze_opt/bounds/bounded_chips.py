"""Chips of a space that are bounded together: single ones, or boxes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.estimator.chips import Chips
from phaze_opt.passes.least_units import UnitsOfChips


@dataclass(frozen=True, eq=False)
class BoundedChips:
    """Chips that are bounded together.

    Attributes
    ----------
    architectures
        One chip per architecture.
    hbm_bytes : (sizes, architectures)
        Sizes of the HBM.
    area_mm2 : (architectures,)
        Under the area model of the study.
    space
        The space that they are of.
    runs : (architectures, 2)
        First and last row (exclusive) of the chips of the space that each stands for.
    rooflines
        Whether each chip stands for a box: all chips with its peak rates, of their least area.
    units
        Of boxes that are to be bounded by their cores too; ``None`` otherwise.
    whole
        Of some boxes or corners of regions, all of them and which these are: what options share is
        computed for all at once.
    """

    architectures: Chips
    hbm_bytes: IntArray
    area_mm2: FloatArray
    space: SpaceChips
    runs: IntArray
    rooflines: bool = False
    units: UnitsOfChips | None = None
    whole: tuple[BoundedChips, IntArray] | None = None

    @classmethod
    def of(cls, chips: SpaceChips, rows: IntArray) -> Self:
        """Return the architectures of some rows of a space."""
        runs = np.stack([rows, rows + 1], axis=1)
        architectures, hbm_bytes = chips.architectures(rows), chips.hbm_bytes(rows)
        return cls(architectures, hbm_bytes, chips.areas_mm2(rows), chips, runs)

    @classmethod
    def boxes(cls, chips: SpaceChips, boxes: IntArray | None = None) -> Self:
        """Return boxes of a space, by default all, each by a chip with its rates."""
        if boxes is None:
            boxes = np.arange(len(chips.table.chips))
        runs = np.stack([chips.first[boxes], chips.first[boxes + 1]], axis=1)
        architectures, hbm_bytes = chips.of_boxes(boxes), chips.hbm_bytes_of_boxes(boxes)
        least_mm2 = chips.table.least_mm2[boxes]
        return cls(architectures, hbm_bytes, least_mm2, chips, runs, rooflines=True)

    def some(self, which: IntArray) -> BoundedChips:
        """Return the chips of some indices."""
        return replace(
            self,
            architectures=Chips([self.architectures[index] for index in which.tolist()]),
            hbm_bytes=self.hbm_bytes[:, which],
            area_mm2=self.area_mm2[which],
            runs=self.runs[which],
            units=None if self.units is None else self.units.some(which),
        )

    def of_whole(self, which: IntArray) -> BoundedChips:
        """Return the chips of some indices, which share with all what options share."""
        return replace(self.some(which), whole=(self, which))

    def least(self, by_kind: FloatArray) -> FloatArray:
        """Return the least of what depends on the kind of energy alone: (architectures,)."""
        if not len(self.runs):
            return np.zeros(0)
        # The last row is one more, since a run may end with the space.
        of_rows = np.append(by_kind[self.space.energy_kinds.of], np.inf)
        least: FloatArray = np.minimum.reduceat(of_rows, self.runs.ravel())[::2]
        return least
