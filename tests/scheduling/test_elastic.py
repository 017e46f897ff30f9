"""Operators that share bandwidths elastically."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.schedule_rules import broken_rules
from tests.scheduling.strategies import layer_like, problems, random_problem

LOWER_SHARE_ON_ALL_CORES = ScheduleProblem(
    "beside another",
    2,
    1,
    (
        ScheduleOperator("wants the buffer", "none", 2.0, 2.0, glb_fraction=0.62),
        ScheduleOperator("has two modes", "TC", 2.0, 2.0, glb_fraction=0.39),
        ScheduleOperator("needs a core", "TC", 1.0, 1.0),
    ),
    (),
    intra_operator="per-type",
    elastic=True,
)
"""The second operator is no faster on all cores, but takes less of the buffer there."""


def no_faster_on_all_cores(problem: ScheduleProblem) -> ScheduleProblem:
    """Return a problem in which all cores only lower an operator's share of the bandwidths."""
    some = [
        replace(
            one,
            intra_op_latency_s=one.latency_s,
            intra_op_hbm_fraction=one.hbm_fraction / 4,
            intra_op_glb_fraction=one.glb_fraction / 4,
        )
        for one in problem.operators
    ]
    return replace(problem, operators=tuple(some))


elastic_problems = st.one_of(
    problems(most=6),
    st.builds(layer_like, st.integers(0, 10**6), st.integers(2, 14), st.integers(2, 4)),
    st.integers(0, 10**6).map(lambda seed: no_faster_on_all_cores(random_problem(seed, most=6))),
).map(lambda problem: replace(problem, elastic=True))


def faster(operator: ScheduleOperator, rng: random.Random) -> ScheduleOperator:
    """Return an operator that takes no longer, and works no longer on any bandwidth."""
    latency, work = rng.choice([1.0, 0.97, 0.5]), rng.choice([1.0, 0.8, 0.3])
    work = min(work, latency)

    def share(before: float) -> float:
        return before * work / latency

    return replace(
        operator,
        latency_s=operator.latency_s * latency,
        intra_op_latency_s=operator.intra_op_latency_s * latency,
        hbm_fraction=share(operator.hbm_fraction),
        glb_fraction=share(operator.glb_fraction),
        link_fraction=share(operator.link_fraction),
        intra_op_hbm_fraction=share(operator.intra_op_hbm_fraction),
        intra_op_glb_fraction=share(operator.intra_op_glb_fraction),
    )


@settings(max_examples=100, deadline=None)
@given(elastic_problems)
@example(LOWER_SHARE_ON_ALL_CORES)
def test_schedules_obey_the_rules(problem: ScheduleProblem) -> None:
    """Cores are held from start to end, and some speeds leave everybody enough bandwidth."""
    assert broken_rules(problem, solve_schedule(problem)) == []


def test_all_cores_are_held_also_where_they_only_lower_a_share() -> None:
    """Without bandwidths nobody needs that mode; a plan with rigid shares takes it all the same."""
    for seed in range(300):
        drawn = no_faster_on_all_cores(random_problem(seed, most=6))
        problem = replace(drawn, elastic=True)
        assert broken_rules(problem, solve_schedule(problem)) == [], seed


@settings(max_examples=100, deadline=None)
@given(elastic_problems)
def test_elastic_shares_lie_between_none_and_rigid_ones(problem: ScheduleProblem) -> None:
    """No schedule is longer than with rigid shares, and no bound is below that without any."""
    elastic = solve_schedule(problem)
    rigid = solve_schedule(replace(problem, elastic=False))
    unlimited = solve_schedule(problem, bandwidth=False)
    assert elastic.makespan_s <= rigid.makespan_s * (1 + 1e-9)
    assert elastic.bound_s >= unlimited.bound_s * (1 - 1e-9)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(elastic_problems, st.randoms(use_true_random=False))
def test_faster_operators_never_make_a_longer_schedule(
    problem: ScheduleProblem, rng: random.Random
) -> None:
    """With operators that take no longer, nothing moves beyond the gap that is stated.

    Rigid shares lack that: an operator that computes faster takes a larger share.
    """
    some = [faster(one, rng) if rng.random() < 0.7 else one for one in problem.operators]
    before = solve_schedule(problem)
    after = solve_schedule(replace(problem, operators=tuple(some)))
    assert after.bound_s <= before.makespan_s * (1 + 1e-9)
    if after.status == "optimal":
        assert after.makespan_s <= before.makespan_s * (1 + 1e-9)


def test_two_operators_share_what_one_would_have_to_wait_for() -> None:
    """Two that each could take two thirds of the HBM run together, four thirds as long."""
    operators = tuple(
        ScheduleOperator(name, "TC", 3.0, 3.0, hbm_fraction=2 / 3) for name in ("a", "b")
    )
    problem = ScheduleProblem("pair", 2, 1, operators, (), elastic=True)
    found = solve_schedule(problem)
    assert found.makespan_s == pytest.approx(4.0, rel=1e-9)
    assert found.status == "optimal"
    assert solve_schedule(replace(problem, elastic=False)).makespan_s == pytest.approx(6.0)


def test_all_cores_for_a_lower_share_leave_none_to_another() -> None:
    """On one core each, 1.01 of the buffer takes 2.02 s; on both, the third would wait: 3 s."""
    found = solve_schedule(LOWER_SHARE_ON_ALL_CORES)
    assert found.makespan_s == pytest.approx(2.02, rel=1e-9)
    assert not any(entry.intra_operator for entry in found.operators)
    two = replace(LOWER_SHARE_ON_ALL_CORES, operators=LOWER_SHARE_ON_ALL_CORES.operators[:2])
    alone = solve_schedule(two)
    assert alone.makespan_s == pytest.approx(2.0, rel=1e-9)
    assert alone.operators[1].intra_operator


def test_the_longest_way_to_go_comes_first() -> None:
    """Of two that want the whole link, that with the longer chain behind it gets it first."""
    operators = (
        ScheduleOperator("last", "none", 1.0, 1.0, link_fraction=1.0),
        ScheduleOperator("first", "none", 1.0, 1.0, link_fraction=1.0),
        ScheduleOperator("after", "TC", 1.0, 1.0),
    )
    problem = ScheduleProblem("chain", 1, 1, operators, ((1, 2),), elastic=True)
    found = solve_schedule(problem)
    assert found.makespan_s == pytest.approx(2.0, rel=1e-9)
    assert found.status == "optimal"
