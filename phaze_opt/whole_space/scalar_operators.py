"""The least seconds of the operators of a pass, one at a time; see `scalar_bounds`.

A box of chips is bounded by the peak rates of all cores together; one chip by the faster of two
modes, on one core or on all cores of its type. Busy times are not rounded, and every resource
counts the least that an operator uses, so that the bounds also hold for operators that share a
bandwidth and are slowed down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import LANE_VALUE_BYTES, AttentionKernel
from phaze_opt.hardware.energy import mac_energy_share
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.token_exchange import operator_cost
from phaze_opt.on_demand import cached_property
from phaze_opt.precision import BF16, PRECISIONS
from phaze_opt.whole_space.scalar_products import (
    TensorCores,
    blocked_bytes,
    product_work,
    score_work,
)
from phaze_opt.whole_space.scalar_rates import Rates, TensorGroup
from phaze_opt.workload.graph import Collective, Gemm, OperatorGraph
from phaze_opt.workload.recurrences import is_scan_kernel


@dataclass(frozen=True)
class OperatorTimes:
    """The seconds of the operators of a pass on a chip; every list has one entry per operator.

    Attributes
    ----------
    beside_s
        Latency on one core, beside other operators.
    alone_s
        Latency on all cores; infinite for an operator without cores, and for a box of chips.
    shared_s
        For every resource: time for which an operator beside others occupies all of it.
    on_chip_s, hbm_s
        On all cores: time of every resource but the HBM, and of the HBM.
    once_s
        Time of the HBM if every tensor passes it once.
    overhead_s
        Constant that is added to the longer of ``on_chip_s`` and ``hbm_s``.
    """

    beside_s: list[float]
    alone_s: list[float]
    shared_s: tuple[list[float], ...]
    on_chip_s: list[float]
    hbm_s: list[float]
    once_s: list[float]
    overhead_s: list[float]

    @cached_property
    def fastest_s(self) -> list[float]:
        """Latency in the faster mode."""
        return list(map(min, self.beside_s, self.alone_s))

    @property
    def taken_s(self) -> list[float]:
        """Sum over all operators for every resource: alone, an operator occupies all of them."""
        return [math.fsum(map(min, shared_s, self.alone_s)) for shared_s in self.shared_s]


def roofline_times(graph: OperatorGraph, rates: Rates, group: TensorGroup) -> OperatorTimes:
    """Bound the operators on every chip that has the peak rates of this one."""
    calibration, operators = rates.calibration, graph.operators
    visible = tuple([node.attention.visible if node.attention else 0.0 for node in operators])
    unit_rate = rates.exponentials_per_cycle
    cores = rates.all_cores
    lane_cycles = _lane_cycles(
        graph, rates.vector_cores, rates.lanes, unit_rate, visible, rounds=False
    )
    vector_s = [cycles / rates.clock_hz for cycles in lane_cycles]
    macs_per_s = cores.number * cores.pe_x * cores.pe_y * rates.array_clock_hz
    tensor_s = []
    for operator, lanes_s in zip(operators, vector_s, strict=True):
        if operator.attention is None:
            limited = sum(gemm.flops / 2 / cores.rate_of(gemm) for gemm in operator.gemms)
            seconds = limited / macs_per_s
        else:
            share = operator.attention.visible / operator.attention.elements
            macs = sum(gemm.flops / 2 for gemm in operator.gemms)
            seconds = macs / macs_per_s * share * rates.slowdown(operator)
            seconds += (1.0 - rates.overlap(operator)) * lanes_s
            limited = macs * mac_energy_share(operator.gemms[0].precision) * share
        tensor_s.append(max(seconds, _limited_s(limited, cores, rates)))
    moved_bytes = _moved_bytes(graph)
    glb_s = [moved / rates.glb_bytes_per_s for moved in moved_bytes]
    hbm_s = [moved / rates.hbm_bytes_per_s for moved in moved_bytes]
    link_s = _link_s(graph, calibration, group)
    on_chip_s = list(map(max, tensor_s, vector_s, glb_s, link_s))
    overhead_s = _overheads_s(graph, calibration)
    return OperatorTimes(
        beside_s=_latency_s(on_chip_s, hbm_s, overhead_s),
        alone_s=[math.inf for _ in graph.operators],
        shared_s=(tensor_s, vector_s, glb_s, hbm_s, link_s),
        on_chip_s=on_chip_s,
        hbm_s=hbm_s,
        once_s=hbm_s,
        overhead_s=overhead_s,
    )


class ExtraBytes(NamedTuple):
    """HBM bytes of every operator beyond compulsory traffic, on one core and on all cores."""

    one_core: tuple[float, ...]
    all_cores: tuple[float, ...]


def extra_bytes(graph: OperatorGraph, rates: Rates, glb_bytes: int) -> ExtraBytes:
    """Return the extra HBM traffic with a global buffer in which no tensor stays."""
    one_core = _extra_bytes(graph, glb_bytes / rates.all_cores.number)
    return ExtraBytes(one_core, _extra_bytes(graph, float(glb_bytes)))


@lru_cache(maxsize=1024)
def no_extra_bytes(graph: OperatorGraph) -> ExtraBytes:
    """Return the extra HBM traffic with a global buffer that holds all blocks of products."""
    zeros = (0.0,) * len(graph.operators)
    return ExtraBytes(zeros, zeros)


def chip_times(
    graph: OperatorGraph, rates: Rates, extra: ExtraBytes, group: TensorGroup
) -> OperatorTimes:
    """Bound the operators on one chip, see `roofline_times`; infinite if no tile fits.

    On all cores an operator runs alone, and occupies every resource. On one core it occupies one of
    the cores of each of its types, and the memories for the bytes that it moves.
    """
    one_core = _on_cores(graph, rates, rates.one_core, 1, group)
    all_cores = _on_cores(graph, rates, rates.all_cores, rates.vector_cores, group)
    beside_hbm_s = _with_extra_s(one_core, extra.one_core, rates)
    alone_hbm_s = _with_extra_s(all_cores, extra.all_cores, rates)
    overhead_s = _overheads_s(graph, rates.calibration)
    beside_s = _latency_s(one_core.on_chip_s, beside_hbm_s, overhead_s)
    alone_s = _latency_s(all_cores.on_chip_s, alone_hbm_s, overhead_s)
    # An operator that needs no core has one mode only.
    for place in _without_cores(graph):
        alone_s[place] = math.inf

    tensor_cores, vector_cores = rates.all_cores.number, rates.vector_cores
    pairs = list(zip(beside_s, graph.operators, strict=True))
    tensor_s = [s / tensor_cores if operator.gemms else 0.0 for s, operator in pairs]
    vector_s = [s / vector_cores if operator.vector else 0.0 for s, operator in pairs]
    return OperatorTimes(
        beside_s=beside_s,
        alone_s=alone_s,
        shared_s=(tensor_s, vector_s, one_core.glb_s, beside_hbm_s, one_core.link_s),
        on_chip_s=all_cores.on_chip_s,
        hbm_s=alone_hbm_s,
        once_s=all_cores.once_s,
        overhead_s=overhead_s,
    )


def _latency_s(
    on_chip_s: Sequence[float], hbm_s: Sequence[float], overhead_s: Sequence[float]
) -> list[float]:
    """Return the latencies of operators."""
    rows = zip(on_chip_s, hbm_s, overhead_s, strict=True)
    return [max(chip_s, memory_s) + constant_s for chip_s, memory_s, constant_s in rows]


@lru_cache(maxsize=1024)
def _overheads_s(graph: OperatorGraph, calibration: Calibration) -> list[float]:
    """Return the constant seconds of every operator that does any work."""
    return [
        calibration.operator_overhead_s if node.gemms or node.vector or node.collective else 0.0
        for node in graph.operators
    ]


def _link_s(graph: OperatorGraph, calibration: Calibration, group: TensorGroup) -> list[float]:
    """Return the exposed seconds on the network, where products hide all chunks but one."""
    sent_s = _sent_s(graph, group.cluster, group.degree)
    if group.chunks == 1:
        return sent_s
    share = calibration.collective_core_share
    exposed = share + (1.0 - share) / group.chunks
    return [
        seconds * exposed if sent is not None and sent.is_tensor_parallel else seconds
        for seconds, sent in zip(sent_s, _sent(graph), strict=True)
    ]


def _sent(graph: OperatorGraph) -> Iterator[Collective | None]:
    """Yield what every operator sends."""
    return (operator.collective for operator in graph.operators)


@lru_cache(maxsize=1024)
def _sent_s(graph: OperatorGraph, cluster: Cluster, degree: int) -> list[float]:
    """Return the seconds of whole collectives on the network."""
    return [
        0.0 if sent is None else operator_cost(sent, degree, cluster).time_s
        for sent in _sent(graph)
    ]


class _Mode(NamedTuple):
    """Operators in one mode, if all blocks of products fit; see `OperatorTimes`."""

    on_chip_s: list[float]
    glb_s: list[float]
    once_s: list[float]
    link_s: list[float]


@lru_cache(maxsize=2**14)
def _on_cores(
    graph: OperatorGraph, rates: Rates, cores: TensorCores, vector_cores: int, group: TensorGroup
) -> _Mode:
    """Bound the operators in one mode, for every size of the global buffer."""
    calibration = rates.calibration
    busy_cycles, glb_bytes, scores = _product_works(graph, cores, rates.attention_kernel)
    unit_rate = rates.exponentials_per_cycle
    lane_cycles = _lane_cycles(graph, vector_cores, rates.lanes, unit_rate, scores)
    again = _read_again_bytes(graph, rates.l2_vc_bytes)
    threads_s = _threads_s(graph, again, vector_cores * rates.vector_core_bytes_per_s)
    lanes_s = [cycles / rates.clock_hz for cycles in lane_cycles]
    scan_rate = vector_cores * rates.scan_core_bytes_per_s
    scanned_s = [moved / scan_rate for moved in _scan_bytes(graph)]
    vector_s = list(map(max, threads_s, scanned_s, lanes_s))
    tensor_s = [cycles / rates.array_clock_hz for cycles in busy_cycles]
    for place, operator in enumerate(graph.operators):
        if operator.attention is None:
            limited = sum(gemm.flops / 2 / cores.rate_of(gemm) for gemm in operator.gemms)
        else:
            share = scores[place] / operator.attention.elements
            # The arrays wait for a part of the lanes' time.
            tensor_s[place] += (1.0 - rates.overlap(operator)) * vector_s[place]
            macs = sum(gemm.flops / 2 for gemm in operator.gemms)
            limited = share * macs * mac_energy_share(operator.gemms[0].precision)
        limited_s = _limited_s(limited, cores, rates)
        tensor_s[place] = max(tensor_s[place], limited_s)
    glb_s = [
        (own + more) / rates.glb_bytes_per_s for own, more in zip(glb_bytes, again, strict=True)
    ]
    once_s = [
        (own + more) / rates.hbm_bytes_per_s
        for own, more in zip(_moved_bytes(graph), again, strict=True)
    ]
    link_s = _link_s(graph, calibration, group)
    return _Mode(list(map(max, tensor_s, vector_s, glb_s, link_s)), glb_s, once_s, link_s)


def _threads_s(graph: OperatorGraph, again: Sequence[float], bytes_per_s: float) -> list[float]:
    """Return the seconds in which the threads of operators without products move their bytes."""
    return [
        (own + more) / bytes_per_s if operator.vector and not operator.gemms else 0.0
        for operator, own, more in zip(graph.operators, _moved_bytes(graph), again, strict=True)
    ]


@lru_cache(maxsize=1024)
def _scan_bytes(graph: OperatorGraph) -> list[float]:
    """Return the bytes of threads of kernels of a state-space scan: every head's, and results."""
    moved = []
    for place, operator in enumerate(graph.operators):
        own_bytes = 0.0
        if is_scan_kernel(operator.id):
            sides = sum(gemm.batch * gemm.k * (gemm.m + gemm.n) for gemm in operator.gemms)
            loaded = BF16.operand_bytes * sides if sides else graph.read_bytes[place]
            own_bytes = float(loaded + graph.write_bytes[place])
        moved.append(own_bytes)
    return moved


