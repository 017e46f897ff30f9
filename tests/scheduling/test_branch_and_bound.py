from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.estimated_passes import Chip, schedule_problems
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.scheduling import branch_and_bound
from phaze_opt.scheduling.instance import Instance, proving_bound
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.scheduling.strategies import bounds_and_list, improve, layer_like, to_instance


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


def backward_of_a_block() -> Instance:
    """Return a pass that the narrow passes leave open, with a plan close to the bound."""
    chip = load_accelerator(
        "tpuv4-phaze", num_tc=2, num_vc=16, pe_x=4, pe_y=16, pe_vc=4, hbm_gb_per_s=600
    )
    model = "llama:layers=1,hidden=512,heads=8,sequence=512,vocab=1000,ffn=1376"
    (variant,) = load_workload(model, tensor_parallel=(1,), microbatch=(1,)).variants
    problems = schedule_problems(
        variant,
        Chip(chip, load_cluster("flat-4GiB", 8), "epilogue"),
        Training(16, residency=False, overlap="none"),
    )
    return to_instance(next(each for each in problems if each.name == "block backward"))


@pytest.mark.parametrize("seed", [None, 5, 6, 10])
def test_where_plans_are_looked_for_first_changes_no_optimum(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first wide pass is limited to plans near the bound: the others find what it does not."""
    instance = backward_of_a_block() if seed is None else to_instance(layer_like(seed, 40, 4))
    bounds, listed = bounds_and_list(instance)
    limits: list[int] = []
    run_pass = branch_and_bound.run_pass

    def noted(*arguments: Any) -> Any:
        limits.append(arguments[3])
        return run_pass(*arguments)

    monkeypatch.setattr(branch_and_bound, "run_pass", noted)
    plan, bound = improve(instance, bounds, listed, effort=1_000_000)
    assert proving_bound(plan.makespan) <= bound
    near, *others = limits
    assert (plan.makespan < near) == (not others)
    monkeypatch.setattr(branch_and_bound, "_NEARER", 1)
    whole, bound = improve(instance, bounds, listed, effort=1_000_000)
    assert proving_bound(whole.makespan) <= bound
    assert proving_bound(whole.makespan) <= plan.makespan
    assert proving_bound(plan.makespan) <= whole.makespan
    assert near < limits[len(others) + 1]


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
