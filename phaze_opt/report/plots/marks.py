"""What several plots of a study draw: trials as dots, and designs to compare them with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phaze_opt.report.compared_designs import ComparedDesign
from phaze_opt.report.figure_style import (
    GREEN,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    axis,
    figure_text,
    steadily_thinned,
)
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.study_words import value_header, value_words
from phaze_opt.report.words import value_of_axis
from phaze_opt.study.trials import TrialRecord

MOST_FEASIBLE, MOST_INFEASIBLE, MOST_ON_LINE = 600, 100, 100
"""Points of the largest traces, which together stay below `figure_style.MOST_POINTS`."""

_BASELINE_COLOURS = (ORANGE, PINK, SKY, YELLOW)


def shown_trials(view: StudyView) -> list[TrialRecord]:
    """Return the feasible trials that are drawn as dots, by number."""
    return view.book.trials(steadily_thinned(view.book.numbers, MOST_FEASIBLE))


def first_value(trial: TrialRecord) -> float:
    """Return the first value of a trial."""
    assert trial.metrics is not None
    return trial.metrics.value


def value_axis(view: StudyView, values: Iterable[float]) -> dict[str, Any]:
    """Return the axis of the first value."""
    spec = view.summary.resolved.spec
    return axis(value_header(spec, 0), max(values, default=0.0), rangemode="tozero")


def dots(view: StudyView, trials: Sequence[TrialRecord], x: Sequence[float]) -> dict[str, Any]:
    """Draw feasible trials as dots."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "feasible trial",
        "x": list(x),
        "y": [first_value(trial) for trial in trials],
        "text": [hover(view, trial) for trial in trials],
        "customdata": [trial.number for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": "#777777", "size": 6, "opacity": 0.55},
    }


def hover(view: StudyView, trial: TrialRecord) -> str:
    """Describe a trial where the pointer is."""
    if trial.number not in view.hovers:
        view.hovers[trial.number] = _described(view, trial)
    return view.hovers[trial.number]


def _described(view: StudyView, trial: TrialRecord) -> str:
    """Describe a trial in lines."""
    spec = view.summary.resolved.spec
    assert trial.metrics is not None and trial.point is not None
    values = value_words(spec, trial.metrics.values)
    area = "" if trial.metrics.area_mm2 is None else f", {trial.metrics.area_mm2:,.1f} mm²"
    point = ", ".join(value_of_axis(name, value) for name, value in trial.point.values)
    head = f"trial {trial.number}: {values}{area}"
    return "<br>".join([f"<b>{figure_text(head)}</b>", *broken_lines(point)])


def broken_lines(text: str, longest: int = 70) -> list[str]:
    """Break a list of things into lines, each harmless."""
    lines = [""]
    for part in text.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > longest:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return [figure_text(line) for line in lines]


def references(view: StudyView) -> list[tuple[ComparedDesign, str]]:
    """Return the certified optimum and the baselines that have a value, with their colours."""
    known = [
        design for design in view.compared if design.kind != "best" and design.value is not None
    ]
    baselines = [design for design in known if design.kind == "baseline"]
    colours = {
        baseline.name: _BASELINE_COLOURS[place % len(_BASELINE_COLOURS)]
        for place, baseline in enumerate(baselines)
    }
    return [
        (design, GREEN if design.kind == "optimum" else colours[design.name]) for design in known
    ]
