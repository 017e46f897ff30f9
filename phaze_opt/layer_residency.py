"""What may stay in the global buffer while a pass of a layer runs: the joint problem of one chip.

`phaze_opt.estimator.working_sets` says what operators need and move, `phaze_opt.scheduling` decides
what stays; here one becomes the other. Only buffers that the program manages are looked at: the L2
cache of a GPU decides by itself.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from phaze_opt.estimator.estimate import ModeEstimate
from phaze_opt.estimator.working_sets import kept_tensors, saved_bytes, working_sets
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.scheduling.residency import Residency, Tensor, TensorGraph
from phaze_opt.workload.graph import OperatorGraph


@lru_cache(maxsize=512)
def tensor_graph(graph: OperatorGraph) -> TensorGraph:
    """Return the tensors of a graph that may stay on the chip, as the scheduler takes them."""
    tensors = tuple(
        Tensor(
            kept.size_bytes,
            None if kept.writer is None else kept.writer.operator,
            tuple(reader.operator for reader in kept.readers),
            kept.outlives,
        )
        for kept in kept_tensors(graph)
    )
    edges = tuple((source, destination) for source, destination, _ in graph.edges)
    return TensorGraph(len(graph.operators), edges, tensors)


def residency_of(
    graph: OperatorGraph, all_cores: ModeEstimate, accelerator: Accelerator
) -> Residency | None:
    """State the joint problem of one pass.

    Parameters
    ----------
    graph
        Fused.
    all_cores
        Its estimates on all cores.
    accelerator
        The chip.

    Returns
    -------
    residency
        ``None`` where nothing can stay: no tensor is shared, or the buffer is a cache.
    """
    if not accelerator.concurrent_operators or not kept_tensors(graph):
        return None
    sets = working_sets(graph, accelerator)
    rate = accelerator.sustained_hbm_bytes_per_s
    others = [all_cores.tc_s, all_cores.vc_s, all_cores.glb_s, all_cores.link_s]
    other_s = np.maximum.reduce(others)
    return Residency(
        graph=tensor_graph(graph),
        glb_bytes=accelerator.glb_bytes,
        hbm_bytes_per_s=rate,
        working_bytes=sets.working_bytes,
        hbm_bytes=all_cores.hbm_s[:, np.newaxis] * rate + sets.extra_bytes,
        other_s=np.repeat(other_s[:, np.newaxis], sets.extra_bytes.shape[1], axis=1),
        overhead_s=all_cores.latency_s - all_cores.busy_s,
        saved_bytes=saved_bytes(graph, sets),
    )
