"""The values of the trials by number, the best so far, and what it is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from phaze_opt.report.figure_style import (
    BLUE,
    GREY,
    Figure,
    axis,
    empty_figure,
    figure,
    figure_text,
    thinned,
)
from phaze_opt.report.plots.marks import (
    MOST_INFEASIBLE,
    MOST_ON_LINE,
    dots,
    first_value,
    references,
    shown_trials,
    value_axis,
)
from phaze_opt.report.study_view import StudyView

_DASHES = ("dash", "dot", "dashdot", "longdash")


def history(view: StudyView) -> Figure:
    """Draw the values of the trials by number, the best so far, and what it is compared with."""
    if not view.book.numbers:
        return empty_figure("No feasible trial yet.")
    last, shown = view.book.last, shown_trials(view)
    best_x, best_y = _best_so_far(view, last)
    lines, infeasible = _reference_lines(view, last), _infeasible_ticks(view)
    values = [*map(first_value, shown), *best_y, *(line["y"][0] for line in lines)]
    traces = [
        *infeasible,
        dots(view, shown, [trial.number for trial in shown]),
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best so far",
            "x": best_x,
            "y": best_y,
            "line": {"color": BLUE, "width": 3, "shape": "hv"},
            "hovertemplate": "best so far %{y:,.5~g} at trial %{x}<extra></extra>",
        },
        *lines,
    ]
    return figure(traces, axis("trial", last, rangemode="tozero"), value_axis(view, values))


def _best_so_far(view: StudyView, last: int) -> tuple[list[int], list[float]]:
    """Return where the best value changes, and its value there; the last trial ends the line."""
    values_so_far = np.array(view.book.values)
    maximise = view.summary.resolved.spec.objective_kinds[0].maximise
    best = (np.maximum if maximise else np.minimum).accumulate(values_so_far)
    changes = [0, *(np.flatnonzero(best[1:] != best[:-1]) + 1).tolist()]
    numbers = [view.book.numbers[place] for place in changes]
    values = [float(best[place]) for place in changes]
    kept = thinned(list(zip(numbers, values, strict=True)), MOST_ON_LINE)
    kept = [*kept, (last, values[-1])]
    return [number for number, _ in kept], [value for _, value in kept]


def _infeasible_ticks(view: StudyView) -> list[dict[str, Any]]:
    """Mark the infeasible trials below the axis."""
    numbers = view.book.infeasible
    if not numbers:
        return []
    shown = thinned(numbers, MOST_INFEASIBLE)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"infeasible ({len(numbers):,})",
            "x": shown,
            "y": [0.0] * len(shown),
            "marker": {"symbol": "line-ns-open", "size": 8, "color": GREY},
            "hovertemplate": "trial %{x} is infeasible<extra></extra>",
        }
    ]


def _reference_lines(view: StudyView, last: int) -> list[dict[str, Any]]:
    """Draw what the best is compared with as horizontal lines."""
    lines = []
    for place, (design, colour) in enumerate(references(view)):
        dash = "solid" if design.kind == "optimum" else _DASHES[place % len(_DASHES)]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": figure_text(design.name),
                "x": [0, last],
                "y": [design.value, design.value],
                "line": {"color": colour, "width": 2, "dash": dash},
                "hovertemplate": f"{figure_text(f'{design.name}: {design.values}')}<extra></extra>",
            }
        )
    return lines
