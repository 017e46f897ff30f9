"""Lower bounds of all candidates, tensor degree by tensor degree, as far as anybody asks.

The seconds of a tensor degree may not be known: its bounds then come from the least seconds that it
may have, and a tensor degree that is above what is searched is never asked for its seconds. The
answer does not depend on the order.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.on_demand import cached_property
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import CandidateGrid
from phaze_opt.placement.chain_bounds import least_of_work, least_times
from phaze_opt.placement.closed_form import even_share
from phaze_opt.placement.even import all_even_starts, least_even_times
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem

_SORTED_FIRST = 64
"""Candidates, more or less, that are sorted before the others."""

_ROUNDING = 1e-9
"""Relative error by which bounds from least seconds may be too large."""

_HARDLY_MORE = 1.001
"""Bounds from least seconds are kept where the seconds are at most so many times as long."""

_Kind = Literal["closed_s", "replayed_s"]


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of the candidates of a grid.

    Attributes
    ----------
    work_s, closed_s
        Of the closed form of any split, without and with its tail.
    replayed_s
        Of the replay of any split.
    """

    work_s: FloatArray
    closed_s: FloatArray
    replayed_s: FloatArray

    def times(self, factor: float) -> Bounds:
        """Return them multiplied."""
        each = self.work_s, self.closed_s, self.replayed_s
        return Bounds(*(times_s * factor for times_s in each))


class DegreesByBound:
    """The candidates of every tensor degree, with costs that may be bounds for a while."""

    def __init__(self, costs: CandidateCosts) -> None:
        self.costs = costs
        self._least = CandidateCosts(costs.problem.outline)
        self._unknown = set(costs.problem.least or ())
        self.grids: dict[int, list[CandidateGrid]] = {}
        for grid in costs.grids:
            self.grids.setdefault(grid.tensor, []).append(grid)
        self._bounds: dict[tuple[int, bool], list[Bounds]] = {}
        self._work_s: dict[tuple[int, bool], dict[_Kind, float]] = {}

    @cached_property
    def even_starts(self) -> IntArray:
        """The even splits: layers that are alike at the least degree; others' may not be known."""
        outline, least = self.costs.problem.outline, min(self.grids)
        return all_even_starts(outline.layers[least], outline.kinds_of(least))

    def by_bound(self, kind: _Kind) -> Iterator[tuple[float, int | None]]:
        """Yield every tensor degree with the least bound of its candidates, the least first.

        Before a bound is found, what the work of the layers alone takes is yielded, without the
        tensor degree: who looks for less needs no more.
        """

        def found(tensor: int, known_s: float = 0.0) -> tuple[float, bool, int]:
            least_s = min([float(getattr(each, kind).min()) for each in self.bounds(tensor)])
            return max(least_s * self._slack(tensor), known_s), True, tensor

        waiting = [
            found(tensor)
            if (tensor, tensor not in self._unknown) in self._bounds
            else (self._least_work_s(tensor)[kind], False, tensor)
            for tensor in self.grids
        ]
        heapq.heapify(waiting)
        while waiting:
            degree_s, is_found, tensor = heapq.heappop(waiting)
            yield degree_s, tensor if is_found else None
            if not is_found:
                heapq.heappush(waiting, found(tensor, degree_s))

    def _least_work_s(self, tensor: int) -> dict[_Kind, float]:
        """Bound a tensor degree by the work of its layers, once for all that is known."""
        key = tensor, tensor not in self._unknown
        if key not in self._work_s:
            costs, slack = self._costs_of(tensor), self._slack(tensor)
            bounds_s = [_least_work_s(costs, grid) for grid in self.grids[tensor]]
            closed_s, replayed_s = (min(of_kind) * slack for of_kind in zip(*bounds_s, strict=True))
            self._work_s[key] = {"closed_s": closed_s, "replayed_s": replayed_s}
        return self._work_s[key]

    def _slack(self, tensor: int) -> float:
        """Return the factor of the bounds of a degree whose seconds are bounds: the rounding."""
        return 1.0 - _ROUNDING if tensor in self._unknown else 1.0

    def _costs_of(self, tensor: int) -> CandidateCosts:
        """Return the costs of a tensor degree, or their bounds."""
        return self._least if tensor in self._unknown else self.costs

    def bounds(self, tensor: int) -> list[Bounds]:
        """Bound the candidates of every grid of a degree, once for all that is known of it."""
        key = tensor, tensor not in self._unknown
        if key not in self._bounds:
            costs = self._costs_of(tensor)
            self._bounds[key] = [
                Bounds(*_least_times_s(costs, grid)) for grid in self.grids[tensor]
            ]
            costs.release()
        return self._bounds[key]

    def even_bounds_s(self, tensor: int) -> list[FloatArray]:
        """Bound the even splits of the candidates of every grid of a degree that is settled."""
        return [
            _least_even_times_s(self.costs, grid, self.even_starts) for grid in self.grids[tensor]
        ]

    def settle(self, tensor: int) -> list[CandidateGrid]:
        """Return the candidates of a tensor degree whose seconds are to be known from here on."""
        if tensor in self._unknown:
            self._unknown.discard(tensor)
            known = self._bounds.get((tensor, False))
            if known is not None and self._takes_hardly_more(tensor):
                self._bounds[tensor, True] = [each.times(1.0 - _ROUNDING) for each in known]
        return self.grids[tensor]

    def _takes_hardly_more(self, tensor: int) -> bool:
        """Say whether the work of a degree is so near the least that its bounds tell as much."""
        least_s = self._least.work_of_layers_s(tensor)
        found_s = self.costs.work_of_layers_s(tensor)
        return all(
            bound_s <= least * _HARDLY_MORE for least, bound_s in zip(least_s, found_s, strict=True)
        )


