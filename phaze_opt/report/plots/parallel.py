"""The best designs as lines over what is searched: parallel coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phaze_opt.report.figure_style import (
    RED,
    Figure,
    axis,
    empty_figure,
    figure,
    figure_text,
    narrowed,
)
from phaze_opt.report.plots.marks import first_value, hover
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.study_words import value_header
from phaze_opt.report.words import axis_words, value_of_axis
from phaze_opt.spec.ordering import value_bin
from phaze_opt.spec.space import DesignPoint
from phaze_opt.study.trials import TrialRecord
from phaze_opt.units import format_number

_SHOWN_DESIGNS = 20

_ROW, _MOST_IN_ROW = 62, 6
"""Of axes that lie flat, where a page is narrow: pixels of each, and values that it names."""


@dataclass(frozen=True)
class _Column:
    """One axis of the parallel coordinates.

    Attributes
    ----------
    heights
        Of every design, from 0 to 1.
    labels
        By their heights.
    """

    title: str
    heights: list[float]
    labels: dict[float, str]


def parallel(view: StudyView) -> Figure:
    """Draw the best designs as lines over what is searched; each axis spans the values found."""
    spec = view.summary.resolved.spec
    best = view.book.best[:_SHOWN_DESIGNS]
    designs = view.book.trials(number for _, number, _ in best)
    points = [design.point for design in designs if design.point is not None]
    names = [name for name, searched in spec.space.searched.items() if len(searched.values) > 1]
    if not points or not names:
        return empty_figure("No feasible trial yet.")
    columns = [_column(name, spec.space.values_of(name), points) for name in names]
    columns.append(_value_column(value_header(spec, 0), designs))
    lines = [
        _line(place, trial, [column.heights[place] for column in columns], hover(view, trial))
        for place, trial in enumerate(designs)
    ]
    x = axis(
        "",
        tickmode="array",
        tickvals=list(range(len(columns))),
        ticktext=["<br>".join(_words_of_header(column.title)) for column in columns],
        range=[-0.3, len(columns) - 0.5],
        side="top",
        ticks="",
        gridcolor="#BBBBBB",
    )
    y = {"visible": False, "range": [-0.06, 1.06]}
    margin = {"l": 24, "r": 56, "t": 80, "b": 16}
    notes = [
        _label(place, height, text)
        for place, column in enumerate(columns)
        for height, text in column.labels.items()
    ]
    # The best is drawn last, above the others.
    made = figure(lines[::-1], x, y, annotations=notes, margin=margin, showlegend=False)
    rows = [
        note
        for place, column in enumerate(columns)
        for note in (_row_title(place, column.title), *_row_labels(place, column.labels))
    ]
    return narrowed(
        made,
        data=[{**line, "x": line["y"], "y": line["x"]} for line in made["data"]],
        xaxis={"visible": False, "range": [-0.06, 1.06]},
        yaxis=axis(
            "",
            range=[len(columns) - 0.4, -0.6],
            tickvals=x["tickvals"],
            showticklabels=False,
            ticks="",
            gridcolor="#BBBBBB",
        ),
        margin={"l": 12, "r": 12, "t": 36, "b": 12},
        height=60 + _ROW * len(columns),
        annotations=rows,
    )


def _row_title(place: int, title: str) -> dict[str, Any]:
    """Write the name of an axis that lies flat, above it."""
    return {
        "xref": "paper",
        "x": 0,
        "y": place,
        "text": f"<b>{figure_text(title)}</b>",
        "showarrow": False,
        "xanchor": "left",
        "yshift": 20,
        "font": {"size": 12},
        "bgcolor": "rgba(255,255,255,0.8)",
    }


def _row_labels(place: int, labels: Mapping[float, str]) -> Iterator[dict[str, Any]]:
    """Write some values below an axis that lies flat."""
    step = -(-len(labels) // _MOST_IN_ROW)
    for height, text in sorted(labels.items())[::step]:
        yield {
            "x": height,
            "y": place,
            "text": figure_text(text),
            "showarrow": False,
            "xanchor": "right" if height > 0.9 else "left" if height < 0.1 else "center",
            "yshift": -14,
            "bgcolor": "rgba(255,255,255,0.8)",
            "font": {"size": 11},
        }


def _line(place: int, trial: TrialRecord, heights: list[float], words: str) -> dict[str, Any]:
    """Draw one design, the best one red; ``place`` counts from 0."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"place {place + 1}",
        "showlegend": False,
        "x": list(range(len(heights))),
        "y": heights,
        "text": [f"place {place + 1}, {words}"] * len(heights),
        "customdata": [trial.number] * len(heights),
        "hovertemplate": "%{text}<extra></extra>",
        "line": {
            "color": RED if place == 0 else _shade(place / (_SHOWN_DESIGNS - 1)),
            "width": 4 if place == 0 else 1.5,
        },
        "marker": {"size": 6},
    }


def _label(place: int, height: float, text: str) -> dict[str, Any]:
    """Write a value beside its axis."""
    return {
        "x": place,
        "y": height,
        "text": figure_text(text),
        "showarrow": False,
        "xanchor": "left",
        "xshift": 7,
        "bgcolor": "rgba(255,255,255,0.9)",
        "font": {"size": 11},
    }


def _column(name: str, values: Sequence[Any], points: Sequence[DesignPoint]) -> _Column:
    """Return one axis: the values that were found, evenly spaced in the order of the space."""
    held = {point[name] for point in points}
    used = [value for value in values if value in held]
    heights = {value: (at + 0.5) / len(used) for at, value in enumerate(used)}
    step = max(1, len(used) // 12)
    labels = {heights[value]: value_of_axis(name, value, bare=True) for value in used[::step]}
    return _Column(axis_words(name), [heights[point[name]] for point in points], labels)


def _value_column(title: str, designs: Sequence[TrialRecord]) -> _Column:
    """Return the axis of the values, with its ends labelled; the best design is at one of them.

    What counts as equal to it in the order of designs stands where it stands: its own last digits
    would else be spread over the whole axis, with the best at the wrong end.
    """
    values = [first_value(trial) for trial in designs]
    best = values[0]
    values = [best if value_bin(value) == value_bin(best) else value for value in values]
    low, high = min(values), max(values)
    if low == high:
        return _Column(title, [0.5] * len(values), {0.5: format_number(low)})
    heights = [(value - low) / (high - low) for value in values]
    return _Column(title, heights, {0.0: format_number(low), 1.0: format_number(high)})


def _words_of_header(title: str) -> list[str]:
    """Put the unit of an axis on a line of its own, so that neighbours do not touch."""
    name, bracket, unit = title.partition(" [")
    return [figure_text(name), *([figure_text(f"[{unit}")] if bracket else [])]


def _shade(share: float) -> str:
    """Return a blue that pales from 0 to 1."""
    dark, pale = (0, 80, 140), (176, 205, 228)
    mixed = [
        round(channel + (other - channel) * share)
        for channel, other in zip(dark, pale, strict=True)
    ]
    return f"rgb({mixed[0]},{mixed[1]},{mixed[2]})"
