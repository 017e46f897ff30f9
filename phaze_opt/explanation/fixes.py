"""What would make a point fit that does not: changes of the training run, each of them tried.

Single changes first, then two of different kinds together that help without being enough alone:
they may be faster than one that is. Where no single change is enough, all pairs; and where none of
them is either, the strongest of every kind at once. The least memory that fits is always looked
for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate_one, place_point
from phaze_opt.explanation.changes import workload_of
from phaze_opt.explanation.gains import degrees_text
from phaze_opt.explanation.steps import (
    Step,
    applied,
    changed_options,
    pairs,
    single_steps,
    strongest,
)
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placement.placement_problem import Misfit
from phaze_opt.point import Point, cost_point
from phaze_opt.units import GIB, MIB
from phaze_opt.workload.zoo import LoadWorkload

_MOST_BYTES = 2**50


@dataclass(frozen=True)
class Fix:
    """Changes that were tried together.

    Attributes
    ----------
    kinds
        Those of `phaze_opt.explanation.steps.Step`, or ``hbm_size``, ``glb_size`` where there is
        no HBM; more than one in a combination.
    options
        The options of ``phaze-opt evaluate`` that make them.
    feasible
        Whether it then fits.
    time_per_batch_s, throughput_samples_per_s, placement
        Of the point that fits; the placement as ``PPxDPxTP``.
    excess_bytes
        What a device is still short of; ``None`` where it fits or memory is not the reason.
    power_w_per_device
        Average dynamic power; 0 where memory or the number of devices is the reason.
    reason
        Why it does not fit.
    """

    kinds: tuple[str, ...]
    options: tuple[str, ...]
    feasible: bool
    time_per_batch_s: float | None
    throughput_samples_per_s: float
    placement: str | None
    excess_bytes: float | None
    power_w_per_device: float
    reason: str | None


def fixes(
    point: Point, evaluation: Evaluation, load: LoadWorkload, cache: ScheduleCache
) -> tuple[Fix, ...]:
    """Try what could make a point fit.

    Parameters
    ----------
    point
        That does not fit.
    evaluation
        Of the point.
    load
        Its model under other options.
    cache
        Schedules by content; solved ones are added.

    Returns
    -------
    fixes
        Those that fit first, by time per batch; then the others, the nearest first.
    """
    steps = list(single_steps(point))
    tried = _try(point, [(step,) for step in steps], load, cache)
    if any(fix.feasible for fix in tried.values()):
        short = evaluation.misfit
        tried |= _try(point, pairs(_helpful(tried, short)), load, cache)
    else:
        tried |= _try(point, pairs(steps), load, cache)
    if not any(fix.feasible for fix in tried.values()):
        tried |= _try(point, [strongest(steps)], load, cache)
    tried_fixes = list(tried.values())
    larger = least_memory(point, evaluation.misfit, cache)
    if larger is not None:
        kind = "hbm_size" if point.accelerator.has_hbm else "glb_size"
        tried_fixes.append(_tried((kind,), point, larger, cache))
    return tuple(sorted(tried_fixes, key=_rank))


def _helpful(tried: Mapping[tuple[Step, ...], Fix], short: Misfit | None) -> list[Step]:
    """Return the single changes after which less is missing than before."""
    if short is None:
        return []
    before = short.excess_bytes
    return [
        step
        for (step, *_), fix in tried.items()
        if fix.excess_bytes is not None and fix.excess_bytes < before
    ]


def _rank(fix: Fix) -> tuple[bool, float, float, int, tuple[str, ...]]:
    """Order fixes: those that fit by time, the others by what is missing."""
    time_s = math.inf if fix.time_per_batch_s is None else fix.time_per_batch_s
    excess = math.inf if fix.excess_bytes is None else fix.excess_bytes
    return not fix.feasible, time_s, excess, len(fix.options), fix.options


def least_memory(point: Point, misfit: Misfit | None, cache: ScheduleCache) -> Point | None:
    """Return the point with the fewest whole GiB of HBM that fit; ``None`` if none do.

    Without HBM, with the fewest whole MiB of global buffer.

    Parameters
    ----------
    point
        That does not fit.
    misfit
        Its stage that does not fit; ``None`` if memory is not the reason.
    cache
        As for `fixes`.
    """
    costed = cost_point(point, cache)
    usable_share = point.accelerator.calibration.usable_hbm_share
    unit_bytes = GIB if point.accelerator.has_hbm else MIB

    def fits(units: int) -> bool:
        problem = replace(costed.problem, hbm_usable_bytes=units * unit_bytes * usable_share)
        return place_point(replace(costed, problem=problem)).feasible

    fewest, enough = 0, _first_guess(point, misfit, unit_bytes)
    while not fits(enough):
        fewest, enough = enough, 2 * enough
        if enough * unit_bytes > _MOST_BYTES:
            return None
    # The guess is exact where the misfit is that of the placement that needs least.
    if fewest == 0 and enough > 1 and not fits(enough - 1):
        fewest = enough - 1
    while enough - fewest > 1:
        middle = (fewest + enough) // 2
        fewest, enough = (fewest, middle) if fits(middle) else (middle, enough)
    larger = point.accelerator.with_memory_bytes(enough * unit_bytes)
    return replace(point, accelerator=larger)


def _first_guess(point: Point, misfit: Misfit | None, unit_bytes: int) -> int:
    """Return the units of memory that the stage which does not fit would need."""
    chip = point.accelerator
    needed = chip.usable_memory_bytes if misfit is None else misfit.memory.total
    return max(1, math.ceil(needed / chip.calibration.usable_hbm_share / unit_bytes))


def _try(
    point: Point,
    combinations: Iterable[tuple[Step, ...]],
    load: LoadWorkload,
    cache: ScheduleCache,
) -> dict[tuple[Step, ...], Fix]:
    """Evaluate combinations of changes; what cannot be trained or captured is left out."""
    fixes_by_steps: dict[tuple[Step, ...], Fix] = {}
    seen: set[tuple[str, ...]] = set()
    for steps in combinations:
        try:
            changed = applied(point, *steps)
            options = changed_options(point, changed)
            if not options or options in seen:
                continue
            seen.add(options)
            changed = replace(changed, workload=workload_of(changed, load))
            kinds = tuple(step.kind for step in steps)
            fixes_by_steps[steps] = _tried(kinds, point, changed, cache)
        except InputError:
            continue
    return fixes_by_steps


def _tried(kinds: tuple[str, ...], before: Point, after: Point, cache: ScheduleCache) -> Fix:
    """Evaluate a changed point."""
    result = evaluate_one(after, cache)
    misfit = result.misfit
    return Fix(
        kinds=kinds,
        options=changed_options(before, after),
        feasible=result.feasible,
        time_per_batch_s=result.time_per_batch_s,
        throughput_samples_per_s=result.throughput_samples_per_s,
        placement=degrees_text(result),
        excess_bytes=None if misfit is None else misfit.excess_bytes,
        power_w_per_device=result.power_w_per_device,
        reason=result.reason,
    )
