"""Seconds, traffic and joules of every operator of a graph, on one core and on all cores.

An operator takes the largest of its tensor-core, vector-core, global-buffer and HBM times (all
overlap), plus the chip's constant per operator. HBM traffic is what the operator reads and writes,
plus what the blocking of a product and a reduction over long rows read again; several products in
one fused operator keep their intermediates on the chip. Global-buffer traffic is the same tensors
passing through, plus the re-reads of the tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from phaze_opt.errors import InputError
from phaze_opt.estimator.collective import collective_s
from phaze_opt.estimator.tensor_core import ELEMENT_BYTES, Column, fill_gemm_table
from phaze_opt.estimator.vector_core import ROW_ELEMENT_BYTES, vector_cycles, vector_operator
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.cluster import Cluster
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.workload.graph import Operator, OperatorGraph

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

RESOURCES = ("compute", "lanes", "glb", "hbm", "link", "overhead")
"""What can bind an operator; the last is the chip's constant per operator."""


@dataclass(frozen=True, eq=False)
class ModeEstimate:
    """All operators of a graph in one mode; every array has shape (operators,).

    Attributes
    ----------
    latency_s
        With the constant per operator.
    tc_s, vc_s, glb_s, hbm_s, link_s
        Time each resource is busy; the latency is the largest, plus the constant.
    energy_j
        Dynamic energy of one execution.
    """

    latency_s: FloatArray
    tc_s: FloatArray
    vc_s: FloatArray
    glb_s: FloatArray
    hbm_s: FloatArray
    link_s: FloatArray
    energy_j: FloatArray

    def binding(self) -> list[str]:
        """Name what binds each operator (one of `RESOURCES`)."""
        busy = np.stack([self.tc_s, self.vc_s, self.glb_s, self.hbm_s, self.link_s])
        constant = self.latency_s - busy.max(axis=0)
        return [RESOURCES[index] for index in np.argmax(np.vstack([busy, constant]), axis=0)]


@dataclass(frozen=True, eq=False)
class GraphEstimate:
    """Both modes of every operator of a graph on one accelerator."""

    one_core: ModeEstimate
    all_cores: ModeEstimate


@dataclass(frozen=True, eq=False)
class _OperatorTable:
    """A graph as arrays; independent of the accelerator.

    Attributes
    ----------
    gemms : (products, 4)
        m, n, k, batch.
    gemm_owner : (products,)
        Index of the operator.
    gemm_blocked : (products,)
        Whether re-reads of the blocking go to HBM (a lone product).
    elements, lane_cycles, vector_owner : (vector works,)
    row_bytes, reread_bytes : (vector works,)
        Size of a row in fp32, and what is read again in total where it does not fit.
    traffic_bytes, has_work, collective : (operators,)
        Compulsory traffic; whether the operator takes time; whether it communicates.
    """

    gemms: IntArray
    gemm_owner: IntArray
    gemm_blocked: FloatArray
    elements: FloatArray
    lane_cycles: FloatArray
    vector_owner: IntArray
    row_bytes: FloatArray
    reread_bytes: FloatArray
    traffic_bytes: FloatArray
    has_work: FloatArray
    macs: FloatArray
    operators: tuple[Operator, ...]


@lru_cache(maxsize=512)
def _operator_table(graph: OperatorGraph) -> _OperatorTable:
    operators = graph.operators
    gemms = [(i, g, len(op.gemms) == 1) for i, op in enumerate(operators) for g in op.gemms]
    works = [
        (i, work, vector_operator(work.kind), not op.gemms)
        for i, op in enumerate(operators)
        for work in op.vector
    ]
    return _OperatorTable(
        gemms=np.array([(g.m, g.n, g.k, g.batch) for _, g, _ in gemms], dtype=np.int64).reshape(
            -1, 4
        ),
        gemm_owner=np.array([i for i, _, _ in gemms], dtype=np.int64),
        gemm_blocked=np.array([alone for _, _, alone in gemms], dtype=np.float64),
        elements=np.array([work.elements for _, work, _, _ in works], dtype=np.float64),
        lane_cycles=np.array([row.cycles for _, _, row, _ in works], dtype=np.float64),
        vector_owner=np.array([i for i, _, _, _ in works], dtype=np.int64),
        row_bytes=np.array(
            [ROW_ELEMENT_BYTES * work.columns for _, work, _, _ in works], dtype=np.float64
        ),
        # Beside a product the rows come from the arrays, not from memory.
        reread_bytes=np.array(
            [
                (row.reads - 1) * ELEMENT_BYTES * work.elements * from_memory
                for _, work, row, from_memory in works
            ],
            dtype=np.float64,
        ),
        traffic_bytes=np.array([op.read_bytes + op.write_bytes for op in operators], dtype=float),
        has_work=np.array(
            [bool(op.gemms or op.vector or op.collective) for op in operators], dtype=np.float64
        ),
        macs=np.array([op.flops / 2 for op in operators], dtype=np.float64),
        operators=operators,
    )


