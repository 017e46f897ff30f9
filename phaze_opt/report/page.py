"""The page of a study as HTML: served by the dashboard, or one file that loads nothing.

The texts go through the templates of `phaze_opt.report.templates`; numbers and figures go to the
page as JSON.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from phaze_opt.choices import PlotKind
from phaze_opt.codec import to_json
from phaze_opt.report.figure_style import Figure
from phaze_opt.report.layout import shortened
from phaze_opt.report.plots.by_kind import NOTES, PLOT_KINDS, TITLES, all_plots, plot
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.study_words import state_words, value_words
from phaze_opt.report.templates import asset, templates
from phaze_opt.study.summary import StudySummary

_LONGEST_BEST = 60


def study_page(view: StudyView, key: str, address: str) -> str:
    """Return the page of a study, which keeps itself up to date.

    Parameters
    ----------
    view
        The study.
    key
        Names its state, as `study_state` does.
    address
        Where the page asks for a newer state.
    """
    state = {"key": key, "address": address, "figures": all_plots(view)}
    return _study_template(view, state, live=True)


def study_state(view: StudyView, key: str) -> bytes:
    """Return what changes on the page of a study, as the JSON that its script takes."""
    parts: Any = templates().get_template("sections.html").module
    sections = {
        "head": parts.head(view),
        "answer": parts.answer(view, True),
        "details": parts.details(view, True),
    }
    running = view.summary.state in ("running", "stopping")
    return to_json(
        {
            "key": key,
            "running": running,
            "sections": {name: str(html) for name, html in sections.items()},
            "figures": all_plots(view),
        }
    )


def report_page(view: StudyView) -> str:
    """Return the page of a study as one file that holds all that it shows, plotly included."""
    return _study_template(view, {"figures": all_plots(view)}, live=False, **_inside())


def plot_page(view: StudyView, kind: PlotKind) -> str:
    """Return a page with one plot, which holds all that it shows."""
    return (
        templates()
        .get_template("plot.html")
        .render(
            name=view.name,
            kind=kind,
            title=TITLES[kind],
            note=NOTES[kind],
            state=page_json({"figures": {kind: plot(view, kind)}}),
            **_inside(),
        )
    )


def image_page(figure: Figure, file_format: str, width: int) -> str:
    """Return a page that turns a figure into a picture, and then holds it as a data URL.

    Parameters
    ----------
    figure
        The figure; its layout states its height.
    file_format
        ``png`` or ``svg``.
    width
        In pixels.
    """
    picture = {
        "format": file_format,
        "width": width,
        "height": figure["layout"]["height"],
        "scale": 2 if file_format == "png" else 1,
    }
    state = page_json({"figure": figure, "picture": picture})
    template = templates().get_template("image.html")
    return template.render(state=state, plotly=_inside()["plotly"])


def _inside() -> dict[str, Markup]:
    """Return what a page holds that loads nothing: style, script, and plotly."""
    return {
        "style": Markup(asset("page.css").decode()),
        "figures": Markup(asset("figures.js").decode()),
        "script": Markup(asset("page.js").decode()),
        "plotly": Markup(plotly_script().decode()),
    }


def page_json(value: object) -> Markup:
    """Write JSON in which nothing ends the element that holds it."""
    return Markup(to_json(value).decode().replace("<", "\\u003c"))


def studies_page(
    storage: str, summaries: Sequence[StudySummary], unreadable: Mapping[str, str]
) -> str:
    """Return the page that lists the studies of a database."""
    studies = [
        {
            "name": summary.name,
            "state": state_words(summary),
            "trials": f"{summary.trials['complete']:,} of {summary.target:,}",
            "best": "–" if summary.best is None else _best_words(summary),
            "model": summary.resolved.spec.models,
            "devices": f"{summary.resolved.spec.devices:,}",
        }
        for summary in summaries
    ]
    template = templates().get_template("studies.html")
    return template.render(storage=storage, studies=studies, unreadable=unreadable)


def problem_page(sentence: str) -> str:
    """Return a page that says what went wrong."""
    return templates().get_template("problem.html").render(sentence=sentence)


@functools.cache
def plotly_script() -> bytes:
    """Return plotly's own script, which the Python package brings along."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()


def _best_words(summary: StudySummary) -> str:
    """Write the best values of a study."""
    assert summary.best is not None
    words = value_words(summary.resolved.spec, summary.best.metrics.values)
    return shortened(words, _LONGEST_BEST)


def _study_template(view: StudyView, state: Mapping[str, Any], **more: Any) -> str:
    """Fill the template that the page and the report share."""
    template = templates().get_template("study.html")
    return template.render(
        view=view, state=page_json(state), kinds=PLOT_KINDS, titles=TITLES, notes=NOTES, **more
    )
