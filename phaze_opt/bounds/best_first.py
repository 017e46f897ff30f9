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
    bounds_of_boxes,
    parts_of,
    stored_bounds,
)
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds, check_bounded
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.ordering import Head, head_of
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.enumerations import BoundStore, rounded_up

FIRST_ROWS, BATCH_ROWS = 256, 2048
"""Least number of pairs (architecture, combination of options) in the first batch of cells, and in
each later batch."""

_SMALLEST = 1.0 - 1e-12
"""The areas of many chips at once may differ from the area of a single chip in the last bits."""


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
    place: tuple[int, int, int]
    batches: int = 0


@dataclass(frozen=True, eq=False)
class _Cells:
    """The feasible cells of a space, sorted by their heads.

    Attributes
    ----------
    option, box : (cells,)
    head
        By cell: the least head of its points.
    rows : (cells,)
        Number of architectures.
    """

    option: IntArray
    box: IntArray
    head: list[Head]
    rows: IntArray


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
    ) -> None:
        check_bounded(grid.study.spec.objectives)
        self.grid = grid
        self._study_bounds = study_bounds
        self._store = store
        self._bounder = bounder
        self._on_open = on_open
        self._waiting: dict[int, tuple[str, list[FloatArray] | PendingBounds]] = {}
        self.batches = 0
        self._batches: list[_Batch] = []
        self._heap: list[tuple[Head, int, int]] = []

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
        if self.batches < len(self._cuts) - 1:
            heads.append(self.cells.head[self._cuts[self.batches]])
        return min(heads, default=None)

    def cells_of(self, batches: int) -> int:
        """Count the cells of the first batches."""
        return self._cuts[batches]

    def rows_of(self, batches: int) -> int:
        """Count the pairs (architecture, combination of options) of the first batches."""
        return int(self.cells.rows[: self.cells_of(batches)].sum())

    def infeasible(self, batches: int) -> int:
        """Count the points that no placement fits, in all boxes and in the first batches."""
        counts = np.diff(self.grid.chips.first)
        of_boxes = int(((self.box_bounds == 0.0) * counts).sum())
        return of_boxes + sum(batch.infeasible for batch in self._batches[:batches])

    def before(self, head: Head | None) -> int:
        """Count the remaining points of open cells, up to and including a head if one is given."""
        return sum(
            (len(batch.heads) if head is None else bisect.bisect_right(batch.heads, head))
            - batch.next
            for batch in self._batches
        )

    def rows_before(self, head: Head | None) -> int:
        """Count the architectures of the cells that are open, or come no later than a head."""
        cells = 0 if head is None else bisect.bisect_right(self.cells.head, head)
        return int(self.cells.rows[: max(cells, self.cells_of(self.batches))].sum())

    def bound_boxes(self) -> None:
        """Bound all boxes now, not when the first point is needed."""
        _ = self.cells

    @cached_property
    def box_bounds(self) -> FloatArray:
        """Bounds of all boxes: (options, sizes, boxes)."""
        return bounds_of_boxes(self.grid, self._study_bounds, self._store)

    @cached_property
    def cells(self) -> _Cells:
        """All cells that may hold a feasible point, in the order in which they are opened."""
        chips, bounds = self.grid.chips, self.box_bounds
        options, _, boxes = bounds.shape
        counts = np.diff(chips.first)
        least_mm2 = chips.table.least_mm2
        hbm_sizes = chips.hbm_bytes_of_boxes(np.arange(boxes))
        cells = []
        maximise = self._study_bounds.bounded.maximise
        for option in range(options):
            for box in np.flatnonzero(bounds[option].max(axis=0) > 0.0).tolist():
                hbm_bytes = hbm_sizes[:, box].tolist()
                of_sizes = zip(bounds[option, :, box].tolist(), hbm_bytes, strict=True)
                area_mm2 = float(least_mm2[box]) * _SMALLEST
                head = min(
                    head_of(bound, size, area_mm2, maximise)
                    for bound, size in of_sizes
                    if bound > 0.0
                )
                cells.append((head, option, box))
        cells.sort()
        sorted_boxes = np.array([box for _, _, box in cells], dtype=np.int64)
        return _Cells(
            np.array([option for _, option, _ in cells], dtype=np.int64),
            sorted_boxes,
            [head for head, _, _ in cells],
            counts[sorted_boxes],
        )

    @cached_property
    def _cuts(self) -> list[int]:
        """The first cell of each batch, and the number of cells."""
        cuts, rows = [0], 0
        for cell, own in enumerate(self.cells.rows.tolist()):
            rows += own
            if rows >= (FIRST_ROWS if len(cuts) == 1 else BATCH_ROWS):
                cuts.append(cell + 1)
                rows = 0
        if cuts[-1] < len(self.cells.rows):
            cuts.append(len(self.cells.rows))
        return cuts

    def _open_due(self) -> None:
        """Open cells until no closed cell may hold a point before the next known point."""
        while self.batches < len(self._cuts) - 1:
            head = self.cells.head[self._cuts[self.batches]]
            if self._heap and self._heap[0][0] < head:
                return
            self._open()

    def _open(self) -> None:
        """Open the next batch."""
        ahead = 0 if self._bounder is None else self._bounder.ahead
        last = min(self.batches + ahead, len(self._cuts) - 2)
        for number in range(self.batches, last + 1):
            if number not in self._waiting:
                self._waiting[number] = self._ask(self._parts(number))
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
        cells, first = self.cells, self.grid.chips.first
        which = slice(self._cuts[number], self._cuts[number + 1])
        boxes = cells.box[which]
        runs = zip(first[boxes].tolist(), first[boxes + 1].tolist(), strict=True)
        return parts_of(zip(cells.option[which].tolist(), runs, strict=True))

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
            counted = self.box_bounds[part.option][:, boxes] == 0.0
            infeasible += int(((own == 0.0) & ~counted).sum())
            area_mm2 = (chips.areas_mm2(rows) * _SMALLEST).tolist()
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
