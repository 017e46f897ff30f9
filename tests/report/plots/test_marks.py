"""What several plots draw alike."""

from __future__ import annotations

from phaze_opt.report.plots.by_kind import plot
from phaze_opt.report.study_view import StudyView
from tests.report.plots.figures import trace_named


def test_references_are_drawn_at_their_values(view: StudyView) -> None:
    """Every baseline has its line in the history, and its mark beside the trials' areas."""
    history, area = plot(view, "history"), plot(view, "area")
    for one in view.compared:
        if one.kind == "baseline" and one.value is not None:
            assert trace_named(history, one.name)["y"] == [one.value, one.value]
            mark = trace_named(area, one.name)
            assert (mark["x"], mark["y"]) == ([one.area_mm2], [one.value])
