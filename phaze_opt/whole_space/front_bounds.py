"""Bounds of all objectives of a front at once, of boxes of chips and of single chips.

A rate is bounded from above by the least time (`phaze_opt.bounds.study_bounds`), the energy from
below by the least energy, and the area is known. All of them become costs: smaller is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.paid_chips import PaidChips
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import ROUNDING, StudyBounds, bounded_rate, one_sample_per_s
from phaze_opt.economics.rates import central_rates
from phaze_opt.network.cluster import Cluster
from phaze_opt.spec.objectives import (
    OBJECTIVES,
    PAID_OBJECTIVES,
    Measured,
    ObjectiveKind,
    ObjectiveName,
)
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.objective import Objective, objective_values
from phaze_opt.study.proving import chosen_inputs
from phaze_opt.study.trials import Metrics

Costs = tuple[float, ...]
"""Values of the objectives of a front; maximised objectives have the opposite sign."""

AREA_ROUNDING = 1e-12
"""Relative difference of the area of a chip in an array of chips and alone (last bits)."""


def front_objectives(spec: StudySpec, *, energy: bool = False) -> tuple[ObjectiveName, ...]:
    """Return the objectives of a study's front.

    Parameters
    ----------
    spec
        A spec with several objectives has a front over these; a spec with a single objective, over
        throughput and area.
    energy
        Whether the energy per sample is added.
    """
    names = spec.objectives if len(spec.objectives) > 1 else ("throughput", "area")
    added: tuple[ObjectiveName, ...] = ("energy_per_sample",) if energy else ()
    return tuple(dict.fromkeys((*names, *added)))


class FrontBounds:
    """Costs of points by their evaluations, and bounds of the costs by bounds of the rate.

    Parameters
    ----------
    grid
        All points.
    objective
        Objective of the study.
    rule
        Bounds the rate and the energy.
    names
        Objectives of the front.
    """

    def __init__(
        self,
        grid: PointGrid,
        objective: Objective,
        rule: StudyBounds,
        names: Sequence[ObjectiveName],
    ) -> None:
        self._grid = grid
        self._objective = objective
        self._rule = rule
        self.kinds = [OBJECTIVES[name] for name in names]
        self._energies: dict[int, FloatArray] = {}
        self._areas_mm2: dict[int, float] = {}

    def values(self, point: DesignPoint, metrics: Metrics) -> tuple[float, ...]:
        """Return the values of a feasible point for the objectives of the front."""
        study, reference = self._objective.study, self._objective.reference
        # The metrics hold the values of the study's own objectives.
        values = dict(zip(study.spec.objectives, metrics.values, strict=True))
        missing = [kind for kind in self.kinds if kind.name not in values]
        if missing:
            added = objective_values(study.spec, self._measured(point, metrics), reference, missing)
            values |= dict(zip((kind.name for kind in missing), added, strict=True))
        return tuple(values[kind.name] for kind in self.kinds)

    def costs(self, values: Sequence[float]) -> Costs:
        """Return values as costs."""
        signs = (-1.0 if kind.maximise else 1.0 for kind in self.kinds)
        return tuple(sign * value for sign, value in zip(signs, values, strict=True))

    def of_boxes(self, option: int, rates: FloatArray) -> FloatArray:
        """Bound the costs of all points of every box.

        Parameters
        ----------
        option
            Combination of options.
        rates : (sizes, boxes)
            Bounds of the rate, by size of the HBM.

        Returns
        -------
        costs : (boxes, objectives)
        """
        chips = self._grid.chips
        areas_mm2 = self._with_links_mm2(option, chips.table.least_mm2)
        energies_j = None
        if self._has_energy:
            energies_j = np.minimum.reduceat(self._least_energies_j(option), chips.first[:-1])
        paid = None
        if self._is_paid:
            boxes = BoundedChips.boxes(chips)
            least = boxes.hbm_bytes.min(axis=0, keepdims=True)
            paid = PaidChips(
                self._grid.study, replace(boxes, hbm_bytes=least), self._cluster(option)
            )
        fastest = rates.max(axis=0, keepdims=True)
        return np.asarray(self._bounded(option, fastest, areas_mm2, energies_j, paid)[0])

    def of_chips(self, option: int, rows: IntArray, rates: FloatArray) -> FloatArray:
        """Bound the costs of architectures with every size of the HBM.

        Parameters
        ----------
        option
            Combination of options.
        rows : (architectures,)
            Rows of the architectures in the grid.
        rates : (sizes, architectures)
            Bounds of the rate, by size of the HBM.

        Returns
        -------
        costs : (sizes, architectures, objectives)
        """
        areas_mm2 = self._with_links_mm2(option, self._grid.chips.areas_mm2(rows))
        energies_j = self._least_energies_j(option)[rows] if self._has_energy else None
        paid = None
        if self._is_paid:
            chips = BoundedChips.of(self._grid.chips, rows)
            paid = PaidChips(self._grid.study, chips, self._cluster(option))
        return self._bounded(option, rates, areas_mm2, energies_j, paid)

    def with_exact_area(self, costs: FloatArray, option: int, architecture: int) -> Costs:
        """Return the bounds of a point with the exact area of its evaluation."""
        if architecture not in self._areas_mm2:
            chip = self._grid.chips.architecture(architecture)
            own_mm2 = self._grid.study.area_if_known_mm2(chip)
            assert own_mm2 is not None  # its area is within the limits
            self._areas_mm2[architecture] = own_mm2
        area_mm2 = self._areas_mm2[architecture] + self._links_mm2(option)
        return tuple(
            area_mm2 if kind.name == "area" else cost
            for kind, cost in zip(self.kinds, costs.tolist(), strict=True)
        )

    def _bounded(
        self,
        option: int,
        rates: FloatArray,
        areas_mm2: FloatArray,
        energies_j: FloatArray | None,
        paid: PaidChips | None,
    ) -> FloatArray:
        """Join the bounds of all objectives; the last axis is the objective."""
        columns: list[FloatArray] = []
        for kind in self.kinds:
            if kind.name == "area":
                columns.append(areas_mm2)
            elif kind.name == "energy_per_sample":
                assert energies_j is not None
                columns.append(energies_j)
            elif kind.name in PAID_OBJECTIVES:
                assert energies_j is not None and paid is not None
                joules = np.broadcast_to(energies_j, rates.shape)
                columns.append(-paid.worth(kind, rates, joules) * (1.0 + ROUNDING))
            else:
                columns.append(-rates * self._worth(option, kind, areas_mm2))
        return np.stack(np.broadcast_arrays(*columns), axis=-1)

    def _worth(self, option: int, kind: ObjectiveKind, areas_mm2: FloatArray) -> FloatArray | float:
        """Return the largest value of an objective per unit of the bounded rate."""
        study, reference = self._grid.study, self._objective.reference
        bounded = bounded_rate(study.spec)
        if kind.name == bounded.name:
            return 1.0
        workload = self._objective.workloads[0]
        design = study.design(self._grid.point(option, 0, 0))

        def ratio(area_mm2: float) -> float:
            measured = one_sample_per_s(workload, area_mm2, design)
            return kind.of(measured) / bounded.of(measured)

        # All workloads have one reference chip and network.
        scale = kind.of(reference[0]) / bounded.of(reference[0]) if reference else 1.0
        ratios = np.array([ratio(area_mm2) for area_mm2 in areas_mm2.tolist()])
        return ratios / scale * (1.0 + ROUNDING)

    def _measured(self, point: DesignPoint, metrics: Metrics) -> list[Measured]:
        """Return the measurements of an evaluated point that objectives use, by workload."""
        study = self._objective.study
        design = study.design(point)
        measured = []
        for index, run in enumerate(metrics.runs):
            inputs = chosen_inputs(study, index, design, run)
            throughput = run.throughput_samples_per_s
            joules = (run.energy_j_per_batch or 0.0) / inputs.training.global_batch
            devices, paid = design.cluster.devices, {}
            rates = central_rates(design.accelerator, study.spec.economics, design.cluster)
            if rates is not None:
                wall_j, usd, _ = rates.of_sample(devices / throughput, joules)
                paid = {"wall_j_per_sample": wall_j, "usd_per_sample": usd}
            sequence = self._objective.workloads[inputs.capture].sequence
            measured.append(
                Measured(
                    throughput,
                    throughput * sequence,
                    joules,
                    np.nan,
                    metrics.area_mm2 or 0.0,
                    devices,
                    **paid,
                )
            )
        return measured

    def _with_links_mm2(self, option: int, areas_mm2: FloatArray) -> FloatArray:
        """Bound the areas of chips from below, with what the links of the network take of them."""
        return (areas_mm2 + self._links_mm2(option)) * (1.0 - AREA_ROUNDING)

    def _links_mm2(self, option: int) -> float:
        """Return the area of the links under a combination of options, if the study counts it."""
        if not self._grid.study.spec.area.links:
            return 0.0
        return self._grid.study.link_area_mm2(self._cluster(option))

    def _cluster(self, option: int) -> Cluster:
        """Return the network of a combination of options."""
        return self._grid.study.design(self._grid.point(option, 0, 0)).cluster

    @property
    def _is_paid(self) -> bool:
        return any(kind.name in PAID_OBJECTIVES for kind in self.kinds)

    @property
    def _has_energy(self) -> bool:
        return self._is_paid or any(kind.name == "energy_per_sample" for kind in self.kinds)

    def _least_energies_j(self, option: int) -> FloatArray:
        """Return the least energies per sample of all architectures under one option."""
        if option not in self._energies:
            design = self._grid.study.design(self._grid.point(option, 0, 0))
            kinds = self._grid.chips.energy_kinds
            by_kind = self._rule.least_energy_j_per_sample(design, kinds)
            self._energies[option] = by_kind[kinds.of]
        return self._energies[option]
