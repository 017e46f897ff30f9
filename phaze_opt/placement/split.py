"""The split of a placement, to be timed again with other costs.

A placement says which layers its stages hold, but not which ranks are neighbours. Both together are
a `Split`, which asks what the same placement would take on other hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze_opt.placement.candidates import Candidate, CandidateCosts
from phaze_opt.placement.describe import describe
from phaze_opt.placement.interleaved import evaluate_interleaved
from phaze_opt.placement.placement_problem import Placement, PlacementProblem


@dataclass(frozen=True)
class Split:
    """Degrees with their rank order, and the first layer of every stage.

    Interleaved stages are always even parts; their starts are not used.
    """

    candidate: Candidate
    starts: tuple[int, ...]


def split_of(problem: PlacementProblem, placement: Placement) -> Split:
    """Return the split of a placement that was found for this problem.

    Parameters
    ----------
    problem
        What the placement answers.
    placement
        Its time says which rank order it has.
    """
    sizes = [len(stage.layers) for stage in placement.stages]
    starts = tuple(int(end) - size for end, size in zip(np.cumsum(sizes), sizes, strict=True))
    degrees = placement.pipeline, placement.data, placement.tensor
    splits = [Split(Candidate.of(*degrees, inside), starts) for inside in (True, False)]
    costs = CandidateCosts(problem)
    times_s = [_placed(costs, split).time_per_batch_s for split in splits]
    away_s = [abs(time_s - placement.time_per_batch_s) for time_s in times_s]
    return splits[away_s.index(min(away_s))]


def place_split(problem: PlacementProblem, split: Split) -> Placement:
    """Place the layers as a split says.

    Parameters
    ----------
    problem
        With the same layers as the split's own.
    split
        Of another placement; what it holds must fit.
    """
    return _placed(CandidateCosts(problem), split)


def _placed(costs: CandidateCosts, split: Split) -> Placement:
    """Place the layers at known costs."""
    if costs.problem.training.interleave > 1:
        return evaluate_interleaved(costs, split.candidate)
    return describe(costs, split.candidate, np.array(split.starts, dtype=np.int64))
