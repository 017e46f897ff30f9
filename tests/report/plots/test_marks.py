"""What several plots draw alike."""

from __future__ import annotations

from phaze_opt.report.plots.by_kind import plot
from phaze_opt.report.study_view import StudyView
from tests.report.plots.figures import trace_named


def test_references_are_drawn_at_their_values(view: StudyView) -> None:
    """Every baseline has its line in the history, and its mark beside the trials' areas."""
    history, area = plot(view, "history"), plot(view, "area")
    for design in view.compared:
        if design.kind == "baseline" and design.value is not None:
            assert trace_named(history, design.name)["y"] == [design.value, design.value]
            mark = trace_named(area, design.name)
            assert (mark["x"], mark["y"]) == ([design.area_mm2], [design.value])
