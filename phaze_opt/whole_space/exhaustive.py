"""Enumerates the whole space of a study: the best designs, proven for this cost model.

Points come in the order of the best ranks that their bounds allow (`phaze_opt.bounds.best_first`)
and are evaluated until no other point can enter the top. Bounds and evaluations are stored in the
database as they are computed, so that a stopped enumeration resumes, and a later study evaluates
only new points.

The enumeration excludes a point if and only if its head (bin of its bound, size of its HBM, area)
comes after that of the last design of the top, in the order of designs (`phaze_opt.spec.ordering`).
"""

from __future__ import annotations

import bisect
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from phaze_opt.bounds.best_first import BestFirst, BoundedPoint
from phaze_opt.bounds.chip_columns import may_lack_hbm
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import check_bounded
from phaze_opt.errors import InputError
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.axis_names import field_of, kind_of
from phaze_opt.spec.ordering import VALUE_BIN, Head, Rank, least_merit
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.pools import LocalPool, Pool, Task

TOP = 20
"""Size of the top: the number of best designs that an enumeration proves, in order."""

MOST_TRIED_LATE = 20
"""Number of points to evaluate after the time limit, until one is feasible."""

Level = Literal["boxes", "chips", "evaluations"]


@dataclass(frozen=True)
class EnumerationProgress:
    """The state of an enumeration.

    Attributes
    ----------
    level
        The current work: bounds of boxes, bounds of chips, or evaluations of points.
    done
        Number of bounded chips, each under one combination of options, or of evaluated points.
    total
        Expected number at the end of the level; better bounds and designs change it.
    best_value
        Value of the best design so far.
    """

    level: Level
    done: int
    total: int
    best_value: float | None


@dataclass(frozen=True)
class RankedDesign:
    """A design of the top: the values of its point, and its metrics."""

    point: tuple[tuple[str, Scalar], ...]
    metrics: Metrics


@dataclass(frozen=True)
class LevelCounts:
    """The points that one level of an enumeration excluded.

    Attributes
    ----------
    level
        ``boxes`` (rooflines of many chips), ``chips`` (bounds of single chips), ``evaluations``.
    points
        Number of points that came to the level.
    closed
        Number of these points that it excluded; at the last level, that it evaluated.
    wall_s
        Seconds of the level.
    """

    level: Level
    points: int
    closed: int
    wall_s: float


@dataclass(frozen=True)
class Enumeration:
    """The answer of an enumeration.

    Attributes
    ----------
    points
        Number of designs whose chip is buildable and within the limits: ``bounded + evaluated``.
    evaluated, feasible
        Number of evaluated points, and of feasible points among them.
    infeasible_proven
        Number of points whose bound proves that no placement fits.
    status
        ``certified``: no other design is better; ``time_limit``: the time limit came first.
    gap
        Relative difference by which a remaining point may be better than the best design; 0 if
        certified, ``None`` if no feasible design is known.
    top
        The best designs by the order of designs.
    wall_s
        Seconds of the enumeration, or of its last run.
    version
        Version of the cost model.
    levels
        Counts of each level; empty if no point was bounded.
    finished_s
        When it was stored, in seconds since 1970; ``None`` if an older program stored it.
    """

    points: int
    bounded: int
    evaluated: int
    feasible: int
    infeasible_proven: int
    status: Literal["certified", "time_limit"]
    gap: float | None
    top: tuple[RankedDesign, ...]
    wall_s: float
    version: str
    levels: tuple[LevelCounts, ...] = ()
    finished_s: float | None = None