def _limited_s(macs: float, cores: TensorCores, rates: Rates) -> float:
    """Return the seconds of products in bf16 at the power limit; 0 if no limit is known."""
    elements = cores.number * cores.pe_x * cores.pe_y
    return macs / (elements * rates.power_limited_clock_hz)


def _with_extra_s(mode: _Mode, extra: Sequence[float], rates: Rates) -> list[float]:
    """Return the seconds of the HBM, with the extra traffic."""
    pairs = zip(mode.once_s, extra, strict=True)
    return [own_s + more / rates.hbm_bytes_per_s for own_s, more in pairs]


@lru_cache(maxsize=1024)
def _without_cores(graph: OperatorGraph) -> list[int]:
    """Return the operators that need no core."""
    return [place for place, node in enumerate(graph.operators) if not (node.gemms or node.vector)]


@lru_cache(maxsize=1024)
def _moved_bytes(graph: OperatorGraph) -> list[float]:
    """Return the compulsory traffic of every operator."""
    return list(map(float, graph.moved_bytes))


@lru_cache(maxsize=2**14)
def _product_works(
    graph: OperatorGraph, cores: TensorCores, kernel: AttentionKernel
) -> tuple[list[float], list[float], tuple[float, ...]]:
    """Return array cycles, bytes through the global buffer, and computed scores of operators."""
    busy_cycles, glb_bytes, computed = [], [], []
    for operator, compulsory in zip(graph.operators, graph.moved_bytes, strict=True):
        cycles, own_bytes, scores = 0.0, float(compulsory), 0.0
        if operator.attention is not None:
            cycles, scores = score_work(operator.attention, operator.gemms, cores, kernel)
        elif operator.gemms:
            own_bytes -= sum(map(_once_bytes, operator.gemms))
            beside_bytes = own_bytes if len(operator.gemms) == 1 else 0.0
            works = [product_work(gemm, cores, beside_bytes) for gemm in operator.gemms]
            cycles = sum(work.busy_cycles for work in works)
            own_bytes += sum(work.glb_bytes for work in works)
        busy_cycles.append(cycles)
        glb_bytes.append(own_bytes)
        computed.append(scores)
    return busy_cycles, glb_bytes, tuple(computed)


