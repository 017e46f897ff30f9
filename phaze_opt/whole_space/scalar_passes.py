"""The bounds of the passes of one layer, one operator at a time; see `scalar_bounds`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from typing import Literal

from phaze_opt.choices import FusionMode, ResidencyChoice
from phaze_opt.estimator.cache_reuse import reads_again
from phaze_opt.estimator.cut_operators import handing_by_tiles
from phaze_opt.estimator.working_sets import kept_tensors
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.bare_layers import copies_s
from phaze_opt.passes.graphs import again_of, fuse_once, graphs_of
from phaze_opt.passes.launches import launch_seconds
from phaze_opt.passes.paired import PARTS, core_share, exchanges_s, paired_s
from phaze_opt.training import Training
from phaze_opt.whole_space.scalar_candidates import LayerSeconds
from phaze_opt.whole_space.scalar_makespans import makespan_s
from phaze_opt.whole_space.scalar_operators import (
    ExtraBytes,
    OperatorTimes,
    chip_times,
    extra_bytes,
    no_extra_bytes,
    roofline_times,
)
from phaze_opt.whole_space.scalar_rates import Rates, TensorGroup
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant

Sort = Literal["box", "fitting", "quick", "chip"]
"""Sorts of bounds, from the quickest to the tightest.

``box`` holds for every chip with equal rates; the others for one chip: ``fitting`` as if all blocks
of products fit the global buffer, ``quick`` with their true sizes, ``chip`` with schedules too.
"""


class Passes:
    """The passes of a model at one tensor degree, for all chips of one mode of fusion."""

    def __init__(
        self, variant: WorkloadVariant, cluster: Cluster, training: Training, fusion: FusionMode
    ) -> None:
        # The number of chunks in `phaze_opt.passes.estimates`.
        chunks = variant.tensor_parallel if training.overlap == "all" else 1
        self._group = TensorGroup(cluster, variant.tensor_parallel, chunks)
        self._training = training
        self._order = [index for _, index in variant.nodes]
        self._launch_s = launch_seconds().central_s
        self._launches = [
            {
                name: _launches(graph, fusion, training)
                for name, graph in graphs_of(layer, training).items()
            }
            for layer in variant.layers
        ]
        self._layers = [
            (
                layer.parameters,
                layer.has_backward,
                {
                    name: fuse_once(graph, fusion)
                    for name, graph in graphs_of(layer, training).items()
                },
            )
            for layer in variant.layers
        ]
        self._core_share = partial(core_share, training, cluster)
        self._sent_s = exchanges_s(variant, training, cluster)
        self._known: dict[tuple[Rates, int, Sort], tuple[LayerSeconds, ...]] = {}

    def seconds(self, chip: Accelerator, sort: Sort) -> tuple[LayerSeconds, ...]:
        """Bound the passes of every layer in order."""
        sees_glb = self._training.residency or sort in ("quick", "chip")
        rates, glb_bytes = Rates.of(chip), chip.glb_bytes if sees_glb else 0
        key = rates, glb_bytes, sort
        if key not in self._known:
            rows = zip(self._layers, self._launches, self._sent_s, strict=True)
            layers = [
                self._layer_s(*layer, launched, sent_s, rates, glb_bytes, sort)
                for layer, launched, sent_s in rows
            ]
            self._known[key] = tuple([layers[index] for index in self._order])
        return self._known[key]

    def _layer_s(
        self,
        parameters: int,
        has_backward: bool,
        graphs: Mapping[str, OperatorGraph],
        launched: Mapping[str, int],
        sent_s: float,
        rates: Rates,
        glb_bytes: int,
        sort: Sort,
    ) -> LayerSeconds:
        """Bound one distinct layer."""
        training = self._training
        device_s = {
            name: _pass_s(graph, rates, glb_bytes, self._group, training.residency, sort)
            for name, graph in graphs.items()
        }
        host_s = {name: count * self._launch_s for name, count in launched.items()}
        passes = {name: max(own_s, host_s[name]) for name, own_s in device_s.items()}
        copies = copies_s(parameters, training, rates.memory_bytes_per_s)
        forward_s, backward_s = passes["forward"] + copies[0], passes["backward"] + copies[1]
        again_s = self._again_s(passes) if has_backward else 0.0
        if sent_s == 0.0:
            return LayerSeconds(*(forward_s, backward_s + again_s) * 2)
        share = self._core_share(rates.calibration.collective_core_share)
        together_s, launched_s = (
            each["forward"] + each["backward"] + self._again_s(each) for each in (device_s, host_s)
        )
        pair_s = float(paired_s(together_s + sum(copies), sent_s, share, launched_s))
        parts = PARTS[training.recompute]
        back_s = (parts["backward"] + parts["recompute"]) * pair_s
        return LayerSeconds(forward_s, backward_s + again_s, parts["forward"] * pair_s, back_s)

    def _again_s(self, passes: Mapping[str, float]) -> float:
        """Return what runs again before the backward."""
        again = again_of(self._training)
        return 0.0 if again is None else passes[again]


def _launches(captured: OperatorGraph, fusion: FusionMode, training: Training) -> int:
    """Count the kernels that the host launches one by one in a pass."""
    if training.launch == "graphs":
        return 0
    pieces = [len(tensor.writers) for tensor in captured.tensors if tensor.writers]
    eager = _working(captured) - sum(pieces) + len(pieces)
    if training.launch == "eager":
        return eager
    return min(eager, _working(fuse_once(captured, fusion)))


def _working(graph: OperatorGraph) -> int:
    """Count the operators that do anything."""
    working = (each for each in graph.operators if each.gemms or each.vector or each.collective)
    return len(list(working))


def _pass_s(
    graph: OperatorGraph,
    rates: Rates,
    glb_bytes: int,
    group: TensorGroup,
    residency: ResidencyChoice,
    sort: Sort,
) -> float:
    """Bound one pass."""
    kept = None
    if residency:
        if rates.concurrent:
            kept = _kept_bytes(graph, glb_bytes, residency == "tiles")
        else:
            kept = _served_bytes(graph, glb_bytes)
    if sort == "box":
        extra = None
    elif sort == "fitting":
        extra = no_extra_bytes(graph)
    else:
        extra = extra_bytes(graph, rates, glb_bytes)
    return _least_s(graph, rates, extra, group, kept, sort == "chip")


@lru_cache(maxsize=2**18)
def _least_s(
    graph: OperatorGraph,
    rates: Rates,
    extra: ExtraBytes | None,
    group: TensorGroup,
    kept: tuple[float, ...] | None,
    schedules: bool,
) -> float:
    """Bound one pass, once for all chips with equal arguments.

    Parameters
    ----------
    extra
        Extra HBM bytes on one chip; ``None`` for all chips with equal peak rates.
    kept
        Bytes of every operator that stay on the chip and skip the HBM; ``None`` without residency.
    schedules
        Whether to bound the makespan by schedules too; see `scalar_makespans`.
    """
    if extra is None:
        times = roofline_times(graph, rates, group)
    else:
        times = chip_times(graph, rates, extra, group)
    if not rates.concurrent:
        return _in_turn_s(times, times.hbm_s, kept or [0.0] * len(graph.operators), rates)
    least_s = _at_once_s(graph, times)
    if schedules:
        least_s = max(least_s, makespan_s(graph, times))
    if kept is not None:
        # With resident tensors, collectives are not cut into chunks, which takes no less.
        least_s = min(least_s, _in_turn_s(times, times.once_s, kept, rates))
    return least_s


def _at_once_s(graph: OperatorGraph, times: OperatorTimes) -> float:
    """Bound a pass by its longest chain, and by its use of every resource."""
    own_s = times.fastest_s
    end_s = list(own_s)
    for before, after in _edges(graph):
        through_s = end_s[before] + own_s[after]
        if through_s > end_s[after]:
            end_s[after] = through_s
    return max([*end_s, *times.taken_s], default=0.0)


@lru_cache(maxsize=1024)
def _edges(graph: OperatorGraph) -> list[tuple[int, int]]:
    """Return the edges, sorted by their destination."""
    return sorted(((before, after) for before, after, _ in graph.edges), key=lambda edge: edge[1])


def _in_turn_s(
    times: OperatorTimes, hbm_s: Sequence[float], kept_bytes: Sequence[float], rates: Rates
) -> float:
    """Bound operators that run one after another, and of which some bytes skip the HBM."""
    rate = rates.hbm_bytes_per_s
    rows = zip(times.on_chip_s, hbm_s, kept_bytes, times.overhead_s, strict=True)
    return math.fsum(
        max(chip_s, memory_s - kept / rate) + constant_s
        for chip_s, memory_s, kept, constant_s in rows
    )


@lru_cache(maxsize=4096)
def _served_bytes(graph: OperatorGraph, glb_bytes: int) -> tuple[float, ...]:
    """Return the bytes that every operator reads again from a buffer that is a cache."""
    served = [0.0] * len(graph.operators)
    reuse = reads_again(graph).served_by(float(glb_bytes))
    for reader, size in zip(reuse.reader.tolist(), reuse.bytes.tolist(), strict=True):
        served[reader] += size
    return tuple(served)


_MOST_SUBSET = 10
"""Most tensors of which all subsets are tried; see `phaze_opt.estimator.least_traffic`."""


@lru_cache(maxsize=4096)
def _kept_bytes(graph: OperatorGraph, glb_bytes: int, tiles: bool) -> tuple[float, ...]:
    """Return the most bytes that resident tensors save every operator, as if it were alone.

    What operators may hand on by tiles needs no room.
    """
    accesses: list[list[tuple[float, float]]] = [[] for _ in graph.operators]
    for tensor in kept_tensors(graph):
        writers = () if tensor.writer is None or tensor.outlives else (tensor.writer,)
        handing = handing_by_tiles(graph, tensor) if tiles else ()
        for access in (*writers, *tensor.readers):
            size_bytes = 0.0 if access.operator in handing else float(tensor.size_bytes)
            accesses[access.operator].append((size_bytes, access.bytes))
    return tuple(_most_saved(own, glb_bytes) for own in accesses)


def _most_saved(own: Sequence[tuple[float, float]], room_bytes: int) -> float:
    """Return the most bytes that a set of tensors saves, if the set fits."""
    if len(own) > _MOST_SUBSET:
        return math.fsum(saved for size, saved in own if size <= room_bytes)
    sets = (chosen for count in range(len(own) + 1) for chosen in combinations(own, count))
    return max(
        math.fsum(saved for _, saved in chosen)
        for chosen in sets
        if math.fsum(size for size, _ in chosen) <= room_bytes
    )
