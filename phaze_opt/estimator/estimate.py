"""Seconds and joules of every operator of a graph, on one core and on all cores.

An operator takes the largest of its tensor-core, vector-core, global-buffer, HBM and network times,
which all overlap, plus the chip's constant per operator. The tensor cores of a fused attention core
also wait for a part of its lanes' time, see `attention`. `operator_work` counts seconds and bytes,
`traffic` the joules.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.attention import masked_work
from phaze_opt.estimator.attention_tiles import attention_on_pools
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.operator_table import OperatorTable, array_cycles, operator_table
from phaze_opt.estimator.operator_work import (
    ChipColumn,
    WorkTable,
    binding_resources,
    operator_work,
)
from phaze_opt.estimator.power_limit import limited_seconds_per_mac
from phaze_opt.estimator.tensor_core import Pools, pools_of, products_on_pools
from phaze_opt.estimator.traffic import Traffic, energy_by_level_j
from phaze_opt.estimator.vector_core import kept_row_bytes
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.token_exchange import operator_cost
from phaze_opt.on_demand import cached_property
from phaze_opt.workload.graph import OperatorGraph, side_by_side

RESOURCES = ("compute", "lanes", "glb", "hbm", "link", "overhead")
"""What can bind an operator: PE arrays, vector lanes, global buffer, HBM, network, or the chip's
constant per operator; in the order of `operator_work.binding_resources`."""


@dataclass(frozen=True, eq=False)
class ModeSeconds:
    """Seconds of all operators of a graph in one mode: on one core, or on all cores of their type.

    Every array has shape (operators,), or (accelerators, operators) in a table.

    Attributes
    ----------
    latency_s
        The longest of the five times below, plus the chip's constant per operator.
    tc_s, vc_s, glb_s, hbm_s, link_s
        Time that the tensor cores, the vector cores, the global buffer, the HBM and the network are
        busy; ``tc_s`` includes ``exposed_lanes_s``.
    exposed_lanes_s
        Time that the tensor cores of a fused attention core wait for its lanes.
    """

    latency_s: FloatArray
    tc_s: FloatArray
    vc_s: FloatArray
    glb_s: FloatArray
    hbm_s: FloatArray
    link_s: FloatArray
    exposed_lanes_s: FloatArray

    @property
    def busy_s(self) -> FloatArray:
        """Time of the resource that is busy longest: latency without the constant per operator."""
        busy = [self.tc_s, self.vc_s, self.glb_s, self.hbm_s, self.link_s]
        return np.asarray(np.maximum.reduce(busy))

    @property
    def overhead_s(self) -> FloatArray:
        """The chip's constant per operator; 0 for an operator without work."""
        return self.latency_s - self.busy_s

    def with_seconds(self, **seconds: FloatArray) -> Self:
        """Return operators that keep some resources busy for other times, with what follows.

        Parameters
        ----------
        seconds
            Other values of the attributes, without ``latency_s``.
        """
        changed = replace(self, **seconds)
        return replace(changed, latency_s=changed.busy_s + self.overhead_s)

    def binding_index(self) -> IntArray:
        """Return what binds each operator, as indices into `RESOURCES`.

        Tensor cores that wait for lanes most of their time are bound by the lanes.
        """
        busy_s = [self.tc_s, self.vc_s, self.glb_s, self.hbm_s, self.link_s]
        times_s = [np.ravel(each) for each in (self.latency_s, *busy_s, self.exposed_lanes_s)]
        return binding_resources(*times_s).reshape(self.latency_s.shape)

    def rows(self, which: int | slice | IntArray | tuple[int | slice, slice]) -> Self:
        """Return one row of every array, or some rows, or a part of them."""
        return type(self)(*(values[which] for values in self.arrays()))

    def arrays(self) -> list[FloatArray]:
        """Return the arrays in the order of the fields."""
        return list(vars(self).values())


@dataclass(frozen=True, eq=False)
class ModeEstimate(ModeSeconds):
    """Seconds and joules of all operators of a graph in one mode.

    Attributes
    ----------
    energy_by_level_j
        Dynamic energy of one execution, with a last axis over `traffic.ENERGY_LEVELS`.
    """

    energy_by_level_j: FloatArray

    @property
    def energy_j(self) -> FloatArray:
        """Dynamic energy of one execution, all levels together."""
        return np.asarray(self.energy_by_level_j.sum(axis=-1))


@dataclass(frozen=True, eq=False)
class GraphEstimate:
    """Both modes of every operator of a graph, on one accelerator or on many."""

    one_core: ModeEstimate
    all_cores: ModeEstimate

    @cached_property
    def link_s(self) -> float:
        """Seconds for which all operators of one accelerator use the network."""
        return float(self.all_cores.link_s.sum())


