"""Longest time of a batch, for many accelerators at once: the fastest placement takes no longer.

It takes no longer than any other, such as all layers on one stage, where they fit: no pipeline
waits, and nothing is sent between stages. All exchanges of the replicas count as if nothing of them
were hidden. Where no single stage fits, nothing is known.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.placement.exchanges import cheapest_lines_s
from phaze_opt.placement.least_splits import (
    CHUNKS,
    EVERY_PASS,
    GATHERED,
    GRADIENT_SHARDS,
    LIMIT,
    MICROBATCHES,
    OPTIMIZER_SHARDS,
    PARAMETERS,
    STAGES,
    SYNCHRONISED,
    CandidateArrays,
)

_ROUNDING = 1e-9
"""Relative margin for sums in another order."""


def most_times_s(
    layers_s: FloatArray, rates: FloatArray, candidates: CandidateArrays
) -> FloatArray:
    """Bound the time of the fastest placement from above, of many accelerators.

    Parameters
    ----------
    layers_s : (accelerators,)
        The most seconds of all layers for one microbatch, forward, backward and recompute.
    rates, candidates
        As for `phaze_opt.placement.least_times.least_times_s`.

    Returns
    -------
    (accelerators,)
        Seconds; infinite where no single stage fits.
    """
    best_s = np.full(len(layers_s), np.inf)
    parameters = float(candidates.held[PARAMETERS, 0, -1])
    all_s = cheapest_lines_s(candidates.lines, np.array([parameters]))[:, 0].tolist()
    for whole, real in zip(candidates.whole, candidates.real, strict=True):
        microbatches = int(whole[MICROBATCHES])
        fits = candidates.limit[whole[LIMIT], 0, -1] >= microbatches
        if whole[STAGES] > 1 or whole[CHUNKS] > 1 or not fits:
            continue
        pass_s = 0.0
        if whole[EVERY_PASS] >= 0:
            pass_s = float(candidates.every_pass[whole[EVERY_PASS], :, -1].sum())
        sent_s = sum(all_s[row] for row in (whole[SYNCHRONISED], whole[GATHERED]) if row >= 0)
        step_s = parameters * (rates[:, 0] / real[OPTIMIZER_SHARDS] + rates[:, 3])
        accumulation_s = parameters * rates[:, 1] / real[GRADIENT_SHARDS]
        batch_s = microbatches * (layers_s + pass_s + accumulation_s) + sent_s + step_s
        best_s = np.minimum(best_s, batch_s * (1.0 + _ROUNDING))
    return best_s
