"""The plots of a study: history, throughput against area, the best designs, time, importance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from phaze_opt.report.figure_style import (
    BLUE,
    DARK,
    GREEN,
    GREY,
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
    thinned,
)
from phaze_opt.report.studies import (
    value_header,
    value_words,
)
from phaze_opt.report.study_view import ComparedDesign, StudyView, ranked_trials
from phaze_opt.report.words import axis_words, kind_words, value_of_axis
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.trials import TrialRecord
from phaze_opt.units import format_number, format_seconds

PlotKind = Literal["history", "area", "parallel", "breakdown", "importance"]
PLOT_KINDS: tuple[PlotKind, ...] = get_args(PlotKind)

TITLES: Mapping[PlotKind, str] = {
    "history": "Best so far",
    "area": "Value against chip area",
    "parallel": "The best architectures",
    "breakdown": "Where the time of a batch goes",
    "importance": "What decides",
}

NOTES: Mapping[PlotKind, str] = {
    "history": "Every feasible trial, the best one so far, and what it is compared with.",
    "area": "Every feasible trial; the line is the front: nothing found is better and smaller.",
    "parallel": "Each line is one design, the best one red; a column spans the values found.",
    "breakdown": "The time of one batch by what it is spent on.",
    "importance": "Share of the variance of the value, on a logarithmic scale and among the "
    "feasible trials, that a parameter explains by itself.",
}

_FEASIBLE, _INFEASIBLE, _FRONT = 600, 100, 100
"""Points of the largest traces, which together stay below `MOST_POINTS`."""

_SHOWN_DESIGNS = 20
_BASELINE_COLOURS = (ORANGE, PINK, SKY, YELLOW)
_BASELINE_SYMBOLS = ("diamond", "square", "triangle-up", "cross")
_DASHES = ("dash", "dot", "dashdot", "longdash")
_PART_COLOURS = {
    "forward": BLUE,
    "recompute": SKY,
    "backward": GREEN,
    "tensor_collectives": ORANGE,
    "transfer": YELLOW,
    "gradient_synchronisation": RED,
    "parameter_gather": PINK,
    "optimizer": "#7A5C3E",
    "gradient_accumulation": "#4D4D4D",
    "bubble": LIGHT,
}
_LEAST_PART = 5e-4
"""Share of a batch below which a part of its time is not drawn."""


def plot(view: StudyView, kind: PlotKind) -> Figure:
    """Draw one plot of a study."""
    return _DRAWERS[kind](view)


def all_plots(view: StudyView) -> dict[PlotKind, Figure]:
    """Draw all plots of a study."""
    return {kind: plot(view, kind) for kind in PLOT_KINDS}


def _feasible(view: StudyView) -> list[TrialRecord]:
    """List the feasible trials by number."""
    return [trial for trial in view.summary.records if trial.rank is not None]


def _value(trial: TrialRecord) -> float:
    """Return the first value of a trial."""
    assert trial.metrics is not None
    return trial.metrics.value


def _hover(view: StudyView, trial: TrialRecord) -> str:
    """Describe a trial where the pointer is."""
    spec = view.summary.resolved.spec
    assert trial.metrics is not None and trial.point is not None
    values = value_words(spec, trial.metrics.values)
    area = "" if trial.metrics.area_mm2 is None else f", {trial.metrics.area_mm2:,.1f} mm²"
    point = ", ".join(value_of_axis(name, value) for name, value in trial.point.values)
    head = f"trial {trial.number}: {values}{area}"
    return "<br>".join([f"<b>{figure_text(head)}</b>", *_lines(point)])


def _lines(text: str, longest: int = 70) -> list[str]:
    """Break a list of things into lines, each harmless."""
    lines = [""]
    for part in text.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > longest:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return [figure_text(line) for line in lines]


def _value_axis(view: StudyView, values: Iterable[float]) -> dict[str, Any]:
    """Return the axis of the first value."""
    spec = view.summary.resolved.spec
    return axis(value_header(spec, 0), max(values, default=0.0), rangemode="tozero")


def _history(view: StudyView) -> Figure:
    """Draw the values of the trials by number, the best so far, and what it is compared with."""
    trials = _feasible(view)
    if not trials:
        return empty_figure("No feasible trial yet.")
    maximise = view.summary.resolved.spec.objective_kinds[0].maximise
    last = max(trial.number for trial in view.summary.records)
    shown = thinned(trials, _FEASIBLE)
    best_x, best_y = _best_so_far(trials, maximise, last)
    lines, infeasible = _reference_lines(view, last), _infeasible_ticks(view)
    values = [*map(_value, shown), *best_y, *(line["y"][0] for line in lines)]
    traces = [
        *infeasible,
        _dots(view, shown, [trial.number for trial in shown], "feasible trial"),
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
    return figure(traces, axis("trial", last, rangemode="tozero"), _value_axis(view, values))


def _best_so_far(
    trials: Sequence[TrialRecord], maximise: bool, last: int
) -> tuple[list[int], list[float]]:
    """Return where the best value changes, and its value there; the last trial ends the line."""
    numbers: list[int] = []
    values: list[float] = []
    for trial in trials:
        value = _value(trial)
        if not values or (value > values[-1] if maximise else value < values[-1]):
            numbers.append(trial.number)
            values.append(value)
    kept = thinned(list(zip(numbers, values, strict=True)), _FRONT)
    kept = [*kept, (last, values[-1])]
    return [number for number, _ in kept], [value for _, value in kept]


def _infeasible_ticks(view: StudyView) -> list[dict[str, Any]]:
    """Mark the infeasible trials below the axis."""
    numbers = [trial.number for trial in view.summary.records if trial.kind == "infeasible"]
    if not numbers:
        return []
    shown = thinned(numbers, _INFEASIBLE)
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


def _dots(
    view: StudyView, trials: Sequence[TrialRecord], x: Sequence[float], name: str
) -> dict[str, Any]:
    """Draw trials as dots."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": [_value(trial) for trial in trials],
        "text": [_hover(view, trial) for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": "#777777", "size": 6, "opacity": 0.55},
    }


