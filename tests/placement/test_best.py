"""What leaves candidates out never changes the answer."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InfeasibleError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.on_demand import OnDemand
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement import best, candidates
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training
from tests.placement.strategies import layer_costs, scaled


@st.composite
def large_problems(draw: st.DrawFn) -> PlacementProblem:
    """Draw a chain with more candidates and splits than are all tried."""
    count = draw(st.integers(8, 12))
    level = NetworkLevel(
        draw(st.sampled_from([30.0, 1e3, 1e6])),
        draw(st.sampled_from([0.0, 0.01])),
        "switch",
        halving=draw(st.booleans()),
    )
    nodes = draw(st.sampled_from([(), (), (2,), (6,), (8,)]))
    inner = [replace(level, bandwidth_bytes_per_s=1e6, group_size=size) for size in nodes]
    return PlacementProblem(
        layers=draw(layer_costs(count, (1, 2, 4), forward_share=None)),
        edges=tuple((index, index + 1) for index in range(count - 1)),
        cluster=Cluster("drawn", (*inner, level), draw(st.sampled_from([100, 128, 200]))),
        training=Training(
            draw(st.sampled_from([128, 200, 250])),
            draw(st.integers(1, 2)),
            zero=draw(st.sampled_from([0, 0, 1, 3])),
            overlap=draw(st.sampled_from(["none", "data"])),
            optimizer=draw(st.sampled_from(["sgd", "adam"])),
        ),
        hbm_usable_bytes=draw(st.sampled_from([500.0, 2000.0, 1e9])),
        hbm_bytes_per_s=draw(st.sampled_from([100.0, 1e4])),
    )


def solved(problem: PlacementProblem) -> Placement | str:
    """Return the placement, or why there is none."""
    try:
        return solve_placement(problem)
    except InfeasibleError as error:
        return str(error)


def lowered(layers: tuple[LayerCost, ...], shares: Mapping[str, float]) -> tuple[LayerCost, ...]:
    """Return layers with a share of their seconds, those that are alike with the same share."""

    def share(layer: LayerCost) -> float:
        # Any function of the layer without its name.
        value = math.modf(1e3 * sum(layer_pass.seconds for layer_pass in layer.passes))[0]
        return shares["least"] + (shares["most"] - shares["least"]) * value

    return tuple(replace(layer, passes=scaled(layer.passes, share(layer))) for layer in layers)


lower_shares = st.floats(0.0, 1.0) | st.floats(0.998, 1.0)
"""Far below, and so close that bounds from the least seconds are kept (`degree_bounds`)."""


@settings(max_examples=25, deadline=None)
@given(large_problems(), lower_shares, lower_shares)
def test_least_seconds_change_nothing(problem: PlacementProblem, least: float, most: float) -> None:
    """However far the least seconds are below the seconds, the answer is the same to the bit."""
    shares = {"least": min(least, most), "most": max(least, most)}
    asked: list[int] = []

    def find(tensor_degree: int) -> tuple[LayerCost, ...]:
        asked.append(tensor_degree)
        return problem.layers[tensor_degree]

    bounded = replace(
        problem,
        layers=OnDemand(problem.layers, find),
        least={
            tensor_degree: lowered(each, shares) for tensor_degree, each in problem.layers.items()
        },
    )
    assert solved(bounded) == solved(problem)
    if shares["least"] == 1.0:
        assert len(asked) <= len(problem.layers)


def test_a_tensor_degree_that_cannot_be_the_fastest_is_not_asked_for() -> None:
    """Its least seconds say so."""
    blocks = [LayerCost(f"block.{i}", LayerPasses.of(1.0, 2.0), 10, 0, 1, 1, 1) for i in range(12)]
    slower = [replace(block, passes=LayerPasses.of(9.0, 9.0)) for block in blocks]
    layers = {1: tuple(blocks), 2: tuple(slower)}

    def find(tensor_degree: int) -> tuple[LayerCost, ...]:
        assert tensor_degree == 1, "the tensor degree 2 was asked for"
        return layers[tensor_degree]

    problem = PlacementProblem(
        layers=OnDemand(layers, find),
        edges=tuple((i, i + 1) for i in range(11)),
        cluster=Cluster("flat", (NetworkLevel(1e6, 0.0, "switch"),), 128),
        training=Training(256),
        hbm_usable_bytes=1e9,
        hbm_bytes_per_s=1e9,
        least=layers,
    )
    assert solve_placement(problem).tensor == 1


@settings(max_examples=30, deadline=None)
@given(problem=large_problems())
def test_classes_change_nothing(problem: PlacementProblem) -> None:
    """The answer is that of every number of replicas by itself."""
    placement = solved(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_has_classes", lambda *_: False)
        patch.setattr(candidates, "_starts", candidates._starts.__wrapped__)
        patch.setattr(candidates, "_grids", candidates._grids.__wrapped__)
        assert placement == solved(problem)


@settings(max_examples=30, deadline=None)
@given(problem=large_problems())
def test_classes_hold_every_candidate_once(problem: PlacementProblem) -> None:
    """All degrees that the devices and the batch allow, with equal microbatches in a class."""
    training, devices = problem.training, problem.cluster.devices
    seen = []
    for grid in CandidateCosts(problem).grids:
        assert (grid.sizes > 0).all()
        for index in range(len(grid.data)):
            members = list(grid.candidates(index))
            assert members[0] == grid.candidate(index)
            assert {training.microbatches(each.data) for each in members} == {
                int(grid.microbatches[index])
            }
            seen += [(each.pipeline, each.data, each.tensor, each.order) for each in members]
    expected = [
        (pipeline, data, tensor, order)
        for tensor, layers in problem.layers.items()
        for order, _ in candidates.rank_orders(problem.cluster, training, tensor)
        for pipeline in range(1, len(layers) + 1)
        for data in range(1, training.global_batch // training.microbatch + 1)
        if pipeline * data * tensor <= devices
    ]
    assert sorted(seen) == sorted(expected)


@settings(max_examples=20, deadline=None)
@given(problem=large_problems())
def test_the_fewest_replicas_of_a_class_bound_all_others(problem: PlacementProblem) -> None:
    """Tails, work and memory of the candidates of a class."""
    costs = CandidateCosts(problem)
    for grid in costs.grids:
        for index in np.flatnonzero(grid.sizes > 1)[:5].tolist():
            fewest, *others = grid.candidates(index)
            for other in others[:5]:
                assert (costs.tail_s(fewest) <= costs.tail_s(other)).all()
                assert (costs.work(fewest).load_s <= costs.work(other).load_s).all()
                limit = costs.stages(fewest).held.in_flight_limit
                assert (limit == costs.stages(other).held.in_flight_limit).all()


@settings(max_examples=20, deadline=None)
@given(problem=large_problems(), zero=st.sampled_from([2, 3]))
def test_what_replicas_exchange_in_every_pass_is_a_bound(
    problem: PlacementProblem, zero: int
) -> None:
    """All stages of a candidate together take no less for a microbatch, and that is not little."""
    costs = CandidateCosts(
        replace(problem, training=replace(problem.training, zero=zero), least=None)
    )
    for grid in costs.grids:
        least_s = costs.classes(grid).least_s
        for index in range(0, len(grid.data), 5):
            candidate = grid.candidate(index)
            group, work = costs.group(candidate), costs.work(candidate)
            whole_s = work.load_s[0, -1]
            assert least_s[index] <= whole_s  # a split exposes no less
            layout = costs.even_layout(candidate)
            assert least_s[index] <= work.load_s[layout.first, layout.last].sum()
            if not group.overlaps and candidate.data > 1:
                stages = work.stages
                added_s = stages.held.added[0, -1] * stages.accumulation_s_per_parameter
                assert least_s[index] == pytest.approx(whole_s - added_s)


@settings(max_examples=20, deadline=None)
@given(problem=large_problems())
def test_a_shared_tail_term_is_a_bound(problem: PlacementProblem) -> None:
    """That of fewer replicas, of which there are few, is at most that of more."""
    costs = CandidateCosts(problem)
    for grid in costs.grids[:2]:
        for index in range(0, len(grid.data), 7):
            candidate = grid.candidate(index)
            own_s = costs.least_tail_term_s(candidate)
            assert costs.least_shared_tail_term_s(candidate) <= own_s * (1.0 + 1e-12)


def test_a_very_large_class_is_split_once() -> None:
    """The answer is that of the fewest replicas, and does not take every number of them."""
    blocks = [
        LayerCost(f"block.{i}", LayerPasses.of(1.0 + i, 2.0), 10, 0, 1, 1, 1) for i in range(12)
    ]
    problem = PlacementProblem(
        layers={1: tuple(blocks)},
        edges=tuple((i, i + 1) for i in range(11)),
        cluster=Cluster("flat", (NetworkLevel(1e6, 0.0, "switch"),), 100_000),
        training=Training(100_000, optimizer="sgd"),
        hbm_usable_bytes=60.0,  # a layer each
        hbm_bytes_per_s=1e9,
    )
    split: list[Candidate] = []

    def count(costs: CandidateCosts, candidate: Candidate, *known: Any) -> tuple[float, Any]:
        split.append(candidate)
        return find(costs, candidate, *known)

    with pytest.MonkeyPatch.context() as patch:
        find = best._closed_form_answer
        patch.setattr(best, "_closed_form_answer", count)
        placement = solved(problem)
    assert isinstance(placement, Placement)
    assert placement.microbatches == problem.training.microbatches(placement.data)
    assert (
        placement.data == 1
        or problem.training.microbatches(placement.data - 1) > placement.microbatches
    )
    assert len(split) < 1000


@given(large_problems())
@settings(max_examples=3, deadline=None)
def test_candidates_that_nobody_asks_for_again_are_not_kept(problem: PlacementProblem) -> None:
    """A million devices have hundreds of thousands of them."""
    (first, *_) = candidates.candidate_grids(problem)
    kept = weakref.ref(first)
    solved(problem)
    candidates._grids.cache_clear()
    del first
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("layers", [1, 2, 11, 12, 21, 40, 300])
def test_splits_are_counted_as_far_as_it_matters(layers: int) -> None:
    """Without the numbers of hundreds of digits that a long chain has."""
    counts = [min(math.comb(layers - 1, cuts), best._FEW_SPLITS + 1) for cuts in range(layers)]
    assert best._splits_by_stages(layers).tolist() == [0, *counts]


@settings(max_examples=60, deadline=None)
@given(large_problems())
def test_classes_of_replicas_that_share_states_are_bounded_and_tried(
    problem: PlacementProblem,
) -> None:
    """As if there were very many: nothing is faster than the bound, and what fits is found."""
    problem = replace(problem, training=replace(problem.training, zero=1))
    best = solved(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "MOST_SINGLE_REPLICAS", 0)
        grids = candidates.candidate_grids(problem)
        assert all(grid.shares_out for grid in grids)
        found = solved(problem)
    singles = candidates.candidate_grids(problem)
    assert sum(int(grid.sizes.sum()) for grid in grids) == sum(len(grid.data) for grid in singles)
    if isinstance(best, str) or isinstance(found, str):
        assert best == found
        return
    assert found.bound_s is not None
    assert found.bound_s <= best.time_per_batch_s * (1.0 + 1e-9)
    assert best.time_per_batch_s * (1.0 - 1e-9) <= found.time_per_batch_s
    assert found.time_per_batch_s <= best.time_per_batch_s * 1.05
