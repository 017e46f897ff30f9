"""How busy a schedule keeps the cores and the bandwidths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phaze_opt.scheduling.schedule_problem import (
    Schedule,
    ScheduledOperator,
    ScheduleOperator,
    ScheduleProblem,
)

_DIGITS = 9
"""Sums of shares are rounded to billionths, so that 0.7 + 0.2 + 0.1 is 1."""


@dataclass(frozen=True)
class Load:
    """Share of a resource in use: averaged over the makespan, and at its busiest instant."""

    average: float
    peak: float


@dataclass(frozen=True)
class Utilisation:
    """Load of each core type and of each bandwidth (above 1 only where bandwidth is ignored)."""

    tc: Load
    vc: Load
    hbm: Load
    glb: Load
    link: Load


def utilisation(problem: ScheduleProblem, schedule: Schedule) -> Utilisation:
    """Compute how busy everything is.

    Parameters
    ----------
    problem
        What was scheduled.
    schedule
        Its schedule.
    """
    uses: list[tuple[float, float, tuple[float, ...]]] = [
        (entry.start_s, entry.end_s, tuple(_shares(problem, operator, entry)))
        for operator, entry in zip(problem.operators, schedule.operators, strict=True)
        if entry.end_s > entry.start_s
    ]
    return Utilisation(*[_load(uses, column, schedule.makespan_s) for column in range(5)])


def _shares(
    problem: ScheduleProblem, operator: ScheduleOperator, entry: ScheduledOperator
) -> Iterator[float]:
    """Yield the shares of TC, VC, HBM, global buffer and link that an operator takes."""
    for core, count in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        if core not in operator.core.split("+"):
            yield 0.0
        else:
            yield 1.0 if entry.intra_operator else 1.0 / count
    yield operator.intra_op_hbm_fraction if entry.intra_operator else operator.hbm_fraction
    yield operator.intra_op_glb_fraction if entry.intra_operator else operator.glb_fraction
    yield operator.link_fraction


def _load(
    uses: list[tuple[float, float, tuple[float, ...]]], column: int, makespan_s: float
) -> Load:
    """Sweep over starts and ends; at one instant, ends come first."""
    work_s = 0.0
    changes: list[tuple[float, int, float]] = []
    for start_s, end_s, shares in uses:
        work_s += (end_s - start_s) * shares[column]
        changes.append((start_s, 1, shares[column]))
        changes.append((end_s, 0, -shares[column]))
    level, peak = 0.0, 0.0
    for _, _, change in sorted(changes):
        level += change
        peak = max(peak, level)
    average = work_s / makespan_s if makespan_s > 0.0 else 0.0
    return Load(round(average, _DIGITS), round(peak, _DIGITS))
