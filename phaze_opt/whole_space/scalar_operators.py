"""The least seconds of the operators of a pass, one at a time; see `scalar_bounds`.

Of a box of chips, by the peak rates of all cores together; of one chip, in the faster of two modes,
on one core or on all cores of its type. Busy times are not rounded, and of an operator every
resource counts what it takes at least, so that the numbers also bound one that is slowed down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import LANE_VALUE_BYTES, AttentionKernel, Calibration
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import collective_cost
from phaze_opt.on_demand import cached_property
from phaze_opt.precision import BF16, PRECISIONS
from phaze_opt.whole_space.scalar_products import Arrays, blocked_bytes, product_work, score_work
from phaze_opt.whole_space.scalar_rates import Group, Rates
from phaze_opt.workload.graph import Gemm, OperatorGraph


@dataclass(frozen=True)
class OperatorTimes:
    """The operators of a pass on a chip; every list has one number for each.

    Attributes
    ----------
    beside_s
        Until it is done on one core, beside others.
    alone_s
        Until it is done on all cores; infinite for what needs none, and for a box of chips.
    shared_s
        For every resource, how long it takes all of it beside others.
    on_chip_s, hbm_s, overhead_s
        On all cores: of everything but the HBM, of the HBM, and what comes to the longer of both.
    once_s
        Of the HBM, if every tensor passes it once.
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
        """Until it is done, in whichever mode."""
        return list(map(min, self.beside_s, self.alone_s))

    @property
    def taken_s(self) -> list[float]:
        """Sums over all operators for every resource: alone, an operator takes all of each."""
        return [math.fsum(map(min, each, self.alone_s)) for each in self.shared_s]


def roofline_times(graph: OperatorGraph, rates: Rates, group: Group) -> OperatorTimes:
    """Bound the operators on every chip that has the peak rates of this one."""
    calibration = rates.calibration
    seen = tuple([one.attention.visible if one.attention else 0.0 for one in graph.operators])
    unit_rate = rates.exponentials_per_cycle
    cores, lanes, arrays = rates.vector_cores, rates.lanes, rates.every
    cycles = _lane_cycles(graph, cores, lanes, unit_rate, seen, rounds=False)
    vector_s = [each / rates.clock_hz for each in cycles]
    macs_per_s = arrays.cores * arrays.pe_x * arrays.pe_y * rates.array_clock_hz
    tensor_s = []
    for one, lanes_s in zip(graph.operators, vector_s, strict=True):
        macs = sum(gemm.flops / 2 / PRECISIONS[gemm.precision].rate for gemm in one.gemms)
        seconds = macs / macs_per_s
        if one.attention is not None:
            visible = one.attention.visible / one.attention.elements
            macs, seconds = macs * visible, seconds * visible * rates.slowdown(one)
            seconds += (1.0 - rates.overlap(one)) * lanes_s
        tensor_s.append(max(seconds, _limited_s(macs, arrays, rates)))
    moved = _moved(graph)
    glb_s = [each / rates.glb_bytes_per_s for each in moved]
    hbm_s = [each / rates.hbm_bytes_per_s for each in moved]
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
    """HBM traffic of every operator beyond the compulsory one, on one core and on all cores."""

    one: tuple[float, ...]
    every: tuple[float, ...]


def extra_bytes(graph: OperatorGraph, rates: Rates, glb_bytes: int) -> ExtraBytes:
    """Return what a pass sees of the size of the global buffer, if nothing stays there."""
    one = _extra_bytes(graph, glb_bytes / rates.every.cores)
    return ExtraBytes(one, _extra_bytes(graph, float(glb_bytes)))


@lru_cache(maxsize=1024)
def no_extra_bytes(graph: OperatorGraph) -> ExtraBytes:
    """Return what a pass sees of a global buffer that holds all blocks of products."""
    none = (0.0,) * len(graph.operators)
    return ExtraBytes(none, none)


