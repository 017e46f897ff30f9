"""What people see of a study, as data."""

from __future__ import annotations

from pathlib import Path

from phaze_opt.report.study_view import view_of
from phaze_opt.study.study import Study
from phaze_opt.units import format_number
from tests.report.studies import run_study


def test_the_answer_is_the_best_feasible_design(study: Study) -> None:
    """The headline, the first line of the comparison and the first trial are the best design."""
    view, best = view_of(study), study.best()
    assert best is not None
    assert view.headline == f"{format_number(best.metrics.value)} samples/s"
    first = view.compared[0]
    assert (first.kind, first.value, first.ratio) == ("best", best.metrics.value, 1.0)
    assert view.trials[0].number == best.number
    assert view.trials[0].kind == "feasible"


def test_before_the_first_trial(tmp_path: Path) -> None:
    """A study without trials has a question, commands, and no answer."""
    view = view_of(run_study(tmp_path, trials=0))
    assert (view.headline, view.answer, view.trials) == ("", (), ())
    assert view.question.startswith("Which accelerator trains toy fastest on 8 devices")
    assert view.commands == ("phaze-opt study create toy.toml", "phaze-opt study run toy")
