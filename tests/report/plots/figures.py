"""What tests look for in figures."""

from __future__ import annotations

from typing import Any

from phaze_opt.report.study_view import StudyView
from phaze_opt.study.trials import TrialRecord


def trace_named(figure: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the trace of a name."""
    (trace,) = [candidate for candidate in figure["data"] if candidate["name"] == name]
    return dict(trace)


def feasible_trials(view: StudyView) -> list[TrialRecord]:
    """Return all feasible trials of a view by number."""
    return view.book.trials(view.book.numbers)


def best_designs(view: StudyView, most: int = 20) -> list[TrialRecord]:
    """Return the first trial of each of the best designs, found by a pass over all trials."""
    ranked = [
        (trial.rank.key, trial.number, trial) for trial in feasible_trials(view) if trial.rank
    ]
    first: dict[object, TrialRecord] = {}
    for _, _, trial in sorted(ranked, key=lambda each: each[:2]):
        first.setdefault(trial.point, trial)
    return list(first.values())[:most]
