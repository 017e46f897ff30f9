"""Bounds of candidates are below what is found for them, and come in order."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.degrees import RANK_ORDERS, REPLICAS_INSIDE
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate, CandidateGrid
from phaze_opt.placement.chain import ChainWork, best_split
from phaze_opt.placement.chain_bounds import least_of_work
from phaze_opt.placement.degree_bounds import DegreesByBound, by_bound
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.timing import replayed
from tests.placement.strategies import problems

ROUNDED = 1.0 + 1e-9


@settings(max_examples=60, deadline=None)
@given(problems(most_layers=8))
def test_no_candidate_is_faster_than_its_bounds(problem: PlacementProblem) -> None:
    """Neither its best split by the closed form, nor its even split when it is replayed."""
    costs = CandidateCosts(problem)
    tensor_degrees = DegreesByBound(costs)
    for tensor, grids in tensor_degrees.grids.items():
        each_s = tensor_degrees.even_bounds_s(tensor)
        for grid, bounds, even_bound_s in zip(
            grids, tensor_degrees.bounds(tensor), each_s, strict=True
        ):
            assert (bounds.work_s <= bounds.closed_s).all()
            for entry in range(len(grid.data)):
                for candidate in grid.candidates(entry):
                    assert bounds.closed_s[entry] <= closed_form_s(costs, candidate) * ROUNDED
                    even_s = even_split_s(costs, candidate, tensor_degrees)
                    assert even_bound_s[entry] <= even_s * ROUNDED
                    assert bounds.replayed_s[entry] <= even_s * ROUNDED


def closed_form_s(costs: CandidateCosts, candidate: Candidate) -> float:
    """Return the least closed form of a candidate."""
    work = costs.work(candidate)
    tables = work.load_s, work.backward_s, costs.tail_s(candidate)
    chain = ChainWork(*tables, work.stages.held.in_flight_limit, work.head_s[0])
    held, microbatches = costs.held(candidate), costs.microbatches(candidate.data)
    time_s, _ = best_split(chain, held, microbatches, np.inf)
    return time_s


def even_split_s(
    costs: CandidateCosts, candidate: Candidate, tensor_degrees: DegreesByBound
) -> float:
    """Replay the even split of a candidate; it takes for ever where it does not fit."""
    starts = tensor_degrees.even_starts[candidate.pipeline, : candidate.pipeline]
    layout = Layout.of_starts(candidate, starts, costs.layers)
    limit = costs.stages(candidate).held.in_flight_limit[layout.first[0], layout.last[0]]
    if (limit < costs.held(candidate)[:0:-1]).any():
        return np.inf
    return replayed(costs, layout).time_s


@settings(max_examples=60, deadline=None)
@given(problems(most_layers=8))
def test_tensor_degrees_come_by_their_bound(problem: PlacementProblem) -> None:
    """Every tensor degree once, the least bound first, and before it nothing larger."""
    tensor_degrees = DegreesByBound(CandidateCosts(problem))
    kinds: tuple[Literal["closed_s", "replayed_s"], ...] = ("closed_s", "replayed_s")
    for kind in kinds:
        order = list(tensor_degrees.by_bound(kind))
        bounds_s = [bound_s for bound_s, _ in order]
        assert bounds_s == sorted(bounds_s)
        assert sorted(tensor for _, tensor in order if tensor is not None) == sorted(
            tensor_degrees.grids
        )
        for bound_s, tensor in order:
            if tensor is not None:
                each_s = [getattr(bounds, kind).min() for bounds in tensor_degrees.bounds(tensor)]
                assert bound_s == pytest.approx(min(each_s), rel=1e-8)


@pytest.mark.parametrize("count", [0, 5, 64, 65, 300])
def test_entries_come_by_rising_bound(count: int) -> None:
    """All that are finite, whether they are among those that are sorted first or not."""
    random = np.random.default_rng(count)
    bounds_s = [random.choice([1.0, 2.0, 3.0, np.inf], size) for size in (count, 7)]
    grids = [grid_of(tensor, len(each_s)) for tensor, each_s in enumerate(bounds_s, 1)]
    order = list(by_bound(grids, bounds_s))
    values = [bounds_s[index][entry] for index, entry in order]
    assert values == sorted(values)
    assert len(set(order)) == sum(int(np.isfinite(each_s).sum()) for each_s in bounds_s)
    assert list(by_bound([], [])) == []


@pytest.mark.parametrize("seed", range(5))
def test_ties_come_as_candidates_are_ordered(seed: int) -> None:
    """Few devices first, then few stages; grids that have the same degrees in their order."""
    random = np.random.default_rng(seed)
    grids = []
    for order in RANK_ORDERS:
        degrees = np.array([*itertools.product(range(1, 7), repeat=2)])
        pipeline, data = random.permutation(degrees).T.copy()
        grids.append(CandidateGrid(2, order, 0, True, data, data, pipeline, pipeline))
    bounds_s = [random.choice([1.0, 2.0], len(grid.data)) for grid in grids]

    def place(index: int, entry: int) -> tuple[float, tuple[int, ...], int]:
        candidate = grids[index].candidate(entry)
        return bounds_s[index][entry], (candidate.devices, *candidate.degrees), index

    tried = list(by_bound(grids, bounds_s))
    assert tried == sorted(tried, key=lambda each: place(*each))
    assert len(tried) == 72


def grid_of(tensor: int, size: int) -> CandidateGrid:
    """Return a grid of classes that differ in their replicas."""
    data = np.arange(1, size + 1)
    ones = np.ones(size, dtype=np.int64)
    return CandidateGrid(tensor, REPLICAS_INSIDE, 0, True, data, data, ones, ones)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 500)), max_size=20),
    st.floats(1e-6, 1e3),
    st.floats(1e-6, 1.0),
)
def test_least_work_equals_its_definition(
    candidates: list[tuple[int, int]], all_s: float, share: float
) -> None:
    """To the bit, and endless where there is no candidate."""
    largest_s = share * all_s
    microbatches, stages = np.array(candidates, dtype=np.int64).reshape(-1, 2).T.copy()
    rounds = microbatches.astype(np.float64)
    even_share = 1.0 - (1.0 - 1.0 / rounds) ** stages
    least_s = least_of_work(rounds, stages, even_share, all_s, largest_s)
    closed_s = (rounds - 1.0) * np.maximum(all_s / stages, largest_s) + all_s
    replayed_s = np.maximum(rounds * largest_s, all_s / even_share)
    assert least_s == (min(closed_s, default=np.inf), min(replayed_s, default=np.inf))
