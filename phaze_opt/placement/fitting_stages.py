"""Into how many stages a chain can be split so that every stage fits the memory.

No time changes that: it is found once for many designs, and leaves out most of their candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import BoolArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.placement.chain_bounds import reach_of
from phaze_opt.placement.chain_bytes import ChainBytes, for_many_designs, held_by_runs
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.training import Optimizer


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
