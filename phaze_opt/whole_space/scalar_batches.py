"""The bound of the time of a batch, one candidate at a time; see `scalar_bounds`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from phaze_opt.whole_space.scalar_candidates import ChipSeconds, ScalarCandidate, ScalarCandidates
from phaze_opt.whole_space.scalar_splits import SplitBatch


def batch_s(
    passes_s: tuple[tuple[float, float], ...],
    candidates: ScalarCandidates,
    chip: ChipSeconds,
    enough_s: float,
    *,
    splits: bool,
) -> float:
    """Bound the time of a batch over all candidates, once for all chips with equal arguments.

    Parameters
    ----------
    passes_s
        Seconds of forward, and of backward with recompute, of every layer.
    candidates, chip
        Degrees of parallelism that fit, and the seconds of the chip beside the passes.
    enough_s
        Seconds above which a bound need not be larger.
    splits
        Whether to bound the splits of the layers into stages too.

    Returns
    -------
    batch_s
        Seconds; ``enough_s`` at most.
    """
    # Kept with the candidates, which a cache of all would keep alive.
    key = passes_s, chip, enough_s, splits
    if key not in candidates.known_s:
        candidates.known_s[key] = _batch_s(passes_s, candidates, chip, enough_s, splits)
    return candidates.known_s[key]


def _batch_s(
    passes_s: tuple[tuple[float, float], ...],
    candidates: ScalarCandidates,
    chip: ChipSeconds,
    enough_s: float,
    splits: bool,
) -> float:
    """Do the same, each time."""
    forward = [0.0, *accumulate(forward_s for forward_s, _ in passes_s)]
    backward = [0.0, *accumulate(backward_s for _, backward_s in passes_s)]
    forward_s, backward_s = forward[-1], backward[-1]
    best_s, lines = enough_s, candidates.lines_of(chip)
    for place, candidate in enumerate(candidates.rows):
        if (forward_s + backward_s) * candidate.least_share >= best_s:
            break
        if not lines[place]:
            lines[place] = SplitBatch([0.0], [0.0], candidates, candidate, chip).average_stage
        for forwards, backwards, others_s in lines[place]:
            # Most candidates end here, before any bound of what runs beside the passes.
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
    """Bound the time of a batch with one candidate, in seconds; ``enough_s`` at most.

    A queue of collectives slows down a pass by its share of the cores, or the pass slows down the
    queue. Both bounds hold for the forward and for the backward, which gives four ways.
    """
    queues = candidate.overlaps == 1 and candidate.every_pass >= 0
    least_s = 0.0
    for way in ((0, 0), (1, 0), (0, 1), (1, 1)) if queues else ((0, 0),):
        split = SplitBatch(forward, backward, candidates, candidate, chip, way)
        least_s = max(least_s, split.at_once_s())
        waits = candidate.chunks == 1 and candidate.splits_backward == 0
        if least_s < enough_s and waits:
            least_s = max(least_s, split.pipelined_s())
            if splits and least_s < enough_s:
                least_s = split.least_over_splits_s(least_s, enough_s)
        if least_s >= enough_s:
            return enough_s
    return least_s