def estimate_each(
    graphs: Sequence[OperatorGraph],
    accelerator: Accelerator,
    cluster: Cluster,
    tensor_parallel: int | Sequence[int] = 1,
) -> list[GraphEstimate]:
    """Do as `estimate_jointly` for one accelerator, and return the estimates of all graphs."""
    joint = estimate_jointly(graphs, [accelerator], cluster, tensor_parallel)
    return [joint.of(0, graph) for graph in range(len(graphs))]


@dataclass(frozen=True, eq=False)
class JointEstimate:
    """Several graphs on several accelerators, estimated as one graph.

    Attributes
    ----------
    both
        All operators, (accelerators, operators).
    parts
        Where the operators of every graph are.
    link_s
        For how long each graph uses the network, which is the same on all accelerators.
    """

    both: GraphEstimate
    parts: tuple[slice, ...]
    link_s: tuple[float, ...]

    def of(self, accelerator: int, graph: int) -> GraphEstimate:
        """Return the estimate of one graph on one accelerator."""
        which = accelerator, self.parts[graph]
        return GraphEstimate(self.both.one_core.rows(which), self.both.all_cores.rows(which))


def estimate_jointly(
    graphs: Sequence[OperatorGraph],
    accelerators: Sequence[Accelerator],
    cluster: Cluster,
    tensor_parallel: int | Sequence[int] = 1,
) -> JointEstimate:
    """Estimate every operator of some graphs on one core and on all cores of its type.

    The result equals estimates of each graph alone on each accelerator alone, bit for bit. They are
    estimated as one: with the few operators of a layer, calls cost more than arithmetic.

    Parameters
    ----------
    graphs
        Operators of one device at the tensor degree.
    accelerators
        The chips.
    cluster
        Network for the graphs' collectives.
    tensor_parallel
        Devices in the group of a collective, of all graphs or of each; they are neighbours on the
        innermost level.

    Raises
    ------
    InputError
        If an operator kind is unknown, or a private buffer cannot hold one tile.
    """
    if isinstance(tensor_parallel, int):
        tensor_parallel = [tensor_parallel] * len(graphs)
    joined = _joined(tuple(graphs), cluster, tuple(tensor_parallel))
    both = _both_modes(joined.table, accelerators, joined.communication)
    return JointEstimate(both, joined.parts, joined.link_s)


def link_seconds(
    graphs: Sequence[OperatorGraph], cluster: Cluster, tensor_parallel: int
) -> tuple[float, ...]:
    """Return for how long each of some graphs uses the network, on any accelerator.

    Parameters
    ----------
    graphs, cluster, tensor_parallel
        As for `estimate_jointly`.
    """
    return _joined(tuple(graphs), cluster, (tensor_parallel,) * len(graphs)).link_s


def communication_of_graphs(
    graphs: Sequence[OperatorGraph], cluster: Cluster, tensor_parallel: int
) -> tuple[FloatArray, FloatArray]:
    """Return `communication_of` all operators of some graphs: all that they take of a network.

    Parameters
    ----------
    graphs, cluster, tensor_parallel
        As for `estimate_jointly`.
    """
    return _joined(tuple(graphs), cluster, (tensor_parallel,) * len(graphs)).communication


@dataclass(frozen=True, eq=False)
class _JoinedGraphs:
    """Several graphs as one: its table, what `communication_of` gives, and the same of each."""

    table: OperatorTable
    communication: tuple[FloatArray, FloatArray]
    parts: tuple[slice, ...]
    link_s: tuple[float, ...]


@lru_cache(maxsize=512)
def _joined(
    graphs: tuple[OperatorGraph, ...], cluster: Cluster, tensor_parallel: tuple[int, ...]
) -> _JoinedGraphs:
    """Join the operators of some graphs, cached: all designs of a study have the same."""
    ends = itertools.accumulate(len(graph.operators) for graph in graphs)
    each = [
        communication_of(operator_table(graph), cluster, tensor)
        for graph, tensor in zip(graphs, tensor_parallel, strict=True)
    ]
    none = np.zeros(0)
    link_s = np.concatenate([none, *(seconds for seconds, _ in each)])
    sent_bytes = np.concatenate([none, *(sent for _, sent in each)])
    parts = [slice(end - len(g.operators), end) for end, g in zip(ends, graphs, strict=True)]
    by_graph = [float(link_s[part].sum()) for part in parts]
    return _JoinedGraphs(
        operator_table(side_by_side(graphs)), (link_s, sent_bytes), tuple(parts), tuple(by_graph)
    )


