"""Upper bounds of a study's objective, composed of the least times that other rooms export.

`phaze_opt.passes.least_seconds` bounds the passes of the layers, `phaze_opt.placement.least` the
time of a batch from them; here they become values of the objective, for all architectures at once.
An option or objective that no bound knows is refused, never ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.choices import FusionMode
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import tensor_terms
from phaze_opt.passes.estimates import Chip
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.layer_cost import LeastLayers
from phaze_opt.passes.least_energy import least_batch_energy_j
from phaze_opt.passes.least_seconds import least_layers
from phaze_opt.placement.least import LeastPlacement
from phaze_opt.placement.most_held import most_held_bytes
from phaze_opt.point import (
    bare_problem,
    chip_rates,
    degrees_of,
    smaller_slices,
    training_as_fused,
    variants_within,
)
from phaze_opt.spec.designs import Design
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.objectives import (
    BOUNDED_OBJECTIVES,
    OBJECTIVES,
    Measured,
    ObjectiveKind,
    joined,
)
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload, WorkloadVariant

ROUNDING = 1e-9
"""Relative margin of a bound, so that a sum in another order is never above the bound."""


def bounded_rate(spec: StudySpec) -> ObjectiveKind:
    """Return the objective that `StudyBounds` bounds: the first with a bound, or the throughput."""
    named = [name for name in spec.objectives if name in BOUNDED_OBJECTIVES]
    return OBJECTIVES[named[0] if named else "throughput"]


def check_bounded(spec: StudySpec) -> None:
    """Refuse an objective for which no bound is known.

    Raises
    ------
    InputError
        The sentence names the objectives that have a bound.
    """
    for name in spec.objectives:
        if name not in BOUNDED_OBJECTIVES:
            raise InputError(
                f"No bound is known for the objective {name}; --no-bounds evaluates every point. "
                f"Bounded: {', '.join(BOUNDED_OBJECTIVES)}."
            )


_KEPT = 64
"""Number of bounds of layers to keep, because options share them."""


@dataclass(frozen=True, eq=False)
class BoundedChips:
    """Chips that are bounded together.

    Attributes
    ----------
    architectures
        One chip per architecture.
    hbm_bytes : (sizes, architectures)
        Sizes of the HBM.
    area_mm2 : (architectures,)
        Under the area model of the study.
    rooflines
        Whether each chip stands for a box: all chips with its peak rates, of their least area.
    """

    architectures: Chips
    hbm_bytes: IntArray
    area_mm2: FloatArray
    rooflines: bool = False

    @classmethod
    def of(cls, chips: SpaceChips, rows: IntArray) -> Self:
        """Return the architectures of some rows of a space."""
        architectures = Chips([chips.architecture(row) for row in rows.tolist()])
        return cls(architectures, chips.hbm_bytes[:, rows], chips.area_mm2[rows])

    @classmethod
    def boxes(cls, chips: SpaceChips) -> Self:
        """Return the boxes of a space, each by its first architecture."""
        first = chips.first[:-1]
        least_mm2 = np.minimum.reduceat(chips.area_mm2, first) if len(first) else chips.area_mm2
        return replace(cls.of(chips, first), area_mm2=least_mm2, rooflines=True)

    def some(self, which: IntArray) -> BoundedChips:
        """Return the chips of some indices."""
        architectures = Chips([self.architectures[index] for index in which.tolist()])
        return BoundedChips(
            architectures, self.hbm_bytes[:, which], self.area_mm2[which], self.rooflines
        )


@dataclass(eq=False)
class StudyBounds:
    """Bounds of the points of one study, for many architectures at once.

    Parameters
    ----------
    study, workloads
        The study with its captured workloads.
    reference
        Workloads on the reference baseline, as in `phaze_opt.study.objective.objective_values`.
    """

    study: ResolvedStudy
    workloads: Sequence[Workload]
    reference: Sequence[Measured] = ()
    _known: OrderedDict[Hashable, LeastLayers] = field(default_factory=OrderedDict)
    _placements: dict[Hashable, LeastPlacement] = field(default_factory=dict)

    def values(self, design: Design, chips: BoundedChips) -> FloatArray:
        """Bound the rate from above, for architectures with every size of the HBM.

        The rate is the objective that `bounded_rate` names.

        Parameters
        ----------
        design
            Network and options, with any chip.
        chips
            The architectures, or boxes of them.

        Returns
        -------
        bounds : (sizes, architectures)
            In the unit of the objective; 0 where surely no placement fits.
        """
        spec, fastest = self.study.spec, self.rates(design, chips)
        # The bounded objectives are proportional to the samples per second.
        kind = bounded_rate(spec)
        areas_mm2 = chips.area_mm2.tolist()
        per_sample_per_s = np.array(
            [
                [kind.of(one_sample_per_s(workload, area_mm2, design)) for area_mm2 in areas_mm2]
                for workload in self._of_runs()
            ]
        )
        values = fastest * per_sample_per_s[:, np.newaxis]
        if len(fastest) == 1:
            only: FloatArray = values[0]
            return only
        scale = np.array([kind.of(measured) for measured in self.reference]).reshape(-1, 1, 1)
        weights = [run.weight for run in spec.runs]
        return joined(kind, spec.aggregate, values / scale, weights) * (1.0 + ROUNDING)

    def rates(self, design: Design, chips: BoundedChips) -> FloatArray:
        """Bound the samples per second of every workload from above, as `values` does.

        Returns
        -------
        rates : (workloads, sizes, architectures)
        """
        runs = range(len(self.study.spec.runs))
        first = replace(design, accelerator=chips.architectures[0])
        try:
            inputs = [run_inputs(self.study, run, first) for run in runs]
        except InputError:
            # The options exclude each other: every evaluation is refused, too.
            return np.zeros((len(runs), *chips.hbm_bytes.shape))
        return np.stack([self._throughput(of_run, chips) for of_run in inputs])

    def _of_runs(self) -> list[Workload]:
        """Return one captured workload per run; all workloads of a run have equal tokens."""
        per_run = len(self.workloads) // len(self.study.spec.runs)
        return list(self.workloads[::per_run])

    def least_energy_j_per_sample(self, design: Design, chips: Chips) -> FloatArray:
        """Bound the energy per sample from below; several workloads are joined as the study does.

        Parameters
        ----------
        design
            Network and options, with any chip.
        chips
            The architectures.

        Returns
        -------
        energy_j : (architectures,)
            In joules; of several workloads, relative to the reference.

        Raises
        ------
        InputError
            If the options exclude each other.
        """
        spec, kind = self.study.spec, OBJECTIVES["energy_per_sample"]
        first = replace(design, accelerator=chips[0])
        inputs = [run_inputs(self.study, run, first) for run in range(len(spec.runs))]
        least_j = np.stack([self._least_energy_j(of_run, chips) for of_run in inputs])
        if len(inputs) == 1:
            only: FloatArray = least_j[0]
            return only
        scale = np.array([[kind.of(measured)] for measured in self.reference])
        weights = [run.weight for run in spec.runs]
        return joined(kind, spec.aggregate, least_j / scale, weights) * (1.0 - ROUNDING)

    def _least_energy_j(self, inputs: Sequence[RunInputs], chips: Chips) -> FloatArray:
        """Bound the energy per sample of one workload, over options and tensor degrees."""
        fusion = default_fusion(chips[0])
        best = np.full(len(chips), np.inf)
        for run in (on_slice for whole in inputs for on_slice in self.on_slices(whole)):
            training = training_as_fused(run.training, fusion)
            for variant in variants_within(self.workloads[run.capture], run.cluster, training):
                batch_j = least_batch_energy_j(variant, chips, run.cluster, training, fusion)
                best = np.minimum(best, batch_j / training.global_batch)
        return best * (1.0 - ROUNDING)

    def _throughput(self, inputs: Sequence[RunInputs], chips: BoundedChips) -> FloatArray:
        """Bound the throughput of one workload: the best over the solved options."""
        best = np.zeros(chips.hbm_bytes.shape)
        for run in inputs:
            least_s = self.least_batch_s(run, chips)
            samples = run.training.global_batch
            best = np.maximum(best, np.where(np.isfinite(least_s), samples / least_s, 0.0))
        return best * (1.0 + ROUNDING)

    def least_batch_s(self, inputs: RunInputs, chips: BoundedChips) -> FloatArray:
        """Bound the time of a batch from below over all placements.

        Parameters
        ----------
        inputs
            Workload, whole network and training run, with any chip.
        chips
            The architectures, or boxes of them.

        Returns
        -------
        least_s : (sizes, architectures)
            Infinite where surely no placement fits.
        """
        training, fusion = inputs.training, default_fusion(chips.architectures[0])
        as_fused = training_as_fused(training, fusion)
        lane_rate = self.study.lane_rate
        rates = chip_rates(
            [Chip(chip, inputs.cluster, fusion, lane_rate) for chip in chips.architectures],
            as_fused,
        )
        usable = chips.architectures.column("calibration.usable_hbm_share")[:, 0]
        usable = usable * (1.0 - self.study.spec.constraints.min_memory_margin)
        best = np.full(chips.hbm_bytes.shape, np.inf)
        for run in self.on_slices(inputs):
            for variant in self.variants(run):
                layers = self._layers(run.capture, variant, chips, run.cluster, training)
                placement = self.placement(run.capture, variant, run.cluster, as_fused, fusion)
                for size, capacities in enumerate(chips.hbm_bytes):
                    of_size = replace(rates, hbm_usable_bytes=capacities * usable)
                    best[size] = placement.least_s(
                        layers, of_size, best[size], splits=not chips.rooflines
                    )
        return best

    def most_held_bytes(self, design: Design) -> float:
        """Bound the bytes on a device from above, over workloads, solved options and placements.

        Parameters
        ----------
        design
            Network and options, with any chip.

        Raises
        ------
        InputError
            If the options exclude each other.
        """
        fusion = default_fusion(design.accelerator)
        return max(
            most_held_bytes(
                bare_problem(variant, inputs.cluster, inputs.training, fusion),
                variant.tensor_parallel,
            )
            for run in range(len(self.study.spec.runs))
            for inputs in run_inputs(self.study, run, design)
            for variant in self.variants(inputs)
        )

    def on_slices(self, inputs: RunInputs) -> list[RunInputs]:
        """Return a run on every slice of its network that it may use, the whole network first."""
        degrees = self._degrees(inputs.capture, inputs.cluster)
        smaller = smaller_slices(inputs.cluster, degrees)
        return [inputs, *(replace(inputs, cluster=cluster) for _, cluster in smaller)]

    def variants(self, inputs: RunInputs) -> list[WorkloadVariant]:
        """Return the variants of a workload that the placement may use."""
        degrees = self._degrees(inputs.capture, inputs.cluster)
        captured = variants_within(self.workloads[inputs.capture], inputs.cluster, inputs.training)
        if degrees is None:
            return list(captured)
        return [variant for variant in captured if variant.tensor_parallel == degrees.tensor]

    def _degrees(self, capture: int, cluster: Cluster) -> Degrees | None:
        """Return the degrees of every design; ``None`` where the placement solves them."""
        return degrees_of(self.study.spec.placement, self.workloads[capture], cluster)

    def _layers(
        self,
        capture: int,
        variant: WorkloadVariant,
        chips: BoundedChips,
        cluster: Cluster,
        training: Training,
    ) -> LeastLayers:
        """Bound the passes of the layers; runs with and without full recompute share them."""
        if training.recompute == "none":
            again = self._layers(
                capture, variant, chips, cluster, replace(training, recompute="full")
            )
            return replace(again, recompute_s=np.zeros_like(again.recompute_s))
        tensor = variant.tensor_parallel
        key = (capture, tensor, chips, tensor_terms(tensor, cluster), training)
        if key not in self._known:
            self._known[key] = least_layers(
                variant,
                chips.architectures,
                cluster,
                training,
                rooflines=chips.rooflines,
                lane_rate=self.study.lane_rate,
            )
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
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
            problem = bare_problem(variant, cluster, training, fusion)
            distinct = [index for _, index in variant.nodes]
            degrees = self._degrees(capture, cluster)
            self._placements[key] = LeastPlacement(problem, tensor, distinct, degrees)
        return self._placements[key]


def one_sample_per_s(workload: Workload, area_mm2: float, design: Design) -> Measured:
    """Return one sample per second as objectives measure it; bounds need no energy or power."""
    devices = design.cluster.devices
    return Measured(1.0, float(workload.sequence), np.nan, np.nan, area_mm2, devices)