def _reference_lines(view: StudyView, last: int) -> list[dict[str, Any]]:
    """Draw what the best is compared with as horizontal lines."""
    lines = []
    for place, (design, colour) in enumerate(_references(view)):
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


def _references(view: StudyView) -> list[tuple[ComparedDesign, str]]:
    """Return the certified optimum and the baselines that have a value, with their colours."""
    known = [one for one in view.compared if one.kind != "best" and one.value is not None]
    baselines = [one for one in known if one.kind == "baseline"]
    colours = {
        one.name: _BASELINE_COLOURS[place % len(_BASELINE_COLOURS)]
        for place, one in enumerate(baselines)
    }
    return [(one, GREEN if one.kind == "optimum" else colours[one.name]) for one in known]


def _area(view: StudyView) -> Figure:
    """Draw the value of the trials against the area of their chips, with the front."""
    trials = [one for one in _feasible(view) if one.metrics and one.metrics.area_mm2 is not None]
    if not trials:
        return empty_figure("No feasible trial yet.")
    maximise = view.summary.resolved.spec.objective_kinds[0].maximise
    shown = thinned(trials, _FEASIBLE)
    front = thinned(_area_front(trials, maximise), _FRONT)
    limit_mm2 = view.summary.resolved.area_limit_mm2
    marks = _reference_marks(view)
    values = [*map(_value, trials), *(mark["y"][0] for mark in marks)]
    traces = [
        _dots(view, shown, list(map(_area_mm2, shown)), "feasible trial"),
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "front",
            "x": [_area_mm2(trial) for trial in front],
            "y": [_value(trial) for trial in front],
            "text": [_hover(view, trial) for trial in front],
            "hovertemplate": "%{text}<extra></extra>",
            "line": {"color": BLUE, "width": 2, "shape": "hv"},
            "marker": {"color": BLUE, "size": 6},
        },
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
        _value_axis(view, values),
    )


def _area_mm2(trial: TrialRecord) -> float:
    """Return the area of a trial's chip."""
    assert trial.metrics is not None and trial.metrics.area_mm2 is not None
    return trial.metrics.area_mm2


def _area_front(trials: Sequence[TrialRecord], maximise: bool) -> list[TrialRecord]:
    """Return the trials that no smaller chip is as good as, by area."""
    sign = -1.0 if maximise else 1.0
    front: list[TrialRecord] = []
    for trial in sorted(trials, key=lambda one: (_area_mm2(one), sign * _value(one))):
        if not front or sign * _value(trial) < sign * _value(front[-1]):
            front.append(trial)
    return front


def _reference_marks(view: StudyView) -> list[dict[str, Any]]:
    """Draw the best design, the certified optimum and the baselines as large marks."""
    # The best is drawn last, so that a baseline that is the same design does not hide it.
    best = [(one, RED) for one in view.compared if one.kind == "best"]
    designs = _references(view) + best
    marks, baselines = [], 0
    for design, colour in designs:
        if design.area_mm2 is None:
            continue
        symbol = {"best": "star", "optimum": "star-open"}.get(design.kind)
        if symbol is None:
            symbol = _BASELINE_SYMBOLS[baselines % len(_BASELINE_SYMBOLS)]
            baselines += 1
        hover = "<br>".join(
            [
                f"<b>{figure_text(f'{design.name}: {design.values}')}</b>",
                *_lines(f"{design.area_mm2:,.1f} mm², {design.chip}"),
            ]
        )
        marks.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "best" if design.kind == "best" else figure_text(design.name),
                "legendrank": 999 if design.kind == "best" else 1000,
                "x": [design.area_mm2],
                "y": [design.value],
                "hovertemplate": f"{hover}<extra></extra>",
                "marker": {
                    "symbol": symbol,
                    "size": 18 if design.kind == "optimum" else 13,
                    "color": colour,
                    "line": {"color": DARK, "width": 1},
                },
            }
        )
    return marks


