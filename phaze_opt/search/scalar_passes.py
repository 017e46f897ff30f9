"""The bounds of the passes of one layer, one operator at a time; see `scalar_bounds`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Literal

from phaze_opt.estimator.cache_reuse import reads_again
from phaze_opt.estimator.working_sets import kept_tensors
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.bare_layers import copies_s
from phaze_opt.passes.graphs import default_fusion, fuse_once, graphs_of
from phaze_opt.search.scalar_makespans import makespan_s
from phaze_opt.search.scalar_operators import OperatorTimes, chip_times, roofline_times
from phaze_opt.training import Training
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant

Sort = Literal["box", "quick", "chip"]
"""What a bound is of: every chip with the rates of one; one chip, quickly, or as far as it goes."""


def layer_s(
    variant: WorkloadVariant,
    index: int,
    chip: Accelerator,
    cluster: Cluster,
    training: Training,
    sort: Sort,
) -> tuple[float, float]:
    """Bound forward, and backward with recompute, of one distinct layer."""
    layer, tensor = variant.layers[index], variant.tensor_parallel
    fusion = default_fusion(chip)
    # As `phaze_opt.passes.estimates` has it.
    chunked = tensor if training.overlap == "all" else 1
    passes = {
        name: _pass_s(
            fuse_once(graph, fusion), chip, cluster, tensor, chunked, training.residency, sort
        )
        for name, graph in graphs_of(layer, training).items()
    }
    again_s = {
        "none": 0.0,
        "selective": passes.get("recompute", 0.0),
        "full": passes["forward"],
    }[training.recompute]
    copies = copies_s(layer.parameters, training, chip.sustained_hbm_bytes_per_s)
    return passes["forward"] + copies[0], passes["backward"] + copies[1] + again_s


@lru_cache(maxsize=2**14)
def _pass_s(
    graph: OperatorGraph,
    chip: Accelerator,
    cluster: Cluster,
    tensor: int,
    chunked: int,
    residency: bool,
    sort: Sort,
) -> float:
    """Bound one pass."""
    times_of = roofline_times if sort == "box" else chip_times
    times = times_of(graph, chip, cluster, tensor, chunked)
    if not chip.concurrent_operators:
        served = [0.0] * len(graph.operators)
        if residency:
            reuse = reads_again(graph).served_by(float(chip.glb_bytes))
            for reader, size in zip(reuse.reader.tolist(), reuse.bytes.tolist(), strict=True):
                served[reader] += size
        return _in_turn_s(times, times.hbm_s, served, chip)
    least_s = _at_once_s(graph, times)
    if sort == "chip":
        least_s = max(least_s, makespan_s(graph, times))
    if residency:
        # With tensors that stay, collectives are whole, which takes no less.
        kept = _kept_bytes(graph, chip.glb_bytes)
        least_s = min(least_s, _in_turn_s(times, times.once_s, kept, chip))
    return least_s


def _at_once_s(graph: OperatorGraph, times: OperatorTimes) -> float:
    """Bound a pass by its longest chain, and by what it takes of every resource."""
    own_s = times.fastest_s
    end_s = list(own_s)
    for before, after in _edges(graph):
        through_s = end_s[before] + own_s[after]
        if through_s > end_s[after]:
            end_s[after] = through_s
    return max([*end_s, *times.taken_s], default=0.0)


@lru_cache(maxsize=1024)
def _edges(graph: OperatorGraph) -> list[tuple[int, int]]:
    """Return the edges by where they end."""
    return sorted(((before, after) for before, after, _ in graph.edges), key=lambda edge: edge[1])


def _in_turn_s(
    times: OperatorTimes, hbm_s: Sequence[float], kept_bytes: Sequence[float], chip: Accelerator
) -> float:
    """Bound operators that run one after another, while some bytes need not flow."""
    rate = chip.sustained_hbm_bytes_per_s
    rows = zip(times.on_chip_s, hbm_s, kept_bytes, times.overhead_s, strict=True)
    return math.fsum(
        max(chip_s, memory_s - kept / rate) + constant_s
        for chip_s, memory_s, kept, constant_s in rows
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
