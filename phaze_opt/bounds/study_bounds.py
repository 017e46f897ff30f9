"""Upper bounds of a study's objective, composed of the least times that other rooms export.

`phaze_opt.passes.least_seconds` bounds the passes of the layers, `phaze_opt.placement.least` the
time of a batch from them; here they become values of the objective, for all architectures at once.
An option or objective that no bound knows is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.box_times import loses
from phaze_opt.bounds.paid_chips import PaidChips
from phaze_opt.bounds.power_limit import PowerLimit, seconds_within_w
from phaze_opt.bounds.space_chips import EnergyKinds
from phaze_opt.bounds.way_bounds import Way, WayBounds, network_of
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.fitting_tiles import where_tiles_fit
from phaze_opt.estimator.least_energy import least_energies_j
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.least_energy import fused_passes, least_batch_energy_j
from phaze_opt.placement.most_held import most_held_bytes
from phaze_opt.point import (
    bare_problem,
    smaller_slices,
    training_as_fused,
    variants_within,
)
from phaze_opt.spec.designs import Design
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.objectives import (
    BOUNDED_OBJECTIVES,
    OBJECTIVES,
    PAID_OBJECTIVES,
    RATE_OBJECTIVES,
    Measured,
    ObjectiveKind,
    ObjectiveName,
    joined,
)
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.workload.graph import Workload, WorkloadVariant

ROUNDING = 1e-9
"""Relative margin of a bound, so that a sum in another order is never above the bound."""


def bounded_rate(spec: StudySpec) -> ObjectiveKind:
    """Return the rate that bounds of a front are made of: the first, or the throughput."""
    if any(name in PAID_OBJECTIVES for name in spec.objectives):
        return OBJECTIVES["throughput"]
    named = [name for name in spec.objectives if name in RATE_OBJECTIVES]
    return OBJECTIVES[named[0] if named else "throughput"]


def check_bounded(names: Sequence[ObjectiveName]) -> None:
    """Refuse an objective for which no bound is known.

    Raises
    ------
    InputError
        The sentence names the objectives that have a bound.
    """
    for name in names:
        if name not in BOUNDED_OBJECTIVES:
            raise InputError(
                f"No bound is known for the objective {name}; --no-bounds evaluates every point. "
                f"Bounded: {', '.join(BOUNDED_OBJECTIVES)}."
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
    kind
        What is bounded; ``None`` for the first objective of the study.
    likely
        If it is given, designs whose fastest placement would take too much power in its least time
        count as infeasible, with so many times its least energy: most are, but the results are no
        bounds then.

    Attributes
    ----------
    ways
        Bounds of single ways to place a workload.
    """

    study: ResolvedStudy
    workloads: Sequence[Workload]
    reference: Sequence[Measured] = ()
    kind: ObjectiveKind | None = None
    likely: float | None = None
    ways: WayBounds = field(init=False)
    _energies: dict[Hashable, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ways = WayBounds(self.study, self.workloads)

    @property
    def bounded(self) -> ObjectiveKind:
        """The objective that is bounded."""
        return self.kind or self.study.spec.objective_kinds[0]

    @property
    def asks_for_energy(self) -> bool:
        """Whether the bounds depend on the energy of a batch."""
        return self.study.spec.constraints.limits_power or self._by_energy

    @property
    def _by_energy(self) -> bool:
        return self.bounded.name in ("energy_per_sample", *PAID_OBJECTIVES)

    @property
    def time_limit_s(self) -> float:
        """The limit of the time of a batch, with a margin; infinite if there is none."""
        return (self.study.spec.constraints.max_time_per_batch_s or np.inf) * (1.0 + ROUNDING)

    def power_limit_w(self, cluster: Cluster, chips: PaidChips | None) -> FloatArray:
        """Return the limit of the dynamic power of all devices together: (sizes, architectures).

        Infinite if there is none, at least 0.

        Parameters
        ----------
        cluster
            The slice of the network that may run.
        chips
            What the chips cost on the whole network; ``None`` where no limit depends on it.
        """
        limits = self.study.spec.constraints
        devices = min(cluster.devices, limits.max_devices or cluster.devices)
        most_w = np.full((1, 1), (limits.max_power_w or np.inf) * devices)
        if chips is not None:
            most_w = np.minimum(most_w, chips.most_dynamic_w())
        return np.asarray(np.maximum(most_w, 0.0))

    @property
    def question(self) -> list[str]:
        """All that the bounds depend on, for the keys of stored ones."""
        limits, kind = self.study.spec.constraints, self.bounded
        stated = limits.max_time_per_batch_s, limits.max_devices
        known = ["limits"] if limits.limits_power or any(stated) else []
        measure = [] if kind.name in RATE_OBJECTIVES else [kind.name]
        return [self.study.question_hash, *known, *measure]

    def values(self, design: Design, chips: BoundedChips) -> FloatArray:
        """Bound the merit from above, for architectures with every size of the HBM.

        Parameters
        ----------
        design
            Network and options, with any chip.
        chips
            The architectures, or boxes of them.

        Returns
        -------
        bounds : (sizes, architectures)
            In the unit of the objective, or its inverse (`ObjectiveKind.merit`); 0 where surely no
            placement fits and keeps all limits.
        """
        kind, bounds = self.bounded, self._bounds(design, chips)
        rates, energies_j = bounds[:, 0], bounds[:, 1]
        feasible = (rates > 0.0).all(axis=0)
        feasible &= self.study.links_fit(chips.area_mm2, design.cluster)
        with_links_mm2 = chips.area_mm2 + self.study.link_area_mm2(design.cluster)
        if kind.name == "area":
            return np.where(feasible, (1.0 + ROUNDING) / with_links_mm2, 0.0)
        if kind.name == "energy_per_sample":
            return np.where(feasible, 1.0 / self._joined(kind, energies_j, 1.0 - ROUNDING), 0.0)
        if kind.name in PAID_OBJECTIVES:
            paid = PaidChips(self.study, chips, design.cluster)
            values = paid.worth(kind, rates, energies_j)
            return np.where(feasible, self._joined(kind, values, 1.0 + ROUNDING), 0.0)
        # The other bounded objectives are proportional to the samples per second.
        areas_mm2 = with_links_mm2.tolist()
        per_sample_per_s = np.array(
            [
                [kind.of(one_sample_per_s(workload, area_mm2, design)) for area_mm2 in areas_mm2]
                for workload in self._of_runs()
            ]
        )
        values = rates * per_sample_per_s[:, np.newaxis]
        return np.where(feasible, self._joined(kind, values, 1.0 + ROUNDING), 0.0)

    def rates(self, design: Design, chips: BoundedChips) -> FloatArray:
        """Bound the samples per second of every workload from above, as `values` does.

        Returns
        -------
        rates : (workloads, sizes, architectures)
        """
        return self._bounds(design, chips)[:, 0]

    def _bounds(self, design: Design, chips: BoundedChips) -> FloatArray:
        """Bound the rate and the energy of every workload, at the best of the solved options.

        Returns
        -------
        bounds : (workloads, 2, sizes, architectures)
            Most samples per second, 0 where surely no placement fits and keeps all limits, and
            least joules per sample, 0 where they are not asked for.
        """
        first = replace(design, accelerator=chips.architectures[0])
        try:
            inputs = self._inputs(first)
        except InputError:
            # The options exclude each other: every evaluation is refused, too.
            return np.zeros((len(self.study.spec.runs), 2, *chips.hbm_bytes.shape))
        return np.stack([self._bounds_of_run(of_run, chips) for of_run in inputs])

    def _inputs(self, design: Design) -> list[Sequence[RunInputs]]:
        """Return the inputs of every workload with the solved options."""
        return [run_inputs(self.study, run, design) for run in range(len(self.study.spec.runs))]

    def _joined(self, kind: ObjectiveKind, values: FloatArray, rounding: float) -> FloatArray:
        """Join the values of several workloads as the study does; the first axis are these."""
        if len(values) == 1:
            only: FloatArray = values[0]
            return only
        spec = self.study.spec
        scale = np.array([kind.of(measured) for measured in self.reference])
        ratios = values / scale.reshape(-1, *[1] * (values.ndim - 1))
        return joined(kind, spec.aggregate, ratios, [run.weight for run in spec.runs]) * rounding

    def least_energy_j_per_sample(self, design: Design, kinds: EnergyKinds) -> FloatArray:
        """Bound the energy per sample from below; several workloads are joined as the study does.

        Parameters
        ----------
        design
            Network and options, with any chip.
        kinds
            What the chips of a space differ in.

        Returns
        -------
        energy_j : (kinds,)
            In joules; of several workloads, relative to the reference.

        Raises
        ------
        InputError
            If the options exclude each other.
        """
        least_j = np.full((len(self.study.spec.runs), len(kinds.chips)), np.inf)
        for place, of_run in enumerate(self._inputs(design)):
            for run in (on_slice for whole in of_run for on_slice in self.on_slices(whole)):
                for variant in self.variants(run):
                    batch_j = self.least_batch_j(run, variant, kinds)
                    of_samples = batch_j / run.training.global_batch
                    least_j[place] = np.minimum(least_j[place], of_samples)
        return self._joined(OBJECTIVES["energy_per_sample"], least_j, 1.0 - ROUNDING)

    def least_batch_j(
        self, run: RunInputs, variant: WorkloadVariant, kinds: EnergyKinds
    ) -> FloatArray:
        """Bound the energy of a batch on every kind of chip; infinite where no tile fits."""
        fusion = default_fusion(kinds.chips[0])
        training = training_as_fused(run.training, fusion)
        tensor = variant.tensor_parallel
        graphs, _ = fused_passes(variant, training, fusion)
        key = graphs, network_of(variant, run.cluster, training, fusion), training.residency, kinds
        if key not in self._energies:

            def bound(which: IntArray) -> FloatArray:
                chips = Chips([kinds.chips[index] for index in which.tolist()])
                return least_energies_j(
                    graphs, chips, run.cluster, tensor, residency=training.residency
                )

            every = np.arange(len(kinds.chips))
            none = np.full((2, len(graphs), 1), np.inf)
            self._energies[key] = where_tiles_fit(bound, every, none)
        least_j, nothing_stays_j = self._energies[key]
        # Some tensors stay, but not all that could if each were alone.
        passes_j = least_j if self.likely is None else (least_j + nothing_stays_j) / 2.0
        batch_j = least_batch_energy_j(variant, training, fusion, passes_j, kinds.chips)
        return batch_j * (1.0 - ROUNDING)

    def _of_runs(self) -> list[Workload]:
        """Return one captured workload per run; all workloads of a run have equal tokens."""
        per_run = len(self.workloads) // len(self.study.spec.runs)
        return list(self.workloads[::per_run])

    def _bounds_of_run(self, inputs: Sequence[RunInputs], chips: BoundedChips) -> FloatArray:
        """Bound one workload; see `_bounds`."""
        least_s, least_j = np.full((2, *chips.hbm_bytes.shape), np.inf)
        every = [(run, list(self.ways_of(run, chips))) for run in inputs]
        if self._may_skip(chips):
            every.sort(key=lambda own: self._least_on_boxes_s(own[1], chips))
        for run, ways in every:
            on_boxes = self._on_boxes(ways, chips)
            batch_s, batch_j = self._least_of_ways(run, ways, chips, least_s, on_boxes)
            least_s, least_j = np.minimum(least_s, batch_s), np.minimum(least_j, batch_j)
        samples = inputs[0].training.global_batch
        rates = np.where(np.isfinite(least_s), samples / least_s, 0.0)
        return np.stack([rates * (1.0 + ROUNDING), least_j / samples])

    def _least_on_boxes_s(self, ways: Sequence[Way], chips: BoundedChips) -> float:
        """Bound the time of a batch on the boxes of all of some chips, as far as it is known."""
        on_boxes = (self.ways.box_times_s(each, chips) for each in ways)
        return min([float(each.min()) for each in on_boxes if each is not None], default=0.0)

    def ways_of(self, inputs: RunInputs, chips: BoundedChips) -> Iterator[Way]:
        """Yield all ways to place a run."""
        limits = self.study.spec.constraints
        paid = PaidChips(self.study, chips, inputs.cluster) if limits.is_paid else None
        for run in self.on_slices(inputs):
            limits_w = self.power_limit_w(run.cluster, paid)
            limits_w = np.broadcast_to(limits_w, chips.hbm_bytes.shape)
            for variant in self.variants(run):
                batch_j = np.zeros(len(chips.area_mm2))
                if self.asks_for_energy:
                    by_kind = self.least_batch_j(run, variant, chips.space.energy_kinds)
                    batch_j = chips.least(by_kind)
                yield Way(run, variant, batch_j, seconds_within_w(batch_j, limits_w))

    def least_of_batch(self, inputs: RunInputs, chips: BoundedChips) -> FloatArray:
        """Bound the time and the energy of a batch from below, over all placements.

        A limit of the power makes them longer, see `phaze_opt.bounds.power_limit`.

        Parameters
        ----------
        inputs
            Workload, whole network and training run, with any chip.
        chips
            The architectures, or boxes of them; their space need not hold them.

        Returns
        -------
        least : (2, sizes, architectures)
            Seconds and joules; infinite where surely no placement fits and keeps all limits. Joules
            are 0 where the study does not ask for them.
        """
        ways, unknown_s = list(self.ways_of(inputs, chips)), np.full(chips.hbm_bytes.shape, np.inf)
        return self._least_of_ways(inputs, ways, chips, unknown_s, [None] * len(ways))

    def takes_longer(
        self, chips: BoundedChips, size: int, inputs: RunInputs, known_s: float
    ) -> bool:
        """Whether a run surely takes longer than a known time, in every way to place it.

        Boxes are not asked: a chip that no tile fits must be refused, as its evaluation is.

        Parameters
        ----------
        chips
            One chip of the space.
        size
            Index of the size of its HBM.
        inputs
            Workload, whole network and training run.
        known_s
            Of a batch.

        Raises
        ------
        NoTileFitsError
            If no tile of a product fits the chip.
        """
        sizes = self.ways.rates_of_sizes(inputs, chips)[size : size + 1]
        enough_s = np.full((1, 1), known_s * (1.0 + ROUNDING))
        for run in self.on_slices(inputs):
            for variant in self.variants(run):
                way = Way(run, variant, np.zeros(1), np.full((1, 1), np.inf))
                if (self.ways.least_s(way, chips, sizes, enough_s) < enough_s).any():
                    return False
        return True

    def _on_boxes(self, ways: Sequence[Way], chips: BoundedChips) -> list[FloatArray | None]:
        """Bound the ways on the boxes of chips, where that may leave some of them out."""
        if chips is self.ways.box_times(chips.space).boxes or self._may_skip(chips):
            return [self.ways.box_times_s(way, chips) for way in ways]
        return [None] * len(ways)

    def _least_of_ways(
        self,
        inputs: RunInputs,
        ways: Sequence[Way],
        chips: BoundedChips,
        known_s: FloatArray,
        on_boxes: Sequence[FloatArray | None],
    ) -> FloatArray:
        """Do as `least_of_batch`; times need not be exact from those on that are known."""
        limits = self.study.spec.constraints
        sizes = self.ways.rates_of_sizes(inputs, chips)
        best = np.full((2, *chips.hbm_bytes.shape), np.inf)
        power = PowerLimit(chips.hbm_bytes.shape, self.likely)
        is_every_box = chips is self.ways.box_times(chips.space).boxes
        cooled_s = np.minimum.reduce([way.cooled_s for way in ways], initial=np.inf)
        skips = self._may_skip(chips) and self._none_is_too_hot(cooled_s, on_boxes)
        for way, box_s in zip(ways, on_boxes, strict=True):
            enough_s = best[0]
            if skips:
                # No way keeps a limit of the power that is none.
                enough_s = np.where(np.isinf(cooled_s), 0.0, np.minimum(best[0], known_s))
                if loses(box_s, enough_s):
                    continue
            # What is not faster may still take less energy.
            enough_s = np.full_like(enough_s, np.inf) if self._by_energy else enough_s
            every_s = box_s if is_every_box else None  # these are exact
            if every_s is None:
                every_s = self.ways.least_s(way, chips, sizes, enough_s)
            for size, least_s in enumerate(every_s):
                slowed_s = power.slowed_s(size, least_s, way.cooled_s[size], best[0, size])
                slowed_s = np.where(slowed_s > self.time_limit_s, np.inf, slowed_s)
                least_j = np.where(np.isfinite(slowed_s), way.batch_j, np.inf)
                best[:, size] = np.minimum(best[:, size], [slowed_s, least_j])
            if limits.limits_power and not chips.rooflines and not skips:
                for size, most_s in enumerate(self.ways.most_s(way, chips, sizes)):
                    power.fastest(size, most_s)
        best[:, power.excluded(best[0])] = np.inf
        return best

    def _may_skip(self, chips: BoundedChips) -> bool:
        """Whether ways that lose on the boxes of chips may be left out.

        What is slower may still take less energy, and which way is the fastest one may count.
        """
        return not (chips.rooflines or self._by_energy or self.likely is not None)

    def _none_is_too_hot(self, cooled_s: FloatArray, on_boxes: Sequence[FloatArray | None]) -> bool:
        """Whether surely no chip is excluded by a limit of the power that it could keep.

        So it is if some way keeps it in the least time of any, as far as the boxes tell.

        Parameters
        ----------
        cooled_s : (sizes, architectures)
            The least time in which any way keeps the limit.
        on_boxes
            Least times of the ways.
        """
        if not self.study.spec.constraints.limits_power:
            return True
        known = [each for each in on_boxes if each is not None]
        if len(known) < max(len(on_boxes), 1):
            return False
        keeps = cooled_s.min(axis=0) <= np.minimum.reduce(known)
        return bool((keeps | np.isinf(cooled_s)).all())

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
        degrees = self.ways.degrees(inputs.capture, inputs.cluster, inputs.training)
        smaller = smaller_slices(inputs.cluster, degrees)
        return [inputs, *(replace(inputs, cluster=cluster) for _, cluster in smaller)]

    def variants(self, inputs: RunInputs) -> list[WorkloadVariant]:
        """Return the variants of a workload that the placement may use."""
        degrees = self.ways.degrees(inputs.capture, inputs.cluster, inputs.training)
        captured = variants_within(self.workloads[inputs.capture], inputs.cluster, inputs.training)
        if degrees is None:
            return list(captured)
        return [variant for variant in captured if variant.tensor_parallel == degrees.tensor]


def one_sample_per_s(workload: Workload, area_mm2: float, design: Design) -> Measured:
    """Return one sample per second as objectives measure it; bounds need no energy or power."""
    devices = design.cluster.devices
    return Measured(1.0, float(workload.sequence), np.nan, np.nan, area_mm2, devices)
