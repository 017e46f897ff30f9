"""The best degrees and split of a chain: bounds, exact splits, event replay.

Where all candidates together have few splits, every one is replayed. Otherwise candidates are
taken by rising lower bound of their closed form and split exactly while the bound is near the best
(all of them where they are few: where stages differ in their forward share, closed form and replay
rank them differently); these splits, and the even splits that could still be faster, are replayed.

The tensor-parallel widths are taken one after another, by the least bound of their candidates. That
of a width whose seconds are not known comes from the least seconds that it may have: a width that
is above what is searched is never asked for its seconds. The answer does not depend on the order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, CandidateGrid
from phaze_opt.placement.chain import TIE, best_split, least_times
from phaze_opt.placement.even import all_even_starts, replay_bounds
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.timing import replayed_s, with_fastest_gathers

REPLAY_MARGIN = 0.02
"""Splits whose closed form is this close to the best one are replayed too."""

_FEW_CANDIDATES = 256
"""As many candidates, or fewer, are all split and replayed, whatever their closed form."""

_FEW_SPLITS = 1024
"""As many splits of all candidates together, or fewer, are all replayed."""

_SORTED_FIRST = 64
"""Candidates, more or less, that are sorted before the others."""

_LARGE_CLASS = 256
"""A class of as many candidates, or more, is not split one by one."""

_ROUNDING = 1e-9
"""Relative error by which bounds from least seconds may be too large."""


@dataclass(frozen=True)
class _Bounds:
    """Lower bounds of the candidates of a grid: work and closed form of splits, even splits."""

    work_s: FloatArray
    closed_s: FloatArray
    even_s: FloatArray


def best_placement(costs: CandidateCosts) -> Layout | None:
    """Return the layout with the least replayed time; ``None`` if none fits."""
    known: list[tuple[float, Candidate, tuple[int, ...], Layout]] = []

    def time(candidate: Candidate, starts: IntArray) -> float:
        layout = Layout.of_starts(candidate, starts, costs.layers)
        if not _fits(costs, layout):
            return math.inf
        layout = with_fastest_gathers(costs, layout)
        time_s = replayed_s(costs, layout)
        known.append((time_s, candidate, tuple(starts.tolist()), layout))
        return time_s

    if _count_splits(costs.layers, costs.grids) <= _FEW_SPLITS:
        for candidate, starts in _all_splits(costs):
            time(candidate, starts)
    else:
        widths = _Widths(costs)
        times_s = [time(*answer) for answer in _closed_form_answers(widths)]
        # Where no split fits, no even split does.
        if widths.any_fits:
            _time_even_splits(widths, min(times_s, default=np.inf), time)
    if not known:
        return None
    least_s = min(entry[0] for entry in known)
    close = [entry for entry in known if entry[0] <= least_s * (1.0 + TIE)]
    return min(close, key=lambda entry: (entry[1], entry[2]))[3]


def _fits(costs: CandidateCosts, layout: Layout) -> bool:
    """Whether every stage fits its memory."""
    limit = costs.stages(layout.candidate).held.in_flight_limit[layout.first[0], layout.last[0]]
    return bool((limit >= costs.held(layout.candidate)[:0:-1]).all())


@lru_cache(maxsize=64)
def _count_splits(layers: int, grids: tuple[CandidateGrid, ...]) -> int:
    """Count the splits of all candidates, as far as it matters; designs of a study share them."""
    counts = [min(math.comb(layers - 1, cuts), _FEW_SPLITS + 1) for cuts in range(layers)]
    table = np.array([0, *counts])
    return sum(int((table[grid.pipeline] * grid.sizes).sum()) for grid in grids)


def _all_splits(costs: CandidateCosts) -> Iterator[tuple[Candidate, IntArray]]:
    """Yield every split of every candidate."""
    for grid in costs.grids:
        for index in range(len(grid.data)):
            for candidate in grid.candidates(index):
                for cuts in itertools.combinations(range(1, costs.layers), candidate.pipeline - 1):
                    yield candidate, np.array([0, *cuts], dtype=np.int64)


class _Widths:
    """The candidates of every tensor-parallel width, with costs that may be bounds for a while.

    Attributes
    ----------
    any_fits
        Whether the bound of a width was finite so far, so that its seconds were asked for.
    """

    def __init__(self, costs: CandidateCosts) -> None:
        self.costs = costs
        self._least = CandidateCosts(costs.problem.outline)
        self._unknown = set(costs.problem.least or ())
        self.any_fits = False
        self.grids: dict[int, list[CandidateGrid]] = {}
        for grid in costs.grids:
            self.grids.setdefault(grid.tensor, []).append(grid)
        self._bounds: dict[tuple[int, bool], list[_Bounds]] = {}
        self._work_s: dict[tuple[int, bool], float] = {}

    @cached_property
    def even_starts(self) -> IntArray:
        """The even splits: layers that are alike at the least width; others' may not be known."""
        return all_even_starts(self.costs.problem.outline.layers[min(self.grids)])

    def by_bound(self, kind: Literal["closed_s", "even_s"]) -> Iterator[tuple[float, int | None]]:
        """Yield every width with the least bound of its candidates, the least first.

        Before a bound is found, what the work of a stage alone takes is yielded, without the width:
        who looks for less needs no more.
        """
        waiting = [(self._least_work_s(tensor), False, tensor) for tensor in self.grids]
        heapq.heapify(waiting)
        while waiting:
            width_s, is_found, tensor = heapq.heappop(waiting)
            yield width_s, tensor if is_found else None
            if not is_found:
                bound_s = self._least_s(
                    tensor, [getattr(each, kind) for each in self.bounds(tensor)]
                )
                heapq.heappush(waiting, (bound_s, True, tensor))

    def _least_work_s(self, tensor: int) -> float:
        """Return what the work of a stage takes at least at a width, once for all that is known."""
        key = tensor, tensor not in self._unknown
        if key not in self._work_s:
            costs = self._costs_of(tensor)
            bounds_s = [_least_work_s(costs, grid) for grid in self.grids[tensor]]
            self._work_s[key] = self._least_s(tensor, bounds_s)
        return self._work_s[key]

    def _least_s(self, tensor: int, bounds_s: Iterable[FloatArray]) -> float:
        """Return the least bound of a width, lower by the rounding where its seconds are bounds."""
        slack = _ROUNDING if tensor in self._unknown else 0.0
        return min(float(each_s.min()) for each_s in bounds_s) * (1.0 - slack)

    def _costs_of(self, tensor: int) -> CandidateCosts:
        """Return the costs of a width, or their bounds."""
        return self._least if tensor in self._unknown else self.costs

    def bounds(self, tensor: int) -> list[_Bounds]:
        """Bound the candidates of every grid of a width, once for all that is known of it."""
        key = tensor, tensor not in self._unknown
        if key not in self._bounds:
            costs = self._costs_of(tensor)
            self._bounds[key] = [
                _Bounds(
                    *_least_times_s(costs, grid), _least_even_times_s(costs, grid, self.even_starts)
                )
                for grid in self.grids[tensor]
            ]
            costs.release()
        return self._bounds[key]

    def settle(self, tensor: int) -> list[CandidateGrid]:
        """Return the candidates of a width whose seconds are to be known from here on."""
        self._unknown.discard(tensor)
        self.any_fits = True
        return self.grids[tensor]


