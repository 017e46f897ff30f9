"""Bounds of the single ways to place a model: one tensor degree under one choice of solved options.

`phaze_opt.passes.least_seconds` bounds the passes of the layers and `phaze_opt.placement.least` the
time of a batch from them, for all architectures at once. Layers, rates of chips and tables of
placements are kept, because ways and options share them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.box_times import BoxTimes
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.choices import FusionMode
from phaze_opt.degrees import Degrees
from phaze_opt.estimator.estimate import communication_of_graphs
from phaze_opt.hardware.accelerator import memory_bytes
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import tensor_terms
from phaze_opt.network.token_exchange import dispatcher_rates
from phaze_opt.passes.estimates import Chip
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.layer_cost import LeastLayers
from phaze_opt.passes.least_energy import fused_passes
from phaze_opt.passes.least_seconds import least_layers, links_s, longest_layers
from phaze_opt.placement.least import LeastPlacement
from phaze_opt.placement.placement_problem import ChipRates
from phaze_opt.point import bare_problem, chip_rates, degrees_of, training_as_fused
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.run_inputs import RunInputs
from phaze_opt.training import Training
from phaze_opt.units import GIB
from phaze_opt.workload.graph import Workload, WorkloadVariant

PLACEMENT_BYTES = 4 * GIB
"""Of tables of placements that are kept: on thousands of devices each takes tens of megabytes."""

DROPPED_AFTER = 16
"""Placements, after which those that are too much are dropped: to add tables up takes its time."""

LAYER_BYTES = 2**28
"""Of bounds of layers that are kept, because options share them."""

_KEPT = 64
"""Number of rates of chips to keep, because options share them."""


@dataclass(frozen=True, eq=False)
class Way:
    """One way to place a model, see `phaze_opt.bounds.box_times`.

    Attributes
    ----------
    run, variant
        On one slice of the network, at one tensor degree.
    batch_j : (architectures,)
        The least energy of a batch; 0 where that is not asked.
    cooled_s : (sizes, architectures)
        The time in which that keeps a limit of the power.
    """

    run: RunInputs
    variant: WorkloadVariant
    batch_j: FloatArray
    cooled_s: FloatArray

    @property
    def key(self) -> Hashable:
        """All that tells it from others."""
        return self.run.capture, self.variant.tensor_parallel, self.run.cluster, self.run.training


class WayBounds:
    """Bounds of single ways, which keep what ways and options share.

    Parameters
    ----------
    study, workloads
        The study with its captured workloads.
    """

    def __init__(self, study: ResolvedStudy, workloads: Sequence[Workload]) -> None:
        self._study = study
        self._workloads = workloads
        self._known: OrderedDict[Hashable, LeastLayers] = OrderedDict()
        self._known_bytes = 0
        self._chip_rates: OrderedDict[Hashable, ChipRates] = OrderedDict()
        self._placements: OrderedDict[Hashable, LeastPlacement] = OrderedDict()
        self._box_times: BoxTimes | None = None

    def box_times_s(self, way: Way, chips: BoundedChips) -> FloatArray | None:
        """Bound the time of a batch on the boxes of chips; ``None`` where there is no room."""

        def bound(boxes: BoundedChips) -> FloatArray:
            every_s = np.full(boxes.hbm_bytes.shape, np.inf)
            return self.least_s(way, boxes, self.rates_of_sizes(way.run, boxes), every_s)

        return self.box_times(chips.space).of(way.key, chips, bound)

    def box_times(self, space: SpaceChips) -> BoxTimes:
        """Return the least seconds of boxes of a space."""
        if self._box_times is None or self._box_times.space is not space:
            self._box_times = BoxTimes(space)
        return self._box_times

    def least_s(
        self,
        way: Way,
        chips: BoundedChips,
        sizes: Sequence[ChipRates],
        known_s: FloatArray,
    ) -> FloatArray:
        """Bound the time of a batch in one way, as far as it is below what is known.

        Returns
        -------
        least_s : (sizes, architectures)
        """
        run, variant = way.run, way.variant
        layers = self._layers(run.capture, variant, chips, run.cluster, run.training)
        placement, splits = self._placement_of(way, chips), not chips.rooflines
        return np.stack(
            [
                placement.least_s(layers, rates, known, splits=splits)
                for rates, known in zip(sizes, known_s, strict=True)
            ]
        )

    def most_s(self, way: Way, chips: BoundedChips, sizes: Sequence[ChipRates]) -> FloatArray:
        """Bound the time of a batch of the fastest placement in one way from above."""
        run, lane_rate = way.run, self._study.lane_rate
        longest = longest_layers(
            way.variant, chips.architectures, run.cluster, run.training, lane_rate=lane_rate
        )
        placement = self._placement_of(way, chips)
        return np.stack([placement.most_s(longest, rates) for rates in sizes])

    def _placement_of(self, way: Way, chips: BoundedChips) -> LeastPlacement:
        """Return the bounds of placements on such chips."""
        run, fusion = way.run, default_fusion(chips.architectures[0])
        training = training_as_fused(run.training, fusion)
        return self.placement(run.capture, way.variant, run.cluster, training, fusion)

    def rates_of_sizes(self, inputs: RunInputs, chips: BoundedChips) -> list[ChipRates]:
        """Return what placements take from chips with each size of the HBM."""
        fusion = default_fusion(chips.architectures[0])
        training = training_as_fused(inputs.training, fusion)
        rates = self._rates(chips, inputs.cluster, training, fusion)
        usable = chips.architectures.column("calibration.usable_hbm_share")[:, 0]
        usable = usable * (1.0 - self._study.spec.constraints.min_memory_margin)
        glb_bytes = chips.architectures.column("glb_bytes")[:, 0]
        return [
            replace(rates, hbm_usable_bytes=memory_bytes(hbm_bytes, glb_bytes) * usable)
            for hbm_bytes in chips.hbm_bytes
        ]

    def degrees(self, capture: int, cluster: Cluster, training: Training) -> Degrees | None:
        """Return the degrees of every design; ``None`` where the placement solves them."""
        placement = self._study.spec.placement
        return degrees_of(placement, self._workloads[capture], cluster, training)

    def _rates(
        self, chips: BoundedChips, cluster: Cluster, training: Training, fusion: FusionMode
    ) -> ChipRates:
        """Return what placements take from chips, which no network changes."""
        if chips.whole is not None:
            whole, which = chips.whole
            return self._rates(whole, cluster, training, fusion).some(which)
        key = chips, training, fusion
        if key not in self._chip_rates:
            lane_rate = self._study.lane_rate
            own = [Chip(chip, cluster, fusion, lane_rate) for chip in chips.architectures]
            self._chip_rates[key] = chip_rates(own, training)
            if len(self._chip_rates) > _KEPT:
                self._chip_rates.popitem(last=False)
        return self._chip_rates[key]

    def _layers(
        self,
        capture: int,
        variant: WorkloadVariant,
        chips: BoundedChips,
        cluster: Cluster,
        training: Training,
    ) -> LeastLayers:
        """Bound the passes of the layers; runs with and without full recompute share them."""
        if chips.whole is not None:
            whole, which = chips.whole
            return self._layers(capture, variant, whole, cluster, training).some(which)
        if training.recompute == "none" and not training.pairs_microbatches:
            again = self._layers(
                capture, variant, chips, cluster, replace(training, recompute="full")
            )
            return replace(again, recompute_s=np.zeros_like(again.recompute_s))
        network = network_of(variant, cluster, training, default_fusion(chips.architectures[0]))
        key = capture, variant.tensor_parallel, chips, network, training
        if key not in self._known:
            layers = least_layers(
                variant,
                chips.architectures,
                cluster,
                training,
                rooflines=chips.rooflines,
                lane_rate=self._study.lane_rate,
                units=chips.units,
            )
            self._known_bytes += layers.table_bytes
            while self._known and self._known_bytes > LAYER_BYTES:
                _, dropped = self._known.popitem(last=False)
                self._known_bytes -= dropped.table_bytes
            self._known[key] = layers
        self._known.move_to_end(key)  # the least recently used bounds are dropped first
        return self._known[key]

    def placement(
        self,
        capture: int,
        variant: WorkloadVariant,
        cluster: Cluster,
        training: Training,
        fusion: FusionMode,
    ) -> LeastPlacement:
        """Return the bounds of placements of a workload, prepared once for all chips.

        Parameters
        ----------
        capture
            Index into the workloads.
        variant
            Of that workload.
        cluster, training, fusion
            As for `phaze_opt.point.bare_problem`.
        """
        tensor = variant.tensor_parallel
        key = capture, tensor, cluster, training
        if key not in self._placements:
            if len(self._placements) % DROPPED_AFTER == 0:
                self._drop_placements()
            problem = bare_problem(variant, cluster, training, fusion)
            distinct = [index for _, index in variant.nodes]
            degrees = self.degrees(capture, cluster, training)
            most = self._study.spec.constraints.max_devices
            sent_s = links_s(variant, cluster, training, fusion)
            self._placements[key] = LeastPlacement(problem, tensor, distinct, degrees, most, sent_s)
        self._placements.move_to_end(key)
        return self._placements[key]

    def _drop_placements(self) -> None:
        """Drop placements that were used the longest ago, beyond `PLACEMENT_BYTES` of tables."""
        kept_bytes = 0
        for key, placement in reversed([*self._placements.items()]):
            kept_bytes += placement.table_bytes
            if kept_bytes > PLACEMENT_BYTES:
                del self._placements[key]


def network_of(
    variant: WorkloadVariant, cluster: Cluster, training: Training, fusion: FusionMode
) -> Hashable:
    """Return all that the layers take from the network: where it is equal, their costs are."""
    tensor = variant.tensor_parallel
    if training.has_tensor_groups_only:
        return tensor_terms(tensor, cluster)
    graphs, _ = fused_passes(variant, training, fusion)
    sent = [each.tobytes() for each in communication_of_graphs(graphs, cluster, tensor)]
    takes_cores = training.pairs_microbatches
    rates = dispatcher_rates(training.dispatcher, cluster) if takes_cores else None
    return tensor, *sent, rates
