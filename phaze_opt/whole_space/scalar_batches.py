"""The bound of the time of a batch, one candidate at a time; see `scalar_bounds`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from phaze_opt.whole_space.scalar_candidates import (
    ChipSeconds,
    LayerSeconds,
    ScalarCandidate,
    ScalarCandidates,
)
from phaze_opt.whole_space.scalar_splits import PassSums, SplitBatch


def batch_s(
    passes_s: tuple[LayerSeconds, ...],
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
        Of every layer.
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
    passes_s: tuple[LayerSeconds, ...],
    candidates: ScalarCandidates,
    chip: ChipSeconds,
    enough_s: float,
    splits: bool,
) -> float:
    """Do the same, each time."""
    sums = [[0.0, *accumulate(column)] for column in zip(*passes_s, strict=True)]
    least_s = min(sums[0][-1] + sums[1][-1], sums[2][-1] + sums[3][-1])
    best_s, lines = enough_s, candidates.lines_of(chip)
    by_share: dict[float, tuple[PassSums, PassSums]] = {}
    for place, candidate in enumerate(candidates.rows):
        if least_s * candidate.least_share >= best_s:
            break
        if candidate.alone not in by_share:
            by_share[candidate.alone] = (
                _mean(candidate.alone, sums[0], sums[2]),
                _mean(candidate.alone, sums[1], sums[3]),
            )
        forward, backward = by_share[candidate.alone]
        forward_s, backward_s, more_s = forward.mean_s[-1], backward.mean_s[-1], backward.more_s[-1]
        if not lines[place]:
            none = PassSums([0.0], [0.0 for _ in sums[0]])
            lines[place] = SplitBatch(none, none, candidates, candidate, chip).average_stage
        for forwards, backwards, more, others_s in lines[place]:
            # Most candidates end here, before any bound of what runs beside the passes.
            passes = forwards * forward_s + backwards * backward_s + more * more_s
            if passes + others_s >= best_s:
                break
        else:
            best_s = _candidate_s(forward, backward, candidates, candidate, chip, best_s, splits)
    return best_s


def _mean(alone: float, own_s: Sequence[float], paired_s: Sequence[float]) -> PassSums:
    """Return the average over microbatches, of which a share is in no pair."""
    if alone == 1.0:
        return PassSums(own_s, [0.0 for _ in own_s])
    mean_s = [alone * a + (1.0 - alone) * b for a, b in zip(own_s, paired_s, strict=True)]
    each = zip(pairwise(own_s), pairwise(mean_s), strict=True)
    more = [max((own[1] - own[0]) - (mean[1] - mean[0]), 0.0) for own, mean in each]
    return PassSums(mean_s, [0.0, *accumulate(more)])


def _candidate_s(
    forward: PassSums,
    backward: PassSums,
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
