"""A run begins with the facts of its trials as if it had replayed the trials themselves."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from sqlalchemy import update

from phaze_opt.errors import InputError
from phaze_opt.spec.space import distributions
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.tables import FactsRow
from phaze_opt.store.trial_rows import TRIAL
from phaze_opt.store.trial_storage import RunningTrials
from phaze_opt.study.past_trials import PastTrials, read_past
from phaze_opt.study.samplers.bound import _Tried
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.samplers.replay import TrialReplay
from phaze_opt.study.standing import prepare_trials
from phaze_opt.study.study import Study
from phaze_opt.study.trials import trial_cost
from tests.study.fakes import toy_evaluator, toy_study


@pytest.fixture
def mixed(any_url: str) -> Study:
    """Run a study with feasible, infeasible and failed trials."""
    calls = itertools.count(1)

    def sometimes(*args: Any) -> Any:
        if next(calls) % 7 == 0:
            raise RuntimeError("the cost model stumbled")
        return toy_evaluator(*args)

    study = toy_study(any_url, search=SearchSpec("climb", 30, 3))
    study.run(2)
    study.evaluator = sometimes
    study.run()
    prepare_trials(study)  # as the next run does: it writes the facts of failed trials
    assert {trial.kind for trial in study.trials()} == {"feasible", "infeasible", "failed"}
    return study


def past(study: Study) -> PastTrials:
    """Read the past of a study."""
    grid = Grid.of(distributions(study.resolved.spec.space))
    return read_past(study.resolved, study.facts(), study.optuna_id, grid)


def test_facts_say_what_the_trials_say(mixed: Study) -> None:
    """Points and costs are those of the trials, to the last bit."""
    grid = Grid.of(distributions(mixed.resolved.spec.space))
    replay = TrialReplay(grid, partial(trial_cost, mixed.resolved), _Tried())
    trials = mixed.optuna_trials()
    assert list(past(mixed).replayed) == [replay._read(trial) for trial in trials]
    assert past(mixed).last_row == max(trial._trial_id for trial in trials)


def test_the_past_ends_before_a_trial_without_facts(mixed: Study) -> None:
    """What comes after it is read; without its number nothing is settled."""
    trials = mixed.optuna_trials()
    with mixed.storage.writing() as session:
        session.execute(FactsRow.__table__.delete().where(FactsRow.number == 12))  # type: ignore
    known = past(mixed)
    assert (len(known.replayed), known.last_row) == (12, trials[11]._trial_id)
    with mixed.storage.writing() as session:
        session.execute(update(TRIAL).where(TRIAL.c.number == 20).values(number=-1))
    assert past(mixed) == PastTrials()


def test_damaged_facts_are_refused(mixed: Study) -> None:
    """In one sentence."""
    with mixed.storage.writing() as session:
        session.execute(update(FactsRow).where(FactsRow.number == 3).values(design="[1"))
    with pytest.raises(InputError, match="stored of the trials of the study"):
        past(mixed)


def test_a_run_reads_no_trial_of_its_past(mixed: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at its start nor at its end."""
    known: set[int] = set()
    read = RunningTrials._read_trials_from_remote_storage

    def watched(self: RunningTrials, study_id: int) -> None:
        read(self, study_id)
        known.update(self._studies[study_id].trials)

    monkeypatch.setattr(RunningTrials, "_read_trials_from_remote_storage", watched)
    before = len(mixed.trials())
    mixed.evaluator = toy_evaluator
    mixed.run(35)
    assert known == set(range(before, len(mixed.trials())))
