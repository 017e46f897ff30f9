"""Finds the front of a space: the points that no other point dominates, proven by bounds.

The search excludes a point if and only if an evaluated point is no worse than its bounds in every
objective and better in at least one, and a box of chips if this holds for the bounds of the whole
box. Values are compared exactly. Boxes and points come in the order of their bounds: every point
that can dominate another point comes before it, so that no other order evaluates fewer points.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.bounds.bounding import SpacePart, bounds_of_boxes, parts_of, stored_bounds
from phaze_opt.bounds.point_grid import Place
from phaze_opt.bounds.study_bounds import check_bounded
from phaze_opt.errors import InputError
from phaze_opt.spec.objectives import PAID_OBJECTIVES, ObjectiveName
from phaze_opt.spec.ordering import Rank
from phaze_opt.store.enumerations import BoundStore, rounded_up
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.exhaustive import EnumerationProgress, RankedDesign
from phaze_opt.whole_space.front_bounds import Costs, FrontBounds
from phaze_opt.whole_space.pools import LocalPool, Pool, Task

BATCH_ROWS = 2048
"""Least number of architectures, each under one combination of options, bounded in one batch."""

_COMPARED = 2**22
"""Number of costs that are compared in one array operation."""

Cell = tuple[Costs, int, int]
"""A box of chips under one combination of options: bounds of all its costs, option, box."""


@dataclass(frozen=True)
class FrontDesign:
    """A design of a front, with its values of the front's objectives."""

    design: RankedDesign
    values: tuple[float, ...]


@dataclass(frozen=True)
class FoundFront:
    """The front of a space, and the number of evaluations that found it.

    Attributes
    ----------
    points
        Number of points of the space whose chip is within the limits.
    evaluated, feasible
        Number of evaluated points, and of feasible points among them.
    designs
        Designs of the front, sorted by the first objective, the best first.
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
        See `phaze_opt.whole_space.exhaustive.enumerate_space`.
    names
        Objectives of the front.

    Returns
    -------
    front
        ``None`` if ``stopped`` ended the search.

    Raises
    ------
    InputError
        If no bound is known for an objective, or the space is too large.
    """
    if bounds:
        check_bounded(names)
        several = len(engine.grid.study.spec.runs) > 1
        for name in (name for name in names if several and name in PAID_OBJECTIVES):
            raise InputError(
                f"No bound of a front is known for {name} of several workloads; --no-bounds "
                "evaluates every point."
            )
    search = _FrontSearch(engine, store, names, pool or LocalPool(engine), on_progress)
    return search.run(stopped, bounds=bounds)


