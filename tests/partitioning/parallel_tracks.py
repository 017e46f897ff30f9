"""Graphs of parallel tracks, which have many downsets."""

import random

from phaze_opt.partitioning.dnn_format import DnnNode, DnnProblem


def tracks(
    seed: int, count: int, nodes: int, crossing: float, costs: tuple[float, float]
) -> DnnProblem:
    """Draw parallel tracks between a first and a last node, on six accelerators and a CPU.

    Parameters
    ----------
    seed, count, nodes
        Of the draw; number of tracks; number of nodes in all of them.
    crossing
        Share of the nodes with an edge from some track.
    costs
        Least and largest time of a transfer; a node takes 0.1 to 3.
    """
    rng = random.Random(seed)
    latencies = [rng.uniform(0.1, 3.0) for _ in range(nodes + 2)]
    ends, edges = [0] * count, set()
    for node in range(1, nodes + 1):
        edges.add((ends[node % count], node))
        if rng.random() < crossing:
            edges.add((rng.choice(ends), node))
        ends[node % count] = node
    edges |= {(end, nodes + 1) for end in ends}
    rows = tuple(
        DnnNode(
            id=node,
            cpu_latency=10.0 * latency,
            accelerator_latency=latency,
            supported=True,
            size_bytes=1.0,
        )
        for node, latency in enumerate(latencies)
    )
    outputs = tuple(rng.uniform(*costs) for _ in latencies)
    return DnnProblem(1e9, 6, 1, rows, tuple(sorted(edges)), outputs)
