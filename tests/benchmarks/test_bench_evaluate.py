"""Speed of one evaluation, nothing cached but the capture: ``make bench``."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload


@pytest.mark.benchmark(group="evaluate")
@pytest.mark.parametrize("chip", ["tpuv4-phaze", "tpuv4-lanes"])
@pytest.mark.parametrize("model", ["bert-large", "gpt3-175b"])
def test_evaluate(benchmark: BenchmarkFixture, model: str, chip: str) -> None:
    """One point at widths 1 to 8 on 1024 devices: estimates, schedules and placement anew."""
    workload = load_workload(model, tensor_parallel=(1, 2, 4, 8), microbatch=(1,))
    accelerator = load_accelerator(chip, hbm_gib=80)
    cluster = load_cluster("tpuv4-ici-flat", 1024)
    training = Training(1024, 1, "full", "sgd")
    # The first evaluation compiles, or loads what was compiled.
    evaluate(workload, accelerator, cluster, training)
    result = benchmark(evaluate, workload, accelerator, cluster, training)
    assert result.feasible
