import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.scheduling.schedule_problem import Schedule, ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.brute_force import shortest_makespan_s
from tests.scheduling.processes import printed_by_processes
from tests.scheduling.schedule_rules import broken_rules
from tests.scheduling.strategies import cache_key, layer_like, problems, with_like_operators


def relabel(problem: ScheduleProblem, rng: random.Random) -> ScheduleProblem:
    """Write the same problem with other ids, in another order."""
    order = list(range(len(problem.operators)))
    rng.shuffle(order)
    rank = {index: position for position, index in enumerate(order)}
    edges = [(rank[before], rank[after]) for before, after in problem.edges]
    rng.shuffle(edges)
    return replace(
        problem,
        name="another name",
        operators=tuple(replace(problem.operators[i], id=f"new {i}") for i in order),
        edges=tuple(edges + edges[:1]),
    )


@settings(max_examples=40, deadline=None)
@given(problem=problems(most=7), bandwidth=st.booleans())
def test_equal_to_brute_force(problem: ScheduleProblem, bandwidth: bool) -> None:
    """The makespan is that of the best order and modes, and the schedule keeps all rules."""
    # Seven operators without two edges have too many orders.
    assume(len(problem.operators) - len(problem.edges) <= 5)
    schedule = solve_schedule(problem, bandwidth=bandwidth)
    assert schedule.status == "optimal"
    assert schedule.makespan_s == pytest.approx(shortest_makespan_s(problem, bandwidth), rel=1e-9)
    assert broken_rules(problem, schedule, bandwidth=bandwidth) == []


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
@pytest.mark.parametrize("seed", range(4))
def test_seven_operators_equal_to_brute_force(seed: int, rule: str) -> None:
    """The makespan is also the best one for seven operators, limited by modes, cores, bandwidth."""
    equal_to_brute_force(layer_like(seed, 7, 3, intra_operator=rule))


@pytest.mark.parametrize("seed", range(40))
def test_like_operators_equal_to_brute_force(seed: int) -> None:
    """So it is where operators are like others, of which the search starts some first."""
    equal_to_brute_force(with_like_operators(seed, 6))


def equal_to_brute_force(problem: ScheduleProblem) -> None:
    """Check the makespan of a problem with latencies of microseconds, in other units."""
    scaled = replace(
        problem,
        operators=tuple(
            replace(
                operator,
                latency_s=1e4 * operator.latency_s,
                intra_op_latency_s=1e4 * operator.intra_op_latency_s,
            )
            for operator in problem.operators
        ),
    )
    assert solve_schedule(scaled).makespan_s == pytest.approx(shortest_makespan_s(scaled), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=9), seed=st.integers(0, 9))
def test_relabelling_changes_nothing(problem: ScheduleProblem, seed: int) -> None:
    """Ids, names, and the order of operators and edges change neither makespan nor key."""
    other = relabel(problem, random.Random(seed))
    assert solve_schedule(other).makespan_s == solve_schedule(problem).makespan_s
    assert cache_key(other) == cache_key(problem)


@pytest.mark.parametrize("seed", range(6))
def test_relabelling_a_layer_changes_nothing(seed: int) -> None:
    """A relabelled layer gets the same start and end for every operator, bit for bit."""
    problem = layer_like(seed, 30, 3)
    other = relabel(problem, random.Random(seed))
    first = {entry.id: entry for entry in solve_schedule(problem).operators}
    for entry in solve_schedule(other).operators:
        same = first[entry.id.removeprefix("new ")]
        assert (entry.start_s, entry.end_s) == (same.start_s, same.end_s)


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
@pytest.mark.parametrize("bandwidth", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_layers_are_proven_and_valid(seed: int, bandwidth: bool, rule: str) -> None:
    """Graphs of 42 operators, three wide, are solved to proven optimality."""
    problem = layer_like(seed, 42, 3, intra_operator=rule)
    schedule = solve_schedule(problem, bandwidth=bandwidth)
    assert schedule.status == "optimal"
    assert schedule.gap == 0.0
    assert broken_rules(problem, schedule, bandwidth=bandwidth) == []


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=9))
def test_constraints_only_lengthen(problem: ScheduleProblem) -> None:
    """Bandwidths, exclusivity and edges never shorten a schedule; another core never lengthens."""
    makespan_s = solve_schedule(problem).makespan_s
    assert solve_schedule(problem, bandwidth=False).makespan_s <= makespan_s * (1 + 1e-9)
    assert solve_schedule(replace(problem, edges=())).makespan_s <= makespan_s * (1 + 1e-9)
    assert solve_schedule(replace(problem, num_vc=problem.num_vc + 1)).makespan_s <= makespan_s * (
        1 + 1e-9
    )
    exclusive_s = solve_schedule(
        replace(problem, intra_operator="exclusive"), bandwidth=False
    ).makespan_s
    per_type_s = solve_schedule(
        replace(problem, intra_operator="per-type"), bandwidth=False
    ).makespan_s
    assert per_type_s <= exclusive_s * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(problem=problems(most=9), factor=st.sampled_from([0.25, 2.0, 1024.0]))
