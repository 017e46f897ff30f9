"""Splits of a chain by memory alone, which no time changes: found once for many designs.

Into how many stages it can be split so that every stage fits, which leaves out most candidates; and
the split whose fullest stage holds least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.optimizers import Optimizer
from phaze_opt.placement.chain_bounds import reach_of
from phaze_opt.placement.chain_bytes import ChainBytes, for_many_designs, held_by_runs
from phaze_opt.placement.memory import Shards, with_stashes
from phaze_opt.placement.pipeline import held_by_place


@dataclass(frozen=True, eq=False)
class FittingStages:
    """Whether some split of a chain into 0, 1, 2, … stages fits; one object for many designs.

    Attributes
    ----------
    full
        With as many microbatches in flight as there are stages.
    single
        With one microbatch in flight: what fits nowhere here fits with no number of them.
    """

    full: BoolArray
    single: BoolArray


@for_many_designs
def fitting_stages(
    layers: ChainBytes, optimizer: Optimizer, shards: Shards, usable_bytes: float
) -> FittingStages:
    """Try all numbers of stages.

    Parameters
    ----------
    layers
        What they hold.
    optimizer, shards, usable_bytes
        See `phaze_opt.placement.chain_bytes.held_by_runs`.
    """
    limit = held_by_runs(layers, optimizer, shards, usable_bytes).in_flight_limit
    full, single = (
        stages_that_fit(limit, held_by_place(len(layers), microbatches))
        for microbatches in (len(layers), 1)
    )
    return FittingStages(full, single)


@lazily_compiled("boolean[::1](int64[:,::1], int64[::1])")
def stages_that_fit(in_flight_limit: IntArray, held: IntArray) -> BoolArray:
    """Say for every number of stages whether a split of all layers into so many fits.

    Parameters
    ----------
    in_flight_limit : (layers, layers + 1)
        Of every stage.
    held : (most stages + 1,)
        As for `phaze_opt.placement.chain_bounds.least_loads`.

    Returns
    -------
    fits : (most stages + 1,)
    """
    layers, most_stages = in_flight_limit.shape[0], len(held) - 1
    fits = np.zeros(most_stages + 1, dtype=np.bool_)
    # Whether the stages so far can hold the layers from one on.
    after = np.zeros(layers + 1, dtype=np.bool_)
    after[layers] = True
    reach = np.full(layers, layers)
    first = last = layers
    for place in range(1, most_stages + 1):
        rest_first, rest_last = first, last
        first, last = layers, -1
        here = np.zeros(layers + 1, dtype=np.bool_)
        for i in range(rest_last - 1, -1, -1):
            reach[i] = reach_of(in_flight_limit, held[place], i, reach[i])
            for j in range(max(i + 1, rest_first), min(rest_last, reach[i]) + 1):
                if after[j] and in_flight_limit[i, j] >= held[place]:
                    here[i] = True
                    first, last = i, max(last, i)
                    break
        fits[place] = here[0]
        after = here
    return fits


@lazily_compiled("Tuple((float64, int64[::1]))(float64[:,::1], float64[:,::1], int64[::1])")
def tightest_split(
    resident_bytes: FloatArray, stash_bytes: FloatArray, held: IntArray
) -> tuple[float, IntArray]:
    """Find the split whose fullest stage holds least, over any number of stages.

    By dynamic programming, from the last stage to the first.

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
