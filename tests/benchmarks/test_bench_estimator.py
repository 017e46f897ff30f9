"""Speed of the estimator: ``make bench``."""

import tracemalloc
from functools import cache

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.estimator.estimate import estimate_each, estimate_table
from phaze_opt.estimator.tensor_core import gemm_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.units import MIB
from phaze_opt.workload.graph import OperatorGraph
from phaze_opt.workload.zoo import load_workload

AREA_LIMIT_MM2 = 278.82667631216


@cache
def block(model: str) -> tuple[OperatorGraph, OperatorGraph]:
    """Forward and backward of a model's block."""
    variant = load_workload(model).variants[0]
    (layer,) = [layer for layer in variant.layers if layer.name == "block"]
    return layer.forward, layer.backward


def tensor_core_pools() -> list[Accelerator]:
    """Distinct tensor-core pools of the paper's space within the area, with one vector core."""
    chips = [
        Accelerator(
            num_tc=2**cores, num_vc=1, pe_x=2**x, pe_y=2**y, pe_vc=2**x, glb_bytes=2**glb * MIB
        )
        for cores in range(13)
        for x in range(1, 9)
        for y in range(1, 9)
        for glb in range(1, 8)
    ]
    return [chip for chip in chips if chip.area_under("phaze-22nm") <= AREA_LIMIT_MM2]


def vector_core_pools() -> list[Accelerator]:
    """Distinct vector-core pools within the area, with one tensor core of the smallest array."""
    chips = [
        Accelerator(
            num_tc=1, num_vc=2**cores, pe_x=2**x, pe_y=2, pe_vc=2**x, glb_bytes=2**glb * MIB
        )
        for cores in range(13)
        for x in range(1, 9)
        for glb in range(1, 8)
    ]
    return [chip for chip in chips if chip.area_under("phaze-22nm") <= AREA_LIMIT_MM2]


def tables_of_a_block(model: str, chips: list[Accelerator]) -> None:
    """Estimate both passes of a block, products and vector operators, on many chips."""
    cluster = load_cluster("tpuv4-ici-flat", 1024)
    for graph in block(model):
        estimate_table(graph, chips, cluster)


@pytest.mark.benchmark(group="estimator")
@pytest.mark.parametrize("name", ["tpuv4-lanes", "a100-80"])
@pytest.mark.parametrize("batches", [False, True])
def test_products_per_second(benchmark: BenchmarkFixture, name: str, batches: bool) -> None:
    """A thousand products on one accelerator, with tiling, bound and traffic.

    The larger the private buffers, the more tilings fit; sizes without common factors leave most
    batches to be split.
    """
    generator = np.random.default_rng(0)
    shapes = generator.integers(1, 8192, size=(1000, 6))
    shapes[:, 3:] = 1, 0, 0
    if batches:
        shapes[:, 3] = generator.integers(1, 32, size=1000)
    chip = load_accelerator(name)
    benchmark(gemm_table, np.ascontiguousarray(shapes), [chip], [chip.num_tc])


@pytest.mark.benchmark(group="estimator")
def test_products_per_second_over_the_space(benchmark: BenchmarkFixture) -> None:
    """A hundred products and batches on every tenth tensor-core pool: 41,900 estimates."""
    generator = np.random.default_rng(0)
    shapes = generator.integers(1, 8192, size=(100, 6))
    shapes[:, 3], shapes[:, 4:] = generator.integers(1, 32, size=100), 0
    chips = tensor_core_pools()[::10]
    cores = [chip.num_tc for chip in chips]
    benchmark(gemm_table, np.ascontiguousarray(shapes), chips, cores)


@pytest.mark.benchmark(group="estimator")
@pytest.mark.parametrize("pools", ["tensor", "vector", "both"])
def test_table_of_a_gpt3_block(benchmark: BenchmarkFixture, pools: str) -> None:
    """Both passes of a gpt3-175b block over 4,186 tensor-core pools and 697 vector-core pools.

    ``extra_info`` of the JSON that the benchmark writes has the peak of memory.
    """
    tensor, vector = tensor_core_pools(), vector_core_pools()
    assert (len(tensor), len(vector)) == (4186, 697)
    chips = {"tensor": tensor, "vector": vector, "both": tensor + vector}[pools]
    block("gpt3-175b")  # the capture is not measured
    tracemalloc.start()
    tables_of_a_block("gpt3-175b", chips)
    benchmark.extra_info["peak_mib"] = tracemalloc.get_traced_memory()[1] / MIB
    tracemalloc.stop()
    benchmark.pedantic(tables_of_a_block, args=("gpt3-175b", chips), rounds=3)


@pytest.mark.benchmark(group="estimator")
def test_one_block_on_one_accelerator(benchmark: BenchmarkFixture) -> None:
    """Both passes of a bert-large block on one accelerator, as the search calls it."""
    chip = load_accelerator("tpuv4-lanes")
    cluster = load_cluster("tpuv4-ici-flat", 1024)
    benchmark(estimate_each, block("bert-large"), chip, cluster)
