"""Least dynamic energy of the operators of a graph, on many chips at once.

Whatever the modes, tilings and blocks are, arithmetic takes its energy, every tensor is read and
written once, and every operand passes from the private buffers into the arrays as often as the
registers of the arrays demand. See `phaze_opt.estimator.traffic` for what an evaluation counts.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.estimate import communication_of
from phaze_opt.estimator.gemm_traffic import least_operands_per_mac
from phaze_opt.estimator.least_traffic import cached_bytes, most_kept_accesses_bytes
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.estimator.rooflines import least_work
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.network.cluster import Cluster
from phaze_opt.workload.graph import OperatorGraph


def least_energy_j(
    graph: OperatorGraph,
    chips: Chips,
    cluster: Cluster,
    tensor_parallel: int = 1,
    *,
    residency: bool,
) -> FloatArray:
    """Bound the dynamic energy of one execution of a graph from below.

    Parameters
    ----------
    graph, cluster, tensor_parallel
        As for `phaze_opt.estimator.estimate.estimate_table`.
    chips
        All run operators side by side, or none does.
    residency
        Whether tensors may stay in the global buffer between operators.

    Returns
    -------
    energy_j : (chips,)
    """
    table, work = operator_table(graph), least_work(graph)
    joules = energy_per_event(chips)
    macs = float(work.macs.sum())
    # As the macs, the lane cycles of fused attention are counted for what no mask hides.
    visible = np.divide(work.macs, table.macs, out=np.ones_like(work.macs), where=table.macs > 0.0)
    cycles = table.elements * table.lane_cycles * visible[table.vector_owner]
    lane_cycles = float(cycles.sum())
    read_bytes, write_bytes = float(table.read_bytes.sum()), float(table.write_bytes.sum())
    # What does not flow from or to the HBM is not written to the global buffer by it either.
    flow_bytes = np.full((len(chips), 1), read_bytes + write_bytes)
    if residency:
        kept = most_kept_accesses_bytes if chips[0].concurrent_operators else cached_bytes
        flows = np.maximum(table.read_bytes + table.write_bytes - kept(graph, chips), 0.0)
        flow_bytes = flows.sum(axis=1, keepdims=True)
    operands_per_mac = least_operands_per_mac(chips.column("pe_x"), chips.column("pe_y"))
    array_bytes = float(work.operand_bytes.sum()) * operands_per_mac
    _, sent_bytes = communication_of(table, cluster, tensor_parallel)
    energy_j = (
        macs * (joules.mac_j + joules.mac_registers_j)
        + lane_cycles * (joules.lane_cycle_j + joules.lane_registers_j)
        + (array_bytes + write_bytes) * joules.l2_tc_read_j_per_byte
        + read_bytes * joules.l2_tc_write_j_per_byte
        + (read_bytes + write_bytes) * joules.glb_read_j_per_byte
        + flow_bytes * (joules.glb_write_j_per_byte + joules.hbm_j_per_byte)
        + float(sent_bytes.sum()) * joules.network_j_per_byte
    )
    return np.asarray(energy_j[:, 0])
