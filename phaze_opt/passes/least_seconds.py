"""Least seconds of the passes of every layer on many chips at once.

The bounds of `phaze_opt.passes.layers.EstimatedDegree`, for tens of thousands of accelerators: each
pass of each layer takes at least what stands here, whatever the scheduler chooses. The operators
are estimated exactly (`phaze_opt.estimator.least_seconds`); then a pass takes at least

    min(least makespan without residency, least makespan of the joint problem)

with the second only where tensors may stay (`phaze_opt.scheduling.least_makespan`,
`phaze_opt.estimator.least_traffic`). Nothing is rounded, so that sums in another order may exceed
an evaluation by a rounding error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import FusionMode
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips, chip_column, hbm_saved_s
from phaze_opt.estimator.estimate import ModeSeconds, link_seconds
from phaze_opt.estimator.least_seconds import LeastSeconds, least_seconds
from phaze_opt.estimator.least_traffic import (
    cached_bytes,
    most_kept_accesses_bytes,
    most_kept_bytes,
)
from phaze_opt.estimator.rooflines import roofline_seconds
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.bare_layers import copies_s
from phaze_opt.passes.chunked_collectives import beside_products, of_tensor_groups
from phaze_opt.passes.estimates import with_lane_rate
from phaze_opt.passes.graphs import (
    again_of,
    as_estimated,
    default_fusion,
    fuse_once,
    graphs_of,
    runs_again,
)
from phaze_opt.passes.handled import check_handled
from phaze_opt.passes.launches import host_s
from phaze_opt.passes.layer_cost import LeastLayers
from phaze_opt.passes.least_units import UnitsOfChips, least_of_units
from phaze_opt.passes.paired import core_share, exchanges_s, paired_s, with_pairs
from phaze_opt.passes.problem import bandwidth_shares, pass_shapes
from phaze_opt.scheduling.least_makespan import (
    OperatorColumns,
    least_joint_makespan,
    least_makespan,
    roofline_makespan,
)
from phaze_opt.training import Training
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant, side_by_side

_KEPT = 32
"""Bounds of passes that are kept: those of the tensor degrees and of the captures that runs share,
which differ in their stage of ZeRO."""


def least_layers(
    variant: WorkloadVariant,
    accelerators: Sequence[Accelerator],
    cluster: Cluster,
    training: Training,
    fusion: FusionMode | None = None,
    *,
    rooflines: bool = False,
    lane_rate: float = 1.0,
    units: UnitsOfChips | None = None,
) -> LeastLayers:
    """Bound the passes of every distinct layer from below.

    Parameters
    ----------
    variant
        The model at one tensor degree and microbatch.
    accelerators
        Chips of one kind: all run operators side by side, or none does. As
        `phaze_opt.estimator.chips.Chips`, their properties are read once for several calls.
    cluster
        The network of the tensor-parallel group.
    training
        How the model is trained.
    fusion
        How operators are fused; as the kind of chip does by default.
    rooflines
        Whether to look at peak rates alone (`phaze_opt.estimator.rooflines`). The bounds are then
        lower, and hold for every chip with the same rates and buffer, whatever its cores are.
    lane_rate
        Rate of the vector lanes relative to the accelerator's; see
        `phaze_opt.passes.estimates.Chip`.
    units
        With ``rooflines``, the cores of the chips that each stands for, which bound them more
        closely; ``None`` for peak rates alone.

    Returns
    -------
    LeastLayers
        Copies around the communication of the replicas belong to forward and backward, and the
        backward is without the recompute before it.

    Raises
    ------
    InputError
        For an option that `HANDLED` does not declare, chips of both kinds, and as
        `phaze_opt.estimator.estimate.estimate_table`.
    """
    chips = accelerators if isinstance(accelerators, Chips) else Chips(accelerators)
    if len(chips) == 0:
        raise InputError("There are no accelerators to bound.")
    check_handled(training, chips)
    if len({chip.concurrent_operators for chip in chips}) > 1:
        raise InputError(
            "The accelerators to bound have both values of concurrent_operators, but all must run "
            "operators side by side, or none."
        )
    run = _Run(cluster, training, variant.tensor_parallel, lane_rate, units)
    bound = _roofline_passes if rooflines else _least_passes
    return _layers(variant, chips, fusion or default_fusion(chips[0]), run, bound)


def links_s(
    variant: WorkloadVariant, cluster: Cluster, training: Training, fusion: FusionMode
) -> FloatArray | None:
    """Return for how long the layers' collectives use the network, on any chip.

    Parameters
    ----------
    variant, cluster, training, fusion
        As for `least_layers`.

    Returns
    -------
    links_s : (2, distinct layers)
        In the forward, and in the whole backward with recompute, that are in no pair; ``None``
        where passes wait for the host, so that they are not what replicas send beside.
    """
    if training.offloads:
        return None
    passes = [graphs_of(layer, training) for layer in variant.layers]
    graphs = [fuse_once(graph, fusion) for of_layer in passes for graph in of_layer.values()]
    every_s = iter(link_seconds(graphs, cluster, variant.tensor_parallel))
    by_layer = [{name: next(every_s) for name in of_layer} for of_layer in passes]
    return np.array(
        [
            [own["forward"] for own in by_layer],
            [
                own["backward"] + (runs_again(layer, own, training) or 0.0)
                for layer, own in zip(variant.layers, by_layer, strict=True)
            ],
        ]
    )


def longest_layers(
    variant: WorkloadVariant,
    chips: Chips,
    cluster: Cluster,
    training: Training,
    *,
    lane_rate: float = 1.0,
) -> LeastLayers:
    """Bound the passes of every distinct layer from above: as if all operators took turns.

    Whatever the scheduler finds is no longer than every operator on all cores, one after another.

    Parameters
    ----------
    variant, chips, cluster, training, lane_rate
        As for `least_layers`.

    Returns
    -------
    LeastLayers
        The same seconds as `least_layers`, but from above.
    """
    run = _Run(cluster, training, variant.tensor_parallel, lane_rate)
    return _layers(variant, chips, default_fusion(chips[0]), run, _longest_passes)


def _layers(
    variant: WorkloadVariant,
    chips: Chips,
    fusion: FusionMode,
    run: _Run,
    bound: Callable[[tuple[OperatorGraph, ...], Chips, _Run], FloatArray],
) -> LeastLayers:
    """Bound the passes of every distinct layer by the bounds of graphs: (graphs, chips)."""
    training = run.training
    passes = [graphs_of(layer, training) for layer in variant.layers]
    graphs = [fuse_once(graph, fusion) for of_layer in passes for graph in of_layer.values()]
    least_s = bound(tuple(graphs), chips, run._replace(training=as_estimated(training)))
    directions = [name for of_layer in passes for name in of_layer]
    again, copies_s = again_of(training), _copies_s(variant, chips, training)
    runs_again = np.array([[layer.has_backward] for layer in variant.layers])

    def joined(
        table_s: FloatArray, copies_s: Sequence[FloatArray] | Sequence[float]
    ) -> LeastLayers:
        def of(direction: str) -> FloatArray:
            return table_s[[row for row, name in enumerate(directions) if name == direction]]

        return LeastLayers(
            forward_s=of("forward") + copies_s[0],
            backward_s=of("backward") + copies_s[1],
            recompute_s=np.zeros_like(table_s[: len(passes)])
            if again is None
            else np.where(runs_again, of(again), 0.0),
        )

    waits_s = np.zeros((len(directions), 1))
    if training.launch != "graphs":
        by_host = [host_s(layer, training, fusion) for layer in variant.layers]
        waits_s = np.array([[own[name]] for own in by_host for name in own])
    layers = joined(np.maximum(least_s, waits_s), copies_s)
    sent_s = np.array(exchanges_s(variant, training, run.cluster))[:, np.newaxis]
    if bound is _longest_passes or not sent_s.any():
        return layers
    of_collectives = chips.column("calibration.collective_core_share")[:, 0]
    share = core_share(training, run.cluster, of_collectives)
    pair_s = paired_s(
        joined(least_s, copies_s).all_s, sent_s, share, joined(waits_s, (0.0, 0.0)).all_s
    )
    return with_pairs(layers, np.where(sent_s > 0.0, pair_s, 0.0), training)


class _Run(NamedTuple):
    """What runs the passes beside the chips; see `least_layers`."""

    cluster: Cluster
    training: Training
    tensor_parallel: int
    lane_rate: float
    units: UnitsOfChips | None = None

    @property
    def chunked(self) -> int:
        """Devices whose collectives go beside products; as in `phaze_opt.passes.estimates`."""
        return self.tensor_parallel if self.training.overlap == "all" else 1


@lru_cache(maxsize=_KEPT)
def _least_passes(graphs: tuple[OperatorGraph, ...], chips: Chips, run: _Run) -> FloatArray:
    """Bound every graph on every chip; the bounds have the shape (graphs, chips)."""
    return _estimated_passes(graphs, chips, run, _least_pass)


@lru_cache(maxsize=_KEPT)
def _longest_passes(graphs: tuple[OperatorGraph, ...], chips: Chips, run: _Run) -> FloatArray:
    """Run all operators of every graph one after another: (graphs, chips)."""

    def in_turn(graph: OperatorGraph, some: LeastSeconds, run: _Run) -> FloatArray:
        return np.asarray(some.all_cores.latency_s.sum(axis=1))

    return _estimated_passes(graphs, chips, run, in_turn)


def _estimated_passes(
    graphs: Sequence[OperatorGraph],
    chips: Chips,
    run: _Run,
    of_pass: Callable[[OperatorGraph, LeastSeconds, _Run], FloatArray],
) -> FloatArray:
    """Bound every graph on every chip by its estimates: (graphs, chips)."""
    ends = np.cumsum([len(graph.operators) for graph in graphs]).tolist()
    parts = [
        slice(end - len(graph.operators), end) for end, graph in zip(ends, graphs, strict=True)
    ]
    joined = side_by_side(graphs)
    least_s = np.empty((len(graphs), len(chips)))
    for some in least_seconds(joined, chips, run.cluster, run.tensor_parallel):
        some = replace(
            some,
            one_core=with_lane_rate(some.one_core, run.lane_rate),
            all_cores=with_lane_rate(some.all_cores, run.lane_rate),
        )
        for row, (graph, part) in enumerate(zip(graphs, parts, strict=True)):
            own = some.part(part)
            least_s[row, some.where] = of_pass(graph, own, run)
    return least_s


def _least_pass(graph: OperatorGraph, some: LeastSeconds, run: _Run) -> FloatArray:
    """Bound one pass on some chips."""
    residency, one_core, all_cores = run.training.residency, some.one_core, some.all_cores
    if run.chunked > 1:
        core_share = chip_column(some.chips, "calibration.collective_core_share")
        one_core, all_cores = beside_products(graph, one_core, all_cores, run.chunked, core_share)
    if not some.chips[0].concurrent_operators:
        kept = cached_bytes(graph, some.chips) if residency else None
        return _least_in_turn(all_cores, some.chips, kept)
    columns = _columns(one_core, all_cores, some.chips)
    least_s = least_makespan(pass_shapes((graph,)), columns)[:, 0]
    if residency:
        # With tensors that stay, collectives are whole.
        kept = most_kept_bytes(graph, some.chips, tiles=residency == "tiles")
        least_s = np.minimum(least_s, _least_in_turn(some.all_cores, some.chips, kept))
    return least_s


@lru_cache(maxsize=_KEPT)
def _roofline_passes(graphs: tuple[OperatorGraph, ...], chips: Chips, run: _Run) -> FloatArray:
    """Bound every graph by the peak rates of every chip; the shape is (graphs, chips)."""
    passes = []
    for graph in graphs:
        mode = roofline_seconds(graph, chips, run.cluster, run.tensor_parallel)
        mode = with_lane_rate(mode, run.lane_rate)
        if run.chunked > 1:
            # As if every collective had a product next to it that hides all but one chunk.
            core_share = chips.column("calibration.collective_core_share")
            factor = core_share + (1.0 - core_share) / run.chunked
            link_s = mode.link_s * np.where(of_tensor_groups(graph), factor, 1.0)
            mode = mode.with_seconds(link_s=link_s)
        passes.append(_roofline_pass(graph, mode, chips, run))
    return np.stack(passes)


def _roofline_pass(graph: OperatorGraph, mode: ModeSeconds, chips: Chips, run: _Run) -> FloatArray:
    """Bound one pass by the peak rates of every chip, and its cores; as `_least_pass`."""
    residency, in_turn, latency_s = run.training.residency, mode, mode.latency_s
    busy_s = [mode.tc_s, mode.vc_s, mode.hbm_s, mode.glb_s, mode.link_s]
    if run.units is not None:
        of_units = least_of_units(graph, run.units, run.lane_rate)
        in_turn = mode.with_seconds(tc_s=np.maximum(mode.tc_s, of_units.all_cores_s))
        latency_s = np.maximum(latency_s, of_units.fastest_s + mode.overhead_s)
        tc_s, vc_s, hbm_s, glb_s, link_s = busy_s
        tc_s, vc_s = np.maximum(tc_s, of_units.tc_s), np.maximum(vc_s, of_units.vc_s)
        busy_s = [tc_s, vc_s, hbm_s, np.maximum(glb_s, of_units.glb_s), link_s]
    if not chips[0].concurrent_operators:
        return _least_in_turn(in_turn, chips, cached_bytes(graph, chips) if residency else None)
    edges = tuple((source, destination) for source, destination, _ in graph.edges)
    least_s = roofline_makespan(edges, latency_s, busy_s)
    if residency:
        kept = most_kept_accesses_bytes(graph, chips, tiles=residency == "tiles")
        least_s = np.minimum(least_s, _least_in_turn(in_turn, chips, kept))
    return least_s


def _columns(one_core: ModeSeconds, all_cores: ModeSeconds, chips: Chips) -> OperatorColumns:
    """Join both modes and the cores, as `phaze_opt.passes.problem` does for one chip."""
    hbm, glb, link = bandwidth_shares([one_core.hbm_s, one_core.glb_s, one_core.link_s], one_core)
    return OperatorColumns(
        one_core.latency_s,
        all_cores.latency_s,
        hbm_fraction=hbm,
        glb_fraction=glb,
        link_fraction=link,
        num_tc=chip_column(chips, "num_tc")[:, 0],
        num_vc=chip_column(chips, "num_vc")[:, 0],
    )


def _least_in_turn(
    all_cores: ModeSeconds, chips: Chips, kept_bytes: FloatArray | None
) -> FloatArray:
    """Bound operators that run one after another, while some bytes need not flow."""
    hbm_s = all_cores.hbm_s
    if kept_bytes is not None:
        rate = chip_column(chips, "sustained_hbm_bytes_per_s")
        hbm_s = np.maximum(hbm_s - hbm_saved_s(kept_bytes, rate), 0.0)
    others = [all_cores.tc_s, all_cores.vc_s, all_cores.glb_s, all_cores.link_s]
    return least_joint_makespan(np.maximum.reduce(others), hbm_s, all_cores.overhead_s)


def _copies_s(
    variant: WorkloadVariant, chips: Chips, training: Training
) -> tuple[FloatArray, FloatArray]:
    """Return the copies around the communication of the replicas: (layers, chips) each."""
    rate = chip_column(chips, "memory_bytes_per_s")[:, 0]
    forward_s, backward_s = zip(
        *(copies_s(layer.parameters, training, rate) for layer in variant.layers), strict=True
    )
    return np.stack(forward_s), np.stack(backward_s)
