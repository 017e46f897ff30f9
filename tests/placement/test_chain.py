import numpy as np
import pytest
from hypothesis import assume, given, settings

from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.chain import ChainWork, _prefixes, _reached_s, best_split
from phaze_opt.placement.chain_bounds import (
    Classes,
    least_loads,
    least_most,
    least_tail_terms,
    least_times,
)
from phaze_opt.placement.pipeline import held_by_place
from phaze_opt.placement.placement_problem import PlacementProblem
from tests.placement.strategies import all_degrees, all_splits, closed_form, problems


@settings(max_examples=30, deadline=None)
@given(problems(most_layers=8))
def test_equals_brute_force(problem: PlacementProblem) -> None:
    """For all degrees the dynamic program finds the least closed form over all splits."""
    costs = CandidateCosts(problem)
    for degrees in all_degrees(problem):
        candidate = Candidate.of(degrees)
        stages, work = costs.stages(candidate), costs.work(candidate)
        tables = work.load_s, work.backward_s, costs.tail_s(candidate)
        chain = ChainWork(*tables, stages.held.in_flight_limit, work.head_s[0])
        microbatches = costs.microbatches(degrees.data)
        split_s, starts = best_split(chain, costs.held(candidate), microbatches, np.inf)
        times = [
            time
            for split in all_splits(stages.layers, degrees.pipeline)
            if (time := closed_form(problem, degrees, split)) is not None
        ]
        if not times:
            assert np.isinf(split_s)
            continue
        assert split_s == pytest.approx(min(times), rel=1e-9)
        chosen = tuple(int(start) for start in starts)
        assert closed_form(problem, degrees, chosen) == pytest.approx(split_s, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems(most_layers=8))