def _parallel(view: StudyView) -> Figure:
    """Draw the best designs as lines over what is searched; each axis spans the values found."""
    spec = view.summary.resolved.spec
    ranked = ranked_trials(view.summary.records)
    distinct = list({one.point: one for one in reversed(ranked)}.values())[::-1][:_SHOWN_DESIGNS]
    points = [one.point for one in distinct if one.point is not None]
    names = [name for name, axis in spec.space.searched.items() if len(axis.values) > 1]
    if not points or not names:
        return empty_figure("No feasible trial yet.")
    columns = [_column(name, spec.space.values_of(name), points) for name in names]
    values = np.array([_value(trial) for trial in distinct])
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    columns.append((value_header(spec, 0), [float(one) for one in scaled], _ends(low, high)))
    traces = []
    for place in reversed(range(len(distinct))):
        share = place / max(1, _SHOWN_DESIGNS - 1)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"place {place + 1}",
                "showlegend": False,
                "x": list(range(len(columns))),
                "y": [places[place] for _, places, _ in columns],
                "text": [f"place {place + 1}, {_hover(view, distinct[place])}"] * len(columns),
                "hovertemplate": "%{text}<extra></extra>",
                "line": {
                    "color": RED if place == 0 else _shade(share),
                    "width": 4 if place == 0 else 1.5,
                },
                "marker": {"size": 6},
            }
        )
    x = axis(
        "",
        tickmode="array",
        tickvals=list(range(len(columns))),
        ticktext=["<br>".join(_words_of_header(title)) for title, _, _ in columns],
        range=[-0.3, len(columns) - 0.5],
        side="top",
        ticks="",
        gridcolor="#BBBBBB",
    )
    y = {"visible": False, "range": [-0.06, 1.06]}
    notes = [
        {
            "x": place,
            "y": at,
            "text": figure_text(label),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 7,
            "bgcolor": "rgba(255,255,255,0.9)",
            "font": {"size": 11},
        }
        for place, (_, _, labels) in enumerate(columns)
        for at, label in labels.items()
    ]
    margin = {"l": 24, "r": 56, "t": 80, "b": 16}
    return figure(traces, x, y, annotations=notes, margin=margin, showlegend=False)


_Column = tuple[str, list[float], dict[float, str]]
"""Title of an axis of the parallel coordinates, the height of every design, labels by height."""


def _column(name: str, values: Sequence[Any], points: Sequence[DesignPoint]) -> _Column:
    """Return one axis: the values that were found, evenly spaced in the order of the space."""
    found = {point[name] for point in points}
    used = [value for value in values if value in found]
    heights = {value: (at + 0.5) / len(used) for at, value in enumerate(used)}
    step = max(1, len(used) // 12)
    labels = {heights[value]: value_of_axis(name, value, bare=True) for value in used[::step]}
    return axis_words(name), [heights[point[name]] for point in points], labels


def _ends(low: float, high: float) -> dict[float, str]:
    """Label the ends of the axis of values."""
    if low == high:
        return {0.5: format_number(low)}
    return {0.0: format_number(low), 1.0: format_number(high)}


def _words_of_header(title: str) -> list[str]:
    """Put the unit of an axis on a line of its own, so that neighbours do not touch."""
    name, bracket, unit = title.partition(" [")
    return [figure_text(name), *([figure_text(f"[{unit}")] if bracket else [])]


def _shade(share: float) -> str:
    """Return a blue that pales from 0 to 1."""
    dark, pale = (0, 80, 140), (176, 205, 228)
    mixed = [round(one + (other - one) * share) for one, other in zip(dark, pale, strict=True)]
    return f"rgb({mixed[0]},{mixed[1]},{mixed[2]})"


def _breakdown(view: StudyView) -> Figure:
    """Draw the time of a batch by what it is spent on: the best design beside the others."""
    runs = view.summary.resolved.spec.runs
    bars: list[tuple[str, Mapping[str, float], float]] = []
    for design in view.compared:
        name = "best" if design.kind == "best" else design.name
        for run, evaluation in zip(runs, design.evaluations, strict=False):
            if evaluation is not None and evaluation.time_per_batch_s:
                whose = name if len(runs) == 1 else f"{run.name}: {name}"
                bars.append((whose, evaluation.time_breakdown_s, evaluation.time_per_batch_s))
    if not bars:
        return empty_figure("No evaluation is stored yet.")
    bars.sort(key=lambda bar: bar[0].partition(": ")[0] if len(runs) > 1 else "")
    scale, unit = _time_unit(max(time_s for _, _, time_s in bars))
    kinds = [*_PART_COLOURS, *sorted({kind for _, parts, _ in bars for kind in parts})]
    traces = []
    for kind in dict.fromkeys(kinds):
        parts = [(name, parts.get(kind, 0.0), time_s) for name, parts, time_s in bars]
        if not any(seconds > _LEAST_PART * time_s for _, seconds, time_s in parts):
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": figure_text(kind_words(kind)),
                "y": [figure_text(name) for name, _, _ in parts],
                "x": [seconds / scale for _, seconds, _ in parts],
                "text": [
                    f"{figure_text(name)}<br>{kind_words(kind)}: {format_seconds(seconds)}, "
                    f"{seconds / time_s:.1%}"
                    for name, seconds, time_s in parts
                ],
                "textposition": "none",
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": _PART_COLOURS.get(kind, "#4D4D4D"),
                    "line": {"color": "#FFFFFF", "width": 1},
                },
            }
        )
    largest = max(time_s for _, _, time_s in bars) / scale
    totals = [
        {
            "x": time_s / scale,
            "y": figure_text(name),
            "text": format_seconds(time_s),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 6,
        }
        for name, _, time_s in bars
    ]
    return figure(
        traces,
        axis(f"time of a batch [{unit}]", largest, range=[0.0, 1.12 * largest]),
        axis("", autorange="reversed", ticks="", gridcolor="#FFFFFF", type="category"),
        barmode="stack",
        bargap=0.35,
        annotations=totals,
        height=180 + 52 * len(bars),
        legend={**LEGEND, "traceorder": "normal"},
    )


