"""The most that any stage of any placement holds: memory beyond it changes nothing."""

from __future__ import annotations

import numpy as np

from phaze_opt.placement.chain_bytes import chain_bytes, held_by_runs
from phaze_opt.placement.memory import UNSHARDED, Shards, with_stashes
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem


def most_held_bytes(problem: PlacementProblem, tensor: int) -> float:
    """Bound what a stage holds from above, whatever the degrees and the split.

    With as much usable memory, or more, every placement fits, so that the best one is the same.

    Parameters
    ----------
    problem
        Layers, cluster and training; seconds, rates and memory are not looked at.
    tensor
        The tensor degree, one of the problem's.

    Returns
    -------
    bytes
        On one device.
    """
    training, optimizer = problem.training, problem.training.state
    chain = chain_bytes(problem, tensor)
    count = len(chain)
    # One replica has all microbatches, and all of the state; shares of others are whole for a layer
    # at a time.
    microbatches = training.microbatches(training.context_parallel)
    shards = Shards.of(training.zero, problem.cluster.devices)
    counts = zip(chain.parameters.own, chain.parameters.elsewhere, strict=True)
    whole_layer = max(shards.whole_layer_bytes(*count, optimizer) for count in counts)
    held = held_by_runs(chain, optimizer, UNSHARDED, 0.0)
    if training.pipeline_schedule == "1f1b":
        # After a stage come at most as many others as there are layers after it.
        after = count - np.arange(count + 1)
        in_flight = held_by_place(count, microbatches)[np.minimum(after + 1, count)].astype(float)
        most_bytes = with_stashes(held.resident_bytes, held.stash_bytes, in_flight).max()
    else:
        # Several chunks on one stage hold no more than all layers do.
        all_layers = held.resident_bytes[0, count], held.stash_bytes[0, count]
        if training.splits_backward:
            # No room is larger than two stashes for each stage.
            microbatches = max(microbatches, 2 * count)
        most_bytes = with_stashes(*all_layers, float(microbatches))
    return float(most_bytes) + whole_layer