def estimate(
    graph: OperatorGraph, accelerator: Accelerator, cluster: Cluster, tensor_parallel: int = 1
) -> GraphEstimate:
    """Estimate every operator of a graph on one core and on all cores of its type.

    Parameters
    ----------
    graph
        Of one device at the tensor-parallel width.
    accelerator
        The chip.
    cluster
        For the graph's collectives.
    tensor_parallel
        Devices in a collective's group; they are neighbours on the innermost level.

    Raises
    ------
    InputError
        If an operator kind is unknown, or a private buffer cannot hold one tile.
    """
    table = _operator_table(graph)
    link_s = _link_seconds(table, cluster, tensor_parallel)
    return GraphEstimate(
        _mode(table, accelerator, link_s, 1, 1),
        _mode(table, accelerator, link_s, accelerator.num_tc, accelerator.num_vc),
    )


def _link_seconds(table: _OperatorTable, cluster: Cluster, tensor_parallel: int) -> FloatArray:
    """Network time of each operator; zero for those that do not communicate."""
    return np.array(
        [
            0.0
            if op.collective is None
            else collective_s(
                op.collective.kind, op.collective.size_bytes, tensor_parallel, cluster
            )
            for op in table.operators
        ],
        dtype=np.float64,
    )


def _mode(
    table: _OperatorTable, accelerator: Accelerator, link_s: FloatArray, num_tc: int, num_vc: int
) -> ModeEstimate:
    """Estimate all operators on so many tensor and vector cores."""
    clock_hz = accelerator.sustained_clock_hz
    count = len(table.operators)
    gemm = _gemm_rows(table, accelerator, num_tc)
    compulsory = ELEMENT_BYTES * _operand_elements(table.gemms)

    def per_operator(owner: IntArray, values: FloatArray) -> FloatArray:
        summed = np.bincount(owner, weights=values, minlength=count)
        return np.asarray(summed, dtype=np.float64)

    tc_s = per_operator(table.gemm_owner, gemm[:, Column.ARRAY_CYCLES]) / clock_hz
    work_cycles = vector_cycles(table.elements, table.lane_cycles, num_vc, accelerator.pe_vc)
    vc_s = per_operator(table.vector_owner, work_cycles) / clock_hz
    rows_overflow = table.row_bytes > accelerator.l2_vc_bytes
    row_reads = per_operator(table.vector_owner, table.reread_bytes * rows_overflow)
    tile_reads = per_operator(table.gemm_owner, gemm[:, Column.GLB_BYTES] - compulsory)
    glb_bytes = table.traffic_bytes + row_reads + tile_reads
    glb_s = glb_bytes / (accelerator.glb_bytes_per_cycle * clock_hz)
    blocked = gemm[:, Column.HBM_EXTRA_BYTES] * table.gemm_blocked
    hbm_bytes = table.traffic_bytes + row_reads + per_operator(table.gemm_owner, blocked)
    hbm_s = hbm_bytes / accelerator.sustained_hbm_bytes_per_s
    busy_s = np.maximum.reduce([tc_s, vc_s, glb_s, hbm_s, link_s])
    latency_s = busy_s + accelerator.calibration.operator_overhead_s * table.has_work
    joules = energy_per_event(accelerator)
    energy_j = (
        table.macs * joules.mac_j
        + per_operator(table.vector_owner, table.elements * table.lane_cycles) * joules.lane_cycle_j
        + per_operator(table.gemm_owner, gemm[:, Column.L2_BYTES]) * joules.l2_tc_j_per_byte
        + glb_bytes * joules.glb_j_per_byte
        + hbm_bytes * joules.hbm_j_per_byte
    )
    return ModeEstimate(latency_s, tc_s, vc_s, glb_s, hbm_s, link_s, energy_j)


def _operand_elements(gemms: IntArray) -> FloatArray:
    """Elements of both operands and the result of each product."""
    m, n, k, batch = gemms.astype(np.float64).T
    return np.asarray(batch * (m * k + k * n + m * n), dtype=np.float64)


def _gemm_rows(table: _OperatorTable, accelerator: Accelerator, num_tc: int) -> FloatArray:
    """Run the product kernel: rows of `Column` for every product of the graph."""
    rows = np.zeros((len(table.gemms), len(Column)))
    clock_hz = accelerator.sustained_clock_hz
    overhead = accelerator.calibration.tile_overhead_cycles
    fill_gemm_table(
        table.gemms,
        num_tc,
        accelerator.pe_x,
        accelerator.pe_y,
        float(accelerator.l2_tc_bytes),
        np.inf if accelerator.l2_bytes_per_cycle is None else accelerator.l2_bytes_per_cycle,
        accelerator.glb_bytes * num_tc / accelerator.num_tc,
        float(accelerator.glb_bytes_per_cycle),
        accelerator.sustained_hbm_bytes_per_s / clock_hz,
        float(accelerator.pe_x + accelerator.pe_y) if overhead is None else overhead,
        rows,
    )
    if np.any(np.isinf(rows[:, Column.ARRAY_CYCLES])):
        raise InputError(
            f"l2_tc_bytes is {accelerator.l2_tc_bytes}, too small for one tile of "
            f"{accelerator.pe_x} × {accelerator.pe_y} with its streams."
        )
    return rows
