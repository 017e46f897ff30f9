"""What people see of a study, as data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phaze_opt.report.markdown import note_of, report_markdown
from phaze_opt.report.page import report_page
from phaze_opt.report.study_view import view_of
from phaze_opt.search.enumerating import enumerate_study
from phaze_opt.search.space import Space
from phaze_opt.search.spec import StudySpec
from phaze_opt.search.study import Study, create_study
from phaze_opt.units import format_number
from tests.report.studies import run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Run a toy study."""
    return run_study(tmp_path_factory.mktemp("view"))


def test_the_answer_is_the_best_feasible_design(study: Study) -> None:
    """The headline, the first line of the comparison and the first trial are the best design."""
    view, best = view_of(study), study.best()
    assert best is not None
    assert view.headline == f"{format_number(best.metrics.value)} samples/s"
    first = view.compared[0]
    assert (first.kind, first.value, first.ratio) == ("best", best.metrics.value, 1.0)
    assert view.trials[0].number == best.number
    assert view.trials[0].kind == "feasible"


def test_every_baseline_is_compared(study: Study) -> None:
    """Each baseline stands with its value, and the ratio of the best to it."""
    view, best = view_of(study), study.best()
    assert best is not None
    lines = {one.name: one for one in view.compared if one.kind == "baseline"}
    assert list(lines) == [one.name for one in study.baselines()]
    for baseline in study.baselines():
        assert lines[baseline.name].ratio == best.ratio(baseline)
        assert lines[baseline.name].area_mm2 == baseline.area_mm2


def test_trials_are_in_the_order_of_designs_and_each_design_once(study: Study) -> None:
    """Feasible lines follow the order of designs; trials of one design are counted on its line."""
    view, records = view_of(study), {one.number: one for one in study.trials()}
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


def test_before_the_first_trial(tmp_path: Path) -> None:
    """A study without trials has a question, commands, and no answer."""
    view = view_of(run_study(tmp_path, trials=0))
    assert (view.headline, view.answer, view.trials) == ("", (), ())
    assert view.question.startswith("Which accelerator trains toy fastest on 8 devices")
    assert view.commands == ("phaze-opt study create toy.toml", "phaze-opt study run toy")


def test_a_stored_enumeration_is_shown_as_the_certified_optimum(tmp_path: Path) -> None:
    """Beside the trials stands the optimum, which no trial exceeds."""
    spec = StudySpec(
        "small",
        "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128",
        "tpuv4-ici-flat",
        4,
        16,
        space=Space(num_tc=(4, 16), pe_vc=[64, 128, 1024], microbatch=[1, 2]),
    )
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    study.run(3)
    assert view_of(study).certificate is None
    found = enumerate_study(study)
    view = view_of(study)
    assert view.certificate is not None and view.certificate.found == found
    (optimum,) = [one for one in view.compared if one.kind == "optimum"]
    assert optimum.value == found.top[0].metrics.value
    assert optimum.ratio is not None and optimum.ratio <= 1.001
    assert len(view.certificate.top) == len(found.top)
    words = view.certificate.words
    assert f"Of {found.points:,} designs" in words and f"{found.evaluated:,} are evaluated" in words
    assert re.search(r", on \d{4}-\d\d-\d\d at \d\d:\d\d UTC\.", words)
    page, note, report = report_page(view), note_of(view), report_markdown(view)
    for command in (
        "phaze-opt study enumerate small --certificate small-certificate.json",
        "phaze-opt study verify small-certificate.json",
    ):
        assert all(command in text for text in (page, note, report))
