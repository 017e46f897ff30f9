"""The boxes of a space under every combination of options, best bound first.

Few boxes are all bounded at once. Of many, regions are bounded first (`box_tree`), and the best of
them are halved until a box stands before all that is left, so that boxes far from the best are
never bounded one by one. The order of the boxes is the same either way.

A box of a large space that stands before all that is left is bounded once more, by its cores
(`core_units`), before its chips are bounded one by one.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.bounding import bounds_of, bounds_of_boxes
from phaze_opt.bounds.box_tree import BoxTree, Region
from phaze_opt.bounds.core_units import CoreUnits, core_units
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.spec.ordering import Head, head_of
from phaze_opt.store.enumerations import BoundStore, rounded_up

MOST_AT_ONCE = 2**15
"""Most boxes that are bounded at once."""

HALVED = 256
"""Number of regions that are halved at a time."""

BOUNDED_AGAIN = 512
"""Number of cells that are bounded by their cores at a time."""

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
    grid, study_bounds, store, in_haste
        See `phaze_opt.bounds.best_first.BestFirst`.
    """

    def __init__(
        self,
        grid: PointGrid,
        study_bounds: StudyBounds,
        store: BoundStore | None,
        in_haste: Callable[[], bool] = lambda: False,
    ) -> None:
        self._in_haste = in_haste
        self._grid = grid
        self._study_bounds = study_bounds
        self._alone: dict[int, BoundedRegion] = {}
        self._hopeless: list[BoundedRegion] = []
        # All known cells; how many points are infeasible is known with those that come next.
        self._cells: list[Cell] = []
        self._infeasible: list[int] = []
        self._infeasible_now = 0
        self._regions: list[tuple[Head, tuple[int, ...], BoundedRegion]] = []
        self._again: dict[tuple[int, int], FloatArray] = {}
        self.tree = BoxTree(grid.chips)
        at_once = are_bounded_at_once(grid.chips, study_bounds)
        # Small boxes take no longer to be bounded chip by chip.
        self._core_units = None if at_once else core_units(grid.chips)
        regions = self.tree.roots(alone=at_once)
        if at_once:
            self._add(regions, bounds_of_boxes(grid, study_bounds, store))
        else:
            self._bound(regions)

    def bounds(self, option: int, box: int) -> FloatArray:
        """Return the bounds of a cell: (sizes,)."""
        bounds: FloatArray = self._alone[box].bounds[option]
        return self._again.get((option, box), bounds)

    def looked_at(self, cells: int) -> set[tuple[int, int]]:
        """Return option and box of the first cells, and of those that were bounded again."""
        first = {(cell.option, cell.box) for cell in self._cells[:cells]}
        return first.union(self._again)

    def cell(self, number: int) -> Cell | None:
        """Return a cell by its place in the order, from 0; ``None`` after the last.

        In haste, ``None`` as soon as more would have to be bounded to know the next; but if there
        is no cell before it, the best of those that are known.
        """
        while len(self._infeasible) <= number:
            place = len(self._infeasible)
            cell = self._cells[place] if place < len(self._cells) else None
            if self._regions and (cell is None or cell.head >= self._regions[0][0]):
                more = self._halve
            elif cell is None:
                return None
            elif self._core_units is not None and (cell.option, cell.box) not in self._again:
                more = partial(self._bound_again, self._core_units)
            else:
                self._infeasible.append(self._infeasible_now)
                continue
            if not self._in_haste():
                more()
            elif number > 0 or not self._known_cell_comes_next():
                return None
        return self._cells[number]

    def _known_cell_comes_next(self) -> bool:
        """Let the best of the cells come next that need not be bounded again, if there is one."""
        place = len(self._infeasible)
        for known, cell in enumerate(self._cells[place:], start=place):
            if self._core_units is None or (cell.option, cell.box) in self._again:
                self._cells.insert(place, self._cells.pop(known))
                self._infeasible.append(self._infeasible_now)
                return True
        return False

    def least_head(self, number: int) -> Head | None:
        """Bound the heads of a cell and all later ones; ``None`` if there are none."""
        heads = [cell.head for cell in self._cells[number : number + 1]]
        heads += [head for head, _, _ in self._regions[:1]]
        return min(heads, default=None)

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

    def _bound_again(self, units: CoreUnits) -> None:
        """Bound the next cells by their cores."""
        known = len(self._infeasible)
        due = [cell for cell in self._cells[known:] if (cell.option, cell.box) not in self._again]
        due = due[:BOUNDED_AGAIN]
        chips = self._grid.chips
        again = {(cell.option, cell.box): cell.head for cell in due}
        left = [cell for cell in self._cells[known:] if (cell.option, cell.box) not in again]
        for option in sorted({cell.option for cell in due}):
            boxes = np.array(sorted(box for own, box in again if own == option), dtype=np.int64)
            bounded = replace(BoundedChips.boxes(chips, boxes), units=units.of(boxes))
            values = rounded_up(bounds_of(self._grid, self._study_bounds, option, bounded))
            sizes = bounded.hbm_bytes.T.tolist()
            for place, box in enumerate(boxes.tolist()):
                before = self._alone[box].bounds[option]
                own = np.minimum(before, values[:, place])
                self._again[option, box] = own
                newly = int(((own == 0.0) & (before > 0.0)).sum())
                self._infeasible_now += newly * self._alone[box].chips
                area_mm2 = self._alone[box].least_mm2 * SMALLEST
                head = self._least_head(own.tolist(), sizes[place], area_mm2)
                if head is not None:
                    # Its bound may be the better one by rounding.
                    left.append(Cell(max(head, again[option, box]), option, box))
        self._cells[known:] = sorted(left)

    def _least_head(
        self, bounds: Sequence[float], sizes: Sequence[int], area_mm2: float
    ) -> Head | None:
        """Return the least head over the sizes of the HBM; ``None`` if none is feasible."""
        maximise = self._study_bounds.bounded.maximise
        heads = (
            head_of(bound, size, area_mm2, maximise)
            for bound, size in zip(bounds, sizes, strict=True)
            if bound > 0.0
        )
        return min(heads, default=None)

    def _bound(self, regions: Sequence[Region]) -> None:
        """Bound regions, and add them."""
        corners = self.tree.corners(regions)
        options = range(len(self._grid.options))
        bounds = [bounds_of(self._grid, self._study_bounds, each, corners) for each in options]
        self._add(regions, rounded_up(np.stack(bounds)))

    def _add(self, regions: Sequence[Region], bounds: FloatArray) -> None:
        """Add regions with their bounds: (options, sizes, regions)."""
        firsts = np.array([region.boxes[0] for region in regions], dtype=np.int64)
        hbm_bytes = self._grid.chips.hbm_bytes_of_boxes(firsts).T.tolist()
        zeros = (bounds == 0.0).sum(axis=(0, 1)).tolist()
        by_region = bounds.transpose(2, 0, 1)
        cells: list[Cell] = []
        for region, own, sizes, none in zip(regions, by_region, hbm_bytes, zeros, strict=True):
            chips, least_mm2 = self.tree.chips_of(region), self.tree.least_mm2(region)
            bounded = BoundedRegion(region, own, chips, least_mm2, none * chips)
            self._infeasible_now += bounded.infeasible
            area_mm2, heads = least_mm2 * SMALLEST, []
            for option, of_sizes in enumerate(own.tolist()):
                head = self._least_head(of_sizes, sizes, area_mm2)
                if head is not None:
                    heads.append((head, option))
            if (box := bounded.box) is not None:
                self._alone[box] = bounded
                cells += [Cell(head, option, box) for head, option in heads]
            elif heads:
                heapq.heappush(self._regions, (min(heads)[0], region.path, bounded))
            else:
                self._hopeless.append(bounded)
        known = len(self._infeasible)
        self._cells[known:] = sorted(self._cells[known:] + cells)
