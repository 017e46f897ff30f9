"""Seconds, traffic and joules of every operator of a graph, on one core and on all cores.

An operator takes the largest of its tensor-core, vector-core, global-buffer and HBM times (all
overlap), plus the chip's constant per operator. HBM traffic is what the operator reads and writes,
plus what the blocking of a product and a reduction over long rows read again; several products in
one fused operator keep their intermediates on the chip. Global-buffer traffic is the same tensors
passing through, plus the re-reads of the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from phaze_opt.estimator.collective import collective_s
from phaze_opt.estimator.gemm_kernel import ELEMENT_BYTES
from phaze_opt.estimator.tensor_core import Column, gemm_table
from phaze_opt.estimator.vector_core import ROW_ELEMENT_BYTES, vector_cycles, vector_operator
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.cluster import Cluster
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.workload.graph import Operator, OperatorGraph

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

RESOURCES = ("compute", "lanes", "glb", "hbm", "link", "overhead")
"""What can bind an operator; the last is the chip's constant per operator."""

_SENT_PER_BYTE = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0}
"""Bytes that each device of a large group sends per byte of the whole tensor."""


@dataclass(frozen=True, eq=False)
class ModeEstimate:
    """All operators of a graph in one mode.

    Every array has shape (operators,), or (accelerators, operators) in a table.

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
        """Name what binds each operator (one of `RESOURCES`); not for tables."""
        busy = np.stack([self.tc_s, self.vc_s, self.glb_s, self.hbm_s, self.link_s])
        constant = self.latency_s - busy.max(axis=0)
        return [RESOURCES[index] for index in np.argmax(np.vstack([busy, constant]), axis=0)]

    def row(self, accelerator: int) -> ModeEstimate:
        """Take one accelerator out of a table."""
        return ModeEstimate(*(getattr(self, entry.name)[accelerator] for entry in fields(self)))


@dataclass(frozen=True, eq=False)
class GraphEstimate:
    """Both modes of every operator of a graph, on one accelerator or on many."""

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
    traffic_bytes, has_work, macs, link_bytes : (operators,)
        Compulsory traffic; whether the operator takes time; multiply-accumulates; bytes that a
        device sends in its collective.
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
    link_bytes: FloatArray
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
        link_bytes=np.array(
            [
                _SENT_PER_BYTE[op.collective.kind] * op.collective.size_bytes
                if op.collective
                else 0.0
                for op in operators
            ],
            dtype=np.float64,
        ),
        operators=operators,
    )


def estimate(
    graph: OperatorGraph, accelerator: Accelerator, cluster: Cluster, tensor_parallel: int = 1
) -> GraphEstimate:
    """Estimate every operator of a graph on one core and on all cores of its type.

    The same as one row of `estimate_table`, bit for bit.

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
    table = estimate_table(graph, [accelerator], cluster, tensor_parallel)
    return GraphEstimate(table.one_core.row(0), table.all_cores.row(0))


def estimate_table(
    graph: OperatorGraph,
    accelerators: Sequence[Accelerator],
    cluster: Cluster,
    tensor_parallel: int = 1,
) -> GraphEstimate:
    """Estimate every operator of a graph on many accelerators.

    Products are estimated once per distinct tensor-core pool and vector work once per distinct
    vector-core pool, whatever else the accelerators differ in.

    Parameters
    ----------
    graph, cluster, tensor_parallel
        As for `estimate`.
    accelerators
        The chips; the rows of every array of the answer.

    Raises
    ------
    InputError
        As `estimate`.
    """
    table = _operator_table(graph)
    link_s = _link_seconds(table, cluster, tensor_parallel)
    return GraphEstimate(
        _mode(table, accelerators, link_s, [1] * len(accelerators), [1] * len(accelerators)),
        _mode(
            table,
            accelerators,
            link_s,
            [chip.num_tc for chip in accelerators],
            [chip.num_vc for chip in accelerators],
        ),
    )


def estimate_on_cores(
    graph: OperatorGraph, accelerator: Accelerator, cluster: Cluster, cores: int
) -> ModeEstimate:
    """Estimate every operator on so many cores of its type (at most all of them).

    Parameters
    ----------
    graph, accelerator, cluster
        As for `estimate`.
    cores
        At least 1.
    """
    table = _operator_table(graph)
    mode = _mode(
        table,
        [accelerator],
        _link_seconds(table, cluster, 1),
        [min(cores, accelerator.num_tc)],
        [min(cores, accelerator.num_vc)],
    )
    return mode.row(0)


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