def _once_bytes(gemm: Gemm) -> float:
    """Return the bytes of the operands and the results of a batch of products."""
    precision = PRECISIONS[gemm.precision]
    operands = precision.operand_bytes * (gemm.m * gemm.k + gemm.k * gemm.n)
    return float(gemm.batch * (operands + precision.result_bytes * gemm.m * gemm.n))


@lru_cache(maxsize=2**14)
def _extra_bytes(graph: OperatorGraph, glb_bytes: float) -> tuple[float, ...]:
    """Return the HBM traffic of blocked products beyond the compulsory traffic."""
    return tuple(
        [
            blocked_bytes(operator.gemms[0], glb_bytes) - _once_bytes(operator.gemms[0])
            if len(operator.gemms) == 1 and operator.attention is None
            else 0.0
            for operator in graph.operators
        ]
    )


@lru_cache(maxsize=2**14)
def _lane_cycles(
    graph: OperatorGraph,
    cores: int,
    lanes: int,
    unit_rate: float | None,
    scores: tuple[float, ...],
    *,
    rounds: bool = True,
) -> list[float]:
    """Return the cycles of the vector cores.

    Parameters
    ----------
    cores, lanes
        Number of vector cores, and lanes of each.
    unit_rate
        Exponentials per cycle and core, if a special unit computes those of fused attention.
    scores
        Number of computed scores of every operator that is fused attention.
    rounds
        Whether every lane takes whole elements, so that the last round takes as long as a full one.
    """
    lane_cycles = []
    for operator, computed in zip(graph.operators, scores, strict=True):
        cycles = 0.0
        for work in operator.vector:
            row, elements = vector_operator(work.kind), float(work.elements)
            cycles_per_element = row.cycles
            if operator.attention is not None:
                if operator.is_on_scores(work):
                    elements = computed
                if unit_rate is not None and row.exponential_cycles > 0.0:
                    cycles_per_element += lanes / unit_rate - row.exponential_cycles
            per_lane = elements / (cores * lanes)
            cycles += cycles_per_element * (math.ceil(per_lane) if rounds else per_lane)
        lane_cycles.append(cycles)
    return lane_cycles


@lru_cache(maxsize=2**12)
def _read_again_bytes(graph: OperatorGraph, l2_bytes: int) -> list[float]:
    """Return the bytes of rows too long for the private buffer that operators read again.

    Operators with products read none again.
    """
    return [
        0.0
        if operator.gemms
        else float(
            sum(
                (vector_operator(work.kind).reads - 1) * BF16.result_bytes * work.elements
                for work in operator.vector
                if LANE_VALUE_BYTES * work.columns > l2_bytes
            )
        )
        for operator in graph.operators
    ]
