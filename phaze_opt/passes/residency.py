"""What stays on one chip while a pass of a layer runs, as the scheduler takes it.

Of a buffer that the program manages, `phaze_opt.estimator.working_sets` says what operators need
and move, and `phaze_opt.scheduling` decides what stays. The L2 cache of a GPU decides by itself:
`phaze_opt.estimator.cache_reuse` says which reads it serves.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.cache_reuse import reads_again
from phaze_opt.estimator.estimate import ModeEstimate
from phaze_opt.estimator.traffic import ENERGY_LEVELS
from phaze_opt.estimator.working_sets import kept_tensors, saved_bytes, working_sets
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.scheduling.residency import PassTensor, Residency, TensorGraph
from phaze_opt.scheduling.schedule_problem import CachedReads
from phaze_opt.workload.graph import OperatorGraph


@lru_cache(maxsize=512)
def tensor_graph(graph: OperatorGraph) -> TensorGraph:
    """Return the tensors of a graph that may stay on the chip, as the scheduler takes them."""
    tensors = tuple(
        PassTensor(
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
    """State the joint problem of one pass beside a managed buffer.

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
        ``None`` where there is nothing to decide: no tensor is shared, or there is no HBM, so that
        all are in the buffer.
    """
    if not (accelerator.has_hbm and kept_tensors(graph)):
        return None
    sets = working_sets(graph, accelerator)
    rate = accelerator.sustained_hbm_bytes_per_s
    others = [all_cores.tc_s, all_cores.glb_s, all_cores.link_s]
    lanes_s = all_cores.vc_s[:, np.newaxis] * sets.lane_factor
    return Residency(
        graph=tensor_graph(graph),
        glb_bytes=accelerator.glb_bytes,
        hbm_bytes_per_s=rate,
        working_bytes=sets.working_bytes,
        hbm_bytes=all_cores.hbm_s[:, np.newaxis] * rate + sets.extra_bytes,
        other_s=np.maximum(np.maximum.reduce(others)[:, np.newaxis], lanes_s),
        overhead_s=all_cores.overhead_s,
        saved_bytes=saved_bytes(graph, sets),
    )


def cached_reads_of(
    graph: OperatorGraph, all_cores: ModeEstimate, accelerator: Accelerator
) -> CachedReads | None:
    """Say what the cache of a chip serves of one pass.

    Parameters
    ----------
    graph, all_cores, accelerator
        As for `residency_of`.

    Returns
    -------
    cached
        ``None`` where the cache serves nothing, or there is no HBM behind it.
    """
    if not accelerator.has_hbm:
        return None
    served = reads_again(graph).served_by(accelerator.glb_bytes)
    if served.reader.size == 0:
        return None
    moved = all_cores.hbm_s * accelerator.sustained_hbm_bytes_per_s
    flow = np.maximum(moved - np.bincount(served.reader, served.bytes, len(moved)), 0.0)
    hbm_s = flow / accelerator.sustained_hbm_bytes_per_s
    latency_s = all_cores.with_seconds(hbm_s=hbm_s).latency_s
    reads = np.column_stack([served.tensor, served.source, served.reader]).tolist()
    return CachedReads(
        # Less traffic takes no longer, not in the last bit either.
        latency_s=tuple(np.minimum(latency_s, all_cores.latency_s).tolist()),
        hbm_bytes=tuple(flow.tolist()),
        tensors=tensor_graph(graph).tensors,
        served=tuple((tensor, source, reader) for tensor, source, reader in reads),
    )


def with_hbm_bytes(
    mode: ModeEstimate, hbm_bytes: FloatArray, accelerator: Accelerator
) -> ModeEstimate:
    """Return the estimates with other HBM traffic, and the energy that follows.

    Bytes that do not flow are neither moved by the HBM nor written to the global buffer by it.

    Parameters
    ----------
    mode
        All operators in one mode.
    hbm_bytes : (operators,)
        What each moves from and to the HBM.
    accelerator
        The chip.
    """
    hbm_s = hbm_bytes / accelerator.sustained_hbm_bytes_per_s
    joules = energy_per_event([accelerator])
    kept_bytes = (mode.hbm_s - hbm_s) * accelerator.sustained_hbm_bytes_per_s
    energy_j = mode.energy_by_level_j.copy()
    energy_j[:, ENERGY_LEVELS.index("hbm")] -= kept_bytes * joules.hbm_j_per_byte
    energy_j[:, ENERGY_LEVELS.index("glb")] -= kept_bytes * joules.glb_write_j_per_byte[0, 0]
    return mode.with_seconds(hbm_s=hbm_s, energy_by_level_j=energy_j)