def chip_times(
    graph: OperatorGraph, rates: Rates, extra: ExtraBytes, group: Group
) -> OperatorTimes:
    """Bound the operators on one chip, see `roofline_times`; endless where no tile fits.

    On all cores an operator runs alone, and takes all of every resource. On one core it takes its
    share: of the cores of its types, and of each memory what it moves.
    """
    one = _on_cores(graph, rates, rates.one, 1, group)
    every = _on_cores(graph, rates, rates.every, rates.vector_cores, group)
    beside_hbm_s = _with_extra_s(one, extra.one, rates)
    alone_hbm_s = _with_extra_s(every, extra.every, rates)
    overhead_s = _overheads_s(graph, rates.calibration)
    beside_s = _latency_s(one.on_chip_s, beside_hbm_s, overhead_s)
    alone_s = _latency_s(every.on_chip_s, alone_hbm_s, overhead_s)
    # What needs no core has one mode only.
    for place in _without_cores(graph):
        alone_s[place] = math.inf

    operators, tensor_cores, vector_cores = graph.operators, rates.every.cores, rates.vector_cores
    tensor_s = [
        s / tensor_cores if each.gemms else 0.0 for s, each in zip(beside_s, operators, strict=True)
    ]
    vector_s = [
        s / vector_cores if each.vector else 0.0
        for s, each in zip(beside_s, operators, strict=True)
    ]
    return OperatorTimes(
        beside_s=beside_s,
        alone_s=alone_s,
        shared_s=(tensor_s, vector_s, one.glb_s, beside_hbm_s, one.link_s),
        on_chip_s=every.on_chip_s,
        hbm_s=alone_hbm_s,
        once_s=every.once_s,
        overhead_s=overhead_s,
    )


def _latency_s(
    on_chip_s: Sequence[float], hbm_s: Sequence[float], overhead_s: Sequence[float]
) -> list[float]:
    """Return until when operators are done."""
    rows = zip(on_chip_s, hbm_s, overhead_s, strict=True)
    return [max(chip_s, memory_s) + constant_s for chip_s, memory_s, constant_s in rows]


@lru_cache(maxsize=1024)
def _overheads_s(graph: OperatorGraph, calibration: Calibration) -> list[float]:
    """Return what every operator takes that does anything."""
    return [
        calibration.operator_overhead_s if one.gemms or one.vector or one.collective else 0.0
        for one in graph.operators
    ]


def _link_s(graph: OperatorGraph, calibration: Calibration, group: Group) -> list[float]:
    """Return the seconds on the network; of chunks, as if all but one were hidden."""
    sent_s = _sent_s(graph, group.cluster, group.tensor)
    if group.chunked == 1:
        return sent_s
    share = calibration.collective_core_share
    return [each * (share + (1.0 - share) / group.chunked) for each in sent_s]


@lru_cache(maxsize=1024)
def _sent_s(graph: OperatorGraph, cluster: Cluster, tensor: int) -> list[float]:
    """Return the seconds on the network, of collectives that nothing hides."""
    return [
        0.0
        if one.collective is None
        else collective_cost(one.collective.kind, one.collective.size_bytes, tensor, cluster).time_s
        for one in graph.operators
    ]


class _Mode(NamedTuple):
    """Operators on some cores, as long as all blocks of products fit; see `OperatorTimes`."""

    on_chip_s: list[float]
    glb_s: list[float]
    once_s: list[float]
    link_s: list[float]


@lru_cache(maxsize=2**14)
def _on_cores(
    graph: OperatorGraph, rates: Rates, arrays: Arrays, vector_cores: int, group: Group
) -> _Mode:
    """Bound the operators on some cores of a chip, whatever the size of its global buffer."""
    calibration = rates.calibration
    busy, moved, scores = _product_works(graph, arrays, rates.attention_kernel)
    unit_rate = rates.exponentials_per_cycle
    cycles = _lane_cycles(graph, vector_cores, rates.lanes, unit_rate, scores)
    again = _read_again_bytes(graph, rates.l2_vc_bytes)
    vector_s = [each / rates.clock_hz for each in cycles]
    tensor_s = [each / rates.array_clock_hz for each in busy]
    for place in _fused_attention(graph):
        # The arrays wait for a part of the lanes' time.
        tensor_s[place] += (1.0 - rates.overlap(graph.operators[place])) * vector_s[place]
    for place, one in enumerate(graph.operators):
        share = 1.0 if one.attention is None else scores[place] / one.attention.elements
        limited_s = _limited_s(share * one.flops / 2, arrays, rates)
        tensor_s[place] = max(tensor_s[place], limited_s)
    glb_s = [(own + more) / rates.glb_bytes_per_s for own, more in zip(moved, again, strict=True)]
    once_s = [
        (own + more) / rates.hbm_bytes_per_s for own, more in zip(_moved(graph), again, strict=True)
    ]
    link_s = _link_s(graph, calibration, group)
    return _Mode(list(map(max, tensor_s, vector_s, glb_s, link_s)), glb_s, once_s, link_s)


