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
from itertools import islice
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.bounding import bounds_of, bounds_of_boxes
from phaze_opt.bounds.box_tree import BoxTree, Region
from phaze_opt.bounds.core_units import CoreUnits, core_units
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.spec.ordering import Head, head_of
from phaze_opt.store.enumerations import BoundStore, rounded_up

MOST_AT_ONCE, MOST_CELLS_AT_ONCE = 2**15, 2**20
"""Most boxes, and boxes times combinations of options, that are bounded at once."""

HALVED = 256
"""Number of regions that are halved at a time."""

BOUNDED_AGAIN, AGAIN_PER_OPTION = 512, 64
"""Number of cells that are bounded by their cores at a time: at least so many in all, and for each
combination of options."""

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
    heads
        The least head under every combination of options; ``None`` where none is feasible.
    own : (options,)
        Whether the bounds are its own, or those of a region that holds it.
    """

    region: Region
    bounds: FloatArray
    chips: int
    least_mm2: float
    infeasible: int
    heads: tuple[Head | None, ...]
    own: BoolArray

    @property
    def box(self) -> int | None:
        """Its only box; ``None`` if it has several."""
        return int(self.region.boxes[0]) if len(self.region.boxes) == 1 else None


def are_bounded_at_once(grid: PointGrid, study_bounds: StudyBounds) -> bool:
    """Whether all boxes are bounded at once: few of them, or with energies that regions lack."""
    boxes = len(grid.chips.table.chips)
    few = boxes <= MOST_AT_ONCE and boxes * len(grid.options) <= MOST_CELLS_AT_ONCE
    return few or study_bounds.asks_for_energy


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
        at_once = are_bounded_at_once(grid, study_bounds)
        # Small boxes take no longer to be bounded chip by chip.
        self._core_units = None if at_once else core_units(grid.chips)
        regions = self.tree.roots(alone=at_once)
        if at_once:
            every = np.ones((len(grid.options), len(regions)), dtype=np.bool_)
            self._add(regions, bounds_of_boxes(grid, study_bounds, store), every)
        else:
            options, sizes, _ = grid.shape
            bounds = np.zeros((options, sizes, len(regions)))
            every = np.ones((options, len(regions)), dtype=np.bool_)
            self._bound(regions, bounds, ~every, every)

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
        """Halve the best regions, or bound those that are so by the bounds of another region.

        Where the bounds under some options are not among the best, halves keep those of the region
        under these, until they are.
        """
        due = [heapq.heappop(self._regions) for _ in range(min(HALVED, len(self._regions)))]
        self._infeasible_now -= sum(bounded.infeasible for _, _, bounded in due)
        last = due[-1][0]
        regions, bounds, own, again = [], [], [], []
        for head, _, old in due:
            best = np.array([each is not None and each <= last for each in old.heads])
            is_own = old.own[old.heads.index(head)]
            for region in self.tree.halves(old.region) if is_own else [old.region]:
                # A box keeps bounds of others where it is bounded by its cores before it is opened.
                alone = len(region.boxes) == 1 and self._core_units is None
                regions.append(region)
                bounds.append(old.bounds)
                own.append(old.own & (not is_own))
                again.append((best | alone) & ~own[-1])
        self._bound(regions, np.stack(bounds, axis=2), np.array(own).T, np.array(again).T)

    def _bound_again(self, units: CoreUnits) -> None:
        """Bound the next cells by their cores."""
        known = len(self._infeasible)
        most = max(BOUNDED_AGAIN, AGAIN_PER_OPTION * len(self._grid.options))
        waiting = islice(self._cells, known, None)
        new = (cell for cell in waiting if (cell.option, cell.box) not in self._again)
        due, chips = list(islice(new, most)), self._grid.chips
        of_options: dict[int, list[int]] = {}
        for cell in due:
            of_options.setdefault(cell.option, []).append(cell.box)
        again = {(cell.option, cell.box): cell.head for cell in due}
        left = [cell for cell in self._cells[known:] if (cell.option, cell.box) not in again]
        every = np.array(sorted({cell.box for cell in due}), dtype=np.int64)
        whole = replace(BoundedChips.boxes(chips, every), units=units.of(every))
        for option, of_option in sorted(of_options.items()):
            boxes = np.array(sorted(of_option), dtype=np.int64)
            bounded = whole.of_whole(np.searchsorted(every, boxes))
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

    def _bound(
        self, regions: Sequence[Region], bounds: FloatArray, own: BoolArray, again: BoolArray
    ) -> None:
        """Bound regions, and add them.

        Parameters
        ----------
        regions
            To be bounded.
        bounds : (options, sizes, regions)
            Known ones.
        own, again : (options, regions)
            Which of these are bounds of the region itself, and which are to be bounded.
        """
        corners = self.tree.corners(regions)
        for option, due in enumerate(again):
            which = np.flatnonzero(due)
            if len(which):
                some = corners if due.all() else corners.of_whole(which)
                found = bounds_of(self._grid, self._study_bounds, option, some)
                bounds[option][:, which] = rounded_up(found)
        self._add(regions, bounds, own | again)

    def _add(self, regions: Sequence[Region], bounds: FloatArray, is_own: BoolArray) -> None:
        """Add regions with their bounds, (options, sizes, regions), and whether these are own."""
        firsts = np.array([region.boxes[0] for region in regions], dtype=np.int64)
        hbm_bytes = self._grid.chips.hbm_bytes_of_boxes(firsts).T.tolist()
        zeros = (bounds == 0.0).sum(axis=(0, 1)).tolist()
        by_region = bounds.transpose(2, 0, 1)
        cells: list[Cell] = []
        columns = regions, by_region, is_own.T, hbm_bytes, zeros
        for region, own, whose, sizes, none in zip(*columns, strict=True):
            chips, least_mm2 = self.tree.chips_of(region), self.tree.least_mm2(region)
            area_mm2 = least_mm2 * SMALLEST
            found = [self._least_head(each, sizes, area_mm2) for each in own.tolist()]
            heads = [(head, option) for option, head in enumerate(found) if head is not None]
            bounded = BoundedRegion(
                region, own, chips, least_mm2, none * chips, tuple(found), whose
            )
            self._infeasible_now += bounded.infeasible
            if (box := bounded.box) is not None:
                self._alone[box] = bounded
                cells += [Cell(head, option, box) for head, option in heads]
            elif heads:
                heapq.heappush(self._regions, (min(heads)[0], region.path, bounded))
            else:
                self._hopeless.append(bounded)
        known = len(self._infeasible)
        self._cells[known:] = sorted(self._cells[known:] + cells)