@dataclass(eq=False)
class _Watch:
    """The time limit, the callbacks, and the seconds of every level."""

    time_limit_s: float | None
    on_progress: Callable[[EnumerationProgress], None]
    stopped: Callable[[], bool]
    started_s: float = field(default_factory=time.monotonic)
    spent_s: dict[Level, float] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether the time limit is exceeded."""
        return self.time_limit_s is not None and self.wall_s > self.time_limit_s

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    def in_haste(self) -> bool:
        """Whether to answer now."""
        return self.late or self.stopped()

    def spend(self, level: Level, since_s: float) -> float:
        """Add the seconds since ``since_s`` to a level; return the present time."""
        now_s = time.monotonic()
        self.spent_s[level] = self.spent_s.get(level, 0.0) + now_s - since_s
        return now_s


def enumerate_space(
    engine: Engine,
    store: BoundStore | None,
    *,
    top: int = TOP,
    distinct: bool = False,
    bounds: bool = True,
    time_limit_s: float | None = None,
    on_progress: Callable[[EnumerationProgress], None] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
    pool: Pool | None = None,
) -> Enumeration | None:
    """Find the best designs of a study's whole space.

    Parameters
    ----------
    engine
        Engine of the study.
    store
        Stores bounds; ``None`` to store none.
    top
        Number of best designs to prove.
    distinct
        Whether the top has only the best design of every architecture, the size of the HBM aside,
        and of architectures whose best values count as equal only the first.
    bounds
        Whether points are bounded; otherwise every point is evaluated.
    time_limit_s
        Seconds after which the best designs so far are returned, with the proven gap.
    on_progress
        Called after every batch of bounds and every evaluation.
    stopped
        Whether to stop now.
    pool
        Bounds and evaluates points; ``None`` for this process.

    Returns
    -------
    enumeration
        ``None`` if ``stopped`` ended the enumeration.

    Raises
    ------
    InputError
        If no bound is known for the objective, or the space is too large.
    """
    watch = _Watch(time_limit_s, on_progress, stopped)
    spec = engine.objective.study.spec
    if len(spec.objectives) > 1:
        raise InputError(
            "An enumeration finds the best designs of one objective, but the study has "
            f"{len(spec.objectives)}."
        )
    if top < 1:
        raise InputError(f"top is {top}, but it must be at least 1.")
    pool = pool or LocalPool(engine)
    if not bounds:
        points = every_point(engine.grid)
        return _Search(engine, _top_of(engine, top, distinct), watch, points, None, pool).answer()
    check_bounded(spec.objectives)
    watch.on_progress(EnumerationProgress("boxes", 0, len(engine.grid.chips.first) - 1, None))
    best = _top_of(engine, top, distinct)

    def on_open(best_first: BestFirst) -> None:
        due = best_first.rows_before(best.last)
        watch.on_progress(
            EnumerationProgress(
                "chips", best_first.rows_of(best_first.batches), due, best.best_value
            )
        )

    best_first = BestFirst(engine.grid, engine.rule, store, pool, on_open, watch.in_haste)
    best_first.bound_boxes()
    watch.spend("boxes", watch.started_s)
    return _Search(engine, best, watch, iter(best_first), best_first, pool).answer()


def every_point(grid: PointGrid) -> Iterator[BoundedPoint]:
    """Yield all points of a space, without bounds."""
    for option, size, row in product(*map(range, grid.shape)):
        point = grid.point(option, size, row)
        yield BoundedPoint(point, float("inf"), (float("-inf"), 0, 0.0), (option, size, row))


@dataclass(eq=False)
class _Top:
    """The best designs so far.

    Attributes
    ----------
    size
        Asked number of designs.
    ranked
        The designs of the top.
    """

    size: int
    ranked: list[tuple[Rank, RankedDesign]] = field(default_factory=list)
    evaluated: int = 0
    feasible: int = 0

    @property
    def last(self) -> Head | None:
        """Head of the last design of the top; ``None`` while every feasible point enters."""
        return self.ranked[-1][0].key[:3] if len(self.ranked) == self.size else None

    @property
    def best_value(self) -> float | None:
        """Value of the best design."""
        return self.ranked[0][1].metrics.value if self.ranked else None

    def excludes(self, head: Head) -> bool:
        """Whether a point with this head cannot enter."""
        return self.last is not None and head > self.last

    def add(self, rank: Rank, design: RankedDesign) -> None:
        """Add a feasible design, and drop the worst design of a full top."""
        self.feasible += 1
        self.ranked.append((rank, design))
        self.ranked = heapq.nsmallest(self.size, self.ranked, key=lambda pair: pair[0].key)


@dataclass(eq=False)
class _DistinctTop(_Top):
    """The best designs so far, one of every architecture, and one of every value.

    Attributes
    ----------
    axes
        The searched axes of an architecture.
    """

    axes: frozenset[str] = frozenset()
    _all: list[tuple[Rank, RankedDesign]] = field(default_factory=list)

    def add(self, rank: Rank, design: RankedDesign) -> None:
        """Add a feasible design, and choose the top again: a better one may take its place."""
        self.feasible += 1
        bisect.insort(self._all, (rank, design), key=lambda pair: pair[0].key)
        architectures, values, chosen = set(), set(), []
        for pair in self._all:
            bin_of_value = pair[0].key[0]
            architecture = tuple(item for item in pair[1].point if item[0] in self.axes)
            if architecture in architectures:
                continue
            if bin_of_value not in values:
                chosen.append(pair)
            architectures.add(architecture)
            values.add(bin_of_value)
            if len(chosen) == self.size:
                break
        self.ranked = chosen


def _top_of(engine: Engine, size: int, distinct: bool) -> _Top:
    """Return an empty top."""
    if not distinct:
        return _Top(size)
    study = engine.grid.study
    names = [name for name in study.spec.space.searched if kind_of(name) == "chip"]
    # Sizes of an HBM are one architecture, but a chip without one is another.
    chip = [name for name in names if field_of(name) != "hbm_bytes" or may_lack_hbm(study)]
    return _DistinctTop(size, axes=frozenset(chip))


_Pending = tuple[BoundedPoint, Task[list[Metrics]] | None]
"""A point with its evaluation; ``None`` if the top excludes the point."""


@dataclass(eq=False)
class _Search:
    """Evaluates points until no other point can enter the top.

    Attributes
    ----------
    points
        Points in the order of their evaluation.
    best_first
        Source of the points with their bounds; ``None`` if no point is bounded.
    """

    engine: Engine
    best: _Top
    watch: _Watch
    points: Iterator[BoundedPoint]
    best_first: BestFirst | None
    pool: Pool

    def answer(self) -> Enumeration | None:
        """Search, and return the answer; ``None`` if the search was stopped."""
        left, batches = self._evaluate()
        if self.watch.stopped():
            return None
        best, best_first, total = self.best, self.best_first, self.engine.grid.points
        return Enumeration(
            points=total,
            bounded=total - best.evaluated,
            evaluated=best.evaluated,
            feasible=best.feasible,
            infeasible_proven=0 if best_first is None else best_first.infeasible(batches),
            status="certified" if left is None else "time_limit",
            gap=self._gap(left),
            top=tuple(design for _, design in best.ranked),
            wall_s=self.watch.wall_s,
            version=self.engine.objective.study.cost_model_version,
            levels=() if best_first is None else _levels(best_first, batches, best, self.watch),
        )

    def _evaluate(self) -> tuple[Head | None, int]:
        """Evaluate points in their order.

        The pool gets points ahead of time, but their evaluations count in the order of the points;
        needless evaluations do not count.

        Returns
        -------
        left
            The head of the first point that the time limit excluded; ``None`` if no other point can
            enter the top.
        batches
            Number of batches of cells that the answer needs, without those opened ahead.
        """
        pending: deque[_Pending] = deque()
        since_s = time.monotonic()
        while True:
            self._submit(pending)
            since_s = self.watch.spend("chips", since_s)
            if not pending:
                batches = 0 if self.best_first is None else self.best_first.batches
                return self._left, batches
            first = pending[0][0]
            best_left = min(first.head, self._left or first.head)
            if self.best.excludes(first.head) and best_left == first.head:
                return None, first.batches
            if self.watch.in_haste() and not self._needs_one_more:
                return best_left, first.batches
            bounded, evaluation = pending.popleft()
            assert evaluation is not None  # an excluded point stays excluded
            (metrics,) = evaluation.result()
            since_s = self.watch.spend("evaluations", since_s)
            self._enter(bounded, metrics, len(pending))

    @property
    def _left(self) -> Head | None:
        """The best head of the points that were not yet looked at; ``None`` if there is none."""
        return None if self.best_first is None else self.best_first.left

    @property
    def _needs_one_more(self) -> bool:
        """Whether the time is up, but no design is known, and few points were tried."""
        if self.best_first is None or self.watch.stopped() or self.best.ranked:
            return False
        return self.best.evaluated < MOST_TRIED_LATE

    def _gap(self, left: Head | None) -> float | None:
        """Return the relative difference by which a point with a head may be better."""
        best_value, kind = self.best.best_value, self.engine.rule.bounded
        if left is None:
            return 0.0
        if best_value is None or left[0] == float("-inf"):
            return None
        # Every merit of a bin is below the end of the bin.
        largest = least_merit(left, kind.maximise) * (1.0 + VALUE_BIN)
        return max(0.0, largest / kind.merit(best_value) - 1.0)

    def _submit(self, pending: deque[_Pending]) -> None:
        """Submit as many points as the pool takes, up to the first excluded point."""
        while len(pending) <= self.pool.ahead and (not pending or pending[-1][1] is not None):
            bounded = next(self.points, None)
            if bounded is None:
                return
            # All points after an excluded point are excluded too.
            excluded = self.best.excludes(bounded.head)
            pending.append((bounded, None if excluded else self._begin(bounded)))

    def _begin(self, bounded: BoundedPoint) -> Task[list[Metrics]]:
        """Submit a point; where nothing is bounded, its options are not either."""
        places = [] if self.best_first is None else [bounded.place]
        return self.pool.evaluate([bounded.point], places)

    def _enter(self, bounded: BoundedPoint, metrics: Metrics, pending: int) -> None:
        """Count an evaluation, and report the progress; ``pending`` evaluations are under way."""
        best = self.best
        best.evaluated += 1
        if metrics.feasible:
            design = RankedDesign(bounded.point.values, metrics)
            best.add(metrics.rank(self.engine.objective.study, bounded.point), design)
        total = self.engine.grid.points
        if self.best_first is not None:
            total = best.evaluated + pending + self.best_first.before(best.last)
        self.watch.on_progress(
            EnumerationProgress("evaluations", best.evaluated, total, best.best_value)
        )


def _levels(
    best_first: BestFirst, batches: int, best: _Top, watch: _Watch
) -> tuple[LevelCounts, ...]:
    """Count the points that each level excluded."""
    _, sizes, _ = best_first.grid.shape
    total, opened = best_first.grid.points, best_first.rows_of(batches) * sizes
    counts: tuple[tuple[Level, int, int], ...] = (
        ("boxes", total, total - opened),
        ("chips", opened, opened - best.evaluated),
        ("evaluations", best.evaluated, best.evaluated),
    )
    return tuple(
        LevelCounts(level, points, closed, watch.spent_s.get(level, 0.0))
        for level, points, closed in counts
    )