def test_bounds_hold(problem: PlacementProblem) -> None:
    """No split has a largest load or a sum of loads below the tables."""
    costs = CandidateCosts(problem)
    assume(costs.grids)
    stages = costs.least_stages(costs.grids[0])
    tables = least_loads(
        stages.load_s, stages.held.in_flight_limit, held_by_place(stages.layers, 3)
    )
    largest, total = (table[:, 0] for table in tables)
    for pipeline in range(1, stages.layers + 1):
        for split in all_splits(stages.layers, pipeline):
            ends = (*split[1:], stages.layers)
            loads = [stages.load_s[i, j] for i, j in zip(split, ends, strict=True)]
            fits = all(
                stages.held.in_flight_limit[i, j] >= min(pipeline - stage, 3)
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
    chain, held = ChainWork(load, none, none, free, none[0]), held_by_place(2, 4)
    assert best_split(chain, held, 4, np.inf)[0] == pytest.approx(5.0)
    assert np.isinf(best_split(chain, held, 4, 4.9)[0])


@pytest.mark.parametrize("all_held", [False, True])
def test_the_least_largest_loads_of_many_candidates(all_held: bool) -> None:
    """Each has that of the table of its memory, with as many microbatches in flight as it has."""
    random = np.random.default_rng(1)
    load_s, limits = random.random((5, 6)), random.choice(np.array([-1, 1, 2, 9]), (3, 5, 6))
    limits[0] = 9
    tables, microbatches, stages = random.integers((0, 1, 1), (3, 5, 6), (80, 3)).T
    order = np.lexsort((microbatches, tables))
    each = tables[order], microbatches[order], stages[order]
    most_s = least_most(load_s, limits, *each, all_held)
    schedule = "gpipe" if all_held else "1f1b"
    for own_s, table, of_batch, count in zip(most_s.tolist(), *each, strict=True):
        alone, _ = least_loads(load_s, limits[table], held_by_place(5, int(of_batch), schedule))
        assert own_s == alone[count, 0]
    assert 0 < np.isfinite(most_s).sum() < 80


@pytest.mark.parametrize("seed", range(60))
def test_kernels_equal_their_definitions(seed: int) -> None:
    """Loops that stop early give what trying everything gives, for any numbers."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 7))
    shape = count, count + 1
    load_s, tail_s, backward_s = random.choice([0.0, 0.5, 1.0, 1.5, 2.0, 7.0], (3, *shape))
    limit = random.choice(np.array([-1, 1, 2, 9]), shape)
    held = held_by_place(count, int(random.integers(1, count + 1)))
    most_s, sum_s = least_loads(load_s, limit, held)
    terms = least_tail_terms(tail_s, backward_s, count)
    for stages in range(1, count + 1):
        for first in range(count - stages + 1):
            loads, tails = [], []
            for split in all_splits(count - first, stages):
                ends = (*split[1:], count - first)
                runs = [(first + i, first + j) for i, j in zip(split, ends, strict=True)]
                if all(limit[run] >= held[stages - k] for k, run in enumerate(runs)):
                    loads.append([load_s[run] for run in runs])
                before_s = np.cumsum([0.0, *(backward_s[run] for run in runs)])
                tails.append(max(tail_s[run] - before_s[k] for k, run in enumerate(runs)))
            assert most_s[stages, first] == min(map(max, loads), default=np.inf)
            assert sum_s[stages, first] == pytest.approx(min(map(sum, loads), default=np.inf))
            if first == 0:
                assert terms[stages] == pytest.approx(min(tails))
    microbatches = random.integers(1, 6, count)
    rows, pipeline = np.zeros(count, dtype=np.int64), np.arange(1, count + 1)
    tails_s = tail_s[:1, 1:].copy()
    share = 1.0 - (1.0 - 1.0 / microbatches) ** pipeline
    saving_s, gpipe = float(random.random()), bool(random.integers(2))
    classes = Classes(tails_s, rows, pipeline, microbatches, share, np.zeros(count), gpipe)
    work_s, time_s, replayed_s = least_times(load_s, saving_s, limit, held, classes)
    for k, rounds in enumerate(microbatches - 1):
        first_ends = [
            j for j in range(1, count + 1) if limit[0, j] >= held[k + 1] and most_s[k, j] < np.inf
        ]
        works = [
            rounds * max(load_s[0, j], most_s[k, j]) + load_s[0, j] + sum_s[k, j]
            for j in first_ends
        ]
        times = [work + tails_s[0, j - 1] for work, j in zip(works, first_ends, strict=True)]
        assert work_s[k] == pytest.approx(min(works, default=np.inf))
        assert time_s[k] == pytest.approx(min(times, default=np.inf))
        replays = []
        for j in first_ends:
            largest, total = max(load_s[0, j], most_s[k, j]), load_s[0, j] + sum_s[k, j]
            paths = [(rounds + 1) * largest, total / share[k]]
            if gpipe:
                paths.append(total + rounds * largest)
            elif rounds > k:
                paths.append(2 * total + (rounds - k - 1) * largest)
            replays.append(max(paths) - saving_s + tails_s[0, j - 1])
        # Stages whose first one is too long are bounded by it alone.
        assert replayed_s[k] <= min(replays, default=np.inf) + 1e-9
        least_s = min(min(replays, default=np.inf), time_s[k] - saving_s)
        assert replayed_s[k] >= least_s - 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_what_is_reached_is_a_split_with_the_least_largest_load(seed: int) -> None:
    """The time above which nothing is looked for is that of a split that fits."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 7))
    stages, rounds = int(random.integers(1, count + 1)), int(random.integers(1, 6))
    load_s, tail_s, backward_s = random.choice([0.5, 1.0, 1.5, 2.0, 7.0], (3, count, count + 1))
    limit = random.choice(np.array([-1, 1, 9, 9]), (count, count + 1))
    # A run holds at least what its parts hold.
    limit = np.minimum.accumulate(limit, axis=1)
    limit = np.minimum.accumulate(limit[::-1], axis=0)[::-1].copy()
    head_s, held = random.random(count + 1), held_by_place(stages, rounds)
    chain = ChainWork(load_s, backward_s, tail_s, limit, head_s)
    most_s, *_ = _prefixes(chain, held)
    fitting = []
    for split in all_splits(count, stages):
        runs = list(zip(split, (*split[1:], count), strict=True))
        if all(limit[run] >= held[stages - place] for place, run in enumerate(runs)):
            loads = [load_s[run] for run in runs]
            before_s = np.cumsum([0.0, *(backward_s[run] for run in runs)])
            left_s = max(tail_s[run] - before_s[place] for place, run in enumerate(runs))
            work_s = (rounds - 1) * max(loads) + sum(loads) + head_s[runs[0][1]]
            fitting.append((max(loads), work_s + left_s))
    assert np.isfinite(most_s[stages, count]) == bool(fitting)
    if fitting:
        least = min(fitting)[0]
        near = [time_s for largest, time_s in fitting if largest == least]
        reached_s = _reached_s(chain, held, rounds, most_s)
        assert any(reached_s == pytest.approx(time_s) for time_s in near)
