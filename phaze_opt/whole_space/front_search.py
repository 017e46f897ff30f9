"""Finds the front of a space: the points that no other one dominates, proven by bounds.

A point is left out if and only if an evaluated one is no worse than its bounds in every objective
and better in one; a box of chips if that holds for the bounds of the whole box. Values are compared
exactly. Boxes and points come in the order of their bounds: whatever can dominate one comes before
it, so that no other order evaluates fewer points.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.bounds.bounding import SpacePart, bounds_of_boxes, parts_of, stored_bounds
from phaze_opt.spec.objectives import ObjectiveName
from phaze_opt.spec.ordering import Rank
from phaze_opt.store.enumerations import BoundStore, rounded_up
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.exhaustive import EnumerationProgress, RankedDesign
from phaze_opt.whole_space.front_bounds import Costs, FrontBounds, check_front_objectives
from phaze_opt.whole_space.pools import Answer, Here, Pool

BATCH_ROWS = 2048
"""Architectures, each under one combination of options, that are bounded together at least."""

_COMPARED = 2**22
"""Comparisons of costs that are made at once."""


@dataclass(frozen=True)
class FrontDesign:
    """A design of a front, with its values on the objectives of the front."""

    design: RankedDesign
    values: tuple[float, ...]


@dataclass(frozen=True)
class FoundFront:
    """The front of a space, and how much work it took.

    Attributes
    ----------
    points
        Of the space, within the limits of the chip.
    evaluated, feasible
        Points that were evaluated, and those of them that fit.
    designs
        The best one in the first objective first.
    """

    points: int
    evaluated: int
    feasible: int
    designs: tuple[FrontDesign, ...]


def find_front(
    engine: Engine,
    store: BoundStore | None,
    names: tuple[ObjectiveName, ...],
    *,
    bounds: bool = True,
    on_progress: Callable[[EnumerationProgress], None] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
    pool: Pool | None = None,
) -> FoundFront | None:
    """Find the front of a study's whole space.

    Parameters
    ----------
    engine, store, bounds, on_progress, stopped, pool
        As for `phaze_opt.whole_space.exhaustive.enumerate_space`.
    names
        Objectives of the front.

    Raises
    ------
    InputError
        If no bound is known for an objective, or the space is too large.
    """
    if bounds:
        check_front_objectives(names)
    search = _FrontSearch(engine, store, names, pool or Here(engine), on_progress)
    return search.run(stopped, bounds=bounds)


@dataclass(eq=False)
class Archive:
    """The evaluated points that no other one dominates.

    Of points with equal costs the first in the order of designs stands for all.
    """

    width: int
    kept: dict[Costs, tuple[Rank, FrontDesign]] = field(default_factory=dict)
    _costs: FloatArray | None = None

    @property
    def costs(self) -> FloatArray:
        """Costs of the points: (points, objectives)."""
        if self._costs is None:
            self._costs = np.array(list(self.kept)).reshape(-1, self.width)
        return self._costs

    def dominates(self, costs: Costs) -> bool:
        """Whether a point is no worse than some costs in every objective and better in one."""
        no_worse = (self.costs <= costs).all(axis=1)
        return bool((no_worse & (self.costs < costs).any(axis=1)).any())

    def dominated(self, costs: FloatArray) -> BoolArray:
        """Tell which rows of an array of shape (points, objectives) a point dominates."""
        found = np.zeros(len(costs), dtype=np.bool_)
        step = max(1, _COMPARED // max(1, self.costs.size))
        for begin in range(0, len(costs), step):
            own = costs[begin : begin + step, np.newaxis]
            no_worse = np.all(self.costs <= own, axis=2)
            better = np.any(self.costs < own, axis=2)
            found[begin : begin + step] = np.any(no_worse & better, axis=1)
        return found

    def add(self, costs: Costs, rank: Rank, design: FrontDesign) -> None:
        """Enter an evaluated point, unless another one is better."""
        same = self.kept.get(costs)
        if self.dominates(costs) or (same is not None and same[0].key <= rank.key):
            return
        own = np.array(costs)
        beaten = (own <= self.costs).all(axis=1) & (own < self.costs).any(axis=1)
        for place in np.flatnonzero(beaten).tolist():
            del self.kept[tuple(self.costs[place].tolist())]
        self.kept[costs] = rank, design
        self._costs = None


@dataclass(frozen=True, eq=False)
class _Cell:
    """A box of chips under one combination of options, with the bounds of all its points."""

    costs: Costs
    option: int
    box: int
    rows: tuple[int, int]


class _FrontSearch:
    """The state of the search; see `find_front`."""

    def __init__(
        self,
        engine: Engine,
        store: BoundStore | None,
        names: tuple[ObjectiveName, ...],
        pool: Pool,
        on_progress: Callable[[EnumerationProgress], None],
    ) -> None:
        self._engine = engine
        self._grid = engine.grid
        self._store = store
        self._pool = pool
        self._on_progress = on_progress
        self._costs = FrontBounds(engine.grid, engine.objective, engine.rule, names)
        self._archive = Archive(len(names))
        self._cells: deque[_Cell] = deque()
        self._heap: list[tuple[Costs, int]] = []
        self._opened_rows = self._left_rows = 0
        self._evaluated = self._feasible = 0

    def run(self, stopped: Callable[[], bool], *, bounds: bool) -> FoundFront | None:
        """Go through the space; see `find_front`."""
        if bounds:
            self._cells.extend(sorted(self._bounded_cells(), key=_place_of_cell))
            self._left_rows = sum(cell.rows[1] - cell.rows[0] for cell in self._cells)
        else:
            nothing = (float("-inf"),) * len(self._costs.kinds)
            self._heap = [(nothing, place) for place in range(self._grid.points)]
        given: deque[tuple[tuple[Costs, int], Answer[list[Metrics]]]] = deque()
        while True:
            self._drop_cells()
            while len(given) <= self._pool.ahead and self._is_point_next():
                costs, place = heapq.heappop(self._heap)
                if not self._archive.dominates(costs):
                    point = self._grid.point(*self._at(place))
                    given.append(((costs, place), self._pool.evaluate([point])))
            if stopped():
                return None
            if given:
                self._take(*given.popleft())
            elif self._cells:
                # Nothing is under way, so that what is opened does not depend on the pool.
                self._open()
            elif not self._heap:
                break
        designs = [self._archive.kept[costs][1] for costs in sorted(self._archive.kept)]
        points = self._grid.points
        return FoundFront(points, self._evaluated, self._feasible, tuple(designs))

    def _bounded_cells(self) -> Iterator[_Cell]:
        """Bound all boxes under every combination of options."""
        first = self._grid.chips.first.tolist()
        self._on_progress(EnumerationProgress("boxes", 0, len(first) - 1, None))
        rates = bounds_of_boxes(self._grid, self._engine.rule, self._store)
        for option, own in enumerate(rates):
            feasible = own.max(axis=0, initial=0.0) > 0.0
            if feasible.any():
                costs = self._costs.of_boxes(option, own).tolist()
                for box in np.flatnonzero(feasible).tolist():
                    yield _Cell(tuple(costs[box]), option, box, (first[box], first[box + 1]))

    def _is_point_next(self) -> bool:
        """Whether a point comes before all cells that are left."""
        if not self._heap:
            return False
        return not self._cells or self._heap[0][0] < self._cells[0].costs

    def _drop_cells(self) -> None:
        """Leave out the next cells as long as they are dominated."""
        while self._cells and self._archive.dominates(self._cells[0].costs):
            cell = self._cells.popleft()
            self._left_rows -= cell.rows[1] - cell.rows[0]

    def _drop_points(self) -> None:
        """Leave out all points that are dominated by now."""
        if self._heap:
            left = ~self._archive.dominated(np.array([costs for costs, _ in self._heap]))
            self._heap = [self._heap[place] for place in np.flatnonzero(left).tolist()]
            heapq.heapify(self._heap)

    def _at(self, place: int) -> tuple[int, int, int]:
        """Return option, size and architecture of a point."""
        option, size, row = np.unravel_index(place, self._grid.shape)
        return int(option), int(size), int(row)

    def _take(self, entry: tuple[Costs, int], answer: Answer[list[Metrics]]) -> None:
        """Enter the evaluation of a point, unless one before it has made it needless."""
        costs, place = entry
        if self._archive.dominates(costs):
            return
        (metrics,) = answer.result()
        self._evaluated += 1
        if metrics.feasible:
            self._feasible += 1
            point = self._grid.point(*self._at(place))
            values = self._costs.values(point, metrics)
            design = FrontDesign(RankedDesign(point.values, metrics), values)
            rank = metrics.rank(self._engine.objective.study, point)
            self._archive.add(self._costs.costs(values), rank, design)
        due = self._evaluated + len(self._heap)
        self._on_progress(EnumerationProgress("evaluations", self._evaluated, due, None))

    def _open(self) -> None:
        """Bound the architectures of the next cells, and sort their points in."""
        self._drop_points()
        cells: list[_Cell] = []
        rows = 0
        while self._cells and rows < BATCH_ROWS:
            self._drop_cells()
            if self._cells:
                cells.append(self._cells.popleft())
                rows += cells[-1].rows[1] - cells[-1].rows[0]
        if not cells:
            return
        parts = parts_of((cell.option, cell.rows) for cell in cells)
        for part, rates in zip(parts, self._bounded(parts), strict=True):
            self._add(part, rates)
        self._opened_rows += rows
        self._on_progress(EnumerationProgress("chips", self._opened_rows, self._left_rows, None))

    def _bounded(self, parts: list[SpacePart]) -> list[FloatArray]:
        """Return the bounds of the rate of some parts, stored or new."""
        key, found = stored_bounds(self._grid, self._store, parts)
        if found is None:
            answers = [self._pool.bound([part]) for part in parts]
            found = [rounded_up(rates) for answer in answers for rates in answer.result()]
            if self._store is not None:
                self._store.keep(key, np.concatenate(found, axis=1))
        return found

    def _add(self, part: SpacePart, rates: FloatArray) -> None:
        """Sort in the points of a part that nothing dominates."""
        architectures = part.architectures
        costs = self._costs.of_chips(part.option, architectures, rates)
        sizes, columns = np.nonzero(rates > 0.0)
        left = ~self._archive.dominated(costs[sizes, columns])
        for size, column in zip(sizes[left].tolist(), columns[left].tolist(), strict=True):
            row = int(architectures[column])
            place = int(np.ravel_multi_index((part.option, size, row), self._grid.shape))
            exact = self._costs.with_exact_area(costs[size, column], row)
            heapq.heappush(self._heap, (exact, place))


def _place_of_cell(cell: _Cell) -> tuple[Costs, int, int]:
    """Sort cells by their costs."""
    return cell.costs, cell.option, cell.box