@dataclass(eq=False)
class Archive:
    """The evaluated points that no other evaluated point dominates.

    Of points with equal costs, the archive keeps the first in the order of designs.

    Attributes
    ----------
    objectives
        Number of objectives.
    kept
        Rank and design of every point, by its costs.
    """

    objectives: int
    kept: dict[Costs, tuple[Rank, FrontDesign]] = field(default_factory=dict)
    _costs: FloatArray | None = None

    @property
    def costs(self) -> FloatArray:
        """Costs of the points: (points, objectives)."""
        if self._costs is None:
            self._costs = np.array(list(self.kept)).reshape(-1, self.objectives)
        return self._costs

    def dominates(self, costs: Costs) -> bool:
        """Whether a point is no worse than these costs in every objective and better in one."""
        no_worse = (self.costs <= costs).all(axis=1)
        return bool((no_worse & (self.costs < costs).any(axis=1)).any())

    def dominated(self, costs: FloatArray) -> BoolArray:
        """Return which rows of costs a point dominates.

        Parameters
        ----------
        costs : (points, objectives)

        Returns
        -------
        dominated : (points,)
        """
        dominated = np.zeros(len(costs), dtype=np.bool_)
        step = max(1, _COMPARED // max(1, self.costs.size))
        for begin in range(0, len(costs), step):
            rows = costs[begin : begin + step, np.newaxis]
            no_worse = np.all(self.costs <= rows, axis=2)
            better = np.any(self.costs < rows, axis=2)
            dominated[begin : begin + step] = np.any(no_worse & better, axis=1)
        return dominated

    def add(self, costs: Costs, rank: Rank, design: FrontDesign) -> None:
        """Add an evaluated point unless the archive has a better one, and drop worse points."""
        equal = self.kept.get(costs)
        if self.dominates(costs) or (equal is not None and equal[0].key <= rank.key):
            return
        new = np.array(costs)
        worse = (new <= self.costs).all(axis=1) & (new < self.costs).any(axis=1)
        for place in np.flatnonzero(worse).tolist():
            del self.kept[tuple(self.costs[place].tolist())]
        self.kept[costs] = rank, design
        self._costs = None


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
        self._first_rows: list[int] = engine.grid.chips.first.tolist()
        self._cells: deque[Cell] = deque()
        self._heap: list[tuple[Costs, int]] = []
        self._opened_rows = self._left_rows = 0
        self._evaluated = self._feasible = 0

    def run(self, stopped: Callable[[], bool], *, bounds: bool) -> FoundFront | None:
        """Search the whole space; see `find_front`."""
        if bounds:
            self._cells.extend(sorted(self._bounded_cells()))
            self._left_rows = sum(map(self._row_count, self._cells))
        else:
            unbounded = (float("-inf"),) * len(self._costs.kinds)
            self._heap = [(unbounded, place) for place in range(self._grid.points)]
        pending: deque[tuple[tuple[Costs, int], Task[list[Metrics]]]] = deque()
        while True:
            self._drop_cells()
            while len(pending) <= self._pool.ahead and self._is_point_next():
                costs, place = heapq.heappop(self._heap)
                if not self._archive.dominates(costs):
                    at = self._at(place)
                    begun = self._pool.evaluate([self._grid.point(*at)], [at] if bounds else [])
                    pending.append(((costs, place), begun))
            if stopped():
                return None
            if pending:
                self._take(*pending.popleft())
            elif self._cells:
                # No evaluation is pending, so that the opened cells do not depend on the pool.
                self._open()
            elif not self._heap:
                break
        designs = [self._archive.kept[costs][1] for costs in sorted(self._archive.kept)]
        points = self._grid.points
        return FoundFront(points, self._evaluated, self._feasible, tuple(designs))

    def _bounded_cells(self) -> Iterator[Cell]:
        """Bound all boxes under every combination of options."""
        self._on_progress(EnumerationProgress("boxes", 0, len(self._first_rows) - 1, None))
        all_rates = bounds_of_boxes(self._grid, self._engine.rule, self._store)
        for option, rates in enumerate(all_rates):
            feasible = rates.max(axis=0, initial=0.0) > 0.0
            if feasible.any():
                costs = self._costs.of_boxes(option, rates).tolist()
                for box in np.flatnonzero(feasible).tolist():
                    yield tuple(costs[box]), option, box

    def _row_count(self, cell: Cell) -> int:
        """Return the number of architectures in the box of a cell."""
        box = cell[2]
        return self._first_rows[box + 1] - self._first_rows[box]

    def _is_point_next(self) -> bool:
        """Whether the next point comes before all remaining cells."""
        if not self._heap:
            return False
        return not self._cells or self._heap[0][0] < self._cells[0][0]

    def _drop_cells(self) -> None:
        """Drop the next cells as long as a point dominates them."""
        while self._cells and self._archive.dominates(self._cells[0][0]):
            self._left_rows -= self._row_count(self._cells.popleft())

    def _drop_points(self) -> None:
        """Drop the waiting points that an evaluated point dominates."""
        if self._heap:
            left = ~self._archive.dominated(np.array([costs for costs, _ in self._heap]))
            self._heap = [self._heap[place] for place in np.flatnonzero(left).tolist()]
            heapq.heapify(self._heap)

    def _at(self, place: int) -> Place:
        """Return the option, the size of the HBM and the architecture of a point."""
        option, size, row = np.unravel_index(place, self._grid.shape)
        return int(option), int(size), int(row)

    def _take(self, entry: tuple[Costs, int], evaluation: Task[list[Metrics]]) -> None:
        """Add an evaluated point to the archive, unless the archive dominates its bounds by now."""
        costs, place = entry
        if self._archive.dominates(costs):
            return
        (metrics,) = evaluation.result()
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
        """Bound the architectures of the next cells, and add their points to the heap."""
        self._drop_points()
        runs: list[tuple[int, tuple[int, int]]] = []
        rows = 0
        while self._cells and rows < BATCH_ROWS:
            self._drop_cells()
            if self._cells:
                cell = self._cells.popleft()
                _, option, box = cell
                runs.append((option, (self._first_rows[box], self._first_rows[box + 1])))
                rows += self._row_count(cell)
        if not runs:
            return
        parts = parts_of(runs)
        for part, rates in zip(parts, self._bounded(parts), strict=True):
            self._add(part, rates)
        self._opened_rows += rows
        self._on_progress(EnumerationProgress("chips", self._opened_rows, self._left_rows, None))

    def _bounded(self, parts: list[SpacePart]) -> list[FloatArray]:
        """Return the bounds of the rate of every part, from the store or computed."""
        key, bounds = stored_bounds(self._grid, self._engine.rule, self._store, parts)
        if bounds is None:
            tasks = [self._pool.bound([part]) for part in parts]
            bounds = [rounded_up(rates) for task in tasks for rates in task.result()]
            if self._store is not None:
                self._store.keep(key, np.concatenate(bounds, axis=1))
        return bounds

    def _add(self, part: SpacePart, rates: FloatArray) -> None:
        """Add the points of a part that no evaluated point dominates to the heap."""
        architectures = part.architectures
        costs = self._costs.of_chips(part.option, architectures, rates)
        sizes, columns = np.nonzero(rates > 0.0)
        left = ~self._archive.dominated(costs[sizes, columns])
        for size, column in zip(sizes[left].tolist(), columns[left].tolist(), strict=True):
            row = int(architectures[column])
            place = int(np.ravel_multi_index((part.option, size, row), self._grid.shape))
            exact = self._costs.with_exact_area(costs[size, column], part.option, row)
            heapq.heappush(self._heap, (exact, place))
