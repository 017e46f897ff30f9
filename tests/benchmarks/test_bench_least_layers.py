"""Speed of the bounds of layers over the space: ``make bench``."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.estimator.chips import Chips
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.least_seconds import least_layers
from phaze_opt.training import Training
from phaze_opt.units import MIB
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload
from tests.benchmarks.test_bench_estimator import AREA_LIMIT_MM2


def architectures() -> list[Accelerator]:
    """Architectures of the paper's space within the area, without its lower limit on the area."""
    chips = [
        Accelerator(
            num_tc=2**cores,
            num_vc=2**vectors,
            pe_x=2**x,
            pe_y=2**y,
            pe_vc=2**x,
            glb_bytes=2**glb * MIB,
        )
        for cores in range(13)
        for x in range(1, 9)
        for y in range(1, 9)
        for glb in range(1, 8)
        for vectors in range(13)
    ]
    return [chip for chip in chips if chip.area_under("phaze-22nm") <= AREA_LIMIT_MM2]


def all_tensor_degrees(workload: Workload, chips: list[Accelerator], training: Training) -> None:
    """Bound every layer at every tensor degree, as an enumeration does for one microbatch."""
    cluster, columns = load_cluster("flat-4GiB", 1024), Chips(chips)
    for variant in workload.variants:
        least_layers(variant, columns, cluster, training)


@pytest.mark.benchmark(group="least layers")
@pytest.mark.parametrize("model", ["bert-large", "gpt3-175b"])
@pytest.mark.parametrize("residency", [False, True])
def test_four_tensor_degrees(benchmark: BenchmarkFixture, model: str, residency: bool) -> None:
    """Four tensor degrees; ``extra_info`` has the number of architectures."""
    workload = load_workload(model, tensor_parallel=(1, 2, 4, 8))
    chips = architectures()
    training = Training(4096, residency=residency, overlap="none")
    all_tensor_degrees(workload, chips[:300], training)
    benchmark.pedantic(all_tensor_degrees, args=(workload, chips, training), rounds=3)
    benchmark.extra_info["architectures"] = len(chips)
