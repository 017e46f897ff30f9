"""The bounds of the passes of one layer, one operator at a time; see `scalar_bounds`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from phaze_opt.estimated_passes import default_fusion, fuse_once, graphs_of
from phaze_opt.estimator.cache_reuse import reads_again
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.estimator.working_sets import kept_tensors
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_costs import copies_s
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import collective_cost
from phaze_opt.training import Training
from phaze_opt.workload.graph import Operator, OperatorGraph, WorkloadVariant


@lru_cache(maxsize=4096)
def layer_s(
    variant: WorkloadVariant, index: int, chip: Accelerator, cluster: Cluster, training: Training
) -> tuple[float, float]:
    """Bound forward, and backward with recompute, of one distinct layer."""
    layer = variant.layers[index]
    fusion = default_fusion(chip)
    passes = {
        name: _pass_s(fuse_once(graph, fusion), chip, cluster, training, variant.tensor_parallel)
        for name, graph in graphs_of(layer, training).items()
    }
    again_s = {
        "none": 0.0,
        "selective": passes.get("recompute", 0.0),
        "full": passes["forward"],
    }[training.recompute]
    copies = copies_s(layer.parameters, training, chip.sustained_hbm_bytes_per_s)
    return passes["forward"] + copies[0], passes["backward"] + copies[1] + again_s


def _pass_s(
    graph: OperatorGraph, chip: Accelerator, cluster: Cluster, training: Training, tensor: int
) -> float:
    """Bound one pass."""
    chunked = tensor if training.overlap == "all" else 1
    times = [_operator(one, chip, cluster, tensor, chunked) for one in graph.operators]
    rate = chip.sustained_hbm_bytes_per_s

    def in_turn(kept_bytes: Sequence[float]) -> float:
        return math.fsum(
            one.with_hbm(max(one.hbm_s - kept / rate, 0.0))
            for one, kept in zip(times, kept_bytes, strict=True)
        )

    if not chip.concurrent_operators:
        served = [0.0] * len(times)
        if training.residency:
            reuse = reads_again(graph).served_by(float(chip.glb_bytes))
            for reader, size in zip(reuse.reader.tolist(), reuse.bytes.tolist(), strict=True):
                served[reader] += size
        return in_turn(served)
    end_s = [one.latency_s for one in times]
    for before, after, _ in sorted(graph.edges, key=lambda edge: edge[1]):
        end_s[after] = max(end_s[after], end_s[before] + times[after].latency_s)
    sums = [math.fsum(of_resource) for of_resource in zip(*map(_resources_s, times), strict=True)]
    least_s = max([*end_s, *sums], default=0.0)
    if training.residency:
        least_s = min(least_s, in_turn(_kept_bytes(graph, chip.glb_bytes)))
    return least_s


@dataclass(frozen=True)
class _Times:
    """Seconds of one operator at the peak rates of all cores together."""

    tensor_s: float
    vector_s: float
    glb_s: float
    hbm_s: float
    link_s: float
    overhead_s: float

    @property
    def latency_s(self) -> float:
        """The longest of them, plus what every operator takes."""
        return max(_resources_s(self)) + self.overhead_s

    def with_hbm(self, hbm_s: float) -> float:
        """Return the latency if the HBM takes less."""
        others = max(self.tensor_s, self.vector_s, self.glb_s, self.link_s)
        return max(others, hbm_s) + self.overhead_s


def _resources_s(times: _Times) -> tuple[float, ...]:
    """Return the times of the resources."""
    return times.tensor_s, times.vector_s, times.glb_s, times.hbm_s, times.link_s


def _operator(
    operator: Operator, chip: Accelerator, cluster: Cluster, tensor: int, chunked: int
) -> _Times:
    """Bound one operator."""
    calibration, clock_hz = chip.calibration, chip.sustained_clock_hz
    macs = sum(gemm.m * gemm.n * gemm.k * gemm.batch for gemm in operator.gemms)
    visible = 1.0
    if operator.attention is not None:
        visible = operator.attention.visible / operator.attention.elements
    lanes_s = 0.0
    for work in operator.vector:
        row = vector_operator(work.kind)
        elements = float(work.elements)
        exponential = 0.0
        if operator.attention is not None:
            exponential = row.exponential_cycles
            if work.elements == operator.attention.elements:
                elements = operator.attention.visible
        cycles = row.cycles - exponential
        lanes = chip.num_vc * chip.pe_vc
        if exponential > 0.0 and calibration.exponentials_per_cycle is not None:
            lanes_s += elements / (chip.num_vc * calibration.exponentials_per_cycle * clock_hz)
        else:
            cycles += exponential
        lanes_s += elements * cycles / (lanes * clock_hz)
    exposed_s = 0.0
    if operator.attention is not None:
        exposed_s = (1.0 - calibration.attention_overlap) * lanes_s
    link_s = 0.0
    if operator.collective is not None:
        kind, size_bytes = operator.collective.kind, operator.collective.size_bytes
        link_s = collective_cost(kind, size_bytes, tensor, cluster).time_s
        if chunked > 1:
            share = calibration.collective_core_share
            link_s *= share + (1.0 - share) / chunked
    moved_bytes = operator.read_bytes + operator.write_bytes
    arrays = chip.num_tc * chip.pe_x * chip.pe_y
    works = bool(operator.gemms or operator.vector or operator.collective)
    return _Times(
        tensor_s=macs * visible / (arrays * chip.array_clock_hz) + exposed_s,
        vector_s=lanes_s,
        glb_s=moved_bytes / (chip.glb_bytes_per_cycle * clock_hz),
        hbm_s=moved_bytes / chip.sustained_hbm_bytes_per_s,
        link_s=link_s,
        overhead_s=calibration.operator_overhead_s if works else 0.0,
    )


_MOST_SUBSET = 10
"""As `phaze_opt.estimator.least_traffic` has it."""


@lru_cache(maxsize=4096)
def _kept_bytes(graph: OperatorGraph, glb_bytes: int) -> tuple[float, ...]:
    """Return the most that every operator saves while tensors stay, whatever the others need."""
    accesses: list[list[tuple[float, float]]] = [[] for _ in graph.operators]
    for tensor in kept_tensors(graph):
        writers = () if tensor.writer is None or tensor.outlives else (tensor.writer,)
        for access in (*writers, *tensor.readers):
            accesses[access.operator].append((float(tensor.size_bytes), access.bytes))
    return tuple(_most_saved(own, glb_bytes) for own in accesses)


def _most_saved(own: Sequence[tuple[float, float]], room_bytes: int) -> float:
    """Return the most bytes that a set of tensors saves which fits together."""
    if len(own) > _MOST_SUBSET:
        return math.fsum(saved for size, saved in own if size <= room_bytes)
    sets = (chosen for count in range(len(own) + 1) for chosen in combinations(own, count))
    return max(
        math.fsum(saved for _, saved in chosen)
        for chosen in sets
        if math.fsum(size for size, _ in chosen) <= room_bytes
    )
