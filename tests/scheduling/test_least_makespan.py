"""The least makespan on many chips: no schedule is shorter, and nothing else is assumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.arrays import FloatArray
from phaze_opt.scheduling.least_makespan import (
    OperatorColumns,
    PassShapes,
    least_joint_makespan,
    least_makespan,
)
from phaze_opt.scheduling.residency import Residency, evaluate_plan
from phaze_opt.scheduling.residency_search import search_frames
from phaze_opt.scheduling.schedule_problem import ScheduleProblem, topological_order
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.brute_force import shortest_makespan_s
from tests.scheduling.residency_problems import residencies
from tests.scheduling.strategies import layer_like, problems

SLACK = 1.0 + 1e-9


def in_order(problem: ScheduleProblem) -> ScheduleProblem:
    """Order the operators topologically, under the rule that the bound knows."""
    order = topological_order(problem)
    rank = {index: place for place, index in enumerate(order)}
    return replace(
        problem,
        operators=tuple(problem.operators[index] for index in order),
        edges=tuple((rank[before], rank[after]) for before, after in problem.edges),
        intra_operator="exclusive",
    )


ordered_problems = problems(most=5).map(in_order)


def columns_of(*chips: ScheduleProblem) -> OperatorColumns:
    """Write problems that differ in numbers only as columns."""

    def column(name: str) -> FloatArray:
        rows = [[getattr(operator, name) for operator in one.operators] for one in chips]
        return np.array(rows, dtype=np.float64).reshape(len(chips), -1)

    return OperatorColumns(
        column("latency_s"),
        column("intra_op_latency_s"),
        column("hbm_fraction"),
        column("glb_fraction"),
        column("link_fraction"),
        num_tc=np.array([one.num_tc for one in chips], dtype=np.float64),
        num_vc=np.array([one.num_vc for one in chips], dtype=np.float64),
    )


def least_s(*chips: ScheduleProblem) -> list[float]:
    """Bound one graph on several chips."""
    cores = tuple(operator.core for operator in chips[0].operators)
    shapes = PassShapes((cores,), (chips[0].edges,))
    found: list[float] = least_makespan(shapes, columns_of(*chips))[:, 0].tolist()
    return found


@given(ordered_problems)
def test_no_schedule_is_shorter(problem: ScheduleProblem) -> None:
    """The bound is at most the shortest makespan of all schedules."""
    (bound_s,) = least_s(problem)
    assert bound_s <= shortest_makespan_s(problem) * SLACK


@given(st.lists(ordered_problems, min_size=1, max_size=3))
def test_passes_are_bounded_together_as_alone(passes: list[ScheduleProblem]) -> None:
    """The bounds of several passes on one chip equal those of each alone, to the bit."""
    passes = [replace(one, num_tc=passes[0].num_tc, num_vc=passes[0].num_vc) for one in passes]
    shapes = PassShapes(
        tuple([tuple(operator.core for operator in one.operators) for one in passes]),
        tuple([one.edges for one in passes]),
    )
    joined = replace(
        passes[0], operators=tuple(each for one in passes for each in one.operators), edges=()
    )
    together = least_makespan(shapes, columns_of(joined))
    assert together.tolist() == [[found for one in passes for found in least_s(one)]]


@given(ordered_problems, st.data())
def test_it_holds_where_its_inputs_are_bounds(
    problem: ScheduleProblem, data: st.DataObject
) -> None:
    """With smaller durations and shares it still bounds the schedules of the problem."""

    def less(value: float) -> float:
        return value * data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))

    smaller = tuple(
        replace(
            operator,
            latency_s=less(operator.latency_s),
            intra_op_latency_s=less(operator.intra_op_latency_s),
            hbm_fraction=less(operator.hbm_fraction),
        )
        for operator in problem.operators
    )
    (bound_s,) = least_s(replace(problem, operators=smaller))
    assert bound_s <= shortest_makespan_s(problem) * SLACK


@given(st.integers(0, 1000), st.integers(2, 14), st.integers(1, 4))
def test_every_method_is_bounded(seed: int, count: int, width: int) -> None:
    """No schedule that the solver finds is shorter, in graphs like those of layers."""
    problem = layer_like(seed, count, width)
    (bound_s,) = least_s(problem)
    found = solve_schedule(problem, effort=2000)
    assert bound_s <= found.makespan_s * SLACK
    # Work and chains count at least.
    fastest_s = [min(one.latency_s, one.intra_op_latency_s) for one in problem.operators]
    assert bound_s >= max(fastest_s) / SLACK
    if width == 1:
        assert bound_s == pytest.approx(found.makespan_s, rel=1e-9)


@given(st.integers(0, 100), st.lists(st.floats(0.1, 10.0), min_size=2, max_size=4))
def test_chips_do_not_depend_on_each_other(seed: int, factors: list[float]) -> None:
    """Chips that are bounded together have, bit for bit, the bound of each alone."""
    problem = layer_like(seed, 9, 3)
    chips = [
        replace(
            problem,
            num_tc=2 * problem.num_tc,
            operators=tuple(
                replace(one, latency_s=one.latency_s * factor) for one in problem.operators
            ),
        )
        for factor in factors
    ]
    assert least_s(*chips) == [least_s(one)[0] for one in chips]


def test_a_pass_without_operators_takes_no_time() -> None:
    """Neither on one chip nor on several."""
    empty = ScheduleProblem("empty", 1, 1, (), ())
    assert least_s(empty, empty) == [0.0, 0.0]


@given(residencies())
def test_no_joint_plan_is_shorter(residency: Residency) -> None:
    """With what every operator can save at most, the bound holds for the plan that is found."""
    found = search_frames(residency)
    if found.best is None:
        return
    saved = np.zeros((residency.graph.operators, residency.levels))
    np.add.at(saved, residency.graph.access_operator, residency.effective_saved_bytes)
    flow = np.maximum(residency.hbm_bytes - saved, 0.0).min(axis=1)
    (bound_s,) = least_joint_makespan(
        residency.other_s.min(axis=1)[np.newaxis],
        flow[np.newaxis] / residency.hbm_bytes_per_s,
        residency.overhead_s[np.newaxis],
    )
    assert bound_s <= evaluate_plan(residency, found.best.plan).makespan_s * SLACK
