"""Seconds, traffic and joules of every operator of a graph, on one core and on all cores.

An operator takes the largest of its tensor-core, vector-core, global-buffer and HBM times (all
overlap), plus the chip's constant per operator. HBM traffic is what the operator reads and writes,
plus what the blocking of a product and a reduction over long rows read again; several products in
one fused operator keep their intermediates on the chip. Global-buffer traffic is the same tensors
passing through, plus the re-reads of the tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.gemm_kernel import ELEMENT_BYTES
from phaze_opt.estimator.operator_table import OperatorTable, operator_table
from phaze_opt.estimator.tensor_core import Column, gemm_table
from phaze_opt.estimator.vector_core import vector_cycles
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import collective_cost
from phaze_opt.workload.graph import OperatorGraph

RESOURCES = ("compute", "lanes", "glb", "hbm", "link", "overhead")
"""What can bind an operator; the last is the chip's constant per operator."""

ENERGY_LEVELS = ("arithmetic", "registers", "l2", "glb", "hbm", "network")
"""Where energy goes."""


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
    energy_by_level_j
        Dynamic energy of one execution; a last axis over `ENERGY_LEVELS` is added.
    """

    latency_s: FloatArray
    tc_s: FloatArray
    vc_s: FloatArray
    glb_s: FloatArray
    hbm_s: FloatArray
    link_s: FloatArray
    energy_by_level_j: FloatArray

    @property
    def energy_j(self) -> FloatArray:
        """Dynamic energy of one execution, all levels together."""
        return np.asarray(self.energy_by_level_j.sum(axis=-1))

    def binding(self) -> list[str]:
        """Name what binds each operator (one of `RESOURCES`); not for tables."""
        return [RESOURCES[index] for index in self.binding_index()]

    def binding_index(self) -> IntArray:
        """Return the same as indices into `RESOURCES`."""
        busy = np.stack([self.tc_s, self.vc_s, self.glb_s, self.hbm_s, self.link_s])
        constant = self.latency_s - busy.max(axis=0)
        return np.asarray(np.argmax(np.vstack([busy, constant]), axis=0))

    def rows(self, which: int | slice) -> ModeEstimate:
        """Take one accelerator, or some, out of a table."""
        return ModeEstimate(*(values[which] for values in self.arrays()))

    def arrays(self) -> list[FloatArray]:
        """List the arrays in the order of the fields."""
        return [getattr(self, entry.name) for entry in fields(self)]


@dataclass(frozen=True, eq=False)
class GraphEstimate:
    """Both modes of every operator of a graph, on one accelerator or on many."""

    one_core: ModeEstimate
    all_cores: ModeEstimate


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
    return GraphEstimate(table.one_core.rows(0), table.all_cores.rows(0))


def estimate_each(
    graphs: Sequence[OperatorGraph],
    accelerator: Accelerator,
    cluster: Cluster,
    tensor_parallel: int = 1,
) -> list[GraphEstimate]:
    """Estimate several graphs of one tensor-parallel width, each as `estimate` does, bit for bit.

    All at once: on the few operators of a layer, calls cost more than arithmetic.

    Parameters
    ----------
    graphs
        Any number of them.
    accelerator, cluster, tensor_parallel
        As for `estimate`.

    Raises
    ------
    InputError
        As `estimate`.
    """
    joined = OperatorGraph(tuple(operator for graph in graphs for operator in graph.operators))
    every = estimate(joined, accelerator, cluster, tensor_parallel)
    ends = itertools.accumulate(len(graph.operators) for graph in graphs)
    parts = [slice(end - len(g.operators), end) for end, g in zip(ends, graphs, strict=True)]
    return [GraphEstimate(every.one_core.rows(p), every.all_cores.rows(p)) for p in parts]


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
    table = operator_table(graph)
    communication = _communication(table, cluster, tensor_parallel)
    count = len(accelerators)
    # Both modes in one table: half the calls.
    both = _mode(
        table,
        [*accelerators, *accelerators],
        communication,
        [1] * count + [chip.num_tc for chip in accelerators],
        [1] * count + [chip.num_vc for chip in accelerators],
    )
    return GraphEstimate(both.rows(slice(count)), both.rows(slice(count, None)))


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
    table = operator_table(graph)
    mode = _mode(
        table,
        [accelerator],
        _communication(table, cluster, 1),
        [min(cores, accelerator.num_tc)],
        [min(cores, accelerator.num_vc)],
    )
    return mode.rows(0)


def _communication(
    table: OperatorTable, cluster: Cluster, tensor_parallel: int
) -> tuple[FloatArray, FloatArray]:
    """Return network seconds, and bytes that a device sends, of each operator.

    Both are zero for operators that do not communicate.
    """
    seconds, sent_bytes = np.zeros(len(table.operators)), np.zeros(len(table.operators))
    for index, operator in enumerate(table.operators):
        if operator.collective is not None:
            kind, size_bytes = operator.collective.kind, operator.collective.size_bytes
            cost = collective_cost(kind, size_bytes, tensor_parallel, cluster)
            seconds[index], sent_bytes[index] = cost.time_s, sum(cost.bytes_by_level)
    return seconds, sent_bytes


def _column(accelerators: Sequence[Accelerator], name: str) -> FloatArray:
    """One property of all accelerators, of shape (accelerators, 1)."""
    values = [getattr(accelerator, name) for accelerator in accelerators]
    return np.array(values, dtype=np.float64)[:, np.newaxis]


def _per_operator(
    owner: IntArray, rounds: Sequence[IntArray], values: FloatArray, operators: int
) -> FloatArray:
    """Sum columns by the operator that owns them.

    In order, so that the bits do not depend on how many accelerators there are.

    Parameters
    ----------
    owner : (works,)
    rounds
        Indices of works with different owners, see `OperatorTable`.
    values : (accelerators, works)

    Returns
    -------
    sums : (accelerators, operators)
    """
    sums = np.zeros((len(values), operators))
    for works in rounds:
        sums[:, owner[works]] += values[:, works]
    return sums


@dataclass(frozen=True, eq=False)
class _Traffic:
    """Bytes that each operator moves; every array has shape (accelerators, operators)."""

    l2_read: FloatArray
    glb_read: FloatArray
    glb_write: FloatArray
    hbm_read: FloatArray
    hbm_write: FloatArray


def _traffic(
    table: OperatorTable, accelerators: Sequence[Accelerator], gemm: FloatArray
) -> _Traffic:
    """Add what tiles, blocks and long rows read again to the compulsory traffic.

    Parameters
    ----------
    gemm : (accelerators, products, len(Column))
    """
    count = len(table.operators)

    def of_products(values: FloatArray) -> FloatArray:
        return _per_operator(table.gemm_owner, table.gemm_rounds, values, count)

    def of_vector_works(values: FloatArray) -> FloatArray:
        return _per_operator(table.vector_owner, table.vector_rounds, values, count)

    m, n, k, batch = table.gemms.astype(np.float64).T
    operands, results = ELEMENT_BYTES * batch * (m * k + k * n), ELEMENT_BYTES * batch * m * n
    overflows = table.row_bytes > _column(accelerators, "l2_vc_bytes")
    reads = table.read_bytes + of_vector_works(table.reread_bytes * overflows)
    return _Traffic(
        l2_read=of_products(gemm[:, :, Column.L2_BYTES]),
        glb_read=reads + of_products(gemm[:, :, Column.GLB_READ_BYTES] - operands),
        glb_write=table.write_bytes + of_products(gemm[:, :, Column.GLB_WRITE_BYTES] - results),
        hbm_read=reads + of_products(gemm[:, :, Column.HBM_EXTRA_BYTES] * table.gemm_blocked),
        hbm_write=np.broadcast_to(table.write_bytes, reads.shape),
    )


def _mode(
    table: OperatorTable,
    accelerators: Sequence[Accelerator],
    communication: tuple[FloatArray, FloatArray],
    tensor_cores: Sequence[int],
    vector_cores: Sequence[int],
) -> ModeEstimate:
    """Estimate all operators on some cores of each accelerator."""
    count = len(table.operators)
    clock_hz = _column(accelerators, "sustained_clock_hz")
    gemm = gemm_table(table.gemms, accelerators, tensor_cores)
    tc_cycles = _per_operator(
        table.gemm_owner, table.gemm_rounds, gemm[:, :, Column.ARRAY_CYCLES], count
    )
    tc_s = tc_cycles / clock_hz
    lanes = np.array(vector_cores)[:, np.newaxis] * _column(accelerators, "pe_vc")
    vc_cycles = vector_cycles(table.elements, table.lane_cycles, lanes)
    vc_s = _per_operator(table.vector_owner, table.vector_rounds, vc_cycles, count) / clock_hz
    traffic = _traffic(table, accelerators, gemm)
    glb_bytes = traffic.glb_read + traffic.glb_write
    glb_s = glb_bytes / (_column(accelerators, "glb_bytes_per_cycle") * clock_hz)
    hbm_bytes = traffic.hbm_read + traffic.hbm_write
    hbm_s = hbm_bytes / _column(accelerators, "sustained_hbm_bytes_per_s")
    link_s = np.broadcast_to(communication[0], tc_s.shape)
    busy_s = np.maximum.reduce([tc_s, vc_s, glb_s, hbm_s, link_s])
    overhead_s = np.array([[chip.calibration.operator_overhead_s] for chip in accelerators])
    return ModeEstimate(
        latency_s=busy_s + overhead_s * table.has_work,
        tc_s=tc_s,
        vc_s=vc_s,
        glb_s=glb_s,
        hbm_s=hbm_s,
        link_s=link_s,
        energy_by_level_j=_energy_by_level_j(table, accelerators, traffic, communication[1]),
    )


def _energy_by_level_j(
    table: OperatorTable,
    accelerators: Sequence[Accelerator],
    traffic: _Traffic,
    sent_bytes: FloatArray,
) -> FloatArray:
    """Dynamic energy by `ENERGY_LEVELS`, of shape (accelerators, operators, levels).

    What the cores read was filled into their L2 and is read from there into the arrays; what passes
    between HBM and cores is also written to and read from the global buffer once.
    """
    joules = energy_per_event(accelerators)
    lane_cycles = np.zeros(len(table.operators))
    np.add.at(lane_cycles, table.vector_owner, table.elements * table.lane_cycles)
    glb_reads, glb_writes = (
        traffic.glb_read + traffic.hbm_write,
        traffic.glb_write + traffic.hbm_read,
    )
    levels = [
        table.macs * joules.mac_j + lane_cycles * joules.lane_cycle_j,
        table.macs * joules.mac_registers_j + lane_cycles * joules.lane_registers_j,
        (traffic.l2_read + traffic.glb_write) * joules.l2_tc_read_j_per_byte
        + traffic.glb_read * joules.l2_tc_write_j_per_byte,
        glb_reads * joules.glb_read_j_per_byte + glb_writes * joules.glb_write_j_per_byte,
        (traffic.hbm_read + traffic.hbm_write) * joules.hbm_j_per_byte,
        sent_bytes * joules.network_j_per_byte,
    ]
    return np.stack(np.broadcast_arrays(*levels), axis=-1)
