"""The best degrees and split of a chain: bounds, exact splits, event replay.

Where all candidates together have few splits, every one is replayed. Otherwise candidates are
taken by rising lower bound of their closed form and split exactly while the bound is near the best,
and these splits are replayed. Where stages differ in their forward share, closed form and replay
rank candidates differently: where these are few, all are split and replayed whose bound of the
replay is not above the best. What may be faster by that bound is then searched until nothing is
left (`phaze_opt.placement.proof`).

The tensor degrees are taken one after another, by the least bound of their candidates (see
`phaze_opt.placement.degree_bounds`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, CandidateGrid
from phaze_opt.placement.chain import ChainWork, best_split
from phaze_opt.placement.chain_bounds import TIE
from phaze_opt.placement.degree_bounds import Bounds, DegreesByBound, by_bound
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.proof import faster_splits
from phaze_opt.placement.timing import Replayed, with_fastest_gathers

REPLAY_MARGIN = 0.02
"""Splits whose closed form is this close to the best one are replayed too."""

_FEW_CANDIDATES = 256
"""As many candidates, or fewer, are split and replayed whatever their closed form."""

_FEW_SPLITS = 1024
"""As many splits of all candidates together, or fewer, are all replayed."""

_LARGE_CLASS = 256
"""A class of as many candidates, or more, is not split one by one."""


def best_placement(costs: CandidateCosts) -> tuple[Layout, Replayed, float] | None:
    """Return the layout with the least replayed time, its replay, and a bound of all others.

    ``None`` if none fits.
    """
    known: list[tuple[float, Candidate, tuple[int, ...], tuple[Layout, Replayed]]] = []

    def time(candidate: Candidate, starts: IntArray) -> float:
        layout = Layout.of_starts(candidate, starts, costs.layers)
        if not layout_fits(costs, layout):
            return math.inf
        layout, done = with_fastest_gathers(costs, layout)
        known.append((done.time_s, candidate, tuple(starts.tolist()), (layout, done)))
        return done.time_s

    if _splits_are_few(costs):
        times_s = [time(*split) for split in _all_splits(costs)]
        bound_s = min(times_s, default=np.inf)
    else:
        tensor_degrees = DegreesByBound(costs)
        if _candidates_are_few(costs):
            times_s = _times_of_few(tensor_degrees, time)
        else:
            times_s = [time(*answer) for answer in _closed_form_answers(tensor_degrees)]
        # Where no split fits, no other one does.
        bound_s = faster_splits(tensor_degrees, min(times_s), time) if times_s else np.inf
    if not known:
        return None
    least_s = min(entry[0] for entry in known)
    close = [entry for entry in known if entry[0] <= least_s * (1.0 + TIE)]
    return *min(close, key=lambda entry: (entry[1], entry[2]))[3], bound_s


def layout_fits(costs: CandidateCosts, layout: Layout) -> bool:
    """Whether every stage fits its memory."""
    limit = costs.stages(layout.candidate).held.in_flight_limit[layout.first[0], layout.last[0]]
    return bool((limit >= costs.held(layout.candidate)[:0:-1]).all())


def _splits_are_few(costs: CandidateCosts) -> bool:
    """Whether all candidates together have few splits."""
    splits = _splits_by_stages(costs.layers)
    by_stages = (grid.candidates_by_stages for grid in costs.grids)
    counts = (int((splits[: len(each)] * each).sum()) for each in by_stages)
    return all(total <= _FEW_SPLITS for total in itertools.accumulate(counts))


@lru_cache(maxsize=64)
def _splits_by_stages(layers: int) -> IntArray:
    """Count the splits of so many layers into 0, 1, 2, … stages, as far as it matters."""
    gaps = layers - 1
    # Where ten gaps of twenty can be chosen, there are more than matter: 184,756.
    chosen = [min(cuts, gaps - cuts, 10) for cuts in range(layers)]
    return np.array([0, *(min(math.comb(gaps, few), _FEW_SPLITS + 1) for few in chosen)])


def _candidates_are_few(costs: CandidateCosts) -> bool:
    """Whether there are few candidates."""
    counts = (int(grid.sizes.sum()) for grid in costs.grids)
    return all(total <= _FEW_CANDIDATES for total in itertools.accumulate(counts))


def _all_splits(costs: CandidateCosts) -> Iterator[tuple[Candidate, IntArray]]:
    """Yield every split of every candidate."""
    for grid in costs.grids:
        for index in range(len(grid.data)):
            for candidate in grid.candidates(index):
                for cuts in itertools.combinations(range(1, costs.layers), candidate.pipeline - 1):
                    yield candidate, np.array([0, *cuts], dtype=np.int64)


_MANY_TAILS = 4.0
"""Room for so many of the least tails, or more, is hardly ever too little for those of a split."""


class _Least(NamedTuple):
    """The least time of a class's candidates: without tails, and with that of a first stage."""

    work_s: float
    closed_s: float


