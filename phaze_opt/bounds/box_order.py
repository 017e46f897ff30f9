"""The boxes of a space under every combination of options, best bound first.

Few boxes are all bounded at once. Of many, regions are bounded first (`box_tree`), and the best of
them are halved until a box stands before all that is left, so that boxes far from the best are
never bounded one by one. The order of the boxes is the same either way.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounding import bounds_of, bounds_of_boxes
from phaze_opt.bounds.box_tree import BoxTree, Region
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.spec.ordering import Head, head_of
from phaze_opt.store.enumerations import BoundStore, rounded_up

MOST_AT_ONCE = 2**15
"""Most boxes that are bounded at once."""

HALVED = 256
"""Number of regions that are halved at a time."""

SMALLEST = 1.0 - 1e-12
"""The areas of many chips at once may differ from the area of a single chip in the last bits."""


class Cell(NamedTuple):
    """A box under one combination of options, in the order in which they are opened.

    Attributes
    ----------
    head
        The least head of its points.
    """

    head: Head
    option: int
    box: int


@dataclass(frozen=True, eq=False)
class BoundedRegion:
    """A region of boxes that was bounded.

    Attributes
    ----------
    bounds : (options, sizes)
    chips
        Number of chips of all boxes.
    least_mm2
        Smallest area of these.
    infeasible
        Number of points that no placement fits.
    """

    region: Region
    bounds: FloatArray
    chips: int
    least_mm2: float
    infeasible: int

    @property
    def box(self) -> int | None:
        """Its only box; ``None`` if it has several."""
        return int(self.region.boxes[0]) if len(self.region.boxes) == 1 else None


def are_bounded_at_once(chips: SpaceChips, study_bounds: StudyBounds) -> bool:
    """Whether all boxes are bounded at once: few of them, or with energies that regions lack."""
    return len(chips.table.chips) <= MOST_AT_ONCE or study_bounds.asks_for_energy


class BoxOrder:
    """Cells of a study that may hold a feasible point, in the order of their heads.

    Parameters
    ----------
    grid, study_bounds, store
        See `phaze_opt.bounds.best_first.BestFirst`.
    """

    def __init__(
        self, grid: PointGrid, study_bounds: StudyBounds, store: BoundStore | None
    ) -> None:
        self._grid = grid
        self._study_bounds = study_bounds
        self._alone: dict[int, BoundedRegion] = {}
        self._hopeless: list[BoundedRegion] = []
        # All known cells; how many points are infeasible is known with those that come next.
        self._cells: list[Cell] = []
        self._infeasible: list[int] = []
        self._infeasible_now = 0
        self._regions: list[tuple[Head, tuple[int, ...], BoundedRegion]] = []
        self.tree = BoxTree(grid.chips)
        at_once = are_bounded_at_once(grid.chips, study_bounds)
        regions = self.tree.roots(alone=at_once)
        if at_once:
            self._add(regions, bounds_of_boxes(grid, study_bounds, store))
        else:
            self._bound(regions)

    def bounds(self, box: int) -> FloatArray:
        """Return the bounds of the box of a cell: (options, sizes)."""
        return self._alone[box].bounds

    def cell(self, number: int) -> Cell | None:
        """Return a cell by its place in the order, from 0; ``None`` after the last."""
        while len(self._infeasible) <= number:
            place = len(self._infeasible)
            while self._regions and not (
                place < len(self._cells) and self._cells[place].head < self._regions[0][0]
            ):
                self._halve()
            if place == len(self._cells):
                return None
            self._infeasible.append(self._infeasible_now)
        return self._cells[number]

    def waiting_before(self, head: Head) -> int:
        """Count the architectures of known cells that wait, and come no later than a head."""
        begin = len(self._infeasible)
        end = bisect.bisect_right(self._cells, head, begin, key=lambda cell: cell.head)
        boxes = np.array([cell.box for cell in self._cells[begin:end]], dtype=np.int64)
        return int(self._grid.chips.table.chips[boxes].sum())

    def infeasible(self, number: int) -> int:
        """Count the points that surely no placement fits, as known when a cell was found."""
        known = self.cell(number) is not None
        return self._infeasible[number] if known else self._infeasible_now

    def frontier(self) -> list[BoundedRegion]:
        """Return all regions that were not halved, those of one box included, by their paths."""
        several = [region for _, _, region in self._regions]
        every = [*self._alone.values(), *self._hopeless, *several]
        return sorted(every, key=lambda bounded: bounded.region.path)

    def _halve(self) -> None:
        """Halve the best regions."""
        due = [heapq.heappop(self._regions) for _ in range(min(HALVED, len(self._regions)))]
        self._infeasible_now -= sum(bounded.infeasible for _, _, bounded in due)
        self._bound([half for _, _, old in due for half in self.tree.halves(old.region)])

    def _bound(self, regions: Sequence[Region]) -> None:
        """Bound regions, and add them."""
        corners = self.tree.corners(regions)
        options = range(len(self._grid.options))
        bounds = [bounds_of(self._grid, self._study_bounds, each, corners) for each in options]
        self._add(regions, rounded_up(np.stack(bounds)))

    def _add(self, regions: Sequence[Region], bounds: FloatArray) -> None:
        """Add regions with their bounds: (options, sizes, regions)."""
        maximise = self._study_bounds.bounded.maximise
        firsts = np.array([region.boxes[0] for region in regions], dtype=np.int64)
        hbm_bytes = self._grid.chips.hbm_bytes_of_boxes(firsts).T.tolist()
        zeros = (bounds == 0.0).sum(axis=(0, 1)).tolist()
        by_region = bounds.transpose(2, 0, 1)
        cells: list[Cell] = []
        for region, own, sizes, none in zip(regions, by_region, hbm_bytes, zeros, strict=True):
            chips, least_mm2 = self.tree.chips_of(region), self.tree.least_mm2(region)
            bounded = BoundedRegion(region, own, chips, least_mm2, none * chips)
            self._infeasible_now += bounded.infeasible
            area_mm2, heads = bounded.least_mm2 * SMALLEST, []
            for option, of_sizes in enumerate(own.tolist()):
                of_option = [
                    head_of(bound, size, area_mm2, maximise)
                    for bound, size in zip(of_sizes, sizes, strict=True)
                    if bound > 0.0
                ]
                if of_option:
                    heads.append((min(of_option), option))
            if (box := bounded.box) is not None:
                self._alone[box] = bounded
                cells += [Cell(head, option, box) for head, option in heads]
            elif heads:
                heapq.heappush(self._regions, (min(heads)[0], region.path, bounded))
            else:
                self._hopeless.append(bounded)
        known = len(self._infeasible)
        self._cells[known:] = sorted(self._cells[known:] + cells)
