"""Regions of a space: boxes that are bounded together, and halved where the bound is too good.

The corner of a region has the best rate of its boxes in every respect. Rooflines, and every bound
that is made of them, get no worse as a rate rises, so the bound of the corner holds for all boxes
of the region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.estimator.chips import Chips
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.axis_names import CHIP_FIELDS

_OF_CORES = ("processing_elements", "lanes", "vector_cores")

RISING = (*_OF_CORES, "hbm_bytes_per_s", "glb_bytes", "glb_bytes_per_cycle")
"""Rates that make no bound worse as they rise. Boxes of one region are equal in all others."""


@dataclass(frozen=True, eq=False)
class Region:
    """Some boxes of a space.

    Attributes
    ----------
    path
        Where it stands in the tree: the number of its root, then 0 for the lower half and 1 for the
        upper, from the root down.
    boxes
        At least one.
    """

    path: tuple[int, ...]
    boxes: IntArray


@dataclass(frozen=True, eq=False)
class BoxTree:
    """Halves the boxes of a space along their rates."""

    chips: SpaceChips

    @cached_property
    def _rates(self) -> dict[str, FloatArray]:
        return dict(self.chips.table.rates)

    @cached_property
    def _rising(self) -> FloatArray:
        """The rates that regions range over: (rates, boxes)."""
        rising = [rate for name, rate in self._rates.items() if name in RISING]
        return np.stack(rising)

    def roots(self, *, alone: bool) -> list[Region]:
        """Return the largest regions, or all boxes ``alone``."""
        if alone:
            number = len(self.chips.table.chips)
            return [Region((box,), np.array([box])) for box in range(number)]
        equal = [rate for name, rate in self._rates.items() if name not in RISING]
        stacked = np.stack([np.zeros(len(self.chips.table.chips)), *equal])
        _, which = np.unique(stacked, axis=1, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        ends = np.cumsum(np.bincount(which.reshape(-1)))[:-1]
        return [Region((root,), boxes) for root, boxes in enumerate(np.split(order, ends))]

    def halves(self, region: Region) -> list[Region]:
        """Halve a region of several boxes where its rates differ most, at the geometric mean."""
        rates = self._rising[:, region.boxes]
        low, high = rates.min(axis=1), rates.max(axis=1)
        # A chip without HBM may state a bandwidth of 0, and all of a region may.
        ratio = np.where(high > 0.0, np.inf, 1.0)
        widest = int(np.argmax(np.divide(high, low, where=low > 0.0, out=ratio)))
        lower = rates[widest] <= np.sqrt(low[widest] * high[widest])
        # The mean of neighbours may round to the upper one.
        lower &= rates[widest] < high[widest]
        return [
            Region((*region.path, side), region.boxes[kept])
            for side, kept in enumerate((lower, ~lower))
        ]

    def chips_of(self, region: Region) -> int:
        """Count the chips of a region."""
        return int(self.chips.table.chips[region.boxes].sum())

    def least_mm2(self, region: Region) -> float:
        """Return the smallest area of a chip of a region."""
        return float(self.chips.table.least_mm2[region.boxes].min())

    def corner(self, region: Region) -> dict[str, float]:
        """Return the best rates of a region, as those of a box."""
        return {name: float(rate[region.boxes].max()) for name, rate in self._rates.items()}

    def corners(self, regions: Sequence[Region]) -> BoundedChips:
        """Return chips with the best rates of some regions, to be bounded.

        Of regions of several boxes, the run is that of the first.
        """
        firsts = np.array([region.boxes[0] for region in regions], dtype=np.int64)
        corners = []
        for chip, region in zip(self.chips.of_boxes(firsts), regions, strict=True):
            rates = self.corner(region)
            # Rooflines see the products of these fields alone.
            vector_cores = rates.get("vector_cores", 1.0)
            values: dict[str, int | float] = {
                "num_tc": 1,
                "pe_x": 1,
                "pe_y": int(rates["processing_elements"]),
                "num_vc": int(vector_cores),
                "pe_vc": int(-(-rates["lanes"] // vector_cores)),
            }
            others = {name: rate for name, rate in rates.items() if name not in _OF_CORES}
            values |= {
                name: int(rate) if CHIP_FIELDS[name] == "int" else rate
                for name, rate in others.items()
            }
            corners.append(chip.with_checked(values))
        return BoundedChips(
            Chips(corners),
            self.chips.hbm_bytes_of_boxes(firsts),
            np.array([self.least_mm2(region) for region in regions]),
            self.chips,
            np.stack([self.chips.first[firsts], self.chips.first[firsts + 1]], axis=1),
            rooflines=True,
        )
