"""Network joules are bytes on the wire times their price, whatever the run is like."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from phaze_opt.choices import CollectiveName
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.energy import energy_constants
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import collective_cost
from phaze_opt.network.message import send_receive_s
from phaze_opt.network.presets import load_cluster
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import LayerCost, local_parameters
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.point import Point, cost_point
from phaze_opt.training import Training
from phaze_opt.units import J_PER_PJ
from phaze_opt.workload.zoo import load_workload

MODEL = "gpt:layers=8,hidden=256,heads=8,sequence=128,vocab=1000"
SCHEDULES: list[dict[str, Any]] = [
    {"pipeline_schedule": "1f1b"},
    {"pipeline_schedule": "gpipe"},
    {"pipeline_schedule": "interleaved", "interleave": 2},
]


def point(training: Training, degrees: tuple[int, int, int], cluster: str) -> Point:
    """Return a small run of some degrees."""
    workload = load_workload(
        MODEL, tensor_parallel=(degrees[2],), sequence_parallel=training.sequence_parallel
    )
    network = load_cluster(cluster, 32)
    return Point(workload, load_accelerator("tpuv4-lanes"), network, training, degrees)


def operator_bytes(one: Point, placement: Placement) -> float:
    """Add up what one device of every stage sends in its layers' collectives per batch."""
    (variant,) = one.workload.variants
    by_name = dict(variant.nodes)
    total = 0.0
    for stage in placement.stages:
        for name in stage.layers:
            layer = variant.layers[by_name[name]]
            graphs = [layer.forward, layer.backward]
            if one.training.recompute == "full":
                graphs.append(layer.forward)
            for operator in itertools.chain(*(graph.operators for graph in graphs)):
                if operator.collective is not None:
                    kind, size = operator.collective.kind, operator.collective.size_bytes
                    if kind == "dispatch" or kind == "combine" or kind == "ring":
                        raise AssertionError("no expert and no sequence is shared out here")
                    cost = collective_cost(kind, size, placement.tensor, one.cluster)
                    total += placement.microbatches * sum(cost.bytes_by_level)
    return total


def pipeline_bytes(
    chain: list[LayerCost], placement: Placement, chunks: int, cluster: Cluster
) -> float:
    """Add up the activations and gradients that one device per part hands over per batch.

    Whole, or a part of them with a gather in the tensor-parallel group, whichever is faster.
    """
    parts = placement.pipeline * chunks if placement.pipeline > 1 else 1
    if parts == 1:
        return 0.0
    repeated = [layer for layer in chain if layer.name.startswith("block")]
    size, tensor = float(repeated[0].output_bytes), placement.tensor
    neighbours = placement.rank_order == "tensor-pipeline-data"
    stride = tensor if neighbours else tensor * placement.data
    whole_s = send_receive_s(size, cluster, stride, placement.pipeline)
    gather = collective_cost("all_gather", size, tensor, cluster)
    split_s = send_receive_s(size / tensor, cluster, stride, placement.pipeline) + gather.time_s
    sent = size if whole_s <= split_s else size / tensor + sum(gather.bytes_by_level)
    return 2.0 * (parts - 1) * sent * placement.microbatches


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("degrees", [(2, 4, 2), (4, 8, 1), (1, 4, 8), (2, 2, 4)])
@pytest.mark.parametrize("cluster", ["flat-4GiB", "dgx-a100"])
def test_joules_are_bytes_times_their_price(
    cluster: str, degrees: tuple[int, int, int], zero: int, options: dict[str, Any]
) -> None:
    """Counted from the graphs, the cuts and the parameters, the bytes give the joules."""
    training = Training(64, 1, optimizer="adam", zero=zero, recompute="full", **options)
    one = point(training, degrees, cluster)
    result = evaluate(one.workload, one.accelerator, one.cluster, training, degrees)
    placement = result.placement
    assert placement is not None
    cost = cost_point(one).costs[degrees[2]]
    chain = dict(zip(cost.variant.names, cost.chain, strict=True))
    optimizer = OPTIMIZERS["adam"]
    sent = operator_bytes(one, placement)
    sent += pipeline_bytes(list(chain.values()), placement, training.interleave, one.cluster)
    stride = (
        degrees[2] if placement.rank_order == "tensor-data-pipeline" else degrees[0] * degrees[2]
    )

    def of_replicas(kind: CollectiveName, size: float) -> float:
        cost = collective_cost(kind, size, degrees[1], one.cluster, stride)
        return sum(cost.bytes_by_level)

    for stage in placement.stages:
        parameters = local_parameters([chain[name] for name in stage.layers])
        sent += data_parallel_bytes(
            of_replicas, parameters, zero, placement.microbatches, optimizer
        )
    if degrees[0] > 1:
        # The first and the last stage exchange the gradients of the tied embedding.
        sent += 2.0 * chain["embedding"].tied_parameters * optimizer.gradient_bytes
    price_j = energy_constants().network_pj_per_byte * J_PER_PJ
    expected = sent * price_j * placement.data * placement.tensor
    assert result.energy_by_level_j["network"] == pytest.approx(expected, rel=1e-9)


def data_parallel_bytes(
    of_replicas: Any, parameters: int, zero: int, microbatches: int, optimizer: Any
) -> float:
    """Return what a device sends for gradients and weights per batch."""
    gradients = parameters * optimizer.gradient_bytes
    weights = parameters * optimizer.weight_bytes
    if zero == 0:
        return float(of_replicas("all_reduce", gradients))
    reductions = 1 if zero == 1 else microbatches
    gathers = 2 * microbatches if zero == 3 else 1
    sent = reductions * of_replicas("reduce_scatter", gradients)
    return float(sent + gathers * of_replicas("all_gather", weights))


def test_zero_3_and_interleaving_send_more() -> None:
    """Weights are gathered for every pass, and chunks hand over more often."""
    joules = {}
    runs: dict[str, dict[str, Any]] = {
        "plain": {},
        "zero 3": {"zero": 3},
        "interleaved": {"pipeline_schedule": "interleaved", "interleave": 2},
    }
    for name, options in runs.items():
        training = Training(64, 1, optimizer="adam", **options)
        one = point(training, (2, 8, 1), "flat-4GiB")
        result = evaluate(one.workload, one.accelerator, one.cluster, training, (2, 8, 1))
        joules[name] = result.energy_by_level_j["network"]
    assert joules["zero 3"] > joules["plain"]
    assert joules["interleaved"] > joules["plain"]
