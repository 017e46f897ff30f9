"""The plot of the trials by number."""

from __future__ import annotations

from pathlib import Path

from phaze_opt.report.plots.history import history
from phaze_opt.report.study_view import StudyView, view_of
from tests.report.plots.figures import feasible_trials, trace_named
from tests.report.studies import run_study


def test_history_ends_at_the_best_feasible_value(view: StudyView) -> None:
    """The line never falls, and ends with the best value at the last trial."""
    line = trace_named(history(view), "best so far")
    assert line["y"] == sorted(line["y"])
    feasible = [
        record.metrics.value for record in feasible_trials(view) if record.rank and record.metrics
    ]
    assert line["y"][-1] == max(feasible)
    assert line["x"][-1] == view.book.last


def test_a_minimised_objective_falls(tmp_path: Path) -> None:
    """The best so far of an energy goes down."""
    study = run_study(tmp_path, objectives=("energy_per_sample",))
    line = trace_named(history(view_of(study)), "best so far")
    assert line["y"] == sorted(line["y"], reverse=True)
