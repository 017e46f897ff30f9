"""Tensor-parallel collectives that run beside the product next to them, chunk by chunk.

The tensor is cut into as many chunks as the group has devices: while one chunk is sent, the
product computes the next (or, behind a gather, the one before). Transformer Engine's user buffers
and asynchronous tensor parallelism in PyTorch do this. Of a collective of ``C`` seconds beside a
product of ``P``, in t chunks, there remain

    max(C − P · (t − 1) / t, C / t)

seconds after the product: at least one chunk has no work to hide behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from phaze_opt.estimator.estimate import GraphEstimate, ModeEstimate
from phaze_opt.workload.graph import OperatorGraph


def chunk_collectives(
    graph: OperatorGraph, estimates: GraphEstimate, group: int, core_share: float
) -> GraphEstimate:
    """Shorten every collective that has a product next to it.

    Parameters
    ----------
    graph
        Of one pass.
    estimates
        Its operators; seconds on the network stay as they are.
    group
        Devices of the tensor-parallel group.
    core_share
        Share of the cores that communication takes from the product while both run.
    """
    pairs = list(_pairs(graph))
    if group == 1 or not pairs:
        return estimates

    def shortened(mode: ModeEstimate) -> ModeEstimate:
        latency_s = mode.latency_s.copy()
        for collective, product in pairs:
            network_s = mode.link_s[collective]
            beside_s = estimates.all_cores.latency_s[product] * (group - 1) / group
            exposed_s = max(network_s - beside_s, network_s / group)
            hidden_s = network_s - exposed_s
            latency_s[collective] -= (1.0 - core_share) * hidden_s
        return replace(mode, latency_s=latency_s)

    return GraphEstimate(shortened(estimates.one_core), shortened(estimates.all_cores))


def _pairs(graph: OperatorGraph) -> Iterator[tuple[int, int]]:
    """Yield collectives with the product each runs beside, no product twice.

    The product that computes what is sent comes before the one that uses what is received.
    """
    taken: set[int] = set()
    neighbours: dict[int, list[int]] = {}
    for source, destination, _ in graph.edges:
        neighbours.setdefault(destination, []).insert(0, source)
        neighbours.setdefault(source, []).append(destination)
    for index, operator in enumerate(graph.operators):
        if operator.collective is None:
            continue
        for other in neighbours.get(index, []):
            if graph.operators[other].gemms and other not in taken:
                taken.add(other)
                yield index, other
                break
