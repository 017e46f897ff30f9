"""Layers whose tokens go to their experts while the cores compute for another microbatch.

In the steady state of 1F1B a device runs the forward of one microbatch beside the backward of
another, layer by layer, so that the exchanges of either run beside the compute of the other
(Megatron-Core's ``overlap_moe_expert_parallel_comm``; DualPipe of DeepSeek-V3, arXiv 2412.19437,
section 3.2.1). With ``W`` seconds of both passes, of which ``C`` are exchanges, on all cores but a
share ``κ`` that the dispatcher takes, the pair takes

    min(W, max((W − C) / (1 − κ), C))

seconds, or as long as the host launches the kernels of both, where ``C`` is what exchanges take by
themselves. Dense layers have nothing to exchange.
The two passes go on together: each has a fixed share of the pair's time, by its work. What runs
before the first pair has nothing beside it (`phaze_opt.placement.candidate_costs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import Recompute
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.token_exchange import dispatcher_rates, operator_cost
from phaze_opt.passes.graphs import graphs_of, runs_again
from phaze_opt.passes.layer_cost import LayerPasses, LeastLayers
from phaze_opt.training import Training
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant

Seconds = TypeVar("Seconds", float, FloatArray)

PARTS: Mapping[Recompute, Mapping[str, float]] = {
    "none": dict(zip(LayerPasses._fields, (1 / 3, 2 / 3, 0.0), strict=True)),
    "selective": dict(zip(LayerPasses._fields, (1 / 3, 2 / 3, 0.0), strict=True)),
    "full": dict(zip(LayerPasses._fields, (1 / 4, 1 / 2, 1 / 4), strict=True)),
}
"""Shares of forward, backward and recompute in the time of a pair: those of their products."""


def paired_s(
    work_s: Seconds, exchanges_s: Seconds, core_share: Seconds, host_s: Seconds
) -> Seconds:
    """Return the seconds of both passes of a layer in a pair, see above.

    It never falls with the work, so that less of it bounds the time from below.
    """
    beside_s = np.maximum((work_s - exchanges_s) / (1.0 - core_share), exchanges_s)
    shorter: Seconds = np.maximum(np.minimum(work_s, beside_s), host_s)
    return shorter


@lru_cache(maxsize=128)
def exchanges_s(
    variant: WorkloadVariant, training: Training, cluster: Cluster
) -> tuple[float, ...]:
    """Return the seconds of all exchanges of a microbatch, by distinct layer; 0 if not in pairs."""
    if not training.pairs_microbatches:
        return (0.0,) * len(variant.layers)

    def of_graph(graph: OperatorGraph | None) -> float:
        operators = () if graph is None else graph.operators
        sent = [own.collective for own in operators if own.collective and own.is_exchange]
        return sum([operator_cost(each, variant.tensor_parallel, cluster).time_s for each in sent])

    found = []
    for layer in variant.layers:
        graphs = graphs_of(layer, training)
        runs = graphs["forward"], graphs["backward"], runs_again(layer, graphs, training)
        found.append(sum(map(of_graph, runs)))
    return tuple(found)


def core_share(training: Training, cluster: Cluster, of_collectives: Seconds) -> Seconds:
    """Return the share of the cores that the dispatcher takes from what runs beside it.

    Parameters
    ----------
    training, cluster
        Whose dispatcher; that of NCCL takes as much as its other collectives.
    of_collectives
        What these take of a chip, or of many.
    """
    rates = dispatcher_rates(training.dispatcher, cluster)
    if training.dispatcher == "nccl":
        return of_collectives
    share = 0.0 if rates is None else rates.multiprocessors / rates.of_multiprocessors
    return 0.0 * of_collectives + share


def with_pairs(layers: LeastLayers, pair_s: FloatArray, training: Training) -> LeastLayers:
    """Add what passes take in pairs to bounds of layers.

    Parameters
    ----------
    layers
        Bounds of passes that are not.
    pair_s : (distinct layers, accelerators)
        Seconds of both passes in a pair; 0 of those that are in none.
    training
        Says what runs again before the backward.
    """
    parts = PARTS[training.recompute]

    def part(own_s: FloatArray, name: str) -> FloatArray:
        return np.where(pair_s > 0.0, parts[name] * pair_s, own_s)

    pairs = LeastLayers(
        forward_s=part(layers.forward_s, "forward"),
        backward_s=part(layers.backward_s, "backward"),
        recompute_s=part(layers.recompute_s, "recompute"),
    )
    return replace(layers, pairs=pairs)
