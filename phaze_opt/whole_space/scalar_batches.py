"""The bound of the time of a batch, one candidate at a time; see `scalar_bounds`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from phaze_opt.whole_space.scalar_candidates import ChipSeconds, ScalarCandidate, ScalarCandidates
from phaze_opt.whole_space.scalar_splits import SplitBatch


@lru_cache(maxsize=2**14)
def batch_s(
    passes_s: tuple[tuple[float, float], ...],
    candidates: ScalarCandidates,
    chip: ChipSeconds,
    enough_s: float,
    *,
    splits: bool,
) -> float:
    """Bound the time of a batch over all candidates, once for all chips on which all is the same.

    Parameters
    ----------
    passes_s
        Forward, and backward with recompute, of every layer.
    candidates, chip
        What may be, and what it is on.
    enough_s
        From where on a bound need not be larger.
    splits
        Whether to look at splits into stages.
    """
    forward = [0.0, *accumulate(one for one, _ in passes_s)]
    backward = [0.0, *accumulate(other for _, other in passes_s)]
    forward_s, backward_s = forward[-1], backward[-1]
    best_s, lines = enough_s, candidates.lines_of(chip)
    for place, candidate in enumerate(candidates.rows):
        if (forward_s + backward_s) * candidate.each_share >= best_s:
            break
        if not lines[place]:
            lines[place] = SplitBatch([0.0], [0.0], candidates, candidate, chip).average_stage
        for forwards, backwards, others_s in lines[place]:
            # Most candidates end here, without what runs beside the passes.
            if forwards * forward_s + backwards * backward_s + others_s >= best_s:
                break
        else:
            best_s = _candidate_s(forward, backward, candidates, candidate, chip, best_s, splits)
    return best_s


def _candidate_s(
    forward: Sequence[float],
    backward: Sequence[float],
    candidates: ScalarCandidates,
    candidate: ScalarCandidate,
    chip: ChipSeconds,
    enough_s: float,
    splits: bool,
) -> float:
    """Bound the time of a batch with one candidate; ``enough_s`` at most.

    A queue takes its share of a pass, or the pass the queue's: both hold, of either pass.
    """
    queues = candidate.overlaps == 1 and candidate.every_pass >= 0
    least_s = 0.0
    for way in ((0, 0), (1, 0), (0, 1), (1, 1)) if queues else ((0, 0),):
        split = SplitBatch(forward, backward, candidates, candidate, chip, way)
        least_s = max(least_s, split.at_once_s())
        if least_s < enough_s and candidate.chunks == 1:
            least_s = max(least_s, split.pipelined_s())
            if splits and least_s < enough_s:
                least_s = split.least_over_splits_s(least_s, enough_s)
        if least_s >= enough_s:
            return enough_s
    return least_s
