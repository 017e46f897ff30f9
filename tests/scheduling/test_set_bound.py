from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings

from phaze_opt.scheduling.bounds import mixed_bound
from phaze_opt.scheduling.branch_and_bound import improve_with_prices
from phaze_opt.scheduling.instance import Instance, in_set, proving_bound
from phaze_opt.scheduling.price_kernel import heaviest_set
from phaze_opt.scheduling.schedule_problem import ScheduleProblem
from phaze_opt.scheduling.set_bound import _chains, set_bound
from tests.scheduling.brute_force import shortest_makespan_s
from tests.scheduling.strategies import bounds_and_list, improve, layer_like, problems, to_instance


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=5))
def test_between_the_mixture_and_brute_force(problem: ScheduleProblem) -> None:
    """The bound is at least the mixed bound, and no schedule of all is shorter."""
    assume(sum(min(x.latency_s, x.intra_op_latency_s) for x in problem.operators) > 0.0)
    instance = to_instance(problem)
    assume(len(instance.capacity))  # else everything starts as early as its predecessors let it
    bound, prices = set_bound(instance, effort=20_000)
    assert bound >= mixed_bound(instance)[0]
    shortest_s = shortest_makespan_s(problem)
    assert bound * instance.seconds_per_unit <= shortest_s * (1.0 + 1e-9)
    # So few operators have fewer states than a pass keeps: the search with the prices is exact.
    root, plan = bounds_and_list(instance)
    best, proven = improve_with_prices(instance, root, prices, plan, effort=100_000)
    assert proven * instance.seconds_per_unit <= shortest_s * (1.0 + 1e-9)
    assert proven >= proving_bound(best.makespan)


def runs_together(instance: Instance, codes: tuple[int, ...]) -> bool:
    """Whether operators, each in a mode, may run at one time."""
    for one, other in combinations([code >> 1 for code in codes], 2):
        sets = (instance.ancestors[one], other), (instance.descendants[one], other)
        if one == other or any(in_set(*pair) for pair in sets):
            return False
    taken = sum((instance.demand[code >> 1, code & 1] for code in codes), 0 * instance.capacity)
    return bool((taken <= instance.capacity).all())


@pytest.mark.parametrize(("seed", "most_nodes"), list(product(range(6), (3, 10**6))))
def test_heaviest_set_equals_brute_force(seed: int, most_nodes: int) -> None:
    """The search finds the heaviest of all sets, or a bound on it if it gives up."""
    instance = to_instance(layer_like(seed, 9, 4))
    weight = np.random.default_rng(seed).random((instance.size, 2))
    chain = _chains(instance)
    codes = [2 * i + mode for i, modes in enumerate(instance.modes) for mode in modes]
    every = (c for size in range(1, 6) for c in combinations(codes, size))
    best = max(sum(weight[k >> 1, k & 1] for k in c) for c in every if runs_together(instance, c))
    related = instance.ancestors | instance.descendants
    related[:, 0] |= 1 << np.arange(instance.size)
    codes.sort(key=lambda code: (chain[code >> 1], -weight[code >> 1, code & 1]))
    upper, found, _ = heaviest_set(
        np.array(codes),
        weight,
        instance.demand,
        instance.capacity,
        instance.demand / instance.capacity,
        related,
        chain,
        np.zeros(len(instance.capacity)),
        most_nodes,
    )
    assert upper >= best * (1.0 - 1e-12)
    for row in found.tolist():
        assert runs_together(instance, tuple(code for code in row if code >= 0))
    if most_nodes > 3:
        assert upper <= best * 1.0031


def test_a_wide_graph_has_a_smaller_gap() -> None:
    """The branch and bound leaves 18 % on this graph of 100 operators; this bound is 8 % above.

    With so little effort only if the search leaves sets behind that the linear program knows. The
    prices lead the search to plans that are shorter, for the same effort.
    """
    instance = to_instance(layer_like(2, 100, 8))
    bound, prices = set_bound(instance, effort=150_000)
    assert bound >= 1.075 * mixed_bound(instance)[0]
    root, plan = bounds_and_list(instance)
    without, _ = improve(instance, root, plan, effort=400_000)
    known = replace(root, makespan=bound)
    best, proven = improve_with_prices(instance, known, prices, without, effort=400_000)
    assert best.makespan <= 0.98 * without.makespan
    assert bound <= proven <= best.makespan
