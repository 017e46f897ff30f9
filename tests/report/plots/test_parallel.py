"""The plot of the best designs as lines."""

from __future__ import annotations

import pytest

from phaze_opt.report.plots.parallel import parallel
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.trial_lines import distinct_designs
from phaze_opt.units import format_number


def test_every_design_is_a_line_and_the_best_comes_last(view: StudyView) -> None:
    """Lines have a height on every axis; on that of the values the best stands at its end."""
    figure = parallel(view)
    designs = distinct_designs(view.summary.records)[:20]
    names = [line["name"] for line in figure["data"]]
    assert names == [f"place {place}" for place in range(len(designs), 0, -1)]
    axes = len(figure["layout"]["xaxis"]["ticktext"])
    for line in figure["data"]:
        assert len(line["y"]) == axes and all(0.0 <= height <= 1.0 for height in line["y"])
    assert figure["data"][-1]["y"][-1] == pytest.approx(1.0, abs=0.01)


def test_the_ends_of_the_values_are_labelled(view: StudyView) -> None:
    """The lowest and the highest value stand beside their axis."""
    figure = parallel(view)
    best = distinct_designs(view.summary.records)[:20]
    values = [trial.metrics.value for trial in best if trial.metrics is not None]
    last = len(figure["layout"]["xaxis"]["ticktext"]) - 1
    labels = {
        note["y"]: note["text"] for note in figure["layout"]["annotations"] if note["x"] == last
    }
    assert labels == {0.0: format_number(min(values)), 1.0: format_number(max(values))}