def least_of_layers_s(problem: PlacementProblem) -> float:
    """Bound the time of a batch from below by the work of the layers alone, whatever fits.

    Interleaved pipelines are bounded by less: a stage has a p-th of the work, or more. Endless
    where there are no candidates.
    """
    costs, least_s = CandidateCosts(problem), math.inf
    for grid in costs.grids:
        microbatches, stages, _ = grid.deepest
        share = even_share(microbatches, stages, problem.training.interleave)
        work_s = costs.work_of_layers_s(grid.tensor)
        least_s = min(least_s, least_of_work(microbatches, stages, share, *work_s)[1])
    return least_s * (1.0 - _ROUNDING)


def by_bound(
    grids: Sequence[CandidateGrid], bounds_s: Sequence[FloatArray]
) -> Iterator[tuple[int, int]]:
    """Yield grid and entry of the finite bounds of a tensor degree by rising value.

    Ties are in the order of candidates: in one tensor degree, devices and stages tell it.
    """
    if not grids:
        return
    bound_s = np.concatenate(bounds_s)
    first = np.cumsum([0, *(len(grid.data) for grid in grids)]).tolist()
    # Few are ever asked for: those with the least bounds are sorted first, the others on demand.
    limit_s = (
        np.partition(bound_s, _SORTED_FIRST)[_SORTED_FIRST]
        if len(bound_s) > _SORTED_FIRST
        else np.inf
    )
    for among_least in (True, False):
        index = np.flatnonzero((bound_s <= limit_s) == among_least)
        devices = np.concatenate([grid.devices for grid in grids])[index]
        pipeline = np.concatenate([grid.pipeline for grid in grids])[index]
        for place in index[np.lexsort((pipeline, devices, bound_s[index]))].tolist():
            if not np.isfinite(bound_s[place]):
                return
            grid = bisect_right(first, place) - 1
            yield grid, place - first[grid]


def up_to(
    most_s: float, grids: Sequence[CandidateGrid], bounds_s: Sequence[FloatArray]
) -> list[tuple[int, int]]:
    """Return grid and entry of the bounds of a degree up to some value, in the same order."""
    bounds = [
        (float(each_s[entry]), grid.candidate(entry)[:2], index, entry)
        for index, (grid, each_s) in enumerate(zip(grids, bounds_s, strict=True))
        for entry in (each_s <= most_s).nonzero()[0].tolist()
    ]
    return [each[2:] for each in sorted(bounds)]


def _least_times_s(costs: CandidateCosts, grid: CandidateGrid) -> tuple[FloatArray, ...]:
    """Bound work, closed form and replay of every candidate of a grid from below."""
    stages, classes = costs.least_stages(grid), costs.classes(grid)
    most_stages, fewest = grid.most_stages, grid.fewest_microbatches
    saving_s = costs.added_up(grid.tensor) * stages.accumulation_s_per_parameter
    limit = stages.held.in_flight_limit

    def bounds(held: IntArray) -> tuple[FloatArray, ...]:
        return least_times(stages.load_s, saving_s, limit, held, classes)

    # With fewer microbatches than stages less is in flight: the fewest bound them all.
    many = grid.has_all_in_flight
    if costs.schedule == "gpipe" or fewest >= most_stages or not many.any():
        return bounds(held_by_place(most_stages, fewest, costs.schedule))
    enough = bounds(held_by_place(most_stages, most_stages))
    if many.all():
        return enough
    few = bounds(held_by_place(most_stages, fewest, costs.schedule))
    return tuple(np.where(many, a, b) for a, b in zip(enough, few, strict=True))


def _least_work_s(costs: CandidateCosts, grid: CandidateGrid) -> tuple[float, float]:
    """Bound a grid by the work of its layers: the closed form of splits, and their replay."""
    deepest, work_s = costs.deepest_that_may_fit(grid), costs.work_of_layers_s(grid.tensor)
    closed_s, replayed_s = least_of_work(*deepest, *work_s)
    # Whatever rounding does, what is found later is no less.
    return closed_s * (1.0 - _ROUNDING), replayed_s * (1.0 - _ROUNDING)


def _least_even_times_s(costs: CandidateCosts, grid: CandidateGrid, starts: IntArray) -> FloatArray:
    """Bound the replayed time of the even split of every candidate of a grid from below."""
    stages, classes = costs.least_stages(grid), costs.classes(grid)
    held, saving_s = stages.held, stages.accumulation_s_per_parameter
    limit = held.in_flight_limit
    return least_even_times(stages.load_s, held.added, saving_s, limit, starts, classes)
