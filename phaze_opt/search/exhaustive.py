"""Enumerates the whole space of a study: the best designs, proven for this cost model.

Every chip within the limits is bounded first (`phaze_opt.search.bounds`); then points are
evaluated, the best bounds first, until no bound is left that could enter the top. Bounds are stored
as they are computed and evaluations lie in the cache of the database, so that an enumeration that
was stopped goes on, and a later study pays only for points that nobody evaluated.

A point is left out if and only if (bin of its bound, size of its HBM, its area) comes after these
three of the last of the top, in the order of designs (`phaze_opt.search.ordering`).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.errors import InputError
from phaze_opt.search.axes import Scalar
from phaze_opt.search.bounds import Bounds, check_bounded
from phaze_opt.search.chips import Chips, allowed_chips, option_indices
from phaze_opt.search.frozen import content_hash
from phaze_opt.search.objective import Objective
from phaze_opt.search.ordering import VALUE_BIN, Rank, value_bin
from phaze_opt.search.space import DesignPoint, point_at
from phaze_opt.search.store.enumerations import BoundStore, rounded_up
from phaze_opt.search.trials import Metrics

CHUNK = 32_768
"""Architectures that are bounded at once, and stored together."""

TOP = 20
"""Designs that an enumeration proves to be the best, in order."""

Level = Literal["bounds", "evaluations"]


@dataclass(frozen=True)
class EnumerationProgress:
    """The state of an enumeration: of a level, how many of its parts are done."""

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
class Enumeration:
    """The answer of an enumeration.

    Attributes
    ----------
    points
        Designs whose chip is buildable and within the limits: ``bounded + evaluated``.
    evaluated, feasible
        Points that were evaluated, and feasible ones among them.
    infeasible_proven
        Points whose bound says that nothing fits.
    status
        ``certified``: no other design is better; ``time_limit``: the time was over before.
    gap
        By how much a point that is left could be better than the best, relative; 0 if certified,
        ``None`` where a point that is left has no bound yet, or nothing is feasible so far.
    top
        The best designs by the order of designs.
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


@dataclass(frozen=True, eq=False)
class _Points:
    """All points by option, size of the HBM and architecture, with their bounds.

    Attributes
    ----------
    bounds : (options, sizes, architectures)
        Infinite where nothing is known.
    """

    chips: Chips
    options: list[dict[str, int]]
    bounds: FloatArray

    def point(self, objective: Objective, flat: int) -> DesignPoint:
        """Return a point by its place in the bounds."""
        at = np.unravel_index(flat, self.bounds.shape)
        option, size, architecture = (int(index) for index in at)
        indices = {**self.options[option], **self.chips.point_indices(architecture, size)}
        return point_at(objective.study.spec.space, indices)