@dataclass(frozen=True)
class _Answer:
    """The best split of a class's candidate with the fewest replicas, by the closed form."""

    time_s: float
    work_s: float
    grid: CandidateGrid
    entry: int
    starts: IntArray


def _closed_form_answers(widths: _Widths) -> list[tuple[Candidate, IntArray]]:
    """Return the best split of every candidate whose closed form is near the least of all."""
    costs = widths.costs
    best_s = limit_s = np.inf
    answers: list[_Answer] = []
    few = sum(int(grid.sizes.sum()) for grid in costs.grids) <= _FEW_CANDIDATES
    margin = np.inf if few else REPLAY_MARGIN
    for width_s, tensor in widths.by_bound("closed_s"):
        if width_s > limit_s or not np.isfinite(width_s):
            break
        if tensor is None:
            continue
        grids = widths.settle(tensor)
        least = widths.bounds(tensor)
        bounds_s = [each.closed_s for each in least]
        for index, entry in _by_bound(grids, bounds_s):
            if bounds_s[index][entry] > limit_s:
                break
            grid, work_s = grids[index], float(least[index].work_s[entry])
            time_s, starts = _closed_form_answer(costs, grid.candidate(entry), work_s, limit_s)
            if np.isfinite(time_s):
                answers.append(_Answer(time_s, work_s, grid, entry, starts))
                best_s = min(best_s, time_s)
                limit_s = best_s * (1.0 + margin)
    near = [answer for answer in answers if answer.time_s <= limit_s]
    return [each for answer in near for each in _answers_of_class(costs, answer, limit_s)]


