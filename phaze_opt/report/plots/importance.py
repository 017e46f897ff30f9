"""What decides: what one step from the best design on each axis costs, the others kept."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from phaze_opt.report.figure_style import (
    BLUE,
    GREEN,
    GREY,
    Figure,
    axis,
    empty_figure,
    figure,
    figure_text,
    narrowed,
)
from phaze_opt.report.plots.marks import broken_lines
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.study_words import step_label, step_words
from phaze_opt.spec.ordering import value_bin
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.neighbourhood import DesignStep
from phaze_opt.units import format_number

_NARROWEST_PERCENT = 10.0
"""Width of the axis, at least: smaller changes shall not look large."""


@dataclass(frozen=True)
class _Bar:
    """One step.

    Attributes
    ----------
    percent
        Change of the value relative to that of the best design; ``None`` where there is no value.
    """

    label: str
    percent: float | None
    text: str
    is_better: bool
    hover: str


def importance(view: StudyView) -> Figure:
    """Draw the change of the value by one step on each axis, the axis that costs most on top."""
    best = view.best
    if best is None:
        return empty_figure("No feasible trial yet.")
    if not view.steps:
        return empty_figure("No axis with more than one value is searched.")
    pairs = [
        [_bar(best, step) for step in steps]
        for _, steps in itertools.groupby(view.steps, key=lambda step: step.axis)
    ]
    # The first category stands at the bottom.
    bars = [bar for pair in sorted(pairs, key=_largest_change) for bar in reversed(pair)]
    known = [0.0, *(bar.percent for bar in bars if bar.percent is not None)]
    width = max(_NARROWEST_PERCENT, max(known) - min(known))
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [bar.label for bar in bars],
        "x": [bar.percent or 0.0 for bar in bars],
        "marker": {"color": [GREEN if bar.is_better else BLUE for bar in bars]},
        "hovertext": [bar.hover for bar in bars],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    name = best.spec.objective_kinds[0].name.replace("_", " ")
    y = axis("", ticks="", gridcolor="#FFFFFF", type="category")
    made = figure(
        [trace],
        axis(f"change of the {name} [%]", width, range=_range(min(known), max(known), width)),
        y,
        height=110 + 24 * len(bars),
        margin={"l": 80, "r": 24, "t": 32, "b": 56},
        bargap=0.3,
        annotations=[_label(bar) for bar in bars],
    )
    # Without room at the left, words stand above their bars.
    return narrowed(
        made,
        yaxis={**y, "showticklabels": False},
        xaxis=axis(f"change of the {name} [%]", width, nticks=5),
        height=110 + 46 * len(bars),
        margin={"l": 16, "r": 16, "t": 40, "b": 56},
        bargap=0.65,
        annotations=[_heading(bar) for bar in bars],
    )


def _heading(bar: _Bar) -> dict[str, object]:
    """Write the step and its value above a bar, at the left end of the plot."""
    colour = GREY if bar.percent is None else "#222222"
    return {
        "xref": "paper",
        "x": 0,
        "y": bar.label,
        "text": f"{bar.label}: {figure_text(bar.text)}",
        "showarrow": False,
        "xanchor": "left",
        "yshift": 17,
        "font": {"size": 11, "color": colour},
    }


def _range(low: float, high: float, width: float) -> list[float]:
    """Return the ends of the axis: the texts need room at its left, at its right where it goes."""
    return [low - 0.4 * width, high + (0.4 if high > 0.0 else 0.05) * width]


def _bar(best: BestDesign, step: DesignStep) -> _Bar:
    """Describe a step."""
    label = step_label(best, step)
    words, metrics = step_words(best, step), step.metrics
    if metrics is None or not metrics.feasible:
        reason = "" if metrics is None else f": {metrics.reason}"
        hover = "<br>".join(broken_lines(f"{label}: {words}{reason}"))
        return _Bar(figure_text(label), None, words, False, hover)
    value, own = metrics.value, best.metrics.value
    gain = value_bin(value) - value_bin(own)
    is_better = gain > 0 if best.spec.objective_kinds[0].maximise else gain < 0
    hover = figure_text(f"{label}: {words}, where the best design has {format_number(own)}")
    return _Bar(figure_text(label), 100.0 * (value / own - 1.0), words, is_better, hover)


def _largest_change(bars: list[_Bar]) -> float:
    """Return the largest change by a step on an axis; those without any come last."""
    return max(-1.0 if bar.percent is None else abs(bar.percent) for bar in bars)


def _label(bar: _Bar) -> dict[str, object]:
    """Write the value, or why there is none, at the end of a bar."""
    percent = bar.percent or 0.0
    right = percent > 0.0
    return {
        "x": percent,
        "y": bar.label,
        "text": figure_text(bar.text),
        "showarrow": False,
        "xanchor": "left" if right else "right",
        "xshift": 5 if right else -5,
        "font": {"size": 11, "color": GREY if bar.percent is None else "#222222"},
    }
