"""The order of designs under other constants: all are bounded, those are evaluated that decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.bounds.study_bounds import ROUNDING, StudyBounds
from phaze_opt.estimator.chips import Chips
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import cached_property
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.constraints import chip_violation, run_violation
from phaze_opt.spec.designs import Design
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.objective import evaluator_of
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload


@dataclass(frozen=True)
class Drawn:
    """The certified designs under one draw.

    Attributes
    ----------
    best
        Place of the best of them.
    best_samples_per_s, winner_samples_per_s
        Of this, and of the nominal winner; 0 where it is above the area, or does not fit.
    most_samples_per_s
        What each item (a design with its solved options) reaches at most.
    known
        Items that were evaluated: they reach just that.
    """

    best: int
    best_samples_per_s: float
    winner_samples_per_s: float
    most_samples_per_s: tuple[float, ...]
    known: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Items:
    """Designs with each of the options that every evaluation tries.

    Attributes
    ----------
    points
        The designs, the nominal winner first.
    design_of, option_of : (items,)
        Place of the design of an item, and of its options among those of the design.
    wide : (items,)
        Which are looked at on tensor-parallel groups of several devices alone: without sequence
        parallelism they are items too, and that is the same run on one device.
    groups
        Items that differ in nothing but the chip: bounds are found for all of them at once.
    """

    points: tuple[DesignPoint, ...]
    design_of: IntArray
    option_of: IntArray
    wide: BoolArray
    groups: tuple[IntArray, ...]

    @classmethod
    def of(cls, study: ResolvedStudy, points: Sequence[DesignPoint]) -> Items:
        """Return the items of some designs."""
        places: list[tuple[int, int, bool]] = []
        groups: dict[tuple[int, Cluster, Training], list[int]] = {}
        for place, point in enumerate(points):
            options = run_inputs(study, 0, study.design(point))
            trainings = [own.training for own in options]
            for option, own in enumerate(options):
                shared = own.capture, own.cluster, own.training
                groups.setdefault(shared, []).append(len(places))
                without = replace(own.training, sequence_parallel=False)
                places.append((place, option, without != own.training and without in trainings))
        design_of, option_of, wide = np.array(places, dtype=np.int64).T
        alike = sorted(groups.items(), key=lambda group: _but_for_recompute(group[0]))
        in_groups = tuple(np.array(own) for _, own in alike)
        return cls(tuple(points), design_of, option_of, wide > 0, in_groups)


def _but_for_recompute(group: tuple[int, Cluster, Training]) -> str:
    """Return what brings groups together whose placements are alike but for what they keep."""
    return repr(replace(group[2], recompute="none", recompute_parts=""))


def workloads_of(study: StoredStudy) -> dict[bool, tuple[Workload, ...]]:
    """Return the captured workloads of a study, and under true their tensor degrees above 1."""
    captured = tuple(study.workloads())
    wide = [
        tuple(variant for variant in each.variants if variant.tensor_parallel > 1)
        for each in captured
    ]
    above = [replace(each, variants=own) for each, own in zip(captured, wide, strict=True)]
    return {False: captured, True: tuple(above)}


@dataclass(eq=False)
class Ranking:
    """Designs under some constants: all are bounded, those are evaluated that decide.

    Attributes
    ----------
    study
        With its constants.
    workloads
        As `workloads_of` returns them.
    items
        Of the designs.
    most_samples_per_s, known : (items,)
        As in `Drawn`.
    """

    study: ResolvedStudy
    workloads: Mapping[bool, Sequence[Workload]]
    items: Items
    most_samples_per_s: FloatArray
    known: BoolArray
    _schedules: dict[str, Schedule] = field(default_factory=dict)

    @cached_property
    def designs(self) -> list[Design]:
        """The designs, with their chips as the constants make them."""
        return list(map(self.study.design, self.items.points))

    def exclude(self) -> None:
        """Exclude chips that are above the area: the limit is another one where area varies."""
        allowed = [
            chip_violation(self.study, design.accelerator, design.cluster) is None
            for design in self.designs
        ]
        self.most_samples_per_s[~np.array(allowed)[self.items.design_of]] = 0.0

    def bound(self, group: IntArray, space: SpaceChips) -> None:
        """Bound the samples per second of the items of a group from above.

        Parameters
        ----------
        group
            One of the items' groups.
        space
            Chips of the study; bounds of the throughput read nothing of it.
        """
        of_group = self.items.design_of[group].tolist()
        own = [self.designs[place].accelerator for place in of_group]
        bounded = BoundedChips(
            architectures=Chips(own),
            hbm_bytes=np.array([[chip.hbm_bytes for chip in own]]),
            area_mm2=np.zeros(len(own)),
            space=space,
            runs=np.zeros((len(own), 2), dtype=np.int64),
        )
        inputs, workloads = self._inputs(int(group[0])), self.workloads[self.items.wide[group[0]]]
        if not workloads[inputs.capture].variants:
            self.most_samples_per_s[group] = 0.0
            return
        # Bounds of other groups would stay in the memory with its tables.
        ((least_s,), _) = StudyBounds(self.study, workloads).least_of_batch(inputs, bounded)
        most = inputs.training.global_batch / least_s * (1.0 + ROUNDING)
        self.most_samples_per_s[group] = np.minimum(self.most_samples_per_s[group], most)

    def exactly(self, design: int | None = None) -> int:
        """Return the best item of a design, or of all: evaluated, or 0 where none may be.

        Items are evaluated in the order of their bounds, until none that is left can be better.
        """
        own = self.items.design_of >= 0 if design is None else self.items.design_of == design
        items, most = np.flatnonzero(own), self.most_samples_per_s
        while True:
            item = int(items[np.argmax(most[items])])
            if self.known[item] or most[item] == 0.0:
                return item
            self.known[item], most[item] = True, self._samples_per_s(item)

    def _inputs(self, item: int) -> RunInputs:
        """Return what an item is evaluated with."""
        design = self.study.design(self.items.points[int(self.items.design_of[item])])
        return run_inputs(self.study, 0, design)[int(self.items.option_of[item])]

    def _samples_per_s(self, item: int) -> float:
        """Evaluate an item; 0 where it violates a limit."""
        inputs = self._inputs(item)
        workload = self.workloads[self.items.wide[item]][inputs.capture]
        given = workload, inputs.accelerator, inputs.cluster, inputs.training
        evaluation = evaluator_of(self.study)(*given, self._schedules)
        if run_violation(self.study.spec, evaluation) is not None:
            return 0.0
        return evaluation.throughput_samples_per_s

    def of_designs(self) -> FloatArray:
        """Return what each design reaches at most."""
        first = np.flatnonzero(np.diff(self.items.design_of, prepend=-1))
        return np.asarray(np.maximum.reduceat(self.most_samples_per_s, first))

    def answer(self) -> Drawn:
        """Find the best design, and what the nominal winner reaches."""
        best, winner = self.exactly(), self.exactly(0)
        return Drawn(
            best=int(self.items.design_of[best]),
            best_samples_per_s=float(self.most_samples_per_s[best]),
            winner_samples_per_s=float(self.most_samples_per_s[winner]),
            most_samples_per_s=tuple(self.most_samples_per_s.tolist()),
            known=tuple(np.flatnonzero(self.known).tolist()),
        )
