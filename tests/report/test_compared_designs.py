"""The best design of a study beside others."""

from __future__ import annotations

from phaze_opt.report.study_view import view_of
from phaze_opt.study.study import Study


def test_every_baseline_is_compared(study: Study) -> None:
    """Each baseline stands with its value, and the ratio of the best to it."""
    view, best = view_of(study), study.best()
    assert best is not None
    lines = {design.name: design for design in view.compared if design.kind == "baseline"}
    assert list(lines) == [baseline.name for baseline in study.baselines()]
    for baseline in study.baselines():
        assert lines[baseline.name].ratio == best.ratio(baseline)
        assert lines[baseline.name].area_mm2 == baseline.area_mm2
