"""The values of the trials against the areas of their chips, with the front."""

from __future__ import annotations

from typing import Any

import numpy as np

from phaze_opt.report.compared_designs import ComparedDesign
from phaze_opt.report.figure_style import (
    BLUE,
    DARK,
    GREEN,
    RED,
    Figure,
    axis,
    empty_figure,
    figure,
    figure_text,
    thinned,
)
from phaze_opt.report.plots.marks import (
    MOST_ON_LINE,
    broken_lines,
    dots,
    first_value,
    hover,
    references,
    shown_trials,
    value_axis,
)
from phaze_opt.report.study_view import StudyView
from phaze_opt.study.trials import TrialRecord

_BASELINE_SYMBOLS = ("diamond", "square", "triangle-up", "cross")


def area(view: StudyView) -> Figure:
    """Draw the value of the trials against the area of their chips, with the front."""
    if not view.book.numbers:
        return empty_figure("No feasible trial yet.")
    shown = shown_trials(view)
    front = view.book.trials(thinned(_area_front(view), MOST_ON_LINE))
    limit_mm2 = view.summary.resolved.area_limit_mm2
    marks = _reference_marks(view)
    proven = _proven_front(view)
    values = [max(view.book.values), *(mark["y"][0] for mark in marks)]
    values += [value for trace in proven for value in trace["y"]]
    traces = [
        dots(view, shown, list(map(_area_mm2, shown))),
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "front",
            "x": [_area_mm2(trial) for trial in front],
            "y": [first_value(trial) for trial in front],
            "text": [hover(view, trial) for trial in front],
            "customdata": [trial.number for trial in front],
            "hovertemplate": "%{text}<extra></extra>",
            "line": {"color": BLUE, "width": 2, "shape": "hv"},
            "marker": {"color": BLUE, "size": 6},
        },
        *proven,
        *marks,
        {
            "type": "scatter",
            "mode": "lines",
            "name": "area limit",
            "x": [limit_mm2, limit_mm2],
            "y": [0.0, max(values)],
            "line": {"color": DARK, "width": 1, "dash": "dot"},
            "hovertemplate": f"area limit {limit_mm2:,.1f} mm²<extra></extra>",
        },
    ]
    return figure(
        traces,
        axis("chip area [mm², a relative budget]", limit_mm2),
        value_axis(view, values),
    )


def _area_mm2(trial: TrialRecord) -> float:
    """Return the area of a trial's chip."""
    assert trial.metrics is not None and trial.metrics.area_mm2 is not None
    return trial.metrics.area_mm2


def _area_front(view: StudyView) -> list[int]:
    """Return the numbers of the trials that no smaller chip is as good as, by area."""
    sign = -1.0 if view.summary.resolved.spec.objective_kinds[0].maximise else 1.0
    costs, areas_mm2 = sign * np.array(view.book.values), np.array(view.book.areas_mm2)
    order = np.lexsort((costs, areas_mm2))
    least = np.minimum.accumulate(costs[order])
    better = np.concatenate(([True], least[1:] < least[:-1]))
    return [view.book.numbers[place] for place in order[better]]


def _proven_front(view: StudyView) -> list[dict[str, Any]]:
    """Draw the proven front of the space, where one of value and area is stored."""
    names = (view.summary.resolved.spec.objectives[0], "area")
    if view.front is None or view.front.front.objectives != names:
        return []
    ends = sorted((each.values[1], each.values[0]) for each in view.front.front.found.designs)
    shown = thinned(ends, MOST_ON_LINE)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "proven front",
            "x": [area_mm2 for area_mm2, _ in shown],
            "y": [value for _, value in shown],
            "line": {"color": GREEN, "width": 2, "dash": "dash", "shape": "hv"},
            "hovertemplate": "proven front: %{y:,.5~g} at %{x:,.1f} mm²<extra></extra>",
        }
    ]


def _reference_marks(view: StudyView) -> list[dict[str, Any]]:
    """Draw the best design, the certified optimum and the baselines as large marks."""
    # The best is drawn last, so that a baseline that is the same design does not hide it.
    best = [(design, RED) for design in view.compared if design.kind == "best"]
    marks, baselines = [], 0
    for design, colour in references(view) + best:
        if design.area_mm2 is None:
            continue
        symbol = {"best": "star", "optimum": "star-open"}.get(design.kind)
        if symbol is None:
            symbol = _BASELINE_SYMBOLS[baselines % len(_BASELINE_SYMBOLS)]
            baselines += 1
        marks.append(_mark(design, design.area_mm2, symbol, colour))
    return marks


def _mark(design: ComparedDesign, area_mm2: float, symbol: str, colour: str) -> dict[str, Any]:
    """Draw one design as a large mark."""
    described = [
        f"<b>{figure_text(f'{design.name}: {design.values}')}</b>",
        *broken_lines(f"{area_mm2:,.1f} mm², {design.chip}"),
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "best" if design.kind == "best" else figure_text(design.name),
        "legendrank": 999 if design.kind == "best" else 1000,
        "x": [area_mm2],
        "y": [design.value],
        "hovertemplate": f"{'<br>'.join(described)}<extra></extra>",
        "marker": {
            "symbol": symbol,
            "size": 18 if design.kind == "optimum" else 13,
            "color": colour,
            "line": {"color": DARK, "width": 1},
        },
    }