def _answers_of_class(
    costs: CandidateCosts, answer: _Answer, limit_s: float
) -> Iterator[tuple[Candidate, IntArray]]:
    """Yield the best splits of a class whose closed form takes no longer than a limit.

    Of the same split, more replicas are never faster. A class of very many is therefore taken to
    have one best split if that with the fewest replicas and that with the most have the same.
    """
    fewest, *others = answer.grid.candidates(answer.entry)
    yield fewest, answer.starts
    if len(others) >= _LARGE_CLASS:
        time_s, starts = _closed_form_answer(costs, others[-1], answer.work_s, limit_s)
        if np.isfinite(time_s) and np.array_equal(starts, answer.starts):
            return
    for candidate in others:
        time_s, starts = _closed_form_answer(costs, candidate, answer.work_s, limit_s)
        if not time_s <= limit_s:
            # So do those with more replicas.
            return
        yield candidate, starts


def _closed_form_answer(
    costs: CandidateCosts, candidate: Candidate, work_s: float, limit_s: float
) -> tuple[float, IntArray]:
    """Return the best split of a candidate, if it takes no longer than a limit.

    Parameters
    ----------
    costs, candidate
        The candidate.
    work_s
        Its least time without tails.
    limit_s
        The limit; what is above it has endless time.
    """
    if (
        costs.shared_tail_term_s(candidate) > (limit_s - work_s) * (1.0 + TIE)
        or work_s + costs.least_tail_term_s(candidate) > limit_s
    ):
        return np.inf, np.zeros(0, dtype=np.int64)
    work = costs.work(candidate)
    return best_split(
        work.load_s,
        work.backward_s,
        costs.tail_s(candidate),
        costs.stages(candidate).held.in_flight_limit,
        costs.held(candidate),
        costs.microbatches(candidate.data),
        candidate.pipeline,
        limit_s,
        np.ascontiguousarray(work.head_s[0]),
    )


def _by_bound(
    grids: Sequence[CandidateGrid], bounds_s: Sequence[FloatArray]
) -> Iterator[tuple[int, int]]:
    """Yield grid and entry of the finite bounds by rising value; ties as candidates are ordered."""
    if not grids:
        return
    bound_s = np.concatenate(bounds_s)
    first = np.cumsum([0, *(len(grid.data) for grid in grids)])
    # Few are ever asked for: those with the least bounds are sorted first, the others on demand.
    limit_s = (
        np.partition(bound_s, _SORTED_FIRST)[_SORTED_FIRST]
        if len(bound_s) > _SORTED_FIRST
        else np.inf
    )
    for index in (np.flatnonzero(bound_s <= limit_s), np.flatnonzero(bound_s > limit_s)):
        grid_index = np.searchsorted(first, index, side="right") - 1
        entry = index - first[grid_index]
        data = np.concatenate([grid.data for grid in grids])[index]
        pipeline = np.concatenate([grid.pipeline for grid in grids])[index]
        tensor = np.array([grid.tensor for grid in grids])[grid_index]
        devices = pipeline * data * tensor
        order = np.lexsort((grid_index, tensor, data, pipeline, devices, bound_s[index]))
        for position in order:
            if not np.isfinite(bound_s[index[position]]):
                return
            yield int(grid_index[position]), int(entry[position])