def test_time_has_no_scale(problem: ScheduleProblem, factor: float) -> None:
    """Latencies in another unit give the same schedule in that unit."""
    scaled = replace(
        problem,
        operators=tuple(
            replace(
                operator,
                latency_s=factor * operator.latency_s,
                intra_op_latency_s=factor * operator.intra_op_latency_s,
            )
            for operator in problem.operators
        ),
    )
    assert solve_schedule(scaled).makespan_s == pytest.approx(
        factor * solve_schedule(problem).makespan_s, rel=1e-9
    )


@given(problem=problems(most=9))
@settings(max_examples=40, deadline=None)
def test_serial_is_the_sum(problem: ScheduleProblem) -> None:
    """One operator at a time on all cores takes the sum of the latencies."""
    serial = replace(problem, serial=True)
    schedule = solve_schedule(serial)
    total_s = sum(
        operator.latency_s if operator.core == "none" else operator.intra_op_latency_s
        for operator in problem.operators
    )
    assert schedule.makespan_s == pytest.approx(total_s)
    assert (schedule.status, schedule.method) == ("optimal", "bound")
    assert broken_rules(serial, schedule) == []


def test_cache_is_shared_by_content() -> None:
    """A cache filled by one problem answers the same problem under other names, and no other."""
    problem = layer_like(0, 20, 2)
    cache: dict[str, Schedule] = {}
    first = solve_schedule(problem, cache)
    assert list(cache) == [cache_key(problem)]
    other = relabel(problem, random.Random(1))
    again = solve_schedule(other, cache)
    assert len(cache) == 1
    assert again.makespan_s == first.makespan_s
    assert broken_rules(other, again) == []
    solve_schedule(problem, cache, bandwidth=False)
    solve_schedule(replace(problem, num_tc=problem.num_tc + 1), cache)
    solve_schedule(replace(problem, intra_operator="per-type"), cache)
    assert len(cache) == 4


def test_an_odd_schedule_in_a_cache_is_solved_anew() -> None:
    """A stored schedule that lacks an operator is replaced, not trusted."""
    problem = layer_like(0, 20, 2)
    cache: dict[str, Schedule] = {}
    first = solve_schedule(problem, cache)
    (key,) = cache
    cache[key] = replace(first, operators=first.operators[1:])
    again = solve_schedule(problem, cache)
    assert again.operators == first.operators
    assert len(cache[key].operators) == len(problem.operators)


@pytest.mark.parametrize("seed", range(2))
def test_wide_graphs_end_with_an_honest_gap(seed: int) -> None:
    """On 160 operators, eight wide, little effort gives a valid schedule and how good it is."""
    problem = layer_like(seed, 160, 8)
    schedule = solve_schedule(problem, effort=40_000)
    assert schedule.status == "feasible"
    assert 0.0 < schedule.gap < 0.5
    assert broken_rules(problem, schedule) == []
    better = solve_schedule(problem, effort=200_000)
    assert better.makespan_s <= schedule.makespan_s
    assert better.bound_s >= schedule.bound_s


def test_same_schedule_in_every_process() -> None:
    """Fresh interpreters with other hash seeds give the same schedule bit for bit."""
    script = (
        "from tests.scheduling.strategies import cache_key, layer_like\n"
        "from phaze_opt.scheduling.solve_schedule import solve_schedule\n"
        "p = layer_like(3, 42, 5)\n"
        "operators = solve_schedule(p).operators\n"
        "print(cache_key(p), [(one.start_s, one.intra_operator) for one in operators])\n"
    )
    assert len(printed_by_processes(script)) == 1


def test_light_path_imports_no_solver() -> None:
    """What bounds and list schedules prove is scheduled without ortools or pandas."""
    script = (
        "import sys\n"
        "from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem\n"
        "from phaze_opt.scheduling.solve_schedule import solve_schedule\n"
        "ops = tuple(ScheduleOperator(str(i), 'TC', 1.0, 0.5) for i in range(3))\n"
        "chain = ScheduleProblem('', 1, 1, ops, ((0, 1), (1, 2)))\n"
        "assert solve_schedule(chain).makespan_s == 1.5\n"
        "assert not {'ortools', 'pandas', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}, check=True
    )


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1.0, 1e300])
def test_extreme_latencies(scale: float) -> None:
    """Latencies of any size and ratio are scheduled, each operator in its faster mode."""
    operators = (
        ScheduleOperator("slow", "TC", 1e20, scale),
        ScheduleOperator("fast", "VC", scale, 1e20),
        ScheduleOperator("other", "VC", scale, scale),
    )
    schedule = solve_schedule(ScheduleProblem("", 2, 1, operators, ()))
    assert schedule.status == "optimal"
    assert schedule.makespan_s == (3 * scale if scale < 1e20 else scale + 1e20)


def test_nothing_to_do() -> None:
    """A problem without operators has the makespan 0."""
    schedule = solve_schedule(ScheduleProblem("empty", 1, 1, (), ()))
    assert (schedule.makespan_s, schedule.status, schedule.gap) == (0.0, "optimal", 0.0)


def test_invalid_problems_are_refused() -> None:
    """An invalid problem is refused."""
    broken = ScheduleOperator("bad", "TC", float("nan"), 1.0)
    with pytest.raises(InputError, match="'bad'"):
        solve_schedule(ScheduleProblem("", 1, 1, (broken,), ()))
