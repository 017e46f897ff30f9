"""Rooflines of operators: seconds that no chip of some peak rates can beat, whatever its shape.

An estimate is not monotone in the number of cores or the edges of an array: pieces are rounded up,
arrays fill and drain, cores share the global buffer. What is monotone is the work over the peak
rate of all cores together. So a chip that has the rates of a whole box of chips bounds all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.attention import array_slowdown, exposed_share
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.estimate import ModeSeconds, communication_of
from phaze_opt.estimator.operator_table import OperatorTable, array_cycles, operator_table
from phaze_opt.hardware.energy import mac_energy_share
from phaze_opt.network.cluster import Cluster
from phaze_opt.workload.graph import OperatorGraph


@dataclass(frozen=True, eq=False)
class LeastWork:
    """Work of the operators of a graph that every chip has.

    Arrays have shape (operators,) where none is stated.

    Attributes
    ----------
    macs : (operators, precisions)
        Of products.
    attention_macs, limited_attention_macs
        Of fused attention, those that no mask hides, and as many in bf16 as take their power.
    lane_cycles
        Of the vector lanes, but for exponentials of fused attention.
    exponentials, exponential_cycles
        Number of these, and the lane cycles of all of them where a chip has no unit for them.
    hbm_bytes
        Compulsory traffic.
    """

    macs: FloatArray
    attention_macs: FloatArray
    limited_attention_macs: FloatArray
    lane_cycles: FloatArray
    exponentials: FloatArray
    exponential_cycles: FloatArray
    hbm_bytes: FloatArray


@lru_cache(maxsize=512)
def least_work(graph: OperatorGraph) -> LeastWork:
    """Return the work that every chip has, cached."""
    table = operator_table(graph)
    elements = table.elements.copy()
    attention, limited = np.zeros((2, len(table.operators)))
    for owner in table.attention_owner.tolist():
        operator = table.operators[owner]
        assert operator.attention is not None
        share = operator.attention.visible / operator.attention.elements
        attention[owner] = operator.flops / 2 * share
        limited[owner] = attention[owner] * mac_energy_share(operator.gemms[0].precision)
    for work in table.score_works.tolist():
        scores = table.operators[int(table.vector_owner[work])].attention
        assert scores is not None
        elements[work] = scores.visible
    of_unit = np.where(table.exponential_cycles > 0.0, elements, 0.0)
    return LeastWork(
        macs=table.product_macs,
        attention_macs=attention,
        limited_attention_macs=limited,
        lane_cycles=_by_operator(table, elements * (table.lane_cycles - table.exponential_cycles)),
        exponentials=_by_operator(table, of_unit),
        exponential_cycles=_by_operator(table, elements * table.exponential_cycles),
        hbm_bytes=table.read_bytes + table.write_bytes,
    )


def roofline_seconds(
    graph: OperatorGraph, chips: Chips, cluster: Cluster, tensor_parallel: int = 1
) -> ModeSeconds:
    """Bound every operator from below by the peak rates of all cores together.

    Parameters
    ----------
    graph, cluster, tensor_parallel
        As for `phaze_opt.estimator.estimate.estimate_table`.
    chips
        Of which nothing counts but the peak rates of all tensor cores, of all lanes, of the HBM and
        of the global buffer, the clock, and the calibration.

    Returns
    -------
    ModeSeconds
        Arrays of shape (chips, operators), at most those of either mode on every chip with these
        rates.
    """
    table, work = operator_table(graph), least_work(graph)
    link_s, _ = communication_of(table, cluster, tensor_parallel)
    clock_hz = chips.column("sustained_clock_hz")
    vector_cores = chips.column("num_vc")
    arrays = chips.column("num_tc") * chips.column("pe_x") * chips.column("pe_y")
    lanes_per_s = vector_cores * chips.column("pe_vc") * clock_hz
    rates = chips.column("exponentials_per_cycle")
    exponentials_s = np.where(
        np.isnan(rates),
        work.exponential_cycles / lanes_per_s,
        work.exponentials / (vector_cores * rates * clock_hz),
    )
    vc_s = work.lane_cycles / lanes_per_s + exponentials_s
    exposed_s = exposed_share(table, chips) * vc_s
    slowdown = array_slowdown(table, chips)
    cycles = array_cycles(work.macs, chips)
    busy = cycles + work.attention_macs * slowdown
    tc_s = busy / (arrays * chips.column("array_clock_hz")) + exposed_s
    limited_s = (cycles + work.limited_attention_macs) / (
        arrays * chips.column("power_limited_clock_hz")
    )
    tc_s = np.maximum(tc_s, limited_s)
    glb_s = work.hbm_bytes / (chips.column("glb_bytes_per_cycle") * clock_hz)
    hbm_s = work.hbm_bytes / chips.column("sustained_hbm_bytes_per_s")
    link_s = np.broadcast_to(link_s, tc_s.shape)
    overhead_s = chips.column("calibration.operator_overhead_s") * table.has_work
    busy_s = np.maximum.reduce([tc_s, vc_s, glb_s, hbm_s, link_s])
    return ModeSeconds(busy_s + overhead_s, tc_s, vc_s, glb_s, hbm_s, link_s, exposed_s)


def _by_operator(table: OperatorTable, values: FloatArray) -> FloatArray:
    """Sum over the vector works of every operator."""
    return np.asarray(table.sum_vector_works(values[np.newaxis])[0])
