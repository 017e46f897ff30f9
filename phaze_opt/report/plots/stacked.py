"""Wholes as bars of their parts, one below the other on one axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phaze_opt.report.figure_style import DARK, LEGEND, Figure, axis, figure, figure_text, narrowed

_LEAST_PART = 5e-4
"""Share of a whole below which a part is not drawn."""

_OTHER_COLOUR = "#4D4D4D"
_ROOM_PER_LETTER = 0.014


@dataclass(frozen=True)
class StackedBar:
    """One whole.

    Attributes
    ----------
    name
        Of what it is the whole.
    parts
        Sizes by kind.
    whole
        What the shares of the parts are of.
    total
        Words behind the bar.
    limit
        Size up to which a bar may reach; ``None`` where there is no such size.
    """

    name: str
    parts: Mapping[str, float]
    whole: float
    total: str
    limit: float | None = None


@dataclass(frozen=True)
class Scale:
    """How the sizes of bars are written.

    Attributes
    ----------
    title
        Of the axis, with its unit.
    unit
        Size that is one on the axis.
    words
        Writes a size.
    kind_words
        Names a kind.
    colours
        By kind, in the order in which the parts stand; kinds without one come after them.
    """

    title: str
    unit: float
    words: Callable[[float], str]
    kind_words: Callable[[str], str]
    colours: Mapping[str, str]


def stacked(bars: Sequence[StackedBar], scale: Scale) -> Figure:
    """Draw bars of parts; a part that is a negligible share of every whole is left out."""
    kinds = [*scale.colours, *sorted({kind for bar in bars for kind in bar.parts})]
    drawn = [
        kind
        for kind in dict.fromkeys(kinds)
        if any(bar.parts.get(kind, 0.0) > _LEAST_PART * bar.whole for bar in bars)
    ]
    ends = [max(bar.whole, bar.limit or 0.0) for bar in bars]
    largest = max(ends) / scale.unit
    # Room for the words behind the longest bar.
    room = 1.0 + _ROOM_PER_LETTER * max(len(bar.total) for bar in bars)
    made = figure(
        [_part(kind, bars, scale) for kind in drawn],
        axis(scale.title, largest, range=[0.0, room * largest], nticks=8),
        axis("", autorange="reversed", ticks="", gridcolor="#FFFFFF", type="category"),
        barmode="stack",
        bargap=0.35,
        annotations=[_total(bar, end, scale) for bar, end in zip(bars, ends, strict=True)],
        shapes=_limits(bars, 0.45, scale),
        height=180 + 52 * len(bars),
        legend={**LEGEND, "traceorder": "normal"},
    )
    layout = made["layout"]
    return narrowed(
        made,
        xaxis={**layout["xaxis"], "range": [0.0, 1.03 * largest], "nticks": 5},
        yaxis={**layout["yaxis"], "showticklabels": False},
        margin={**layout["margin"], "l": 12, "r": 12},
        annotations=[_heading(bar) for bar in bars],
        shapes=_limits(bars, 0.25, scale),
        bargap=0.55,
        height=220 + 70 * len(bars),
    )


def _part(kind: str, bars: Sequence[StackedBar], scale: Scale) -> dict[str, Any]:
    """Draw one part of every whole."""
    sizes = [bar.parts.get(kind, 0.0) for bar in bars]
    words = figure_text(scale.kind_words(kind))
    return {
        "type": "bar",
        "orientation": "h",
        "name": words,
        "y": [figure_text(bar.name) for bar in bars],
        "x": [size / scale.unit for size in sizes],
        "text": [
            f"{figure_text(bar.name)}<br>{words}: {scale.words(size)}, {size / bar.whole:.1%}"
            for bar, size in zip(bars, sizes, strict=True)
        ],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": scale.colours.get(kind, _OTHER_COLOUR),
            "line": {"color": "#FFFFFF", "width": 1},
        },
    }


def _total(bar: StackedBar, end: float, scale: Scale) -> dict[str, Any]:
    """Write the whole behind a bar."""
    return {
        "x": end / scale.unit,
        "y": figure_text(bar.name),
        "text": figure_text(bar.total),
        "showarrow": False,
        "xanchor": "left",
        "xshift": 6,
    }


def _heading(bar: StackedBar) -> dict[str, Any]:
    """Write the name and the whole above a bar, where there is no room beside it."""
    words = f"{bar.name}: {bar.total}" if bar.total else bar.name
    return {
        "x": 0,
        "y": figure_text(bar.name),
        "text": figure_text(words),
        "showarrow": False,
        "xanchor": "left",
        "yshift": 27,
    }


def _limits(bars: Sequence[StackedBar], half: float, scale: Scale) -> list[dict[str, Any]]:
    """Draw the sizes up to which bars may reach, half as long as is said in units of a bar's room.

    Bars without such a size have no line.
    """
    line = {"color": DARK, "width": 2, "dash": "dot"}
    return [
        {
            "type": "line",
            "x0": bar.limit / scale.unit,
            "x1": bar.limit / scale.unit,
            "y0": place - half,
            "y1": place + half,
            "line": line,
        }
        for place, bar in enumerate(bars)
        if bar.limit is not None
    ]
