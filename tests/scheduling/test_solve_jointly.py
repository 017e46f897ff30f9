import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import SolveMethod
from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError
from phaze_opt.scheduling.residency import PassTensor, Residency
from phaze_opt.scheduling.schedule_problem import Schedule, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.exhaustive_residency import shortest_joint_s
from tests.scheduling.processes import printed_by_processes
from tests.scheduling.residency_problems import (
    as_problem,
    layer_residency,
    random_residency,
    residencies,
)
from tests.scheduling.residency_rules import broken_joint_rules
from tests.scheduling.schedule_rules import broken_rules

SLACK = 1 + 1e-9


def broken(problem: ScheduleProblem, schedule: Schedule) -> list[str]:
    """List the rules that a schedule breaks, with or without residency."""
    check = broken_rules if schedule.residency is None else broken_joint_rules
    return check(problem, schedule)


@settings(max_examples=100, deadline=None)
@given(residency=residencies())
def test_laws_of_the_fast_method(residency: Residency) -> None:
    """The schedule is valid, between its bound and the one without residency."""
    problem = as_problem(residency)
    schedule = solve_schedule(problem)
    without = solve_schedule(problem, residency=False)
    assert broken(problem, schedule) == []
    assert schedule.makespan_s <= without.makespan_s
    optimum_s = min(without.makespan_s, shortest_joint_s(residency))
    assert schedule.bound_s <= optimum_s * SLACK
    assert optimum_s <= schedule.makespan_s * SLACK


@pytest.mark.parametrize("method", ["auto", "cp-sat"])
def test_proof_of_small_problems(method: SolveMethod) -> None:
    """With CP-SAT, the optimum over both kinds of schedules is found and proven."""
    for seed in range(40):
        residency = random_residency(random.Random(seed))
        problem = as_problem(residency)
        schedule = solve_schedule(problem, method=method, effort=500_000)
        without = solve_schedule(problem, residency=False)
        assert broken(problem, schedule) == []
        assert schedule.status == "optimal"
        optimum_s = min(without.makespan_s, shortest_joint_s(residency))
        assert schedule.makespan_s == pytest.approx(optimum_s, rel=1e-6)


@pytest.mark.parametrize("method", ["branch-and-bound", "auto"])
def test_more_buffer_is_never_slower(method: SolveMethod) -> None:
    """More global buffer never makes a layer slower, neither for the fast method nor for proofs."""
    made = layer_residency(4, 16, 2, 0)
    times_s = []
    for mib in (0, 4, 8, 16, 32, 64):
        problem = as_problem(replace(made, glb_bytes=mib * 2**20))
        schedule = solve_schedule(problem, method=method)
        assert broken(problem, schedule) == []
        assert method == "branch-and-bound" or schedule.status == "optimal"
        times_s.append(schedule.makespan_s)
    assert times_s == sorted(times_s, reverse=True)
    assert times_s[-1] < times_s[0]


@settings(max_examples=30, deadline=None)
@given(residency=residencies(), bandwidth=st.booleans())
def test_off_means_as_without_tensors(residency: Residency, bandwidth: bool) -> None:
    """Without residency, a problem with tensors has the schedule of one without, bit for bit."""
    problem = as_problem(residency)
    off = solve_schedule(problem, bandwidth=bandwidth, residency=False)
    plain = solve_schedule(replace(problem, residency=None), bandwidth=bandwidth)
    assert replace(off, solve_s=0.0) == replace(plain, solve_s=0.0)


def test_too_small_a_buffer_means_no_residency() -> None:
    """Where no working set fits, the schedule is the one without residency."""
    residency = replace(layer_residency(0, 12, 2, 0), glb_bytes=1000)
    problem = as_problem(residency)
    schedule = solve_schedule(problem, method="auto")
    assert schedule.residency is None
    assert schedule.makespan_s == solve_schedule(problem, residency=False).makespan_s


