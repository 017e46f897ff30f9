"""The plot of the time of a batch."""

from __future__ import annotations

import pytest

from phaze_opt.report.plots.breakdown import breakdown
from phaze_opt.report.study_view import StudyView
from phaze_opt.units import format_seconds

UNITS_S = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


def test_bars_are_the_parts_of_the_stored_times(view: StudyView) -> None:
    """Every part has its length in the unit of the axis, and the whole time stands behind it."""
    figure = breakdown(view)
    title = figure["layout"]["xaxis"]["title"]["text"]
    scale_s = UNITS_S[title[title.index("[") + 1 : -1]]
    stored = {
        "best" if design.kind == "best" else design.name: evaluation
        for design in view.compared
        for evaluation in design.evaluations
        if evaluation is not None
    }
    assert figure["data"][0]["y"] == list(stored)
    assert next(iter(stored)) == "best" and "tpuv4-lanes" in stored
    for place, evaluation in enumerate(stored.values()):
        lengths = [trace["x"][place] * scale_s for trace in figure["data"]]
        parts_s = [seconds for seconds in evaluation.time_breakdown_s.values() if seconds]
        assert sorted(filter(None, lengths)) == pytest.approx(sorted(parts_s))
        note = figure["layout"]["annotations"][place]
        assert note["x"] * scale_s == pytest.approx(evaluation.time_per_batch_s)
        assert note["text"] == format_seconds(evaluation.time_per_batch_s or 0.0)
