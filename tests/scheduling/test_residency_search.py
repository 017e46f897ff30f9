import random
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.scheduling.residency import (
    PassTensor,
    Residency,
    ResidencyPlan,
    TensorGraph,
    evaluate_plan,
)
from phaze_opt.scheduling.residency_search import least_operator_s, search_frames, search_order
from tests.scheduling.exhaustive_residency import shortest_joint_s
from tests.scheduling.residency_problems import layer_residency, random_residency, residencies


def without_residency_s(residency: Residency) -> float:
    """Give the makespan with nothing resident, each operator at its best level that fits."""
    busy_s = np.maximum(residency.other_s, residency.hbm_bytes / residency.hbm_bytes_per_s)
    fits = residency.working_bytes <= residency.glb_bytes
    best_s = np.where(fits, busy_s + residency.overhead_s[:, np.newaxis], np.inf).min(axis=1)
    return float(best_s.sum())


@settings(max_examples=80, deadline=None)
@given(residency=residencies())
def test_between_bounds(residency: Residency) -> None:
    """The bound <= the optimum <= the fast method <= without residency."""
    found = search_frames(residency)
    optimum_s = shortest_joint_s(residency)
    slack = 1 + 1e-9
    if found.best is None:
        assert np.isinf(optimum_s) and np.isinf(without_residency_s(residency))
        return
    assert found.bound_s <= optimum_s * slack
    assert optimum_s <= found.best.makespan_s * slack
    assert found.best.makespan_s <= without_residency_s(residency) * slack


@settings(max_examples=100, deadline=None)
@given(residency=residencies())
def test_the_bound_is_every_operator_alone(residency: Residency) -> None:
    """No operator takes less than with every tensor of its own resident that fits beside it."""
    everything = residency.effective_saved_bytes
    sizes = residency.graph.tensor_bytes[residency.graph.access_tensor][:, np.newaxis]
    rows = residency.graph.access_operator
    fits_alone = sizes + residency.working_bytes[rows] <= residency.glb_bytes
    flow = residency.hbm_bytes.copy()
    np.subtract.at(flow, rows, np.where(fits_alone, everything, 0.0))
    busy_s = np.maximum(residency.other_s, np.maximum(flow, 0.0) / residency.hbm_bytes_per_s)
    fits = residency.working_bytes <= residency.glb_bytes
    alone_s = np.where(fits, busy_s + residency.overhead_s[:, np.newaxis], np.inf).min(axis=1)
    assert (least_operator_s(residency) >= alone_s * (1 - 1e-9)).all()


@settings(max_examples=100, deadline=None)
@given(residency=residencies())
def test_one_order_is_searched_exactly(residency: Residency) -> None:
    """In one order, the choice of levels and tensors is the best of all choices."""
    order = residency.graph.orders[0].tolist()
    chain = tuple(sorted({*residency.graph.edges, *pairwise(order)}))
    graph = replace(residency.graph, edges=chain)
    alone = replace(residency, graph=graph)
    found, optimum_s = search_frames(alone), shortest_joint_s(alone)
    if found.best is not None:
        assert found.best.makespan_s == pytest.approx(optimum_s, rel=1e-9)
        assert found.bound_s == found.best.makespan_s


@settings(max_examples=100, deadline=None)
@given(residency=residencies(), more=st.integers(0, 20))
def test_more_buffer_is_never_slower(residency: Residency, more: int) -> None:
    """More global buffer never makes the plan of the fast method longer, but for rounding."""
    before = search_frames(residency).best
    after = search_frames(replace(residency, glb_bytes=residency.glb_bytes + more)).best
    if before is not None:
        assert after is not None
        # Another order of the operators adds the same seconds up in another order.
        assert after.makespan_s <= before.makespan_s * (1.0 + 1e-12)


@pytest.mark.parametrize(("operators", "width"), [(23, 3), (60, 6)])
def test_more_buffer_is_never_slower_for_layers(operators: int, width: int) -> None:
    """The law also holds where not all tensors can be candidates."""
    for seed in range(3):
        made = layer_residency(seed, operators, width, 0)
        times_s = [
            found.makespan_s
            for mib in (4, 6, 8, 12, 16, 23, 32, 48, 64, 96, 128)
            if (found := search_frames(replace(made, glb_bytes=mib * 2**20)).best)
        ]
        assert len(times_s) == 11
        assert all(later <= earlier for earlier, later in pairwise(times_s))
        assert times_s[-1] < times_s[0]


