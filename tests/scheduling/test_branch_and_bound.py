import itertools
from dataclasses import replace

import pytest

from phaze_opt.scheduling.bounds import runs_alone
from phaze_opt.scheduling.branch_and_bound import run_pass
from phaze_opt.scheduling.instance import Instance, proving_bound
from phaze_opt.scheduling.schedule_problem import CoreType, ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.search_arrays import search_arrays
from phaze_opt.scheduling.search_states import ANCESTORS, NEVER
from tests.scheduling.brute_force import shortest_makespan_s
from tests.scheduling.strategies import (
    bounds_and_list,
    improve,
    layer_like,
    to_instance,
    with_like_operators,
)


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
@pytest.mark.parametrize("seed", range(5))
def test_narrow_searches_stay_honest(seed: int, rule: str) -> None:
    """With any effort, bound <= optimum <= makespan, and more effort gives no longer schedule."""
    instance = to_instance(layer_like(seed, 40, 4, intra_operator=rule))
    bounds, listed = bounds_and_list(instance)
    optimum, proven = improve(instance, bounds, listed, effort=1_000_000)
    assert proving_bound(optimum.makespan) <= proven
    previous = listed.makespan
    for effort in (0, 6_000, 50_000):
        plan, bound = improve(instance, bounds, listed, effort)
        assert proving_bound(bound) <= optimum.makespan
        assert proving_bound(optimum.makespan) <= plan.makespan <= previous
        previous = plan.makespan


def goes_before(instance: Instance) -> set[tuple[int, int, int]]:
    """Return (operator, mode, other) where the other goes before it; see `search_arrays`."""
    found = set()
    before, after = (
        [{j for j in range(instance.size) if int(row[j >> 6]) >> (j & 63) & 1} for row in sets]
        for sets in (instance.ancestors, instance.descendants)
    )
    alone = runs_alone(instance.allowed, instance.demand, instance.capacity)

    def takes(i: int) -> list[object]:
        return [each[i].tolist() for each in (instance.duration, instance.allowed, instance.demand)]

    def ruled(i: int) -> set[int]:
        """Modes in which an operator runs first or last."""
        return {mode for mode in instance.modes[i] if alone[i, mode]}

    def place(i: int) -> str:
        return "last" if not after[i] else "" if before[i] else "first"

    for i, j in itertools.permutations(range(instance.size), 2):
        if takes(i) != takes(j) or not after[i] <= after[j] or (after[i] == after[j] and i < j):
            continue
        for mode in range(2):
            shortest = min(instance.duration[i, each].item() for each in instance.modes[i])
            nothing_differs = (before[i], after[i]) == (before[j], after[j])
            exchanged = after[i] == after[j] or instance.duration[i, mode] == shortest
            rules_differ = bool(ruled(i)) and place(i) != place(j)
            has_rule = mode in ruled(i) and place(i) != ""
            if nothing_differs or (exchanged and not rules_differ and not has_rule):
                found.add((i, mode, j))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_what_goes_before_is_as_defined(seed: int) -> None:
    """The sets of the search are those of the docstring of `search_arrays`."""
    instance = to_instance(with_like_operators(seed, 4 + seed % 13))
    (operators, *_), _ = search_arrays(*instance.arrays, bounds_and_list(instance)[0].tail)
    sets = operators[:, ANCESTORS + 1 :].reshape(instance.size, 2)  # of one word each
    expected = goes_before(instance)
    for i, mode in itertools.product(range(instance.size), range(2)):
        if mode in instance.modes[i]:
            own = {j for j in range(instance.size) if int(sets[i, mode]) >> j & 1}
            assert own == {j for one, other, j in expected if (one, other) == (i, mode)}


def test_what_goes_before_shortens_the_search_only() -> None:
    """Where all states are kept, the shortest plan is as long as without that rule."""
    states, states_without = 0, 0
    for seed in range(100):
        instance = to_instance(with_like_operators(seed, 4 + seed % 13))
        bounds, listed = bounds_and_list(instance)
        arrays, at_once = search_arrays(*instance.arrays, bounds.tail)
        without = arrays[0].copy()
        without[:, ANCESTORS + 1 :] = 0
        limits = at_once, 2**13, 2 * listed.makespan, 10**8
        makespan, dropped, expanded, _ = run_pass(arrays, *limits)
        same, also_dropped, more, _ = run_pass((without, *arrays[1:]), *limits)
        assert dropped == also_dropped == NEVER
        assert makespan == same <= listed.makespan
        states, states_without = states + expanded, states_without + more
    assert states < 0.8 * states_without


def test_more_than_one_word() -> None:
    """With more than 64 operators, two equal halves take twice the time of one half."""
    half = layer_like(1, 36, 2)
    single = to_instance(half)
    optimum, _ = improve(single, *bounds_and_list(single), 500_000)
    count = len(half.operators)
    ends = [i for i in range(count) if all(before != i for before, _ in half.edges)]
    begins = [i for i in range(count) if all(after != i for _, after in half.edges)]
    double = replace(
        half,
        operators=(*half.operators, *(replace(x, id=f"{x.id} again") for x in half.operators)),
        edges=(
            *half.edges,
            *((before + count, after + count) for before, after in half.edges),
            *((end, begin + count) for end in ends for begin in begins),
        ),
    )
    instance = to_instance(double)
    assert instance.size == 2 * single.size
    plan, bound = improve(instance, *bounds_and_list(instance), 500_000)
    seconds = plan.makespan * instance.seconds_per_unit
    assert proving_bound(plan.makespan) <= bound
    assert seconds == pytest.approx(2 * optimum.makespan * single.seconds_per_unit, rel=1e-8)


def searched_s(problem: ScheduleProblem) -> float:
    """Search a whole problem without a bound, from a plan that is twice as long as a known one."""
    instance = to_instance(problem)
    bounds, listed = bounds_and_list(instance)
    unknown = replace(bounds, makespan=0), replace(listed, makespan=2 * listed.makespan)
    plan, _ = improve(instance, *unknown, effort=100_000)
    return plan.makespan * instance.seconds_per_unit


def test_what_ran_first_is_dominated_by_what_did_not() -> None:
    """Three side by side are done before one after another; that a fourth runs first stays open."""
    like = ScheduleOperator("", "TC", 3.0, 2.0)
    four = [replace(like, id=name) for name in "abc"] + [ScheduleOperator("d", "TC", 9.0, 1.0)]
    last = ScheduleOperator("e", "VC", 1.0, 1.0)
    edges = tuple((i, 4) for i in range(4))
    problem = ScheduleProblem("drawn", 3, 1, (*four, last), edges)
    assert searched_s(problem) == pytest.approx(shortest_makespan_s(problem)) == pytest.approx(5.0)


def test_what_still_waits_goes_before_nothing() -> None:
    """Of two like operators that wait for others, either starts as soon as its own is done."""
    rows: list[tuple[str, CoreType, float]] = [("a", "VC", 4.0), ("b", "VC", 3.0)]
    rows += [("c", "TC", 5.0), ("d", "TC", 5.0), ("e", "VC", 3.0)]
    operators = tuple(ScheduleOperator(name, core, own_s, own_s) for name, core, own_s in rows)
    problem = ScheduleProblem("drawn", 1, 1, operators, ((0, 1), (2, 4)))
    assert searched_s(problem) == pytest.approx(shortest_makespan_s(problem))
    assert shortest_makespan_s(problem) == 10.0
