"""Operators in their order beside a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.scheduling.residency import PassTensor
from phaze_opt.scheduling.schedule_problem import CachedReads, ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule


@st.composite
def cached_problems(draw: st.DrawFn) -> ScheduleProblem:
    """Draw a chain with forks whose operators the cache makes at most as slow."""
    latencies = draw(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=8))
    count = len(latencies)
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {pair for pair in draw(st.lists(pairs, max_size=8)) if pair[0] < pair[1]}
    shares = draw(st.lists(st.floats(0.0, 1.0), min_size=count, max_size=count))
    served = [(draw(st.integers(0, 3)), *edge) for edge in sorted(edges)]
    operators = tuple(
        ScheduleOperator(str(i), "TC", latency_s, latency_s)
        for i, latency_s in enumerate(latencies)
    )
    tensors = tuple(PassTensor(8 + number, None, tuple(range(count))) for number in range(4))
    shorter = tuple(one * share for one, share in zip(latencies, shares, strict=True))
    return ScheduleProblem(
        name="program",
        num_tc=1,
        num_vc=1,
        operators=operators,
        edges=tuple(sorted(edges)),
        serial=True,
        cached=CachedReads(shorter, (1.0,) * count, tensors, tuple(served)),
    )


@given(cached_problems())
def test_operators_run_in_their_order_and_never_longer(problem: ScheduleProblem) -> None:
    """Without gaps, as the problem lists them; without residency as without the cache."""
    assert problem.cached is not None
    schedule = solve_schedule(problem)
    plain = solve_schedule(replace(problem, cached=None))
    assert solve_schedule(problem, residency=False).operators == plain.operators
    assert schedule.makespan_s <= plain.makespan_s
    assert schedule.status == "optimal"
    assert schedule.bound_s == schedule.makespan_s
    ends = [0.0, *(entry.end_s for entry in schedule.operators)]
    assert [entry.start_s for entry in schedule.operators] == ends[:-1]
    assert ends[-1] == schedule.makespan_s
    for end_s, start_s, latency_s in zip(ends[1:], ends, problem.cached.latency_s, strict=False):
        assert end_s - start_s == pytest.approx(latency_s, abs=1e-12)


@given(cached_problems())
def test_every_served_read_lies_in_one_stay_of_its_tensor(problem: ScheduleProblem) -> None:
    """From the start of the operator that touched it to the end of its reader."""
    assert problem.cached is not None
    schedule = solve_schedule(problem)
    assert schedule.residency is not None
    for tensor, source, reader in problem.cached.served:
        span = schedule.operators[source].start_s, schedule.operators[reader].end_s
        holding = [
            stay
            for stay in schedule.residency.tensors
            if stay.tensor == tensor and stay.start_s <= span[0] and span[1] <= stay.end_s
        ]
        assert holding


def test_cached_reads_belong_to_a_program() -> None:
    """Serial, in a topological order, with a value for each operator."""
    operators = tuple(ScheduleOperator(name, "TC", 1.0, 1.0) for name in "ab")
    cached = CachedReads((1.0, 1.0), (0.0, 0.0), (), ())
    problem = ScheduleProblem("p", 1, 1, operators, ((0, 1),), serial=True, cached=cached)
    assert solve_schedule(problem).makespan_s == 2.0
    for wrong, words in (
        (replace(problem, serial=False), "not serial"),
        (replace(problem, edges=((1, 0),)), "no topological order"),
        (replace(problem, cached=replace(cached, latency_s=(1.0,))), "has 1 values"),
        (replace(problem, cached=replace(cached, hbm_bytes=(0.0, -1.0))), "'b' with cached reads"),
    ):
        with pytest.raises(InputError, match=words):
            solve_schedule(wrong)