def enumerate_space(
    objective: Objective,
    store: BoundStore | None,
    *,
    top: int = TOP,
    bounds: bool = True,
    time_limit_s: float | None = None,
    on_progress: Callable[[EnumerationProgress], None] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Enumeration | None:
    """Find the best designs of a study's whole space.

    Parameters
    ----------
    objective
        Evaluates points, with the caches of the study's database.
    store
        Keeps bounds; ``None`` for none.
    top
        How many designs are proven to be the best.
    bounds
        Whether points are bounded; otherwise each is evaluated.
    time_limit_s
        Seconds after which the best so far is returned, with what is proven.
    on_progress
        Called after every part.
    stopped
        Whether to stop; the answer is then ``None``.

    Raises
    ------
    InputError
        If no bound is known for the objective, or the space is too large.
    """
    started_s = time.monotonic()
    spec = objective.study.spec
    if len(spec.objectives) > 1:
        raise InputError(
            "An enumeration finds the best designs of one objective, but the study has "
            f"{len(spec.objectives)}."
        )
    if bounds:
        check_bounded(spec)
    if top < 1:
        raise InputError(f"top is {top}, but it must be at least 1.")

    def late() -> bool:
        return time_limit_s is not None and time.monotonic() - started_s > time_limit_s

    chips, options = allowed_chips(objective.study), option_indices(spec.space)
    shape = (len(options), len(chips.hbm_bytes), len(chips.architectures))
    points = _Points(chips, options, np.full(shape, np.inf))
    if bounds:
        rule = Bounds(objective.study, objective.workloads, chips, objective.reference)
        for done, total in _fill_bounds(objective, rule, store, points):
            on_progress(EnumerationProgress("bounds", done, total, None))
            if stopped():
                return None
            if late():
                break
    ranked, counts, left = _evaluate(objective, points, top, on_progress, stopped, late)
    if stopped():
        return None
    best = max((one.metrics.value for one in ranked), default=0.0)
    gap: float | None = 0.0
    if left > 0.0:
        known = best > 0.0 and np.isfinite(left)
        gap = max(0.0, left / best - 1.0) if known else None
    return Enumeration(
        points=points.bounds.size,
        bounded=points.bounds.size - counts.evaluated,
        evaluated=counts.evaluated,
        feasible=counts.feasible,
        infeasible_proven=int((points.bounds == 0.0).sum()),
        status="time_limit" if left > 0.0 else "certified",
        gap=gap,
        top=tuple(ranked),
        wall_s=time.monotonic() - started_s,
        version=objective.study.cost_model_version,
    )


def _fill_bounds(
    objective: Objective, rule: Bounds, store: BoundStore | None, points: _Points
) -> Iterator[tuple[int, int]]:
    """Bound all points, chunk by chunk; chunks that are stored are read."""
    number = len(points.chips.architectures)
    starts = range(0, number, CHUNK)
    total = len(points.options) * len(starts)
    for option, indices in enumerate(points.options):
        for part, start in enumerate(starts):
            rows = slice(start, min(start + CHUNK, number))
            key = content_hash([objective.study.hash, option, start, CHUNK])
            found = None if store is None else store.find(key)
            expected = points.bounds[option, :, rows].shape
            if found is None or found.shape != expected:
                found = rounded_up(_chunk(objective, rule, points, indices, rows))
                if store is not None:
                    store.keep(key, found)
            points.bounds[option, :, rows] = found
            yield option * len(starts) + part + 1, total


def _chunk(
    objective: Objective, rule: Bounds, points: _Points, indices: dict[str, int], rows: slice
) -> FloatArray:
    """Bound some architectures under one combination of options."""
    chip = points.chips.point_indices(rows.start, 0)
    point = point_at(objective.study.spec.space, {**indices, **chip})
    try:
        return rule.values(objective.study.design(point), rows)
    except InputError:
        if rows.stop - rows.start > 1:
            # A chip on which no product fits is refused, and all that are bounded with it.
            middle = (rows.start + rows.stop) // 2
            parts = slice(rows.start, middle), slice(middle, rows.stop)
            found = [_chunk(objective, rule, points, indices, part) for part in parts]
            return np.concatenate(found, axis=1)
        metrics = objective(point)
        if metrics.feasible or metrics.runs:
            raise
        return np.zeros((len(points.chips.hbm_bytes), 1))


@dataclass
class _Counts:
    evaluated: int = 0
    feasible: int = 0


def _evaluate(
    objective: Objective,
    points: _Points,
    top: int,
    on_progress: Callable[[EnumerationProgress], None],
    stopped: Callable[[], bool],
    late: Callable[[], bool],
) -> tuple[list[RankedDesign], _Counts, float]:
    """Evaluate points, the best bounds first, until none is left that could enter the top.

    Returns
    -------
    top, counts
    left
        The largest bound among points that could be better and were not evaluated; 0 if none.
    """
    counts = _Counts()
    best: list[tuple[Rank, RankedDesign]] = []
    for flat, head in _by_bound(points):
        if len(best) == top and head > best[-1][0].key[:3]:
            break
        if stopped() or late():
            # The points that are left lie in the same bin or below.
            largest = float(points.bounds.flat[flat]) * (1.0 + VALUE_BIN)
            return [one for _, one in best], counts, largest
        point = points.point(objective, flat)
        metrics = objective(point)
        counts.evaluated += 1
        if metrics.feasible:
            counts.feasible += 1
            rank = metrics.rank(objective.study, point)
            best.append((rank, RankedDesign(point.values, metrics)))
            best = heapq.nsmallest(top, best, key=lambda pair: pair[0].key)
        value = best[0][1].metrics.value if best else None
        on_progress(EnumerationProgress("evaluations", counts.evaluated, 0, value))
    return [one for _, one in best], counts, 0.0


def _by_bound(points: _Points) -> Iterator[tuple[int, tuple[float, int, float]]]:
    """Yield the places of all points that may fit, in the order of their best possible ranks."""
    chips = points.chips
    bounds = points.bounds.ravel()
    places = np.flatnonzero(bounds > 0.0)
    bins = np.array([-np.inf if np.isinf(b) else -value_bin(b) for b in bounds[places].tolist()])
    _, sizes, architectures = np.unravel_index(places, points.bounds.shape)
    hbm_bytes, area_mm2 = chips.hbm_bytes[sizes, architectures], chips.area_mm2[architectures]
    for at in np.lexsort((places, area_mm2, hbm_bytes, bins)).tolist():
        # Areas of many chips at once may differ from that of one in the last bits.
        least_mm2 = float(area_mm2[at]) * (1.0 - 1e-12)
        yield int(places[at]), (float(bins[at]), int(hbm_bytes[at]), least_mm2)
