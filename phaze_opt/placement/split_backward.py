"""Degrees and stages for schedules that split the backward (`phaze_opt.placement.zero_bubble`).

The stages of a candidate are even by count. Beside them stands the split that is the fastest under
1F1B (`phaze_opt.placement.best`), so that no solved schedule with a split backward is slower than
solved 1F1B. Candidates are replayed by rising bound (`phaze_opt.placement.even.least_split_times`)
as long as that is below the best time, so that no given degrees are better. What is left above the
bound of all splits, that of `phaze_opt.placement.least`, is the gap.

Under ``zb-v`` a candidate may also run as ``zb-1p``, which needs half as many layers and no more
memory than 1F1B; the placement says which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.passes.layer_cost import LeastLayers
from phaze_opt.placement.best import best_placement, layout_fits
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, CandidateGrid
from phaze_opt.placement.closed_form import busy_s
from phaze_opt.placement.describe import describe
from phaze_opt.placement.even import all_even_starts, least_split_times
from phaze_opt.placement.held_stages import resident_bytes
from phaze_opt.placement.infeasible import explain_infeasible
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.least import LeastPlacement
from phaze_opt.placement.placement_problem import ChipRates, Placement
from phaze_opt.placement.runs import sums_of_runs
from phaze_opt.placement.timing import (
    Replayed,
    pipeline_work,
    with_fastest_gathers,
)
from phaze_opt.placement.zero_bubble import STASHES, V_CHUNKS

_ROUNDING = 1e-9
"""Relative margin of bounds for sums in another order."""


def solve_split_backward(costs: CandidateCosts) -> Placement:
    """Find the fastest degrees, with a bound of all degrees and splits.

    Raises
    ------
    InfeasibleError
        If nothing fits.
    """
    options: list[tuple[Replayed, Layout]] = []
    plain = best_placement(costs)
    if plain is not None:
        options = [_timed(costs, with_split_backward(costs, plain[0]))]
    best_s = min([done.time_s for done, _ in options], default=np.inf)
    for even_s, candidate in _by_bound(costs, best_s):
        if even_s >= best_s:
            break
        for layout in even_layouts(costs, candidate):
            if _bound_s(costs, layout) < best_s:
                options.append(_timed(costs, layout))
                best_s = min(best_s, options[-1][0].time_s)
    if not options:
        raise explain_infeasible(costs.problem)
    done, layout = min(options, key=lambda option: option[0].time_s)
    return describe(costs, layout, done).searched(_least_s(costs, best_s))


def even_layouts(costs: CandidateCosts, candidate: Candidate) -> list[Layout]:
    """Return the even stages of a candidate that fit, in a V where the schedule has one."""
    even = costs.even_layout(candidate)
    layouts = [with_split_backward(costs, even)] if layout_fits(costs, even) else []
    if _named(costs) == "zb-v" and 1 < candidate.pipeline <= costs.layers // V_CHUNKS:
        in_v = folded(costs, candidate)
        needed = resident_bytes(costs, in_v) + _stash_of_microbatch(costs, in_v)
        if (needed <= costs.problem.hbm_usable_bytes).all():
            layouts.append(in_v)
    return layouts


def folded(costs: CandidateCosts, candidate: Candidate) -> Layout:
    """Return two chunks on each of some stages, in a V."""
    return replace(costs.even_layout(candidate, V_CHUNKS).in_v(), zero_bubble="zb-v")


def place_split_backward(costs: CandidateCosts, layouts: Sequence[Layout]) -> Placement:
    """Describe the fastest of some layouts that fit, with a bound of them."""
    done, layout = min(
        [_timed(costs, layout) for layout in layouts], key=lambda option: option[0].time_s
    )
    bound_s = min(_bound_s(costs, layout) for layout in layouts)
    return describe(costs, layout, done).searched(min(bound_s, done.time_s))


def with_split_backward(costs: CandidateCosts, layout: Layout) -> Layout:
    """Return a layout of one chunk that runs as the schedule says."""
    named = _named(costs)
    return replace(layout, zero_bubble="zb-1p" if named == "zb-v" else named)


def _named(costs: CandidateCosts) -> PipelineScheduleName:
    """Return the schedule that was asked for."""
    return costs.problem.training.pipeline_schedule


def _timed(costs: CandidateCosts, layout: Layout) -> tuple[Replayed, Layout]:
    """Replay a layout with weights gathered when it takes less."""
    layout, done = with_fastest_gathers(costs, layout)
    return done, layout


def _stash_of_microbatch(costs: CandidateCosts, layout: Layout) -> FloatArray:
    """Return what a microbatch holds on each stage, of shape ``(stages,)``."""
    held = costs.stages(layout.candidate).held
    return np.asarray(held.stash_bytes[layout.first, layout.last].sum(axis=0))


def _by_bound(costs: CandidateCosts, known_s: float) -> list[tuple[float, Candidate]]:
    """Return the candidates of several stages whose bound is below a known time, the least first.

    A single stage has nothing to wait for, and is among the placements of 1F1B.
    """
    answers: list[tuple[float, Candidate]] = []
    for grid in costs.grids:
        bounds_s = least_even_splits_s(costs, grid)
        bounds_s[grid.pipeline == 1] = np.inf
        for index in np.flatnonzero(bounds_s < known_s).tolist():
            for candidate in grid.candidates(index):
                answers.append((float(bounds_s[index]), candidate))
                if not grid.shares_out:
                    # More replicas that run as many microbatches take as long at least.
                    break
    return sorted(answers, key=lambda entry: entry[:2])


def least_even_splits_s(costs: CandidateCosts, grid: CandidateGrid) -> FloatArray:
    """Bound the time of the even stages of a grid's candidates from below, of shape ``(classes,)``.

    Stages in a V are bounded by the layers of each kind that the stage with most of them has.
    Infinite where nothing fits.
    """
    training, stages = costs.problem.training, costs.least_stages(grid)
    seconds, _ = costs.problem.weight_gradients(grid.tensor)
    layers = costs.problem.layers[grid.tensor]
    weight_s = sums_of_runs(np.ascontiguousarray(seconds))
    forward_s = stages.forward_work_s
    own_s = stages.runs.sums("backward.seconds") + stages.runs.sums("recompute.seconds")
    added_s = stages.held.added * stages.accumulation_s_per_parameter
    stashes = STASHES.get(training.pipeline_schedule, (1, 0))
    bounds_s = least_split_times(
        forward_s,
        np.maximum(own_s - weight_s, 0.0) + stages.received.gradient_s,
        np.minimum(weight_s, own_s),
        added_s,
        stages.held.stash_bytes,
        stages.held.in_flight_limit,
        all_even_starts(layers, costs.problem.kinds_of(grid.tensor)),
        *stashes,
        costs.classes(grid),
    )
    if training.pipeline_schedule == "zb-v":
        folds = grid.pipeline * V_CHUNKS <= costs.layers
        in_v_s = grid.microbatches * costs.least_share_s(grid)
        bounds_s = np.where(folds, np.minimum(bounds_s, in_v_s), bounds_s)
    return np.asarray(bounds_s * (1.0 - _ROUNDING))


def _least_s(costs: CandidateCosts, known_s: float) -> float:
    """Bound the time of all placements, with what replicas exchange; at most a known time."""
    problem, least_s = costs.problem, known_s
    names = [field.name for field in fields(ChipRates)]
    rates = ChipRates(**{name: np.array([float(getattr(problem, name))]) for name in names})
    for tensor, layers in problem.layers.items():
        kinds = problem.kinds_of(tensor)
        passes = [layers[first].passes for first in kinds.first]
        columns = zip(*[[each.seconds for each in own] for own in passes], strict=True)
        forward_s, backward_s, recompute_s = [np.array([column]).T for column in columns]
        seconds = LeastLayers(forward_s, backward_s, recompute_s)
        least = LeastPlacement(problem, tensor, kinds.which.tolist())
        least_s = float(least.least_s(seconds, rates, np.array([least_s]))[0])
    return least_s * (1.0 - _ROUNDING)


def _bound_s(costs: CandidateCosts, layout: Layout) -> float:
    """Bound the time of a layout from below, in any order: what its busiest stage does."""
    work = pipeline_work(costs, layout)
    microbatches = costs.microbatches(layout.candidate.data)
    each_s = busy_s(microbatches, work.forward_s + work.backward_s, work.first_saving_s)
    return float(each_s.sum(axis=0).max()) * (1.0 - _ROUNDING)