def _limited_s(macs: float, arrays: Arrays, rates: Rates) -> float:
    """Return what multiply-accumulates take at the power limit; 0 where none is known."""
    elements = arrays.cores * arrays.pe_x * arrays.pe_y
    return macs / (elements * rates.power_limited_clock_hz)


def _with_extra_s(mode: _Mode, extra: Sequence[float], rates: Rates) -> list[float]:
    """Return the seconds of the HBM, of blocks that do not fit as well."""
    pairs = zip(mode.once_s, extra, strict=True)
    return [own_s + more / rates.hbm_bytes_per_s for own_s, more in pairs]


@lru_cache(maxsize=1024)
def _without_cores(graph: OperatorGraph) -> list[int]:
    """Return the operators that need no core."""
    return [place for place, one in enumerate(graph.operators) if not (one.gemms or one.vector)]


@lru_cache(maxsize=1024)
def _moved(graph: OperatorGraph) -> list[float]:
    """Return the compulsory traffic of every operator."""
    return list(map(float, graph.moved_bytes))


@lru_cache(maxsize=1024)
def _fused_attention(graph: OperatorGraph) -> list[int]:
    """Return the operators that are fused attention."""
    return [place for place, one in enumerate(graph.operators) if one.attention is not None]


@lru_cache(maxsize=2**14)
def _product_works(
    graph: OperatorGraph, arrays: Arrays, kernel: AttentionKernel
) -> tuple[list[float], list[float], tuple[float, ...]]:
    """Return busy array cycles, bytes through the global buffer, and scores that are computed."""
    busy, moved, computed = [], [], []
    for one, compulsory in zip(graph.operators, graph.moved_bytes, strict=True):
        cycles, own_bytes, scores = 0.0, float(compulsory), 0.0
        if one.attention is not None:
            cycles, scores = score_work(one.attention, one.gemms, arrays, kernel)
        elif one.gemms:
            own_bytes -= sum(map(_once_bytes, one.gemms))
            beside = own_bytes if len(one.gemms) == 1 else 0.0
            works = [product_work(gemm, arrays, beside) for gemm in one.gemms]
            cycles = sum(work.busy_cycles for work in works)
            own_bytes += sum(work.glb_bytes for work in works)
        busy.append(cycles)
        moved.append(own_bytes)
        computed.append(scores)
    return busy, moved, tuple(computed)


def _once_bytes(gemm: Gemm) -> float:
    """Return the bytes of the operands and the results of a batch of products."""
    precision = PRECISIONS[gemm.precision]
    operands = precision.operand_bytes * (gemm.m * gemm.k + gemm.k * gemm.n)
    return float(gemm.batch * (operands + precision.result_bytes * gemm.m * gemm.n))


@lru_cache(maxsize=2**14)
def _extra_bytes(graph: OperatorGraph, glb_bytes: float) -> tuple[float, ...]:
    """Return the HBM traffic of the blocks of products that is more than compulsory."""
    return tuple(
        [
            blocked_bytes(one.gemms[0], glb_bytes) - _once_bytes(one.gemms[0])
            if len(one.gemms) == 1 and one.attention is None
            else 0.0
            for one in graph.operators
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
        Vector cores, and lanes of each.
    unit_rate
        Exponentials per cycle of a core, where a unit takes those of fused attention.
    scores
        Of every operator that is fused attention: how many are computed.
    rounds
        Whether every lane takes whole elements, so that the last round takes as long as a full one.
    """
    found = []
    for one, computed in zip(graph.operators, scores, strict=True):
        cycles = 0.0
        for work in one.vector:
            row, elements = vector_operator(work.kind), float(work.elements)
            each = row.cycles
            if one.attention is not None:
                if work.elements == one.attention.elements:
                    elements = computed
                if unit_rate is not None and row.exponential_cycles > 0.0:
                    each += lanes / unit_rate - row.exponential_cycles
            per_lane = elements / (cores * lanes)
            cycles += each * (math.ceil(per_lane) if rounds else per_lane)
        found.append(cycles)
    return found


@lru_cache(maxsize=2**12)
def _read_again_bytes(graph: OperatorGraph, l2_bytes: int) -> list[float]:
    """Return what operators without products read again of rows that no private buffer holds."""
    return [
        0.0
        if one.gemms
        else float(
            sum(
                (vector_operator(work.kind).reads - 1) * BF16.result_bytes * work.elements
                for work in one.vector
                if LANE_VALUE_BYTES * work.columns > l2_bytes
            )
        )
        for one in graph.operators
    ]
