"""The plot of values against areas."""

from __future__ import annotations

from phaze_opt.report.plots.area import area
from phaze_opt.report.study_view import StudyView
from tests.report.plots.figures import feasible_trials, trace_named


def test_the_front_is_what_nothing_dominates(view: StudyView) -> None:
    """Along the front both area and value rise, and no trial lies above it."""
    front = trace_named(area(view), "front")
    assert front["x"] == sorted(front["x"])
    assert front["y"] == sorted(set(front["y"]))
    for trial in feasible_trials(view):
        if trial.rank is not None and trial.metrics is not None:
            reached = [
                value
                for area_mm2, value in zip(front["x"], front["y"], strict=True)
                if area_mm2 <= (trial.metrics.area_mm2 or 0.0)
            ]
            assert max(reached) >= trial.metrics.value