@dataclass(frozen=True)
class _Answer:
    """The best split of a class's candidate with the fewest replicas, by the closed form."""

    time_s: float
    least: _Least
    grid: CandidateGrid
    entry: int
    starts: IntArray


def _times_of_few(
    tensor_degrees: DegreesByBound, time: Callable[[Candidate, IntArray], float]
) -> list[float]:
    """Replay the best splits, by the closed form, of all candidates that may be the fastest."""
    costs, times_s, least_s = tensor_degrees.costs, list[float](), np.inf
    for degree_s, tensor in tensor_degrees.by_bound("replayed_s"):
        if degree_s > least_s * (1.0 + TIE) or not np.isfinite(degree_s):
            break
        if tensor is None:
            continue
        grids = tensor_degrees.settle(tensor)
        least = tensor_degrees.bounds(tensor)
        for index, entry in by_bound(grids, [each.replayed_s for each in least]):
            if least[index].replayed_s[entry] > least_s * (1.0 + TIE):
                break
            answer = _answer(costs, grids[index], least[index], entry, np.inf)
            for split in _answers_of_class(costs, answer, np.inf) if answer else ():
                times_s.append(time(*split))
                least_s = min(least_s, times_s[-1])
    return times_s


def _answer(
    costs: CandidateCosts, grid: CandidateGrid, least: Bounds, entry: int, limit_s: float
) -> _Answer | None:
    """Return the best split of a class, if it takes no longer than a limit."""
    known = _Least(float(least.work_s[entry]), float(least.closed_s[entry]))
    time_s, starts = _closed_form_answer(costs, grid.bounding(entry), known, limit_s)
    return _Answer(time_s, known, grid, entry, starts) if np.isfinite(time_s) else None


def _closed_form_answers(tensor_degrees: DegreesByBound) -> list[tuple[Candidate, IntArray]]:
    """Return the best split of every candidate whose closed form is near the least of all."""
    costs = tensor_degrees.costs
    best_s = limit_s = np.inf
    answers: list[_Answer] = []
    for degree_s, tensor in tensor_degrees.by_bound("closed_s"):
        if degree_s > limit_s or not np.isfinite(degree_s):
            break
        if tensor is None:
            continue
        grids = tensor_degrees.settle(tensor)
        least = tensor_degrees.bounds(tensor)
        bounds_s = [each.closed_s for each in least]
        for index, entry in by_bound(grids, bounds_s):
            if bounds_s[index][entry] > limit_s:
                break
            answer = _answer(costs, grids[index], least[index], entry, limit_s)
            if answer is not None:
                answers.append(answer)
                best_s = min(best_s, answer.time_s)
                limit_s = best_s * (1.0 + REPLAY_MARGIN)
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
        time_s, starts = _closed_form_answer(costs, others[-1], answer.least, limit_s)
        if np.isfinite(time_s) and np.array_equal(starts, answer.starts):
            return
    for candidate in others:
        time_s, starts = _closed_form_answer(costs, candidate, answer.least, limit_s)
        if not time_s <= limit_s:
            # So do those with more replicas.
            return
        yield candidate, starts


def _closed_form_answer(
    costs: CandidateCosts, candidate: Candidate, least: _Least, limit_s: float
) -> tuple[float, IntArray]:
    """Return the best split of a candidate, if it takes no longer than a limit.

    Parameters
    ----------
    costs, candidate
        The candidate.
    least
        Its least times.
    limit_s
        The limit; what is above it has endless time.
    """
    room_s = limit_s - least.work_s
    if room_s < _MANY_TAILS * (least.closed_s - least.work_s) and (
        costs.least_shared_tail_term_s(candidate) > room_s * (1.0 + TIE)
    ):
        return np.inf, np.zeros(0, dtype=np.int64)
    work = costs.work(candidate)
    limits = work.stages.held.in_flight_limit
    chain = ChainWork(work.load_s, work.backward_s, costs.tail_s(candidate), limits, work.head_s[0])
    held, microbatches = costs.held(candidate), costs.microbatches(candidate.data)
    return best_split(chain, held, microbatches, limit_s)
