"""The points of a space, best bound first, with no more bounds than the order needs.

A point's *head* is the best rank that it may have: the bin of its bound, the size of its HBM, its
area, as the first three keys of `phaze_opt.spec.ordering.Rank`. A *cell* is a box of chips under
one combination of options; rooflines bound it. The search opens a cell, and bounds each of its
architectures, when no known point comes before the head of the cell. Cells are opened in batches,
which depend on the study only: every process gets the same points in the same order.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.bounding import (
    Bounder,
    PendingBounds,
    SpacePart,
    bound_parts,
    parts_of,
    stored_bounds,
)
from phaze_opt.bounds.box_order import SMALLEST, BoxOrder, Cell
from phaze_opt.bounds.point_grid import Place, PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds, check_bounded
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.ordering import Head, head_of
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.enumerations import BoundStore, rounded_up

FIRST_ROWS, BATCH_ROWS = 256, 2048
"""Least number of pairs (architecture, combination of options) in the first batch of cells, and in
each later batch."""

GROWTH = 8
"""A batch also has this part, at least, of the pairs before it: where there are many combinations
of options, small batches would have a few architectures of each."""


@dataclass(frozen=True)
class BoundedPoint:
    """A point with the upper bound of its merit, and the best rank that it may have.

    Attributes
    ----------
    place
        Its option, size of the HBM and architecture in the grid.
    batches
        Number of batches of cells that had to be opened to know that this point is the next.
    """

    point: DesignPoint
    bound: float
    head: Head
    place: Place
    batches: int = 0


@dataclass(eq=False)
class _Batch:
    """Points of the cells of one opened batch, sorted by their heads.

    Attributes
    ----------
    places
        Flat index of each point in the grid.
    infeasible
        Number of points that no placement fits, without the points of infeasible boxes.
    next
        Index of the first point that is left.
    """

    heads: list[Head]
    bounds: FloatArray
    places: IntArray
    infeasible: int
    next: int = 0


class BestFirst:
    """Points of a study in the order of their heads.

    Parameters
    ----------
    grid
        All points.
    study_bounds
        Upper bounds of the points.
    store
        Keeps bounds in the database; ``None`` to keep none.
    bounder
        Computes bounds of architectures in other processes; ``None`` for this process.
    on_open
        Called after every batch of cells is opened.
    in_haste
        Whether to yield the best known point now, although cells that are not open may hold a
        better one; `left` says how good that may be.

    Attributes
    ----------
    batches
        Number of opened batches of cells; all cells of further batches come later.

    Raises
    ------
    InputError
        If no bound is known for the study's objective.
    """

    def __init__(
        self,
        grid: PointGrid,
        study_bounds: StudyBounds,
        store: BoundStore | None = None,
        bounder: Bounder | None = None,
        on_open: Callable[[BestFirst], None] = lambda best_first: None,
        in_haste: Callable[[], bool] = lambda: False,
    ) -> None:
        check_bounded(grid.study.spec.objectives)
        self.grid = grid
        self._study_bounds = study_bounds
        self._store = store
        self._bounder = bounder
        self._on_open = on_open
        self._in_haste = in_haste
        self._waiting: dict[int, tuple[str, list[FloatArray] | PendingBounds]] = {}
        self.batches = 0
        self._batches: list[_Batch] = []
        self._heap: list[tuple[Head, int, int]] = []
        # Cells and rows of the first batches.
        self._cuts, self._rows = [0], [0]

    def __iter__(self) -> Iterator[BoundedPoint]:
        """Yield all points that may be feasible; a further iteration continues after the last."""
        while True:
            self._open_due()
            if not self._heap:
                return
            opened = self.batches
            head, place, number = heapq.heappop(self._heap)
            batch = self._batches[number]
            at = batch.next
            batch.next += 1
            self._push(number)
            option, size, row = (int(i) for i in np.unravel_index(place, self.grid.shape))
            point = self.grid.point(option, size, row)
            yield BoundedPoint(point, float(batch.bounds[at]), head, (option, size, row), opened)

    @property
    def left(self) -> Head | None:
        """The head of the next point, or of a cell that may hold it; ``None`` after the last."""
        heads = [self._heap[0][0]] if self._heap else []
        closed = self.order.least_head(self._cut(self.batches))
        return min([*heads, *([] if closed is None else [closed])], default=None)

    @cached_property
    def order(self) -> BoxOrder:
        """All cells that may hold a feasible point, in the order in which they are opened."""
        return BoxOrder(self.grid, self._study_bounds, self._store, self._in_haste)

    def rows_of(self, batches: int) -> int:
        """Count the pairs (architecture, combination of options) of the first batches."""
        self._cut(batches)
        return self._rows[batches]

    def infeasible(self, batches: int) -> int:
        """Count the points that no placement fits, in all boxes and in the first batches."""
        of_boxes = self.order.infeasible(self._cut(batches))
        return of_boxes + sum(batch.infeasible for batch in self._batches[:batches])

    def before(self, head: Head | None) -> int:
        """Count the remaining points of open cells, up to and including a head if one is given."""
        return sum(
            (len(batch.heads) if head is None else bisect.bisect_right(batch.heads, head))
            - batch.next
            for batch in self._batches
        )

    def rows_before(self, head: Head | None) -> int:
        """Count the architectures of the known cells that are open, or come before a head."""
        later = 0 if head is None else self.order.waiting_before(head)
        return self.rows_of(self.batches) + later

    def bound_boxes(self) -> None:
        """Bound boxes now, not when the first point is needed."""
        _ = self.order

    def cells_of(self, batches: int) -> list[Cell]:
        """Return the cells of the first batches."""
        cells = map(self.order.cell, range(self._cut(batches)))
        return [cell for cell in cells if cell is not None]

    def _cut(self, batches: int) -> int:
        """Return the number of cells of the first batches."""
        while len(self._cuts) <= batches:
            number, rows = self._cuts[-1], 0
            least = FIRST_ROWS if len(self._cuts) == 1 else BATCH_ROWS
            least = max(least, self._rows[-1] // GROWTH)
            while rows < least and (cell := self.order.cell(number)) is not None:
                rows += int(self.grid.chips.table.chips[cell.box])
                number += 1
            self._cuts.append(number)
            self._rows.append(self._rows[-1] + rows)
        return self._cuts[batches]

    def _open_due(self) -> None:
        """Open cells until no closed cell may hold a point before the next known point."""
        while (cell := self.order.cell(self._cut(self.batches))) is not None:
            if self._heap and self._heap[0][0] < cell.head:
                return
            if self.batches > 0 and self._in_haste():
                return
            self._open()

    def _open(self) -> None:
        """Open the next batch."""
        ahead = 0 if self._bounder is None else self._bounder.ahead
        for number in range(self.batches, self.batches + ahead + 1):
            ends = self._cut(number), self._cut(number + 1)
            if number not in self._waiting and ends[0] < ends[1]:
                self._waiting[number] = self._ask(self._parts(number))
        if self.batches not in self._waiting:
            return  # in haste
        key, pending = self._waiting.pop(self.batches)
        computed = pending if isinstance(pending, list) else pending.result()
        bounds = [rounded_up(part_bounds) for part_bounds in computed]
        if self._store is not None and not self._store.has(key):
            self._store.keep(key, np.concatenate(bounds, axis=1))
        parts = self._parts(self.batches)
        self.batches += 1
        self._add(parts, bounds)
        self._on_open(self)

    def _parts(self, number: int) -> list[SpacePart]:
        """Return the parts that a batch bounds, one per option."""
        first = self.grid.chips.first
        cells = map(self.order.cell, range(self._cut(number), self._cut(number + 1)))
        return parts_of(
            (cell.option, (int(first[cell.box]), int(first[cell.box + 1])))
            for cell in cells
            if cell is not None
        )

    def _ask(self, parts: list[SpacePart]) -> tuple[str, list[FloatArray] | PendingBounds]:
        """Return the key of the bounds of a batch, and the bounds: stored, computed or pending."""
        key, bounds = stored_bounds(self.grid, self._study_bounds, self._store, parts)
        if bounds is not None:
            return key, bounds
        if self._bounder is None:
            return key, bound_parts(self.grid, self._study_bounds, parts)
        return key, self._bounder.bound(parts)

    def _add(self, parts: Sequence[SpacePart], part_bounds: Sequence[FloatArray]) -> None:
        """Add the points of a batch."""
        chips, shape = self.grid.chips, self.grid.shape
        maximise = self._study_bounds.bounded.maximise
        heads: list[Head] = []
        places: list[int] = []
        bounds: list[float] = []
        infeasible = 0
        for part, own in zip(parts, part_bounds, strict=True):
            rows = part.architectures
            boxes = chips.boxes_of(rows)
            of_boxes = [self.order.bounds(part.option, box) for box in boxes.tolist()]
            counted = np.stack(of_boxes, axis=1) == 0.0
            infeasible += int(((own == 0.0) & ~counted).sum())
            area_mm2 = (chips.areas_mm2(rows) * SMALLEST).tolist()
            for size, (row_bounds, sizes) in enumerate(
                zip(own.tolist(), chips.hbm_bytes(rows).tolist(), strict=True)
            ):
                at = np.ravel_multi_index((part.option, size, rows), shape).tolist()
                for bound, hbm_bytes, area, place in zip(
                    row_bounds, sizes, area_mm2, at, strict=True
                ):
                    if bound > 0.0:
                        heads.append(head_of(bound, hbm_bytes, area, maximise))
                        bounds.append(bound)
                        places.append(place)
        order = sorted(range(len(heads)), key=lambda i: (heads[i], places[i]))
        self._batches.append(
            _Batch(
                [heads[i] for i in order],
                np.array([bounds[i] for i in order]),
                np.array([places[i] for i in order], dtype=np.int64),
                infeasible,
            )
        )
        self._push(len(self._batches) - 1)

    def _push(self, number: int) -> None:
        """Put the next point of a batch on the heap."""
        batch = self._batches[number]
        if batch.next < len(batch.heads):
            entry = batch.heads[batch.next], int(batch.places[batch.next]), number
            heapq.heappush(self._heap, entry)