def estimate_table(
    graph: OperatorGraph,
    accelerators: Sequence[Accelerator],
    cluster: Cluster,
    tensor_parallel: int = 1,
) -> GraphEstimate:
    """Estimate every operator of a graph on many accelerators.

    Products are estimated once per distinct pool of tensor cores, whatever else the accelerators
    differ in.

    Parameters
    ----------
    graph, cluster, tensor_parallel
        As for `estimate_each`.
    accelerators
        Chips; each is one row of every array of the result.

    Raises
    ------
    InputError
        As `estimate_each`.
    """
    table = operator_table(graph)
    return _both_modes(table, accelerators, communication_of(table, cluster, tensor_parallel))


def _both_modes(
    table: OperatorTable,
    accelerators: Sequence[Accelerator],
    communication: tuple[FloatArray, FloatArray],
) -> GraphEstimate:
    """Estimate both modes in one table: half the calls."""
    count = len(accelerators)
    both = estimate_mode(
        table,
        [*accelerators, *accelerators],
        communication,
        [1] * count + [chip.num_tc for chip in accelerators],
        [1] * count + [chip.num_vc for chip in accelerators],
    )
    return GraphEstimate(both.rows(slice(count)), both.rows(slice(count, None)))


def estimate_on_cores(graph: OperatorGraph, accelerator: Accelerator, cores: int) -> ModeEstimate:
    """Estimate every operator of a graph without collectives on some cores of its type.

    Parameters
    ----------
    graph, accelerator
        As for `estimate_each`.
    cores
        Cores that an operator may use, at least 1; all of its type where there are fewer.

    Raises
    ------
    InputError
        As `estimate_each`.
    """
    return with_energy(graph, accelerator, work_on_cores(graph, accelerator, cores))


def work_on_cores(graph: OperatorGraph, accelerator: Accelerator, cores: int) -> WorkOnCores:
    """Do as `estimate_on_cores` without the energy."""
    none = np.zeros(len(graph.operators))
    tensor_cores, vector_cores = [min(cores, accelerator.num_tc)], [min(cores, accelerator.num_vc)]
    table, pools = operator_table(graph), pools_of([accelerator], tensor_cores)
    on_pools = work_on_pools(table, pools).rows(pools.which)
    return estimate_work(table, [accelerator], none, on_pools, tensor_cores, vector_cores)


def with_energy(graph: OperatorGraph, accelerator: Accelerator, work: WorkOnCores) -> ModeEstimate:
    """Add the energy to what `work_on_cores` gives."""
    none = np.zeros(len(graph.operators))
    table = operator_table(graph)
    energy_j = energy_by_level_j(table, [accelerator], work.traffic, none, work.shares)
    return ModeEstimate(**vars(work.seconds), energy_by_level_j=energy_j).rows(0)


def communication_of(
    table: OperatorTable, cluster: Cluster, tensor_parallel: int
) -> tuple[FloatArray, FloatArray]:
    """Return network seconds, and bytes that a device sends, of each operator.

    Both are zero for operators that do not communicate.
    """
    seconds, sent_bytes = np.zeros(len(table.operators)), np.zeros(len(table.operators))
    for index, operator in enumerate(table.operators):
        if operator.collective is not None:
            cost = operator_cost(operator.collective, tensor_parallel, cluster)
            seconds[index], sent_bytes[index] = cost.time_s, sum(cost.bytes_by_level)
    return seconds, sent_bytes


def estimate_mode(
    table: OperatorTable,
    accelerators: Sequence[Accelerator],
    communication: tuple[FloatArray, FloatArray],
    tensor_cores: Sequence[int],
    vector_cores: Sequence[int],
) -> ModeEstimate:
    """Estimate all operators on some cores of each accelerator.

    Parameters
    ----------
    communication : two arrays of shape (operators,)
        Seconds, and bytes that a device sends, see `communication_of`.
    tensor_cores, vector_cores
        Cores of each accelerator that an operator may use.
    """
    link_s, sent_bytes = communication
    pools = pools_of(accelerators, tensor_cores)
    on_pools = work_on_pools(table, pools).rows(pools.which)
    work = estimate_work(table, accelerators, link_s, on_pools, tensor_cores, vector_cores)
    energy_j = energy_by_level_j(table, accelerators, work.traffic, sent_bytes, work.shares)
    return ModeEstimate(**vars(work.seconds), energy_by_level_j=energy_j)


@dataclass(frozen=True, eq=False)
class PoolWork:
    """What depends on nothing but the tensor-core pool; the first axis of arrays are pools.

    Attributes
    ----------
    products : (pools, distinct products, len(GemmColumn))
        See `tensor_core.products_on_pools`.
    attention : (pools, fused attention cores, len(CoreColumn))
        See `attention_tiles.attention_on_pools`.
    """

    products: FloatArray
    attention: FloatArray

    def rows(self, which: IntArray) -> PoolWork:
        """Return the rows of some pools, for example of the one of each accelerator."""
        return PoolWork(self.products[which], self.attention[which])


