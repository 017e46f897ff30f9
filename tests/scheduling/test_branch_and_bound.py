from dataclasses import replace

import pytest

from phaze_opt.scheduling.branch_and_bound import improve
from phaze_opt.scheduling.instance import proving_bound
from tests.scheduling.strategies import bounds_and_list, layer_like, to_instance


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