def test_schedules_travel_as_json() -> None:
    """A schedule with residency is written and read back, and one written before it still reads."""
    schedule = solve_schedule(as_problem(layer_residency(3, 20, 2, 32 * 2**20)))
    assert schedule.residency is not None
    assert from_json(to_json(schedule), Schedule, "schedule") == schedule
    old = to_json(replace(schedule, residency=None)).replace(b',"residency":null', b"")
    assert from_json(old, Schedule, "schedule").residency is None


def test_proofs_are_cached() -> None:
    """What CP-SAT found is stored by content; another buffer or other names are other entries."""
    residency = layer_residency(1, 23, 3, 32 * 2**20)
    problem = as_problem(residency)
    cache: dict[str, Schedule] = {}
    first = solve_schedule(problem, cache, method="auto")
    assert first.method == "cp-sat"
    assert len(cache) == 2
    renamed = tuple(replace(one, id=f"new {one.id}") for one in problem.operators)
    again = solve_schedule(replace(problem, operators=renamed), cache, method="auto")
    assert len(cache) == 2
    assert again.residency == first.residency
    assert [one.id for one in again.operators] == [one.id for one in renamed]
    solve_schedule(as_problem(replace(residency, glb_bytes=2**24)), cache, method="auto")
    assert len(cache) == 3


def test_same_schedule_in_every_process() -> None:
    """Fresh interpreters with other hash seeds give the same schedule bit for bit."""
    script = (
        "from tests.scheduling.residency_problems import as_problem, layer_residency\n"
        "from phaze_opt.scheduling.solve_schedule import solve_schedule\n"
        "p = as_problem(layer_residency(3, 12, 5, 2**25))\n"
        "s = solve_schedule(p)\n"
        "print(s.operators, s.residency, s.bound_s)\n"
    )
    assert len(printed_by_processes(script)) == 1


GOOD = as_problem(layer_residency(3, 6, 2, 2**25))
assert GOOD.residency is not None
JOINT = GOOD.residency
TENSORS = JOINT.graph.tensors


def with_tensor(tensor: PassTensor) -> Residency:
    """Give the good joint problem with another first tensor."""
    return replace(JOINT, graph=replace(JOINT.graph, tensors=(tensor, *TENSORS[1:])))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (replace(JOINT, glb_bytes=-1), "glb_bytes is -1"),
        (replace(JOINT, hbm_bytes_per_s=0.0), r"hbm_bytes_per_s is 0\.0"),
        (replace(JOINT, overhead_s=np.zeros(5)), r"overhead_s has the shape \(5,\)"),
        (replace(JOINT, other_s=JOINT.other_s - 1.0), "other_s of operator 'operator 0' is -"),
        (replace(JOINT, saved_bytes=2e9 + JOINT.saved_bytes), "saves operator 'operator 0'"),
        (replace(JOINT, graph=replace(JOINT.graph, operators=7)), "7 operators"),
        (replace(JOINT, graph=replace(JOINT.graph, edges=())), "there is no edge"),
        (with_tensor(replace(TENSORS[0], bytes=-1)), "has -1 bytes"),
        (with_tensor(replace(TENSORS[0], readers=(9,))), "operator number 9"),
        (with_tensor(replace(TENSORS[0], readers=(1, 1))), "each once"),
        (with_tensor(PassTensor(1, None, ())), "no operator"),
    ],
)
def test_invalid_joint_problems_are_refused(wrong: Residency, words: str) -> None:
    """What is no joint problem is refused in one sentence."""
    with pytest.raises(InputError, match=words):
        solve_schedule(replace(GOOD, residency=wrong))


def test_other_edges_are_refused() -> None:
    """Operators and tensors must agree on the precedences."""
    with pytest.raises(InputError, match="other edges"):
        solve_schedule(replace(GOOD, edges=GOOD.edges[1:]))


def test_unknown_methods_are_refused() -> None:
    """The sentence names the methods that exist."""
    with pytest.raises(InputError, match="auto"):
        solve_schedule(GOOD, method="guess")  # type: ignore[arg-type]
