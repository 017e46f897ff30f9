"""What people see of one point, or of two side by side, as plain data for the what-if page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phaze_opt.evaluation import Evaluation
from phaze_opt.explanation.explain import Explanation
from phaze_opt.explanation.gains import Gain
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.fields import chip_values, in_units
from phaze_opt.report.explanation import told_fixes, verdict_words
from phaze_opt.report.explanation_words import explanation_sentences, gain_words
from phaze_opt.report.gantt import GanttLimits, gantt_fragment
from phaze_opt.report.plots.of_evaluations import EVALUATION_PLOT_KINDS, evaluation_plot
from phaze_opt.report.timeline import timeline_events
from phaze_opt.report.words import batch_time_words, evaluation_facts
from phaze_opt.units import format_number, format_seconds

_TIMELINE = GanttLimits(slices=2_000, lanes=32)

SIZES = (
    *("num_tc", "pe_x", "pe_y", "num_vc", "pe_vc"),
    *("glb_bytes", "hbm_bytes", "hbm_bytes_per_s", "clock_hz"),
)
"""Numbers of a chip that the page lets people change one by one."""


def numbers_view(evaluation: Evaluation, title: str, chip: Accelerator) -> dict[str, Any]:
    """Show the numbers of a point, without its range.

    Parameters
    ----------
    evaluation
        Of the point.
    title
        Names the point.
    chip
        Its chip.
    """
    speed = format_number(evaluation.throughput_samples_per_s)
    facts = [fact for fact in evaluation_facts(evaluation) if fact[0] != "throughput"]
    return {
        "title": title,
        "feasible": evaluation.feasible,
        "headline": f"{speed} samples/s" if evaluation.feasible else "It does not fit.",
        "facts": facts,
        "sizes": size_values(chip),
    }


def size_values(chip: Accelerator) -> dict[str, float]:
    """Return the sizes of a chip by the names that ``--set`` takes, in convenient units."""
    values = chip_values(chip)
    return dict(in_units(name, values[name]) or (name, values[name]) for name in SIZES)


def two_points_view(
    evaluations: Mapping[str, Evaluation], usable_bytes: Mapping[str, float]
) -> dict[str, Any]:
    """Draw points side by side, and say how the second compares with the first.

    Parameters
    ----------
    evaluations
        By the names of the points.
    usable_bytes
        What a device may hold, by the same names.
    """
    figures = {
        kind: evaluation_plot(evaluations, kind, usable_bytes) for kind in EVALUATION_PLOT_KINDS
    }
    words = ""
    if len(evaluations) == 2:
        first, second = (each.throughput_samples_per_s for each in evaluations.values())
        if first > 0.0 and second > 0.0:
            beside = _silicon_words(*evaluations.values())
            words = f"B trains {second / first:.3f} times as fast as A{beside}."
    return {"figures": figures, "comparison": words}


def _silicon_words(first: Evaluation, second: Evaluation) -> str:
    """Say by how much silicon two points differ, without which no chip is faster than another."""
    words = ""
    devices = [0 if e.placement is None else e.placement.devices for e in (first, second)]
    if devices[0] != devices[1]:
        words += f", on {devices[1]:,} devices against {devices[0]:,}"
    areas = first.area_mm2, second.area_mm2
    known = [area for area in areas if area is not None]
    if not known:
        words += ", and no area is known of either chip"
    elif len(known) == 1:
        words += f", and no area is known of the chip of {'B' if areas[1] is None else 'A'}"
    elif known[0] != known[1]:
        words += f", with {known[1] / known[0]:.3g} times the area per chip"
    return words


def ranged_view(evaluation: Evaluation) -> dict[str, Any]:
    """Show what takes longer to find: the range of a point, and its timeline.

    Parameters
    ----------
    evaluation
        With its range.
    """
    span_s, placement = evaluation.time_per_batch_range_s, evaluation.placement
    rates = ""
    if span_s is not None and evaluation.time_per_batch_s is not None:
        samples = evaluation.throughput_samples_per_s * evaluation.time_per_batch_s
        least, most = (format_number(samples / seconds) for seconds in reversed(span_s))
        rates = f"{least} to {most} samples/s on chips of this name"
    events = [] if placement is None else timeline_events(placement)
    return {
        "range": rates,
        "time": batch_time_words(evaluation),
        "timeline": gantt_fragment(events, _TIMELINE),
    }


def explained_view(explanation: Explanation) -> dict[str, Any]:
    """Show why a point is as fast as it is, and what would change that."""
    fixes = [
        [
            " ".join(fix.options),
            verdict_words(fix),
            "–" if fix.time_per_batch_s is None else format_seconds(fix.time_per_batch_s),
            fix.placement or "–",
        ]
        for fix in told_fixes(explanation.fixes)
    ]
    every = (
        *(*explanation.gains, *explanation.overlap_gains),
        *(*explanation.launch_gains, *explanation.routing_gains),
    )
    return {
        "sentences": explanation_sentences(explanation),
        "gains": [_gain_cells(gain) for gain in every],
        "fixes": fixes,
    }


def _gain_cells(gain: Gain) -> list[str]:
    """Write a gain as the cells of a table."""
    time_s = gain.time_per_batch_s
    return [
        gain_words(gain.resource),
        "over power" if time_s is None else f"{gain.throughput_gain:+.2%}",
        f"{gain.same_placement_gain:+.2%}",
        "–" if time_s is None else format_seconds(time_s),
        gain.placement or "–",
    ]