@settings(max_examples=50, deadline=None)
@given(residency=residencies())
def test_a_faster_memory_or_fewer_bytes_are_never_slower(residency: Residency) -> None:
    """More bandwidth, less overhead or smaller working sets never make a plan longer."""
    before = search_frames(residency).best
    if before is None:
        return
    for better in (
        replace(residency, hbm_bytes_per_s=2.0 * residency.hbm_bytes_per_s),
        replace(residency, overhead_s=0.5 * residency.overhead_s),
        replace(residency, working_bytes=residency.working_bytes // 2),
    ):
        after = search_frames(better).best
        assert after is not None
        assert after.makespan_s <= before.makespan_s * (1 + 1e-12)


def test_near_the_optimum() -> None:
    """On small random problems the fast method is within 1 % of the optimum on average."""
    ratios = []
    for seed in range(150):
        residency = random_residency(random.Random(seed))
        found, optimum_s = search_frames(residency).best, shortest_joint_s(residency)
        if found is not None and optimum_s > 0.0:
            ratios.append(found.makespan_s / optimum_s)
    assert np.mean(ratios) <= 1.01


def test_what_costs_no_time_still_saves_bytes() -> None:
    """Of plans of equal length, the one with fewer HBM bytes is chosen."""
    graph = TensorGraph(2, ((0, 1),), (PassTensor(4, 0, (1,)),))
    residency = Residency(
        graph,
        glb_bytes=4,
        hbm_bytes_per_s=1.0,
        working_bytes=np.zeros((2, 1), dtype=np.int64),
        hbm_bytes=np.full((2, 1), 4.0),
        other_s=np.full((2, 1), 9.0),
        overhead_s=np.zeros(2),
        saved_bytes=np.full((2, 1), 4.0),
    )
    found = search_frames(residency).best
    assert found is not None
    assert (found.makespan_s, found.hbm_bytes) == (18.0, (0.0, 0.0))
    assert search_frames(replace(residency, glb_bytes=3)).best.hbm_bytes == (4.0, 4.0)  # type: ignore[union-attr]


def test_the_first_reader_of_an_input_pays() -> None:
    """A resident input is read once, by the operator that runs first."""
    graph = TensorGraph(3, (), (PassTensor(4, None, (0, 1, 2)),))
    residency = Residency(
        graph,
        glb_bytes=10,
        hbm_bytes_per_s=1.0,
        working_bytes=np.zeros((3, 1), dtype=np.int64),
        hbm_bytes=np.array([[4.0], [8.0], [4.0]]),
        other_s=np.zeros((3, 1)),
        overhead_s=np.zeros(3),
        saved_bytes=np.array([[4.0], [8.0], [4.0]]),
    )
    for order in permutations(range(3)):
        found = search_order(residency, order)
        assert found is not None
        assert found.makespan_s == 4.0
        assert found.hbm_bytes[order[0]] == 4.0


def test_plans_are_evaluated_as_written() -> None:
    """A producer does not write what stays, unless it outlives the pass; re-reads go too."""
    graph = TensorGraph(
        2, ((0, 1),), (PassTensor(4, 0, (1,)), PassTensor(2, 0, (1,), outlives=True))
    )
    residency = Residency(
        graph,
        glb_bytes=10,
        hbm_bytes_per_s=2.0,
        working_bytes=np.array([[1, 1], [3, 1]]),
        hbm_bytes=np.array([[6.0, 6.0], [8.0, 14.0]]),
        other_s=np.array([[1.0, 1.0], [0.5, 0.5]]),
        overhead_s=np.array([0.25, 0.0]),
        saved_bytes=np.array([[4.0, 4.0], [4.0, 8.0], [2.0, 2.0], [2.0, 4.0]]),
    )
    nothing = evaluate_plan(residency, ResidencyPlan((0, 1), (0, 1), (False, False)))
    assert nothing.end_s == (3.25, 10.25)
    both = evaluate_plan(residency, ResidencyPlan((0, 1), (0, 1), (True, True)))
    assert both.hbm_bytes == (2.0, 2.0)
    assert both.end_s == (1.25, 2.25)