def work_on_pools(table: OperatorTable, pools: Pools) -> PoolWork:
    """Estimate the products and the fused attention cores of a graph on every distinct pool."""
    return PoolWork(
        products_on_pools(table.distinct_gemms, pools), attention_on_pools(table, pools)
    )


@dataclass(frozen=True, eq=False)
class WorkOnCores:
    """What operators do on some cores of each accelerator.

    Attributes
    ----------
    seconds, traffic
        Times, and the bytes that are moved in them.
    shares : (accelerators, operators)
        Share of each operator that no attention mask hides; ``None`` for all of it.
    """

    seconds: ModeSeconds
    traffic: Traffic
    shares: FloatArray | None


def estimate_work(
    table: OperatorTable,
    accelerators: Sequence[Accelerator],
    link_s: FloatArray,
    on_pools: PoolWork,
    tensor_cores: Sequence[int] | IntArray,
    vector_cores: Sequence[int] | IntArray,
) -> WorkOnCores:
    """Estimate the times and the traffic of all operators on some cores of each accelerator.

    Parameters
    ----------
    table, accelerators, tensor_cores, vector_cores
        As for `estimate_mode`.
    link_s : (operators,)
        Seconds on the network.
    on_pools
        Work on the pool of each accelerator.
    """
    elements, lane_cycles = table.elements[np.newaxis], table.lane_cycles[np.newaxis]
    shares = None
    if table.attention_owner.size > 0:
        masked = masked_work(table, accelerators, on_pools.attention)
        elements, lane_cycles = masked.elements, np.atleast_2d(masked.lane_cycles)
        shares = masked.shares
    clock_hz = chip_column(accelerators, "sustained_clock_hz")
    columns = {
        ChipColumn.CLOCK_HZ: clock_hz,
        ChipColumn.ARRAY_CLOCK_HZ: chip_column(accelerators, "array_clock_hz"),
        ChipColumn.LANES: np.array(vector_cores)[:, np.newaxis]
        * chip_column(accelerators, "pe_vc"),
        ChipColumn.L2_VC_BYTES: chip_column(accelerators, "l2_vc_bytes"),
        ChipColumn.GLB_BYTES_PER_S: chip_column(accelerators, "glb_bytes_per_cycle") * clock_hz,
        ChipColumn.HBM_BYTES_PER_S: chip_column(accelerators, "sustained_hbm_bytes_per_s"),
        ChipColumn.VECTOR_BYTES_PER_S: np.array(vector_cores)[:, np.newaxis]
        * chip_column(accelerators, "vector_core_bytes_per_s"),
        ChipColumn.SCAN_BYTES_PER_S: np.array(vector_cores)[:, np.newaxis]
        * chip_column(accelerators, "scan_core_bytes_per_s"),
        ChipColumn.OVERHEAD_S: chip_column(accelerators, "calibration.operator_overhead_s"),
        ChipColumn.ATTENTION_OVERLAP: chip_column(accelerators, "calibration.attention_overlap"),
        ChipColumn.ATTENTION_BACKWARD_OVERLAP: chip_column(
            accelerators, "attention_backward_overlap"
        ),
        ChipColumn.LIMITED_SECONDS_PER_MAC: limited_seconds_per_mac(accelerators, tensor_cores),
        ChipColumn.KEPT_ROW_BYTES: kept_row_bytes(
            chip_column(accelerators, "glb_bytes"),
            np.array(vector_cores)[:, np.newaxis],
            is_managed=chip_column(accelerators, "concurrent_operators"),
        ),
    }
    work = operator_work(
        np.hstack([columns[column] for column in ChipColumn]),
        on_pools.products,
        table.gemm_owner,
        table.gemm_kind,
        table.operand_bytes,
        table.result_bytes,
        table.gemm_blocked,
        on_pools.attention,
        table.attention_owner,
        table.attention_direction,
        table.macs_per_score,
        array_cycles(table.product_macs, accelerators),
        elements,
        lane_cycles,
        table.vector_owner,
        table.row_bytes,
        table.reread_bytes,
        table.cached_bytes,
        table.read_bytes,
        table.write_bytes,
        table.scan_bytes,
        table.has_work,
        link_s,
    )
    without_hbm = np.isinf(columns[ChipColumn.HBM_BYTES_PER_S][:, 0])
    if without_hbm.any():
        # Every operand is in the global buffer.
        work[WorkTable.HBM_READ_BYTES :, without_hbm] = 0.0
    seconds = ModeSeconds(*work[: WorkTable.L2_READ_BYTES])
    traffic = Traffic(*work[WorkTable.L2_READ_BYTES :])
    return WorkOnCores(seconds, traffic, shares)
