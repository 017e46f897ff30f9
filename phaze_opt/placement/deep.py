"""Chains too deep for tables of all possible stages: merged into fewer layers, and placed so.

A merged layer costs what a stage of its layers does, to the last bit but for the order of sums:
their work, bytes and parameters together, the largest working set, the output of the last one, and
the gradients of each, which go out layer by layer (`MergedFrom`). So the time of a split is that of
the whole chain. Which splits begin between merged layers is not all that there are: the answer is
the best of these, or the even split of its degrees, and is held against what the work of the layers
alone takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses, PassCost, local_parameters
from phaze_opt.placement.best import best_placement, layout_fits
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, all_grids
from phaze_opt.placement.chain_bounds import filled_s, least_of_work
from phaze_opt.placement.describe import describe
from phaze_opt.placement.even import even_starts, longest_run
from phaze_opt.placement.fitting_stages import FittingStages
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import MergedFrom, Placement, PlacementProblem
from phaze_opt.placement.size import tables_fit
from phaze_opt.training import OPTIMIZERS

MOST_MERGED = 256
"""Layers of the merged chain, more or less; more only where a stage of one of them does not fit."""

_MOST_TRIED = 512

_ROUNDING = 1e-9
"""Relative error by which bounds from sums in another order may be too large."""


def is_deep(problem: PlacementProblem) -> bool:
    """Say whether a problem is a chain that is placed by merging its layers.

    Replicas that share out states hold the whole of one layer at a time, which a merged one does
    not tell; nor does it have the chunks of interleaved stages.
    """
    count, training = len(problem.edges) + 1, problem.training
    if tables_fit(count, len(problem.outline.layers)):
        return False
    is_chain = all(edge == (index, index + 1) for index, edge in enumerate(problem.edges))
    layers = len(next(iter(problem.outline.layers.values())))
    return is_chain and layers == count and training.zero == 0 and training.interleave == 1


def solve_deep(problem: PlacementProblem) -> Placement | None:
    """Place a deep chain; ``None`` where no split between merged layers fits."""
    tensor = min(problem.layers)
    for most in (MOST_MERGED, _MOST_TRIED):
        starts = _merged_starts(problem.layers[tensor], most)
        best = best_placement(CandidateCosts(merged(problem, starts)))
        if best is not None:
            break
    else:
        return None
    (layout, _, _), layers = best, problem.layers[best[0].candidate.tensor]
    candidate = layout.candidate
    splits = starts[layout.first[0]], even_starts(layers, candidate.pipeline)
    answers = [answer for split in splits if (answer := place_split(problem, candidate, split))]
    least_s = _least_s(problem)
    return min(answers, key=lambda answer: answer.time_per_batch_s).searched(least_s)


def _least_s(problem: PlacementProblem) -> float:
    """Bound the time of a batch from below: by the work of the layers, over stages that may fit."""
    costs, least_s = CandidateCosts(problem), math.inf
    degrees, layers = tuple(problem.layers), len(problem.edges) + 1
    fitting = {tensor: _fitting_stages(problem, tensor) for tensor in degrees}
    for grid in all_grids(degrees, layers, problem.cluster, problem.training):
        rounds, depth, share = grid.deepest_that_fit(fitting[grid.tensor])
        all_s, largest_s = costs.work_of_layers_s(grid.tensor)
        for index, (of_batch, stages) in enumerate(zip(rounds, depth, strict=True)):
            here = slice(index, index + 1)
            _, bound_s = least_of_work(rounds[here], depth[here], share[here], all_s, largest_s)
            if of_batch > stages:
                # It falls with more stages, too.
                fullest_s = max(all_s / stages, largest_s)
                bound_s = max(bound_s, filled_s(of_batch, stages, fullest_s, all_s))
            least_s = min(least_s, bound_s)
    return float(least_s) * (1.0 - _ROUNDING)


def _fitting_stages(problem: PlacementProblem, tensor: int) -> FittingStages:
    """Say into how many stages a chain may be split: all of them hold states, and a microbatch."""
    layers, optimizer = problem.layers[tensor], OPTIMIZERS[problem.training.optimizer]
    stages = np.arange(len(layers) + 1)
    state_bytes = local_parameters(layers) * sum(optimizer.held_bytes)
    all_bytes = state_bytes + sum([layer.stash_bytes for layer in layers])
    fits = stages * problem.hbm_usable_bytes >= all_bytes
    return FittingStages(fits, fits)


def place_split(
    problem: PlacementProblem, candidate: Candidate, starts: IntArray
) -> Placement | None:
    """Place a deep chain as given, every stage as one merged layer; ``None`` if it does not fit."""
    costs = CandidateCosts(merged(problem, starts, (candidate.tensor,)))
    layout = Layout.of_starts(candidate, np.arange(len(starts)), len(starts))
    if not layout_fits(costs, layout):
        return None
    placement, names = describe(costs, layout), problem.names_of(candidate.tensor)
    runs = zip(starts.tolist(), [*starts[1:].tolist(), len(names)], strict=True)
    stages = zip(placement.stages, runs, strict=True)
    return replace(
        placement, stages=tuple([replace(stage, layers=names[i:j]) for stage, (i, j) in stages])
    )


def merged(
    problem: PlacementProblem, starts: IntArray, tensor_degrees: Sequence[int] = ()
) -> PlacementProblem:
    """Return a chain with all layers from each start on merged into one.

    Parameters
    ----------
    problem
        A chain.
    starts
        First layers of the merged ones, rising from 0.
    tensor_degrees
        Those asked for; by default all.
    """
    degrees = tensor_degrees or tuple(problem.layers)
    return replace(
        problem,
        layers={tensor: _merged_layers(problem, tensor, starts) for tensor in degrees},
        edges=tuple([(index, index + 1) for index in range(len(starts) - 1)]),
        least=None,
        kinds=None,
        names=None,
        merged_from=MergedFrom(problem, starts),
    )


def _merged_layers(
    problem: PlacementProblem, tensor: int, starts: IntArray
) -> tuple[LayerCost, ...]:
    """Merge the layers of one tensor degree."""
    layers, ends = problem.layers[tensor], [*starts[1:].tolist(), len(problem.layers[tensor])]
    seconds = {
        name: [
            np.add.reduceat(problem.column(tensor, f"{name}.{part}"), starts).tolist()
            for part in PassCost._fields
        ]
        for name in LayerPasses._fields
    }
    merged_layers = []
    for index, (i, j) in enumerate(zip(starts.tolist(), ends, strict=True)):
        own = layers[i:j]
        tied = [layer.tied_parameters for layer in own]
        passes = [PassCost(*(part[index] for part in parts)) for parts in seconds.values()]
        merged_layers.append(
            LayerCost(
                f"{i}:{j}",
                LayerPasses(*passes),
                sum([layer.parameters for layer in own]) - sum(tied) + max(tied),
                max(tied),
                sum([layer.stash_bytes for layer in own]),
                max([layer.transient_bytes for layer in own]),
                own[-1].output_bytes,
            )
        )
    return tuple(merged_layers)


def _merged_starts(layers: Sequence[LayerCost], most: int) -> IntArray:
    """Return first layers of merged ones of equal numbers of the repeated layers."""
    start, count = longest_run(layers)
    even = np.arange(most) * len(layers) // most
    within = start + np.arange(most) * count // most
    # Where hardly anything repeats, all layers are divided.
    return np.unique(np.append(within if 2 * count > len(layers) else even, [0, start + count - 1]))
