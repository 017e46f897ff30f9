"""All plots of a study: that plotly takes them, how much they show, and that names are text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects
import pytest

from phaze_opt.report.figure_style import MOST_POINTS
from phaze_opt.report.plots.by_kind import PLOT_KINDS, all_plots, plot
from phaze_opt.report.study_view import StudyView, view_of
from phaze_opt.spec.space import Space
from tests.report.studies import HOSTILE, run_study


def points(figure: dict[str, Any]) -> int:
    """Count the points of all traces."""
    return sum(len(trace["x"]) for trace in figure["data"])


@pytest.mark.parametrize("kind", PLOT_KINDS)
def test_plotly_takes_every_figure(view: StudyView, kind: Any) -> None:
    """Each entry is one that plotly knows, and the figure is strict JSON."""
    figure = plot(view, kind)
    plotly.graph_objects.Figure(figure)
    json.dumps(figure, allow_nan=False)
    assert 0 < points(figure) <= MOST_POINTS


def test_axes_have_units(view: StudyView) -> None:
    """Whoever sees a number sees its unit."""
    figures = all_plots(view)
    assert figures["history"]["layout"]["yaxis"]["title"]["text"] == "throughput [samples/s]"
    assert "[mm²" in figures["area"]["layout"]["xaxis"]["title"]["text"]
    assert "time of a batch [" in figures["breakdown"]["layout"]["xaxis"]["title"]["text"]
    assert "GLB<br>[MiB]" in figures["parallel"]["layout"]["xaxis"]["ticktext"]


def test_names_are_text(tmp_path: Path) -> None:
    """Neither a tag nor a control character of a name reaches a figure."""
    space = Space.phaze(microbatch=(2, 2), recompute=["none"])
    study = run_study(tmp_path, trials=12, model=HOSTILE, space=space)
    text = json.dumps(all_plots(view_of(study)), ensure_ascii=False)
    assert "<script>" not in text and "\x1b" not in text


def test_without_trials_a_plot_says_so(tmp_path: Path) -> None:
    """An empty study has figures with a sentence."""
    for figure in all_plots(view_of(run_study(tmp_path, trials=0))).values():
        (note,) = figure["layout"]["annotations"]
        assert figure["data"] == [] and note["text"].endswith(".")
