"""The split of a chain whose fullest stage holds least, over any number of stages."""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.placement.memory import with_stashes


@lazily_compiled("Tuple((float64, int64[::1]))(float64[:,::1], float64[:,::1], int64[::1])")
def tightest_split(
    resident_bytes: FloatArray, stash_bytes: FloatArray, held: IntArray
) -> tuple[float, IntArray]:
    """Find the split by dynamic programming, from the last stage to the first.

    Parameters
    ----------
    resident_bytes, stash_bytes : (layers, layers + 1)
        Of every stage, see `phaze_opt.placement.costs`.
    held : (most stages + 1,)
        Microbatches in flight of a stage by its place from the end of the pipeline.

    Returns
    -------
    need_bytes, starts
        What the fullest stage holds, and the first layer of every stage. Of equal splits that with
        the fewest stages, and of these that whose first stages end first.
    """
    layers, most_stages = resident_bytes.shape[0], len(held) - 1
    # What a stage holds at least that ends where it does or later.
    resident, stash = resident_bytes.copy(), stash_bytes.copy()
    for i in range(layers):
        for j in range(layers - 1, i, -1):
            resident[i, j] = min(resident[i, j], resident[i, j + 1])
            stash[i, j] = min(stash[i, j], stash[i, j + 1])
    ends = np.zeros((most_stages + 1, layers), dtype=np.int64)
    after = np.full(layers + 1, np.inf)
    after[layers] = 0.0
    best, best_stages = np.inf, 0
    for place in range(1, most_stages + 1):
        here = np.full(layers + 1, np.inf)
        for i in range(layers):
            for j in range(i + 1, layers + 1):
                if with_stashes(resident[i, j], stash[i, j], held[place]) >= here[i]:
                    break
                need = with_stashes(resident_bytes[i, j], stash_bytes[i, j], held[place])
                need = max(need, after[j])
                if need < here[i]:
                    here[i], ends[place, i] = need, j
        after = here
        if after[0] < best:
            best, best_stages = after[0], place
    starts = np.zeros(max(best_stages, 1), dtype=np.int64)
    for stage in range(1, best_stages):
        starts[stage] = ends[best_stages - stage + 1, starts[stage - 1]]
    return best, starts
