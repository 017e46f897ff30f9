"""What must be true of the results, whatever they are; a run that breaks it ends with an error."""

from __future__ import annotations

import itertools

from phaze_opt.spec.ordering import VALUE_BIN
from studies.paper.comparison import Trained
from studies.paper.experiments import ALONE, COMMON, OURS, Results

_BIN = 1.0 + VALUE_BIN
"""The order of designs takes the smaller of two that are this close."""
_ROUNDING = 1.0 + 1e-9


class WrongResultError(Exception):
    """A result that cannot be."""


def check(results: Results) -> int:
    """Hold the results to what must be true; return how many statements were checked.

    Raises
    ------
    WrongResultError
        Naming the first that does not hold.
    """
    statements = [
        *_below_rooflines(results),
        *_solved_is_never_worse(results),
        *_both_are_never_worse(results),
        *_within_area(results),
        *_fronts_end_at_the_best(results),
    ]
    for holds, words in statements:
        if not holds:
            raise WrongResultError(words)
    return len(statements)


def _all_runs(results: Results) -> list[Trained]:
    """Return every run of every part."""
    several = [results.ablations, results.published]
    changed = [
        comparison
        for by_name in several
        for models in by_name.values()
        for comparison in models.values()
    ]
    changed += [*results.built.values(), *results.today.values()]
    return [*results.runs, *(run for comparison in changed for run in comparison.runs)]


def _below_rooflines(results: Results) -> list[tuple[bool, str]]:
    """No run is faster than the peak rates of its chip, nor does it compute more than the peak."""
    return [
        (
            run.least_time_s <= run.time_per_batch_s * _ROUNDING and run.mfu <= run.hfu <= 1.0,
            f"{run.model} on {run.chip} takes {run.time_per_batch_s} s per batch, but rooflines "
            f"allow {run.least_time_s} s.",
        )
        for run in _all_runs(results)
        if run.time_per_batch_s is not None
    ]


def _solved_is_never_worse(results: Results) -> list[tuple[bool, str]]:
    """No expert, and no other cost, finds a faster placement than the solved one."""
    statements = []
    changed = [
        comparison
        for by_name in (results.ablations, results.published)
        for models in by_name.values()
        for comparison in models.values()
    ]
    groups = [
        results.runs,
        *(comparison.runs for comparison in [*changed, *results.today.values()]),
    ]
    for runs in groups:
        solved = {(run.model, run.chip): run for run in runs if run.placed_by == "solve"}
        for expert in runs:
            best = solved[expert.model, expert.chip]
            statements.append(
                (
                    expert.throughput_samples_per_s <= best.throughput_samples_per_s * _BIN,
                    f"{expert.model} on {expert.chip}: the expert placement is faster than the "
                    "solved one.",
                )
            )
    for placed in results.placed:
        best = results.run(placed.model, placed.chip, "solve")
        statements.append(
            (
                placed.throughput_samples_per_s <= best.throughput_samples_per_s * _BIN,
                f"{placed.model} on {placed.chip}: the placement of the published cost is faster "
                "than the solved one.",
            )
        )
    return statements


def _both_are_never_worse(results: Results) -> list[tuple[bool, str]]:
    """Nothing of the same space is faster than the chip that is searched with its placement."""
    statements = []
    for model, winner in results.ours.items():
        others = {
            chip: results.run(model, chip, "solve").throughput_samples_per_s
            for chip in ("tpuv4-phaze", ALONE, COMMON, OURS)
        }
        if model in results.expert:
            others["the chip of the expert placement"] = results.expert[model].value
        for chip, value in others.items():
            statements.append(
                (
                    value <= winner.value * _BIN,
                    f"{model}: {chip} trains {value} samples/s, but the best of the space trains "
                    f"{winner.value}.",
                )
            )
    return statements


def _within_area(results: Results) -> list[tuple[bool, str]]:
    """No searched chip is larger than it may be."""
    return [
        (
            winner.area_mm2 <= winner.limit_mm2,
            f"{winner.study}: {winner.area_mm2} mm² is above the limit.",
        )
        for winner in [
            *results.ours.values(),
            *(built.winner for built in results.built.values()),
        ]
    ]


def _fronts_end_at_the_best(results: Results) -> list[tuple[bool, str]]:
    """No front has a faster design than the best one of its space, or one that is out of order."""
    statements = []
    for model, front in results.fronts.items():
        best, fastest = results.ours[model], front.designs[0].throughput_samples_per_s
        statements.append(
            (
                best.value <= fastest * _ROUNDING and fastest <= best.value * _BIN,
                f"{model}: the front ends at {fastest} samples/s, but the best design of the space "
                f"trains {best.value}.",
            )
        )
        for larger, smaller in itertools.pairwise(front.designs):
            statements.append(
                (
                    smaller.throughput_samples_per_s < larger.throughput_samples_per_s
                    and smaller.area_mm2 < larger.area_mm2 <= best.limit_mm2,
                    f"{model}: on its front, {larger.area_mm2} mm² and "
                    f"{smaller.area_mm2} mm² are not in order.",
                )
            )
    return statements
