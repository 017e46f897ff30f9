"""The bounds of boxes and of chips a second time, in plain Python: one operator after another.

The check of a certificate compares the bounds with these, so that an error of an array or of a
compiled loop shows. Both share the inputs of a bound: captured graphs, the cost of a collective,
and the table of the degrees of parallelism with their memory. Bounds of boxes are equal to those of
`phaze_opt.bounds.study_bounds`. Bounds of chips are near, and mostly a little looser: they neglect
rounded shares of a bandwidth, most schedules, and which chips take too much power however slow they
are. Energies are those of the arrays: evaluations check them
(`phaze_opt.whole_space.verifying_energies`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.paid_chips import PaidChips
from phaze_opt.bounds.power_limit import seconds_within_w
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.bounds.study_bounds import ROUNDING, StudyBounds, one_sample_per_s
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.passes.estimates import Chip
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.placement.least import LeastPlacement
from phaze_opt.placement.placement_problem import s_per_parameter
from phaze_opt.point import (
    chip_rates,
    training_as_fused,
)
from phaze_opt.spec.constraints import with_memory_margin
from phaze_opt.spec.designs import Design
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.objectives import PAID_OBJECTIVES, RATE_OBJECTIVES, ObjectiveKind, joined
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.training import Training
from phaze_opt.whole_space.scalar_batches import batch_s
from phaze_opt.whole_space.scalar_candidates import ChipSeconds, ScalarCandidates
from phaze_opt.whole_space.scalar_passes import Passes, Sort
from phaze_opt.workload.graph import WorkloadVariant

MARGIN = 1e-9
"""Relative margin below a known rate or merit, from which bounds are computed."""


@dataclass(eq=False)
class _ScalarRun:
    """The bounds of one workload under one combination of options.

    Attributes
    ----------
    fused
        The training options with a fused optimizer, if the chip fuses it.
    variants
        Variants of the workload that the placement may use, each with its least placement and its
        passes.
    """

    inputs: RunInputs
    fused: Training
    variants: list[tuple[WorkloadVariant, LeastPlacement, Passes]]
    _candidates: dict[tuple[int, float], ScalarCandidates] = field(default_factory=dict)
    _box_s: dict[Hashable, float] = field(default_factory=dict)

    def candidates(
        self, variant: WorkloadVariant, placement: LeastPlacement, usable_bytes: float
    ) -> ScalarCandidates:
        """Return the degrees of parallelism that fit a memory, at one tensor degree."""
        key = variant.tensor_parallel, usable_bytes
        if key not in self._candidates:
            distinct = [index for _, index in variant.nodes]
            arrays = placement.candidates_within(usable_bytes)
            self._candidates[key] = ScalarCandidates(arrays, distinct)
        return self._candidates[key]

    def box_s(self, key: Hashable, bound: Callable[[], float]) -> float:
        """Return the bound of a box, computed once."""
        if key not in self._box_s:
            self._box_s[key] = bound()
        return self._box_s[key]


@dataclass(eq=False)
class ScalarBounds:
    """Bounds of the points of one study, chip by chip; see `StudyBounds`.

    Parameters
    ----------
    arrays
        Bounds of the study by arrays, which provide the workloads and the inputs of a bound.
    space
        The chips of the study, where its bounds depend on energies.
    """

    arrays: StudyBounds
    space: SpaceChips | None = None
    _runs: dict[Hashable, list[list[_ScalarRun]]] = field(default_factory=dict)

    @property
    def study(self) -> ResolvedStudy:
        """The study."""
        return self.arrays.study

    def forget(self) -> None:
        """Forget what combinations of options need, which is much where there are many of them."""
        self._runs.clear()

    def of_box(self, design: Design, rows: range, known: Sequence[float]) -> list[float]:
        """Bound the samples per second of every workload, on every chip of a box.

        Parameters
        ----------
        design
            A chip of the box, with network and options.
        rows
            All chips of the box.
        known
            Samples per second of every workload; a bound below that need not be computed.

        Returns
        -------
        rates
            Samples per second of every workload, not below ``known``. Where ``known`` is 0, the
            rate is 0 if no placement fits.
        """
        return self._rates(design, rows, known, ["box"], None)

    def of_chip(
        self, design: Design, row: int, known: Sequence[float], box: Accelerator | None = None
    ) -> list[float]:
        """Bound the samples per second of every workload on one chip; see `of_box`.

        Parameters
        ----------
        row
            The chip.
        box
            A chip of the same box; the bounds of the box are kept for its other chips.
        """
        # The quickest bound comes first, and is enough for most chips that are far from the top.
        sorts: list[Sort] = ["chip"] if box is None else ["fitting", "quick", "chip"]
        return self._rates(design, row, known, sorts, box)

    def rates_below(
        self,
        design: Design,
        rows: range | int,
        area_mm2: float,
        merit: float,
        rates: Sequence[float] = (1.0,),
    ) -> list[float]:
        """Return the rates, in proportion to some, whose merit is just below a given one.

        Parameters
        ----------
        design, rows, area_mm2
            See `merit`.
        merit
            The given one; 0 gives rates of 0.
        rates
            Samples per second of every workload.

        Returns
        -------
        rates
            Samples per second of every workload; 0 for an objective that does not grow in
            proportion to them.
        """
        scale = 0.0
        if self.arrays.bounded.name in RATE_OBJECTIVES:
            own = self.merit(design, rows, area_mm2, rates)
            scale = merit / own * (1.0 - MARGIN) if own > 0.0 else 0.0
        return [rate * scale for rate in rates]

    def merit(
        self, design: Design, rows: range | int, area_mm2: float, rates: Sequence[float]
    ) -> float:
        """Return the merit of a design that trains at these rates (samples/s, per workload).

        Parameters
        ----------
        rows
            The chips of the box that it bounds, of which the least energy counts; or the chip.
        """
        if min(rates) == 0.0 or not self.study.links_fit(np.array(area_mm2), design.cluster):
            return 0.0
        area_mm2 += self.study.link_area_mm2(design.cluster)
        kind = self.arrays.bounded
        if kind.name == "area":
            return (1.0 + ROUNDING) / area_mm2
        if kind.name == "energy_per_sample":
            return 1.0 / self._joined(kind, self._joules(design, rows), 1.0 - ROUNDING)
        if kind.name in PAID_OBJECTIVES:
            paid = self._paid(design, rows)
            worth = [
                paid.worth(kind, np.array(rate), np.array(joules)).item()
                for rate, joules in zip(rates, self._joules(design, rows), strict=True)
            ]
            return self._joined(kind, worth, 1.0 + ROUNDING)
        # One captured workload of every run: all of one run have equally many tokens.
        workloads = self.arrays.workloads[:: len(self.arrays.workloads) // len(rates)]
        values = [
            rate * kind.of(one_sample_per_s(workload, area_mm2, design))
            for rate, workload in zip(rates, workloads, strict=True)
        ]
        return self._joined(kind, values, 1.0 + ROUNDING)

    def _joules(self, design: Design, rows: range | int) -> list[float]:
        """Return the least joules per sample of every workload."""
        return [self._least_j(runs, design, rows) for runs in self._runs_of(design)]

    def _paid(self, design: Design, rows: range | int) -> PaidChips:
        """Return what a chip costs at least, or all chips of a box."""
        assert self.space is not None
        chip, is_alone = design.accelerator, isinstance(rows, int)
        if isinstance(rows, int):
            area_mm2 = self.study.area_if_known_mm2(chip) or 0.0
        else:
            boxes = self.space.boxes_of(np.array([rows.start, rows.stop - 1]))
            area_mm2 = float(self.space.table.least_mm2[boxes[0] : boxes[1] + 1].min())
        bounded = BoundedChips(
            Chips([chip]),
            np.array([[chip.hbm_bytes]]),
            np.array([area_mm2]),
            self.space,
            np.zeros((1, 2), dtype=np.int64),
            rooflines=not is_alone,
        )
        return PaidChips(self.study, bounded, design.cluster)

    def _joined(self, kind: ObjectiveKind, values: Sequence[float], rounding: float) -> float:
        """Join the values of several workloads."""
        if len(values) == 1:
            return values[0]
        pairs = zip(values, self.arrays.reference, strict=True)
        ratios = np.array([value / kind.of(reference) for value, reference in pairs])
        weights = [run.weight for run in self.study.spec.runs]
        return float(joined(kind, self.study.spec.aggregate, ratios, weights)) * rounding

    def _least_j(self, runs: Sequence[_ScalarRun], design: Design, rows: range | int) -> float:
        """Return the least joules per sample of one workload, over all that fits and is in time."""
        chip = with_memory_margin(design.accelerator, self.study.spec.constraints)
        sort: Sort = "chip" if isinstance(rows, int) else "box"
        least_j, paid = math.inf, self._limited(design, rows)
        for run in runs:
            own = _chip_seconds(run, chip)
            for variant, placement, passes in run.variants:
                candidates = run.candidates(variant, placement, chip.usable_memory_bytes)
                least_s = _least_s(passes, candidates, own, chip, sort, math.inf)
                batch_j = self._batch_j(run, variant, rows)
                least_s = max(least_s, self._cooled_s(run, batch_j, paid))
                if math.isfinite(least_s) and least_s <= self.arrays.time_limit_s:
                    least_j = min(least_j, batch_j / run.fused.global_batch)
        return least_j

    def _batch_j(self, run: _ScalarRun, variant: WorkloadVariant, rows: range | int) -> float:
        """Return the least energy of a batch on some chips; 0 if nobody asks for it."""
        if not self.arrays.asks_for_energy:
            return 0.0
        assert self.space is not None
        kinds = self.space.energy_kinds
        by_kind = self.arrays.least_batch_j(run.inputs, variant, kinds)
        own = kinds.of[rows] if isinstance(rows, int) else kinds.of[rows.start : rows.stop]
        return float(by_kind[own].min())

    def _limited(self, design: Design, rows: range | int) -> PaidChips | None:
        """Return what chips cost, where a limit depends on it."""
        return self._paid(design, rows) if self.study.spec.constraints.is_paid else None

    def _cooled_s(self, run: _ScalarRun, batch_j: float, paid: PaidChips | None) -> float:
        """Return the time in which a batch takes no more than the power of all devices."""
        limit_w = self.arrays.power_limit_w(run.inputs.cluster, paid)
        return seconds_within_w(np.array(batch_j), limit_w).item()

    def _rates(
        self,
        design: Design,
        rows: range | int,
        known: Sequence[float],
        sorts: Sequence[Sort],
        box: Accelerator | None,
    ) -> list[float]:
        """Bound the samples per second of every workload at the best of the solved options."""
        chip = with_memory_margin(design.accelerator, self.study.spec.constraints)
        runs = self._runs_of(design)
        if not runs:
            return [0.0 for _ in known]
        rates, paid = [], self._limited(design, rows)
        cooled = partial(self._cooled_s, paid=paid)
        for options, best in zip(runs, known, strict=True):
            for run in options:
                samples = run.fused.global_batch
                enough_s = samples / best if best > 0.0 else math.inf
                best = max(
                    best, samples / self._batch_s(run, chip, rows, enough_s, sorts, box, cooled)
                )
            rates.append(best * (1.0 + ROUNDING))
        return rates

    def _batch_s(
        self,
        run: _ScalarRun,
        chip: Accelerator,
        rows: range | int,
        enough_s: float,
        sorts: Sequence[Sort],
        box: Accelerator | None,
        cooled: Callable[[_ScalarRun, float], float],
    ) -> float:
        """Bound the time of a batch from below over all placements; ``enough_s`` at most."""
        own, best_s, usable_bytes = _chip_seconds(run, chip), enough_s, chip.usable_memory_bytes
        for variant, placement, passes in run.variants:
            candidates = run.candidates(variant, placement, usable_bytes)
            bound = partial(_least_s, passes, candidates, own)
            if box is not None and enough_s < math.inf:
                key = variant.tensor_parallel, box, usable_bytes, enough_s
                if run.box_s(key, partial(bound, box, "box", enough_s)) >= enough_s:
                    continue
            least_s = cooled(run, self._batch_j(run, variant, rows))
            for sort in sorts:
                if least_s >= best_s:
                    break
                least_s = max(least_s, bound(chip, sort, best_s))
            if least_s <= self.arrays.time_limit_s:
                best_s = min(best_s, least_s)
        return best_s

    def _runs_of(self, design: Design) -> list[list[_ScalarRun]]:
        """Return every workload under each of its solved options, on each slice of its network.

        The list is empty if the options exclude each other.
        """
        concurrent = design.accelerator.concurrent_operators
        key = design.cluster, tuple(sorted(design.options.items())), concurrent
        if key not in self._runs:
            try:
                inputs = [
                    run_inputs(self.study, run, design) for run in range(len(self.study.spec.runs))
                ]
            except InputError:
                # Every evaluation of these options is refused, too.
                inputs = []
            self._runs[key] = [
                [self._run(sliced) for whole in options for sliced in self.arrays.on_slices(whole)]
                for options in inputs
            ]
        return self._runs[key]

    def _run(self, inputs: RunInputs) -> _ScalarRun:
        """Prepare a workload under one combination of options."""
        arrays, fusion = self.arrays, default_fusion(inputs.accelerator)
        fused = training_as_fused(inputs.training, fusion)
        variants = [
            (
                variant,
                arrays.ways.placement(inputs.capture, variant, inputs.cluster, fused, fusion),
                Passes(variant, inputs.cluster, inputs.training, fusion),
            )
            for variant in arrays.variants(inputs)
        ]
        return _ScalarRun(inputs, fused, variants)


def _least_s(
    passes: Passes,
    candidates: ScalarCandidates,
    own: ChipSeconds,
    chip: Accelerator,
    sort: Sort,
    known_s: float,
) -> float:
    """Bound the time of a batch of one variant by passes of some sort; ``known_s`` at most."""
    return batch_s(passes.seconds(chip, sort), candidates, own, known_s, splits=sort != "box")


def _chip_seconds(run: _ScalarRun, chip: Accelerator) -> ChipSeconds:
    """Return the seconds of a chip beside the passes of its layers."""
    fusion, training = default_fusion(chip), run.fused
    rates = chip_rates([Chip(chip, run.inputs.cluster, fusion)], training)
    accumulated = training.state.accumulation_bytes
    step_s, accumulation_s = (
        float(s_per_parameter(moved_bytes, float(rates.hbm_bytes_per_s[0]), float(lanes[0])))
        for moved_bytes, lanes in (
            (training.step_bytes, rates.step_parameters_per_s),
            (accumulated, rates.accumulation_parameters_per_s),
        )
    )
    cast_s = training.cast_bytes / float(rates.hbm_bytes_per_s[0])
    return ChipSeconds(step_s, accumulation_s, chip.calibration.collective_core_share, cast_s)
