"""The constraints of a feasible design: it is buildable, and within the area and other limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import check_chip
from phaze_opt.network.cluster import Cluster
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.study_spec import ConstraintSpec
from phaze_opt.units import GIB

Limit = Literal["area", "chip", "HBM", "options", "memory", "power", "devices", "time"]
"""The limit that a point violates; ``chip``: not buildable, ``options`` exclude each other."""

SMALLEST_VIOLATION = 1e-9
"""Least violation of an infeasible point: its value is then worse than every feasible value."""

NOT_BUILDABLE = 1.0
"""Violation of an impossible chip or impossible options: they have no distance to a limit."""


@dataclass(frozen=True)
class Violation:
    """A limit that a point violates, the relative excess, and the reason as a sentence."""

    limit: Limit
    excess: float
    reason: str


def chip_violation(
    study: ResolvedStudy, chip: Accelerator, cluster: Cluster | None = None
) -> Violation | None:
    """Return the limit that a chip violates, such as its area; ``None`` if it keeps all limits.

    Parameters
    ----------
    study, chip
        The study, and a chip of it.
    cluster
        The network, whose links may take area; ``None`` for the chip without links.
    """
    area_mm2 = study.area_if_known_mm2(chip, cluster)
    if area_mm2 is None:
        return Violation(
            "chip",
            NOT_BUILDABLE,
            "A buffer lies outside the table of SRAM macros, so the area is unknown.",
        )
    limit_mm2 = study.area_limit_mm2
    if area_mm2 > limit_mm2:
        return Violation(
            "area",
            area_mm2 / limit_mm2 - 1.0,
            f"The area of {area_mm2:.6g} mm² is above the limit of {limit_mm2:.6g} mm².",
        )
    least_mm2 = study.spec.area.min_share * limit_mm2
    # The paper exempts chips with a single core of either kind from its lower bound.
    if area_mm2 < least_mm2 and chip.num_tc > 1 and chip.num_vc > 1:
        return Violation(
            "area",
            least_mm2 / area_mm2 - 1.0,
            f"The area of {area_mm2:.6g} mm² is below the least of {least_mm2:.6g} mm².",
        )
    limit_gib = study.spec.constraints.max_hbm_gib
    if limit_gib is not None and chip.hbm_bytes > limit_gib * GIB:
        return _above("HBM", "The HBM", chip.hbm_bytes / GIB, limit_gib, "GiB")
    try:
        check_chip(chip)
    except InputError as error:
        return Violation("chip", NOT_BUILDABLE, str(error))
    return None


def with_memory_margin(chip: Accelerator, constraints: ConstraintSpec) -> Accelerator:
    """Return a chip whose usable HBM is smaller by the memory margin of the study."""
    margin = constraints.min_memory_margin
    if margin == 0.0:
        return chip
    share = chip.calibration.usable_hbm_share * (1.0 - margin)
    return replace(chip, calibration=replace(chip.calibration, usable_hbm_share=share))


def run_violation(constraints: ConstraintSpec, evaluation: Evaluation) -> Violation | None:
    """Return the limit that an evaluated run violates most; ``None`` if it keeps all limits."""
    if not evaluation.feasible:
        reason = evaluation.reason or "No placement fits."
        return Violation("memory", max(evaluation.violation, SMALLEST_VIOLATION), reason)
    placement = evaluation.placement
    measured: tuple[tuple[Limit, str, float, float | None, str], ...] = (
        (
            "power",
            "The average power per device",
            evaluation.power_w_per_device,
            constraints.max_power_w,
            "W",
        ),
        (
            "devices",
            "The number of devices in use",
            0 if placement is None else placement.devices,
            constraints.max_devices,
            "devices",
        ),
        (
            "time",
            "The time per batch",
            evaluation.time_per_batch_s or 0.0,
            constraints.max_time_per_batch_s,
            "s",
        ),
    )
    return worst(
        _above(name, quantity, value, limit, unit)
        for name, quantity, value, limit, unit in measured
        if limit is not None and value > limit
    )


def worst(violations: Iterable[Violation]) -> Violation | None:
    """Return the largest violation; ``None`` if there is none."""
    return max(violations, key=lambda violation: violation.excess, default=None)


def _above(name: Limit, quantity: str, value: float, limit: float, unit: str) -> Violation:
    """Return the violation of a limit by a value above it."""
    reason = f"{quantity} of {value:.6g} {unit} is above the limit of {limit:g} {unit}."
    return Violation(name, max(value / limit - 1.0, SMALLEST_VIOLATION), reason)