def _least_times_s(costs: CandidateCosts, grid: CandidateGrid) -> tuple[FloatArray, FloatArray]:
    """Bound work and closed form of every candidate of a grid from below."""
    stages, (tails_s, rows) = costs.least_stages(grid), costs.least_tails_s(grid)
    most_stages, fewest = grid.most_stages, grid.fewest_microbatches

    def bounds(held: IntArray) -> tuple[FloatArray, FloatArray]:
        candidates = rows, grid.pipeline, grid.microbatches
        return least_times(stages.load_s, stages.held.in_flight_limit, held, tails_s, *candidates)

    # With fewer microbatches than stages less is in flight: the fewest bound them all.
    many = grid.has_all_in_flight
    if costs.schedule == "gpipe" or fewest >= most_stages or not many.any():
        return bounds(held_by_place(most_stages, fewest, costs.schedule))
    enough = bounds(held_by_place(most_stages, most_stages))
    if many.all():
        return enough
    few = bounds(held_by_place(most_stages, fewest, costs.schedule))
    work_s, time_s = (np.where(many, a, b) for a, b in zip(enough, few, strict=True))
    return work_s, time_s


def _least_work_s(costs: CandidateCosts, grid: CandidateGrid) -> FloatArray:
    """Bound the time of any split of every candidate by the work of its fullest stage."""
    all_s, largest_s = costs.work_of_layers_s(grid.tensor)
    fullest_s = np.maximum(all_s / grid.pipeline, largest_s)
    # Whatever rounding does, what is found later is no less.
    return np.asarray(grid.microbatches * fullest_s * (1.0 - _ROUNDING))


def _time_even_splits(
    widths: _Widths, best_s: float, time: Callable[[Candidate, IntArray], float]
) -> None:
    """Time the even splits that may be the fastest.

    Parameters
    ----------
    widths
        All candidates.
    best_s
        The least time known.
    time
        Replays a split of a candidate, and keeps it.
    """
    if not widths.grids:
        return
    starts = widths.even_starts
    for width_s, tensor in widths.by_bound("even_s"):
        if width_s > best_s * (1.0 + TIE) or not np.isfinite(width_s):
            break
        if tensor is None:
            continue
        grids = widths.settle(tensor)
        bounds_s = [each.even_s for each in widths.bounds(tensor)]
        for index, entry in _by_bound(grids, bounds_s):
            if bounds_s[index][entry] > best_s * (1.0 + TIE):
                break
            for candidate in grids[index].candidates(entry):
                time_s = time(candidate, starts[candidate.pipeline, : candidate.pipeline])
                best_s = min(best_s, time_s)
                if time_s > best_s * (1.0 + TIE):
                    # More replicas that run as many microbatches take as long at least.
                    break


def _least_even_times_s(costs: CandidateCosts, grid: CandidateGrid, starts: IntArray) -> FloatArray:
    """Bound the replayed time of the even split of every candidate of a grid from below."""
    count = costs.layers
    table = costs.least_stages(grid)
    least_s = replay_bounds(
        table.load_s,
        table.held.parameters,
        table.accumulation_s_per_parameter,
        table.held.in_flight_limit,
        starts,
        grid.pipeline,
        grid.microbatches,
        costs.schedule == "gpipe",
    )
    second = starts[grid.pipeline, np.minimum(1, count - 1)]
    first_end = np.where(grid.pipeline == 1, count, second)
    tails_s, rows = costs.least_tails_s(grid)
    bounds_s: FloatArray = least_s + tails_s[rows, first_end - 1]
    return bounds_s
