"""How plots look: figures of plotly as plain data, in one style, with colours for everyone.

A figure is the JSON that plotly draws, not an object of its Python package, which would check and
copy every number: the workers write figures while they search. Texts in a figure are pseudo-HTML
to plotly; `figure_text` makes foreign text harmless there.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, TypeVar

from phaze_opt.printing import printable

MOST_POINTS = 1_000
"""Points of a figure, those of all its traces together."""

Figure = dict[str, Any]
"""A figure as plotly's JSON: ``data`` and ``layout``.

``narrow`` has what is different where a page is narrow, for its script: the ``layout`` as far as it
is, and other ``data``, where it has those.
"""

# The palette of Okabe and Ito (2008): distinct with any kind of colour blindness.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#9A9A9A"
LIGHT, DARK = "#D9D9D9", "#222222"

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

LEGEND = {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"}
"""At the bottom: above the plot a legend would lie under the buttons that plotly shows there."""

Item = TypeVar("Item")


def figure(
    traces: Sequence[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], **layout: Any
) -> Figure:
    """Return a figure with one pair of axes.

    Parameters
    ----------
    traces
        As plotly takes them.
    x, y
        Axes; see `axis`.
    **layout
        Further entries of the layout, which replace those of the style.
    """
    style: dict[str, Any] = {
        "font": {"family": _FONT, "size": 13, "color": DARK},
        "paper_bgcolor": "#FFFFFF",
        "plot_bgcolor": "#FFFFFF",
        "margin": {"l": 80, "r": 24, "t": 32, "b": 96},
        "height": 420,
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "font": {"family": _FONT, "size": 12}},
        "legend": LEGEND,
        "xaxis": x,
        "yaxis": y,
    }
    return {"data": list(traces), "layout": {**style, **layout}}


def axis(title: str, largest: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return an axis.

    Parameters
    ----------
    title
        With its unit.
    largest
        Number on it; decides how its numbers are written: never as a power of ten where people
        write thousands.
    **more
        Further entries, which replace these.
    """
    plain: dict[str, Any] = {
        "title": {"text": figure_text(title), "standoff": 12},
        "gridcolor": "#ECECEC",
        "linecolor": GREY,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": GREY,
        "automargin": True,
        "tickformat": ",.0f" if largest >= 10.0 else ".4~g",
    }
    return {**plain, **more}


def narrowed(drawn: Figure, data: Sequence[dict[str, Any]] = (), **layout: Any) -> Figure:
    """Return a figure that is drawn otherwise on a narrow page.

    Parameters
    ----------
    drawn
        The figure.
    data
        Other traces; none where they are the same.
    **layout
        Entries of the layout, which replace those of the figure there.
    """
    own: Figure = {"data": list(data)} if data else {}
    return {**drawn, "narrow": {**own, "layout": layout}}


def titled(drawn: Figure, title: str) -> Figure:
    """Return a figure with its title, for where nothing else names it, and its width is given."""
    layout = drawn["layout"]
    heading = {"text": figure_text(title), "x": 0, "xref": "container", "pad": {"l": 16}}
    margin = {**layout["margin"], "t": layout["margin"]["t"] + 32}
    return {"data": drawn["data"], "layout": {**layout, "title": heading, "margin": margin}}


def figure_text(text: str) -> str:
    """Make text harmless in a figure, where plotly reads some tags of HTML."""
    return html.escape(printable(text), quote=False)


def empty_figure(sentence: str) -> Figure:
    """Return a figure that says why there is nothing to draw."""
    hidden = {"visible": False}
    note = {
        "text": figure_text(sentence),
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "font": {"size": 15, "color": GREY},
    }
    return figure([], hidden, hidden, annotations=[note], height=160)


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many items, evenly spaced, the last one among them."""
    if len(items) <= most:
        return list(items)
    return [items[(at + 1) * len(items) // most - 1] for at in range(most)]


def steadily_thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many items, evenly spaced, and the last one.

    Of a list that grows, the same items are returned, and the newest, until it has doubled.
    """
    step = 1
    while -(-len(items) // step) + 1 > most and len(items) > most:
        step *= 2
    kept = list(items[::step])
    return kept if (len(items) - 1) % step == 0 or not items else [*kept, items[-1]]
