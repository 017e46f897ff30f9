"""The table of trials."""

from __future__ import annotations

from phaze_opt.report.study_view import view_of
from phaze_opt.study.study import Study


def test_trials_are_in_the_order_of_designs_and_each_design_once(study: Study) -> None:
    """Feasible lines follow the order of designs; trials of one design are counted on its line."""
    view, records = view_of(study), {record.number: record for record in study.trials()}
    shown = [records[line.number] for line in view.trials if line.kind == "feasible"]
    keys = [trial.rank.key for trial in shown if trial.rank is not None]
    assert keys == sorted(keys)
    assert len({trial.point for trial in shown}) == len(shown)
    feasible = sum(trial.kind == "feasible" for trial in records.values())
    assert sum(1 + line.again for line in view.trials if line.kind == "feasible") == feasible
    reasons = [line.reason for line in view.trials if line.kind == "infeasible"]
    assert reasons and all(reasons)


def test_a_long_table_keeps_the_best_and_some_others(study: Study) -> None:
    """Of many trials as many lines are shown as asked for, infeasible ones among them."""
    view = view_of(study, most_trials=22)
    assert len(view.trials) <= 22
    assert view.trials[0] == view_of(study).trials[0]
    assert view.trials[-1].kind == "infeasible"