def _column(accelerators: Sequence[Accelerator], name: str) -> FloatArray:
    """One property of all accelerators, of shape (accelerators, 1)."""
    values = [getattr(accelerator, name) for accelerator in accelerators]
    return np.array(values, dtype=np.float64)[:, np.newaxis]


def _per_operator(owner: IntArray, values: FloatArray, operators: int) -> FloatArray:
    """Sum columns by the operator that owns them.

    In order, so that the bits do not depend on how many accelerators there are.

    Parameters
    ----------
    owner : (works,)
    values : (accelerators, works)

    Returns
    -------
    sums : (accelerators, operators)
    """
    sums = np.zeros((len(values), operators))
    for work, operator in enumerate(owner):
        sums[:, operator] += values[:, work]
    return sums


def _mode(
    table: _OperatorTable,
    accelerators: Sequence[Accelerator],
    link_s: FloatArray,
    tensor_cores: Sequence[int],
    vector_cores: Sequence[int],
) -> ModeEstimate:
    """Estimate all operators on some cores of each accelerator."""
    count = len(table.operators)
    clock_hz = _column(accelerators, "sustained_clock_hz")
    gemm = gemm_table(table.gemms, accelerators, tensor_cores)
    compulsory = ELEMENT_BYTES * _operand_elements(table.gemms)

    def of_products(values: FloatArray) -> FloatArray:
        return _per_operator(table.gemm_owner, values, count)

    def of_works(values: FloatArray) -> FloatArray:
        return _per_operator(table.vector_owner, values, count)

    tc_s = of_products(gemm[:, :, Column.ARRAY_CYCLES]) / clock_hz
    lanes = np.array(vector_cores)[:, np.newaxis] * _column(accelerators, "pe_vc")
    vc_s = of_works(vector_cycles(table.elements, table.lane_cycles, lanes)) / clock_hz
    overflows = table.row_bytes > _column(accelerators, "l2_vc_bytes")
    row_reads = of_works(table.reread_bytes * overflows)
    core_bytes = gemm[:, :, Column.GLB_READ_BYTES] + gemm[:, :, Column.GLB_WRITE_BYTES]
    glb_bytes = table.traffic_bytes + row_reads + of_products(core_bytes - compulsory)
    glb_s = glb_bytes / (_column(accelerators, "glb_bytes_per_cycle") * clock_hz)
    blocked = gemm[:, :, Column.HBM_EXTRA_BYTES] * table.gemm_blocked
    hbm_bytes = table.traffic_bytes + row_reads + of_products(blocked)
    hbm_s = hbm_bytes / _column(accelerators, "sustained_hbm_bytes_per_s")
    link_s = np.broadcast_to(link_s, tc_s.shape)
    busy_s = np.maximum.reduce([tc_s, vc_s, glb_s, hbm_s, link_s])
    overhead_s = np.array([[chip.calibration.operator_overhead_s] for chip in accelerators])
    joules = energy_per_event(accelerators)
    # What the cores move in the global buffer, and what passes between it and the HBM.
    energy_j = (
        table.macs * joules.mac_j
        + of_works(np.broadcast_to(table.elements * table.lane_cycles, overflows.shape))
        * joules.lane_cycle_j
        + of_products(gemm[:, :, Column.L2_BYTES]) * joules.l2_tc_j_per_byte
        + (glb_bytes + hbm_bytes) * joules.glb_j_per_byte
        + hbm_bytes * joules.hbm_j_per_byte
        + table.link_bytes * (link_s > 0.0) * joules.network_j_per_byte
    )
    return ModeEstimate(
        busy_s + overhead_s * table.has_work, tc_s, vc_s, glb_s, hbm_s, link_s, energy_j
    )


def _operand_elements(gemms: IntArray) -> FloatArray:
    """Elements of both operands and the result of each product."""
    m, n, k, batch = gemms.astype(np.float64).T
    return np.asarray(batch * (m * k + k * n + m * n), dtype=np.float64)
