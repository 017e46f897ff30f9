"""Faster splits than those that the closed form finds, or the proof that there are none.

Candidates are taken by rising lower bound of their replayed time: first their even splits, so that
no given PPxDPxTP is ever better than the answer, and then all splits, best bound first
(`phaze_opt.placement.split_search`), until no bound is left below the best time. The effort is
limited by a count of steps, so that the answer does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, CandidateGrid
from phaze_opt.placement.chain_bounds import TIE
from phaze_opt.placement.costs import StageCosts
from phaze_opt.placement.degree_bounds import DegreesByBound, up_to
from phaze_opt.placement.split_bounds import PROVEN, SplitWork
from phaze_opt.placement.split_search import Searched, least_replays, search_splits

MOST_STEPS = 2**16
"""Effort of one answer, see `Searched`: a millisecond or two."""

_LEAST_STEPS = 2**8
"""Effort for one candidate, even where none is left."""


def faster_splits(
    tensor_degrees: DegreesByBound, known_s: float, time: Callable[[Candidate, IntArray], float]
) -> float:
    """Look for splits that are faster than all that are known.

    Parameters
    ----------
    tensor_degrees
        All candidates.
    known_s
        The least time known.
    time
        Replays a split of a candidate, and keeps it.

    Returns
    -------
    A time that no placement is faster than, at most the least that is known now.
    """
    costs = tensor_degrees.costs
    bound_s, left = np.inf, MOST_STEPS
    for degree_s, tensor in tensor_degrees.by_bound("replayed_s"):
        if degree_s > known_s * (1.0 + TIE) or not np.isfinite(degree_s):
            break
        if tensor is None:
            continue
        tensor_degrees.settle(tensor)
        known_s = _time_even_splits(tensor_degrees, tensor, known_s, time)
        for candidate, tried in _open_candidates(tensor_degrees, tensor, known_s):
            for ahead in _ways_to_gather(costs, candidate):
                tail_s = costs.tail_s(candidate)
                if not ahead:
                    tail_s = tail_s + costs.final_gather_s(candidate, ahead)
                head_s = costs.work(candidate).head_s if ahead else costs.no_time_s
                most_steps = max(left // 2, _LEAST_STEPS)
                split = _searched(costs, candidate, head_s, tail_s, known_s, most_steps)
                left -= split.steps
                bound_s = min(bound_s, split.bound_s)
                if split.time_s < known_s:
                    # What bounds several candidates may take less than each of them.
                    bound_s = min(bound_s, split.time_s) if candidate.sharing else bound_s
                    known_s = min(known_s, *(time(each, split.starts) for each in tried))
    return min(bound_s, known_s)


def _time_even_splits(
    tensor_degrees: DegreesByBound,
    tensor: int,
    known_s: float,
    time: Callable[[Candidate, IntArray], float],
) -> float:
    """Time the even splits of a tensor degree that may be the fastest; see `faster_splits`.

    Returns
    -------
    The least time that is known then.
    """
    grids, starts = tensor_degrees.grids[tensor], tensor_degrees.even_starts
    bounds_s = tensor_degrees.even_bounds_s(tensor)
    for index, entry in up_to(known_s * (1.0 + TIE), grids, bounds_s):
        if bounds_s[index][entry] > known_s * (1.0 + TIE):
            break  # it is less by now
        for candidate in grids[index].candidates(entry):
            time_s = time(candidate, starts[candidate.pipeline, : candidate.pipeline])
            known_s = min(known_s, time_s)
            if time_s > known_s * (1.0 + TIE) and not grids[index].shares_out:
                # More replicas that run as many microbatches take as long at least.
                break
    return known_s


def _ways_to_gather(costs: CandidateCosts, candidate: Candidate) -> tuple[bool, ...]:
    """Return whether weights come in ahead of the first forward; in both ways where they may."""
    group = costs.group(candidate)
    return (True, False) if group.zero in (1, 2) and group.overlaps else (True,)


def _open_candidates(
    tensor_degrees: DegreesByBound, tensor: int, known_s: float
) -> list[tuple[Candidate, list[Candidate]]]:
    """Return the candidates of a tensor degree that may be faster, the least bound first.

    Of every class that which bounds the others, and those that are tried: of the same split, more
    replicas than the fewest are never faster, unless they share states out.
    """
    costs, limit_s = tensor_degrees.costs, known_s * (1.0 - PROVEN)
    grids, bounds_s = tensor_degrees.grids[tensor], []
    for grid, bounds in zip(grids, tensor_degrees.bounds(tensor), strict=True):
        each_s, entries = bounds.replayed_s, (bounds.replayed_s < limit_s).nonzero()[0]
        if len(entries):
            each_s = each_s.copy()
            each_s[entries] = _least_replays_s(costs, grid, entries, known_s)
        bounds_s.append(each_s)
    below = up_to(limit_s, grids, bounds_s)
    return [
        (
            grids[index].bounding(entry),
            list(grids[index].candidates(entry))
            if grids[index].shares_out
            else [grids[index].candidate(entry)],
        )
        for index, entry in below
    ]


def _least_replays_s(
    costs: CandidateCosts, grid: CandidateGrid, entries: IntArray, known_s: float
) -> FloatArray:
    """Bound some candidates of a grid by what stages cost at least."""
    stages, (tails_s, rows) = costs.least_stages(grid), costs.least_tails_s(grid)
    work = _split_work(costs, stages, stages.forward_work_s, stages.backward_work_s)
    classes = grid.pipeline[entries], grid.microbatches[entries]
    return least_replays(work, costs.no_time_s, tails_s[rows[entries]], *classes, known_s)


def _searched(
    costs: CandidateCosts,
    candidate: Candidate,
    head_s: FloatArray,
    tail_s: FloatArray,
    known_s: float,
    most_steps: int,
) -> Searched:
    """Search the splits of a candidate with some heads and tails."""
    done, held = costs.work(candidate), costs.held(candidate)
    work = _split_work(costs, done.stages, done.forward_s, done.backward_s)
    of_batch = costs.microbatches(candidate.data)
    split = search_splits(work, head_s, tail_s, held, of_batch, known_s, most_steps)
    return Searched(*split)


def _split_work(
    costs: CandidateCosts, stages: StageCosts, forward_s: FloatArray, backward_s: FloatArray
) -> SplitWork:
    """Return what stages do, replicas included or not, and what they hold."""
    held, saving_s = stages.held, stages.accumulation_s_per_parameter
    limit, all_held = held.in_flight_limit, costs.schedule == "gpipe"
    return SplitWork(forward_s, backward_s, held.added, saving_s, limit, all_held)
