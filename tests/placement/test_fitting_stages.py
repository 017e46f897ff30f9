"""Splits by memory alone, against every split: what fits, and what needs least."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.fitting_stages import stages_that_fit, tightest_split
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem
from tests.placement.strategies import all_splits, problems
from tests.placement.test_solve_placement import chain


@pytest.mark.parametrize("seed", range(60))
def test_equals_its_definition(seed: int) -> None:
    """So many stages fit if one of all splits does, for any limits."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 7))
    limit = random.choice(np.array([-1, 1, 2, 9]), (count, count + 1))
    most_stages = int(random.integers(1, count + 3))
    held = held_by_place(most_stages, int(random.integers(1, count + 1)))
    fits = stages_that_fit(limit, held)
    assert not fits[0]
    for stages in range(1, most_stages + 1):
        splits = all_splits(count, stages) if stages <= count else ()
        every = [zip(split, (*split[1:], count), strict=True) for split in splits]
        assert fits[stages] == any(
            all(limit[run] >= held[stages - place] for place, run in enumerate(runs))
            for runs in every
        )


@settings(max_examples=60, deadline=None)
@given(problems(most_layers=8))
def test_what_is_left_out_fits_nowhere(problem: PlacementProblem) -> None:
    """A candidate of which some split fits has no more stages than the deepest that fit."""
    costs = CandidateCosts(problem)
    for grid in costs.grids:
        deepest = costs.deepest_that_may_fit(grid)
        most = dict(zip(deepest.microbatches.tolist(), deepest.stages.tolist(), strict=True))
        for entry, microbatches in enumerate(grid.microbatches.tolist()):
            candidate = grid.candidate(entry)
            limit = costs.stages(candidate).held.in_flight_limit
            if stages_that_fit(limit, costs.held(candidate))[candidate.pipeline]:
                assert candidate.pipeline <= most[microbatches]


def test_designs_share_what_fits() -> None:
    """It is found once for designs that hold the same, and kept no longer than it can be asked."""
    problem = chain()
    faster = replace(problem, hbm_bytes_per_s=2.0 * problem.hbm_bytes_per_s)
    costs, again = CandidateCosts(problem), CandidateCosts(faster)
    grid = costs.grids[0]
    assert costs.deepest_that_may_fit(grid) is again.deepest_that_may_fit(again.grids[0])
    less = CandidateCosts(replace(problem, hbm_usable_bytes=problem.hbm_usable_bytes / 2.0))
    assert less.deepest_that_may_fit(grid) is not costs.deepest_that_may_fit(grid)


@pytest.mark.parametrize("seed", range(80))
def test_the_tightest_split_equals_brute_force(seed: int) -> None:
    """The least need over all splits, the fewest stages that reach it, and the earliest ends."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 8))
    shape = count, count + 1
    resident, stash = random.choice([0.0, 1.0, 2.0, 5.0, 9.0], (2, *shape))
    held = np.append(0, np.minimum(np.arange(1, count + 1), random.integers(1, count + 1)))
    held = held[: int(random.integers(2, count + 2))]
    splits = []
    for stages in range(1, len(held)):
        for split in all_splits(count, stages):
            runs = zip(split, (*split[1:], count), strict=True)
            need = max(resident[run] + held[stages - k] * stash[run] for k, run in enumerate(runs))
            splits.append((need, stages, split))
    least = min(need for need, _, _ in splits)
    fewest = min(stages for need, stages, _ in splits if need == least)
    need_bytes, starts = tightest_split(resident, stash, held)
    assert need_bytes == least
    assert len(starts) == fewest
    ends = (*starts[1:].tolist(), count)
    runs = zip(starts.tolist(), ends, strict=True)
    own = [resident[run] + held[fewest - k] * stash[run] for k, run in enumerate(runs)]
    assert max(own) == least
