"""Interleaved pipelines: every stage holds several chunks of layers.

With v chunks, chunk ``c`` of stage ``s`` is the ``(c · p + s)``-th of ``p · v`` even parts of the
layers, so the bubble shrinks to a v-th and the transfers grow v-fold (D. Narayanan et al., SC
2021). The stages must divide the microbatches. Only even parts are considered, as Megatron-LM has
them: all degrees are replayed whose bound is below the best time, so that the answer is the optimum
of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from phaze_opt.errors import InfeasibleError
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.closed_form import busy_s
from phaze_opt.placement.describe import describe
from phaze_opt.placement.held_stages import held_stages
from phaze_opt.placement.infeasible import MisfitError, explain_excess
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.placement.timing import Replayed, pipeline_work, with_fastest_gathers


def solve_interleaved(costs: CandidateCosts) -> Placement:
    """Find the fastest degrees of an interleaved pipeline.

    Raises
    ------
    InfeasibleError
        If no degrees can be interleaved or none fits.
    """
    options, misfits = [], []
    for layout in _all_layouts(costs):
        misfit = _misfit(costs, layout)
        if misfit is None:
            options.append(layout)
        else:
            misfits.append(misfit)
    bounds_s = [_bound_s(costs, layout) for layout in options]
    best_s = math.inf
    best: tuple[Layout, Replayed] | None = None
    for index in sorted(range(len(options)), key=lambda i: (bounds_s[i], options[i].candidate)):
        if bounds_s[index] > best_s:
            break
        option, done = with_fastest_gathers(costs, options[index])
        if done.time_s < best_s:
            best_s, best = done.time_s, (option, done)
    if best is None:
        raise _none_fits(costs, misfits)
    # The bounds of all others are above it.
    return describe(costs, *best).searched(best_s)


def _none_fits(costs: CandidateCosts, misfits: Sequence[MisfitError]) -> InfeasibleError:
    """Say that no degrees fit, and what those hold that are nearest to it."""
    start = f"No degrees fit with {costs.problem.training.interleave} interleaved chunks per stage"
    if not misfits:
        return InfeasibleError(
            f"{start}: the stages must divide the microbatches, and every chunk needs a layer."
        )
    nearest = min(misfits, key=lambda misfit: misfit.violation)
    return MisfitError(f"{start}; nearest: {nearest}", nearest.memory, nearest.usable_bytes)


def evaluate_interleaved(costs: CandidateCosts, candidate: Candidate) -> Placement:
    """Evaluate given degrees.

    Raises
    ------
    InfeasibleError
        If the stages do not divide the microbatches, there are too few layers, or a stage does
        not fit.
    """
    microbatches, chunks = costs.microbatches(candidate.data), costs.chunks(candidate)
    if not costs.can_interleave(candidate):
        raise InfeasibleError(
            f"{candidate.pipeline} stages of {chunks} chunks need at least "
            f"{candidate.pipeline * chunks} layers and a multiple of {candidate.pipeline} "
            f"microbatches, but there are {costs.layers} layers and {microbatches} microbatches."
        )
    layout = costs.even_layout(candidate, chunks)
    misfit = _misfit(costs, layout)
    if misfit is not None:
        raise misfit
    return describe(costs, *with_fastest_gathers(costs, layout))


def _all_layouts(costs: CandidateCosts) -> Iterator[Layout]:
    """Yield the layouts of all degrees that can be interleaved."""
    for grid in costs.grids:
        for index in range(len(grid.data)):
            candidate = grid.candidate(index)
            if costs.can_interleave(candidate):
                yield costs.even_layout(candidate, costs.chunks(candidate))


def _misfit(costs: CandidateCosts, layout: Layout) -> MisfitError | None:
    """Return the error for the first stage, which holds most, where it does not fit."""
    for stage, held in enumerate(held_stages(costs, layout)):
        if held.memory.total > costs.problem.hbm_usable_bytes:
            name = f"Stage {stage + 1} of {layout.candidate.pipeline} interleaved ones"
            return explain_excess(name, held.memory, costs.problem)
    return None


def _bound_s(costs: CandidateCosts, layout: Layout) -> float:
    """Bound the time from below: the busiest stage's work on all microbatches."""
    work = pipeline_work(costs, layout)
    microbatches = costs.microbatches(layout.candidate.data)
    each_s = busy_s(microbatches, work.forward_s + work.backward_s, work.first_saving_s)
    return float(each_s.sum(axis=0).max())