def _time_unit(largest_s: float) -> tuple[float, str]:
    """Choose the unit of an axis of times: seconds in it, and its name."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if largest_s >= scale:
            return scale, unit
    return 1e-6, "µs"


def _importance(view: StudyView) -> Figure:
    """Draw how much of the variance of the value each parameter explains by itself."""
    shares = sorted(importances(view).items(), key=lambda pair: pair[1])
    if not shares:
        return empty_figure("Importance needs at least ten feasible designs that differ.")
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [axis_words(name) for name, _ in shares],
        "x": [100.0 * share for _, share in shares],
        "text": [f"{share:.0%}" for _, share in shares],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": BLUE},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    return figure(
        [trace],
        axis("explained share of the variance [%]", 100.0, rangemode="tozero"),
        axis("", ticks="", gridcolor="#FFFFFF", type="category"),
        height=110 + 34 * len(shares),
        margin={"l": 80, "r": 48, "t": 32, "b": 56},
        bargap=0.3,
    )


_FEWEST_DESIGNS = 10


def importances(view: StudyView) -> dict[str, float]:
    """Return the share of the variance of the value that each searched parameter explains.

    The ratio ε² of an analysis of variance in one way (T. L. Kelley, PNAS 1935) of the logarithm of
    the value, over the distinct feasible designs found: the share that differences between the
    values of the parameter explain, less what as many groups explain by chance. Nothing where there
    are fewer than ten designs, or all are equal.
    """
    trials = {trial.point: trial for trial in _feasible(view)}
    points = [point for point in trials if point is not None]
    if len(points) < _FEWEST_DESIGNS:
        return {}
    logs = np.log([_value(trials[point]) for point in points])
    whole = float(((logs - logs.mean()) ** 2).sum())
    if whole <= 0.0:
        return {}
    shares = {}
    for name, searched in view.summary.resolved.spec.space.searched.items():
        if len(searched.values) > 1:
            codes = np.array([searched.values.index(point[name]) for point in points])
            shares[name] = _explained(logs, codes, whole)
    return shares


def _explained(logs: Any, codes: Any, whole: float) -> float:
    """Return ε² of one grouping.

    Parameters
    ----------
    logs, codes : (designs,)
        Logarithm of the value, and number of the group.
    whole
        Sum of the squared deviations of ``logs`` from their mean.
    """
    counts = np.bincount(codes)
    means = np.bincount(codes, logs)[counts > 0] / counts[counts > 0]
    between = float((counts[counts > 0] * (means - logs.mean()) ** 2).sum())
    groups = len(means)
    if groups == 1 or groups >= len(logs):
        return 0.0
    within = (whole - between) / (len(logs) - groups)
    return max(0.0, (between - (groups - 1) * within) / whole)


_DRAWERS: Mapping[PlotKind, Callable[[StudyView], Figure]] = {
    "history": _history,
    "area": _area,
    "parallel": _parallel,
    "breakdown": _breakdown,
    "importance": _importance,
}
