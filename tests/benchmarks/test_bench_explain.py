"""How long an explanation takes."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.explanation.explain import explain_point
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Point
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload


def load_bert(*, microbatch: int, sequence_parallel: bool, tensor: int | None = None) -> Workload:
    """Load BERT-Large as an explanation asks for it."""
    return load_workload(
        "bert-large",
        tensor_parallel=(1, 2, 4, 8) if tensor is None else (tensor,),
        microbatch=(microbatch,),
        sequence_parallel=sequence_parallel,
    )


@pytest.mark.benchmark(group="explain")
@pytest.mark.parametrize("changes", [{}, {"hbm_gib": 1}], ids=["fits", "does not fit"])
def test_explain(benchmark: BenchmarkFixture, changes: dict[str, int]) -> None:
    """A point of BERT-Large on 1024 devices, from captured layers, without known schedules."""
    options: dict[str, Any] = {"global_batch": 4096, "microbatch": 4, "optimizer": "adam"}
    point = Point(
        load_bert(microbatch=4, sequence_parallel=False),
        load_accelerator("tpuv4-lanes", **changes),
        load_cluster("tpuv4-ici-flat", 1024),
        Training(**options),
    )
    benchmark.pedantic(explain_point, args=(point, load_bert, {}), rounds=3, warmup_rounds=1)
