"""A book of trials: what it reads bit by bit is what it would read at once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from phaze_opt.report.study_view import LiveView
from phaze_opt.store.damage import DamagedError
from phaze_opt.study.pareto import front
from phaze_opt.study.standing import read_standing
from phaze_opt.study.study import Study
from phaze_opt.study.trial_book import TrialBook
from phaze_opt.study.trials import TrialRecord, read_trial
from tests.benchmarks.large_study import enlarge
from tests.study.fakes import toy_study


def content(book: TrialBook) -> dict[str, Any]:
    """Return all that a book holds of the trials of its study."""
    names = ("numbers", "values", "areas_mm2", "infeasible", "unranked", "designs", "best", "open")
    return {name: getattr(book, name) for name in (*names, "last", "total")}


@pytest.mark.parametrize("objectives", [("throughput",), ("throughput", "area")])
def test_read_bit_by_bit(any_url: str, objectives: Any) -> None:
    """Trials that end in another order than they began, run still or fail are taken in once."""
    study = toy_study(any_url, objectives=objectives)
    book = TrialBook(study, 5)
    assert book.read() == read_standing(study) and book.total == 0 and book.last == -1
    study.run(3)
    for total in (8, 12, 13):
        # The end of the run closes this trial, which has no ticket.
        study.optuna_study.ask()
        book.read()
        assert [trial.kind for trial in book.open] == ["running"]
        study.run(total)
        assert book.read() == read_standing(study)
        fresh = TrialBook(study, 5)
        fresh.read()
        assert content(book) == content(fresh)
    trials = study.trials()
    feasible = [trial for trial in trials if trial.rank is not None]
    assert book.numbers == [trial.number for trial in feasible]
    assert book.values == [trial.metrics.value for trial in feasible if trial.metrics]
    assert book.trials(book.numbers) == feasible
    assert (book.last, book.total) == (trials[-1].number, len(trials))
    if len(objectives) > 1:
        assert list(book.read().front) == front(study.resolved.spec, trials)


def test_a_page_reads_only_what_changed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further look at a study reads no trial, and one after another trial reads that one."""
    study = toy_study(sqlite_url)
    read: list[int] = []
    study.run(12)
    enlarge(study, 1_000)
    live = LiveView(study)
    live.view()

    def noted(resolved: Any, trial: Any) -> TrialRecord:
        read.append(trial.number)
        return read_trial(resolved, trial)

    monkeypatch.setattr("phaze_opt.study.standing.read_trial", noted)
    live.view()
    assert read == []
    enlarge(study, 1_001)
    view = live.view()
    assert set(read) == {1_000} and view.book.total == 1_001


def test_a_damaged_fact_is_said(sqlite_url: str) -> None:
    """Facts that name a trial that is not there are refused in a sentence."""
    study: Study = toy_study(sqlite_url)
    study.run(3)
    with study.storage.writing() as session:
        session.execute(text("UPDATE phaze_facts SET number = number + 1000000"))
    with pytest.raises(DamagedError, match="What is stored of the trials"):
        study.best()
