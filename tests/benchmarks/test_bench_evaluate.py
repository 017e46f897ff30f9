"""Speed of one evaluation, nothing cached but the capture: ``make bench``."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.choices import Recompute
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.collective import collective_terms
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement import candidates
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload


@pytest.mark.benchmark(group="evaluate")
@pytest.mark.parametrize("chip", ["tpuv4-phaze", "tpuv4-lanes"])
@pytest.mark.parametrize("model", ["bert-large", "gpt3-175b"])
def test_evaluate(benchmark: BenchmarkFixture, model: str, chip: str) -> None:
    """One point at tensor degrees 1 to 8 on 1024 devices: estimates, schedules, placement anew."""
    workload = load_workload(model, tensor_parallel=(1, 2, 4, 8), microbatch=(1,))
    accelerator = load_accelerator(chip, hbm_gib=80)
    cluster = load_cluster("tpuv4-ici-flat", 1024)
    training = Training(1024, 1, "full", "sgd")
    # The first evaluation compiles, or loads what was compiled.
    evaluate(workload, accelerator, cluster, training)
    result = benchmark(evaluate, workload, accelerator, cluster, training)
    assert result.feasible


GOOD: dict[str, tuple[dict[str, int], int, Recompute]] = {
    "bert-large": ({"num_tc": 4, "num_vc": 16, "glb_mib": 32, "hbm_gib": 32}, 2, "none"),
    "gpt3-175b": ({"num_tc": 4, "num_vc": 8, "glb_mib": 32, "hbm_gib": 32}, 1, "full"),
    "llama2-7b": ({"num_tc": 8, "num_vc": 8, "pe_y": 128, "glb_mib": 16, "hbm_gib": 64}, 1, "none"),
}
"""Designs among the best of the studies in ``studies/phaze``, with microbatch and recompute."""


def phaze_point(model: str, devices: int, global_batch: int) -> tuple[Any, ...]:
    """Return a good design of the paper's space in the setting of the paper."""
    fields, microbatch, recompute = GOOD[model]
    fields = {"pe_x": 256, "pe_y": 256, "pe_vc": 256, **fields}
    training = Training(global_batch, microbatch, recompute, "sgd", residency=False, overlap="none")
    return (
        load_workload(model, tensor_parallel=(1, 2, 4, 8), microbatch=(microbatch,)),
        load_accelerator("tpuv4-phaze", **fields),
        load_cluster("flat-4GiB", devices),
        training,
    )


@pytest.mark.benchmark(group="evaluate")
@pytest.mark.parametrize("model", GOOD)
def test_a_good_design(benchmark: BenchmarkFixture, model: str) -> None:
    """What an enumeration evaluates often; no tensor degree that cannot win is scheduled."""
    point = phaze_point(model, 1024, 4096)
    assert benchmark(evaluate, *point).feasible


@pytest.mark.benchmark(group="evaluate")
@pytest.mark.parametrize("network", ["dgx-a100", "dgx-h100", "nvl72", "trn2-efa"])
def test_a_million_devices_of_several_levels(benchmark: BenchmarkFixture, network: str) -> None:
    """A later evaluation in the same process."""
    workload, accelerator, _, training = phaze_point("gpt3-175b", 10**6, 10**6)
    point = workload, accelerator, load_cluster(network, 10**6), training
    result = benchmark.pedantic(evaluate, args=point, rounds=3, warmup_rounds=1)
    assert result.feasible


@pytest.mark.benchmark(group="evaluate")
@pytest.mark.parametrize("model", ["bert-large", "gpt3-175b"])
def test_a_million_devices(benchmark: BenchmarkFixture, model: str) -> None:
    """A million devices and samples; the tables of the grid of degrees are found anew."""
    point = phaze_point(model, 10**6, 10**6)

    def forget() -> None:
        candidates._grids.cache_clear()
        collective_terms.cache_clear()

    result = benchmark.pedantic(evaluate, args=point, setup=forget, rounds=3, warmup_rounds=1)
    assert result.feasible
