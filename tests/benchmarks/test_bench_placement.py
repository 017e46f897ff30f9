import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaze_opt.network.presets import load_cluster
from phaze_opt.partitioning.dag import split_contiguous
from phaze_opt.partitioning.dnn_format import read_dnn_partitioning
from phaze_opt.partitioning.phaze_format import read_phaze
from phaze_opt.partitioning.published import solve_published
from phaze_opt.partitioning.unit_graph import build_unit_graph
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses, LeastLayers
from phaze_opt.placement.collected_candidates import _of_whatever_is_kept
from phaze_opt.placement.least import LeastPlacement
from phaze_opt.placement.placement_problem import ChipRates, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training

DATA = Path(__file__).parent.parent / "data" / "placement"


def transformer(layers: int, repeating: bool, memory_bytes: float) -> PlacementProblem:
    """Return a GPT-like chain at tensor degrees 1–8 on 1024 devices."""
    chains = {}
    for tensor_degree in (1, 2, 4, 8):
        block = LayerCost(
            "", LayerPasses.of(9e-3, 18e-3), 1, 0, 1, 10**9 // tensor_degree, 50 * 10**6
        )
        passes = LayerPasses.of(1e-5, 2e-5)
        chain = [LayerCost("embedding", passes, 4 * 10**8 // tensor_degree, 0, 0, 0, 5 * 10**7)]
        for index in range(layers - 2):
            share = 1.0 if repeating else 0.5 + (index * 37 % 97) / 97
            chain.append(
                replace(
                    block,
                    name=f"block.{index}",
                    passes=LayerPasses.of(
                        9e-3 * share / tensor_degree, 18e-3 * share / tensor_degree
                    ),
                    parameters=int(3 * 10**8 * share / tensor_degree),
                    stash_bytes=int(10**9 * share / tensor_degree),
                )
            )
        chain.append(
            replace(block, name="head", parameters=4 * 10**8 // tensor_degree, output_bytes=0)
        )
        chains[tensor_degree] = tuple(chain)
    return PlacementProblem(
        layers=chains,
        edges=tuple((index, index + 1) for index in range(layers - 1)),
        cluster=load_cluster("tpuv4-ici-flat", 1024),
        training=Training(4096, optimizer="adam"),
        hbm_usable_bytes=memory_bytes,
        hbm_bytes_per_s=1e12,
    )


@pytest.mark.parametrize(("layers", "repeating"), [(26, True), (98, True), (98, False)])
def test_true_cost(benchmark: Any, layers: int, repeating: bool) -> None:
    """Chains on 1024 devices under the true cost, with memory limits."""
    problem = transformer(layers, repeating, 40e9)
    assert benchmark(solve_placement, problem).time_per_batch_s > 0


def test_ten_thousand_layers(benchmark: Any) -> None:
    """A chain that is merged; 1,002 layers of the same take 0.9 s with their tables."""
    problem = transformer(10_000, True, 2e12)
    result = benchmark.pedantic(solve_placement, (problem,), rounds=3, warmup_rounds=1)
    assert result.gap < 0.1


def test_published_cost(benchmark: Any) -> None:
    """The largest chain, 98 layers at tensor degrees 1–8 on 1024 devices, at the published cost."""
    problem = read_phaze((DATA / "phaze" / "072.json").read_bytes(), "072.json")
    assert benchmark(solve_published, problem).time_per_batch_s > 0


@pytest.mark.parametrize("name", ["gnmt_training", "resnet50_training"])
def test_graph(benchmark: Any, name: str) -> None:
    """Operator graphs of the published benchmark."""
    path = DATA / "dnn-partitioning" / f"throughput-layers-{name}.json"
    assert json.loads(path.read_bytes())["maxFPGAs"] == 6
    graph = build_unit_graph(read_dnn_partitioning(path.read_bytes(), path.name))
    split = benchmark.pedantic(split_contiguous, (graph,), rounds=3)
    assert split.status == "optimal"


@pytest.mark.parametrize("splits", [False, True])
def test_least(benchmark: Any, splits: bool) -> None:
    """Bounds for 200 chips, up to twice as slow, of 98 layers at four tensor degrees."""
    problem = transformer(98, True, 40e9)
    chips, distinct = 200, [0, *[1] * 96, 2]
    share = np.random.default_rng(0).uniform(1.0, 2.0, (3, chips))
    rates = ChipRates(
        np.full(chips, 40e9),
        np.full(chips, 1e12),
        np.full(chips, math.inf),
        np.full(chips, math.inf),
        np.zeros(chips),
    )
    bounds = {
        tensor_degree: LeastPlacement(problem, tensor_degree, distinct)
        for tensor_degree in problem.layers
    }
    seconds = {}
    for tensor_degree, layers in problem.layers.items():
        ends = [layers[index] for index in (0, 1, -1)]
        forward_s, backward_s, _ = (
            np.array([[one.seconds] for one in of_ends]) * share
            for of_ends in zip(*[layer.passes for layer in ends], strict=True)
        )
        seconds[tensor_degree] = LeastLayers(forward_s, backward_s, np.zeros_like(share))

    def least() -> Any:
        known_s = None
        for tensor_degree, bound in bounds.items():
            known_s = bound.least_s(seconds[tensor_degree], rates, known_s, splits=splits)
        return known_s

    assert np.isfinite(benchmark(least)).all()


@pytest.mark.parametrize("zero", [0, 1])
def test_candidates(benchmark: Any, zero: int) -> None:
    """What bounds share, of 26 layers at one tensor degree, with four sizes of memory."""
    problem = transformer(26, True, 40e9)
    problem = replace(problem, training=replace(problem.training, zero=zero))
    distinct = [0, *[1] * 24, 2]

    def candidates() -> int:
        _of_whatever_is_kept.cache_clear()
        bound = LeastPlacement(problem, 1, distinct)
        return sum(len(bound.candidates_within(size).whole) for size in (16e9, 32e9, 48e9, 64e9))

    assert benchmark(candidates) > 0
