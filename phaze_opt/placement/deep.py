"""Chains too deep for tables of all possible stages, placed by the stages that they can have.

Of every number of microbatches the deepest pipelines are bounded from below by what their stages
can hold (`phaze_opt.placement.deep_stages`). Those with the least bounds are split so that the
fullest stage has the least work, until no other bound is below the best of them, or enough are
tried: what is left is the gap.

Such a split is timed with each of its stages merged into one layer, which costs what the stage
does, to the last bit but for the order of sums: work, bytes and parameters together, the largest
working set, the output of the last layer, and the gradients of each, which go out layer by layer
(`MergedFrom`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.degrees import Degrees
from phaze_opt.passes.layer_cost import (
    LayerCost,
    LayerPasses,
    PassCost,
    added_parameters,
    local_frozen_parameters,
    local_parameters,
    local_wide_parameters,
)
from phaze_opt.placement.best import layout_fits
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, CandidateGrid, all_grids
from phaze_opt.placement.deep_stages import ChainSums, least_loaded, least_rest_s, most_work_s
from phaze_opt.placement.describe import describe
from phaze_opt.placement.even import even_starts
from phaze_opt.placement.infeasible import explain_infeasible
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import MergedFrom, Placement, PlacementProblem
from phaze_opt.placement.size import tables_fit
from phaze_opt.training import Training

MOST_TRIED = 32
"""Degrees that are split, at most."""

_ROUNDING = 1e-9
"""Relative error by which bounds from sums in another order may be too large."""


def is_deep(problem: PlacementProblem) -> bool:
    """Say whether a problem is a chain that is placed by merging its layers.

    Replicas that share out states hold the whole of one layer at a time, which a merged one does
    not tell; nor does it have the chunks of interleaved stages, or backwards in two parts.
    """
    count, training = len(problem.edges) + 1, problem.training
    if tables_fit(count, len(problem.outline.layers)):
        return False
    is_chain = all(edge == (index, index + 1) for index, edge in enumerate(problem.edges))
    layers = len(next(iter(problem.outline.layers.values())))
    return is_chain and layers == count and _is_plain(training, problem.outline.layers)


def _is_plain(training: Training, tensor_degrees: Iterable[int]) -> bool:
    """Whether replicas share nothing out, and stages are one chunk with whole backwards."""
    whole = not any(training.holds_experts_apart(tensor) for tensor in tensor_degrees)
    return (
        training.zero == 0 and training.interleave == 1 and whole and not training.splits_backward
    )


def solve_deep(problem: PlacementProblem) -> Placement:
    """Place a deep chain.

    Raises
    ------
    MisfitError
        If no placement fits.
    """
    chains = {tensor: _Chain(problem, tensor) for tensor in problem.layers}
    tries = sorted(_tries(problem, chains), key=lambda each: each.bound_s)
    best: Placement | None = None
    best_s = np.inf
    for tried, attempt in enumerate(tries):
        if attempt.bound_s >= best_s or (best is not None and tried >= MOST_TRIED):
            break
        for placement in _placements(problem, chains[attempt.tensor], attempt):
            if placement.time_per_batch_s < best_s:
                best, best_s = placement, placement.time_per_batch_s
    if best is None:
        raise explain_infeasible(problem)
    return best.searched(min(tries[0].bound_s, best_s) * (1.0 - _ROUNDING))


class _Chain:
    """The layers of a tensor degree.

    Attributes
    ----------
    sums
        Of all layers.
    work_s, largest_s
        For one microbatch: of all layers, and of the largest.
    """

    def __init__(self, problem: PlacementProblem, tensor: int) -> None:
        forward_s, backward_s, again_s = (
            problem.column(tensor, f"{name}.seconds") for name in LayerPasses._fields
        )
        work_s = forward_s + backward_s + again_s
        optimizer = problem.training.state
        self.sums = ChainSums.of(problem.layers[tensor], work_s, optimizer)
        self.work_s, self.largest_s = float(work_s.sum()), float(work_s.max())
        self._usable_bytes, self._known = problem.hbm_usable_bytes, dict[int, float]()
        # The first and the last layer may be of other kinds: what stages can have of the others
        # says more.
        self._inner = self.sums.without_ends()
        self._inner_s = float(work_s[1:-1].sum()) * (1.0 - _ROUNDING)
        done = work_s[1:-1] > 0.0
        shares = forward_s[1:-1][done] / work_s[1:-1][done]
        self._share = float(max(shares.min(), 1.0 - shares.max())) if done.any() else 0.5

    def least_s(self, held: IntArray, microbatches: int) -> float:
        """Bound a batch from below; see `phaze_opt.placement.deep_stages.least_rest_s`."""
        new = sorted(set(held.tolist()) - self._known.keys())
        most_s = most_work_s(self._inner, self._usable_bytes, np.array(new, dtype=np.int64))
        self._known |= zip(new, most_s.tolist(), strict=True)
        by_place = np.array([self._known[each] for each in held.tolist()])
        rest_s = least_rest_s(by_place, held, microbatches, self._share, self._inner_s)
        return max(self.work_s + rest_s, microbatches * self.largest_s)


class _Try(NamedTuple):
    """The most stages with a number of microbatches, and a time that fewer are not below either."""

    bound_s: float
    tensor: int
    grid: CandidateGrid
    entry: int


def _tries(problem: PlacementProblem, chains: Mapping[int, _Chain]) -> Iterator[_Try]:
    """Yield those that may fit."""
    layers, schedule = len(problem.edges) + 1, problem.training.schedule_of_chunk
    known: dict[tuple[int, int, int], float] = {}
    for grid in all_grids(tuple(chains), layers, problem.cluster, problem.training):
        chain = chains[grid.tensor]
        # The deepest of each number of microbatches; of these, that with the fewest replicas.
        order = np.lexsort((grid.data, -grid.pipeline, grid.microbatches))
        _, first = np.unique(grid.microbatches[order], return_index=True)
        for entry in order[first].tolist():
            microbatches, stages = int(grid.microbatches[entry]), int(grid.pipeline[entry])
            key = grid.tensor, microbatches, stages
            if key not in known:
                held = held_by_place(stages, microbatches, schedule)
                known[key] = chain.least_s(held, microbatches)
            if known[key] < np.inf:
                yield _Try(known[key], grid.tensor, grid, entry)


def _placements(problem: PlacementProblem, chain: _Chain, attempt: _Try) -> Iterator[Placement]:
    """Yield placements of the degrees of a try: evenly loaded by work, and by count."""
    given = attempt.grid.candidate(attempt.entry)
    microbatches = problem.training.microbatches(given.data)
    held = held_by_place(given.pipeline, microbatches, problem.training.schedule_of_chunk)
    loaded = least_loaded(chain.sums, problem.hbm_usable_bytes, held)
    if loaded is None:
        return
    for starts in loaded, even_starts(problem.layers[given.tensor], len(loaded)):
        degrees = Degrees(len(starts), given.data, given.tensor)
        placement = place_split(problem, Candidate.of(degrees, given.order, given.inside), starts)
        if placement is not None:
            yield placement


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
        parameters = local_parameters(own)
        merged_layers.append(
            LayerCost(
                f"{i}:{j}",
                LayerPasses(*passes),
                parameters,
                max(tied),
                sum([layer.stash_bytes for layer in own]),
                max([layer.transient_bytes for layer in own]),
                own[-1].output_bytes,
                accumulated_parameters=parameters - added_parameters(own),
                offloaded_bytes=sum([layer.offloaded_bytes for layer in own]),
                link_exposed_s=sum([layer.link_exposed_s for layer in own]),
                frozen_parameters=local_frozen_parameters(own),
                frozen_tied_parameters=max([layer.frozen_tied_parameters for layer in own]),
                wide_parameters=local_wide_parameters(own),
                wide_tied_parameters=max([layer.wide_tied_parameters for layer in own]),
                returns_gradient=own[-1].returns_gradient,
            )
        )
    return tuple(merged_layers)
