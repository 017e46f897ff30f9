import numpy as np
import pytest
from hypothesis import assume, given, settings

from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.chain import best_split, least_loads
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem
from tests.placement.strategies import all_degrees, all_splits, closed_form, problems


@settings(max_examples=60, deadline=None)
@given(problems(most_layers=8))
def test_equals_brute_force(problem: PlacementProblem) -> None:
    """For all degrees the dynamic program finds the least closed form over all splits."""
    costs = CandidateCosts(problem)
    for pipeline, data, tensor in all_degrees(problem):
        candidate = Candidate.of(pipeline, data, tensor)
        stages, work = costs.stages(candidate), costs.work(candidate)
        tail_s = costs.tail_s(candidate)
        found, starts = best_split(
            work.load_s,
            work.backward_s,
            tail_s,
            stages.in_flight_limit,
            costs.held(candidate),
            costs.microbatches(data),
            pipeline,
            np.inf,
            work.head_s[0],
        )
        degrees = pipeline, data, tensor
        times = [
            time
            for split in all_splits(stages.layers, pipeline)
            if (time := closed_form(problem, degrees, split)) is not None
        ]
        if not times:
            assert np.isinf(found)
            continue
        assert found == pytest.approx(min(times), rel=1e-9)
        chosen = tuple(int(start) for start in starts)
        assert closed_form(problem, degrees, chosen) == pytest.approx(found, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems(most_layers=8))
def test_bounds_hold(problem: PlacementProblem) -> None:
    """No split has a largest load or a sum of loads below the tables."""
    costs = CandidateCosts(problem)
    assume(costs.grids)
    stages = costs.least_stages(costs.grids[0])
    tables = least_loads(stages.load_s, stages.in_flight_limit, held_by_place(stages.layers, 3))
    largest, total = (table[:, 0] for table in tables)
    for pipeline in range(1, stages.layers + 1):
        for split in all_splits(stages.layers, pipeline):
            ends = (*split[1:], stages.layers)
            loads = [stages.load_s[i, j] for i, j in zip(split, ends, strict=True)]
            fits = all(
                stages.in_flight_limit[i, j] >= min(pipeline - stage, 3)
                for stage, (i, j) in enumerate(zip(split, ends, strict=True))
            )
            if fits:
                assert largest[pipeline] <= max(loads)
                assert total[pipeline] <= sum(loads) * (1 + 1e-12)


def test_known_time_prunes_everything_above() -> None:
    """Answers above a known time are not looked for."""
    load = np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    free = np.full((2, 3), 10)
    none = np.zeros((2, 3))
    held = held_by_place(2, 4)
    assert best_split(load, none, none, free, held, 4, 2, np.inf, none[0])[0] == pytest.approx(5.0)
    assert np.isinf(best_split(load, none, none, free, held, 4, 2, 4.9, none[0])[0])
