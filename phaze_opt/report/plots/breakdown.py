"""The time of a batch by what it is spent on: the best design beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phaze_opt.report.figure_style import (
    BLUE,
    GREEN,
    LEGEND,
    LIGHT,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    Figure,
    axis,
    empty_figure,
    figure,
    figure_text,
)
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.words import kind_words
from phaze_opt.units import format_seconds

_PART_COLOURS = {
    "forward": BLUE,
    "recompute": SKY,
    "backward": GREEN,
    "tensor_collectives": ORANGE,
    "token_exchanges": "#B5651D",
    "transfer": YELLOW,
    "gradient_synchronisation": RED,
    "parameter_gather": PINK,
    "optimizer": "#7A5C3E",
    "gradient_accumulation": "#4D4D4D",
    "bubble": LIGHT,
}
_LEAST_PART = 5e-4
"""Share of a batch below which a part of its time is not drawn."""


@dataclass(frozen=True)
class _Bar:
    """The batch of one design in one workload."""

    name: str
    parts_s: Mapping[str, float]
    time_s: float


def breakdown(view: StudyView) -> Figure:
    """Draw the time of a batch by what it is spent on: the best design beside the others."""
    bars = _bars(view)
    if not bars:
        return empty_figure("No evaluation is stored yet.")
    longest_s = max(bar.time_s for bar in bars)
    scale_s, unit = _time_unit(longest_s)
    kinds = [*_PART_COLOURS, *sorted({kind for bar in bars for kind in bar.parts_s})]
    drawn = [
        kind
        for kind in dict.fromkeys(kinds)
        if any(bar.parts_s.get(kind, 0.0) > _LEAST_PART * bar.time_s for bar in bars)
    ]
    largest = longest_s / scale_s
    return figure(
        [_part(kind, bars, scale_s) for kind in drawn],
        axis(f"time of a batch [{unit}]", largest, range=[0.0, 1.12 * largest]),
        axis("", autorange="reversed", ticks="", gridcolor="#FFFFFF", type="category"),
        barmode="stack",
        bargap=0.35,
        annotations=[_total(bar, scale_s) for bar in bars],
        height=180 + 52 * len(bars),
        legend={**LEGEND, "traceorder": "normal"},
    )


def _bars(view: StudyView) -> list[_Bar]:
    """List the batches whose times are known, those of one workload together."""
    runs = view.summary.resolved.spec.runs
    bars: dict[str, list[_Bar]] = {}
    for design in view.compared:
        name = "best" if design.kind == "best" else design.name
        for run, evaluation in zip(runs, design.evaluations, strict=False):
            if evaluation is not None and evaluation.time_per_batch_s:
                whose = name if len(runs) == 1 else f"{run.name}: {name}"
                bar = _Bar(whose, evaluation.time_breakdown_s, evaluation.time_per_batch_s)
                bars.setdefault(run.name, []).append(bar)
    return [bar for of_run in sorted(bars) for bar in bars[of_run]]


def _part(kind: str, bars: Sequence[_Bar], scale_s: float) -> dict[str, Any]:
    """Draw what one part of the time takes in every batch."""
    parts_s = [bar.parts_s.get(kind, 0.0) for bar in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "name": figure_text(kind_words(kind)),
        "y": [figure_text(bar.name) for bar in bars],
        "x": [seconds / scale_s for seconds in parts_s],
        "text": [
            f"{figure_text(bar.name)}<br>{kind_words(kind)}: {format_seconds(seconds)}, "
            f"{seconds / bar.time_s:.1%}"
            for bar, seconds in zip(bars, parts_s, strict=True)
        ],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": _PART_COLOURS.get(kind, "#4D4D4D"),
            "line": {"color": "#FFFFFF", "width": 1},
        },
    }


def _total(bar: _Bar, scale_s: float) -> dict[str, Any]:
    """Write the whole time behind a bar."""
    return {
        "x": bar.time_s / scale_s,
        "y": figure_text(bar.name),
        "text": format_seconds(bar.time_s),
        "showarrow": False,
        "xanchor": "left",
        "xshift": 6,
    }


def _time_unit(largest_s: float) -> tuple[float, str]:
    """Choose the unit of an axis of times: seconds in it, and its name."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if largest_s >= scale:
            return scale, unit
    return 1e-6, "µs"
