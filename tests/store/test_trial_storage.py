"""Trials are read and written in few statements, and are those that Optuna itself reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.store.opening import open_storage, reading_once
from phaze_opt.store.storage import Storage
from phaze_opt.store.trial_storage import write


def as_optuna_reads(storage: Storage, study: Study) -> list[FrozenTrial]:
    """Read all trials by Optuna's own code."""
    return RDBStorage._get_trials(storage.optuna, study._study_id, None, set(), -1)


def set_all(trial: optuna.Trial) -> None:
    """Set something of every kind."""
    trial.suggest_int("x", 0, 8, step=2)
    trial.suggest_categorical("y", ["a", None, 1.5])
    trial.suggest_float("z", 0.1, 1.0)
    trial.set_user_attr("pair", (1, "two"))
    trial.set_user_attr("pair", (1, "three"))
    trial.set_constraint("violation", 0.1)
    trial.storage.set_trial_intermediate_value(trial._trial_id, 3, 0.5)


@pytest.fixture
def storage(any_url: str) -> Storage:
    """Open an empty database."""
    return open_storage(any_url, create=True)


def new_study(storage: Storage) -> Study:
    """Make a study of two objectives, whose trials are kept until they are told."""
    directions = [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
    kept: Any = reading_once(storage).optuna
    return optuna.create_study(storage=kept, study_name="a", directions=directions)


def test_all_readers_find_the_same(storage: Storage) -> None:
    """What is kept, what is read here, and what Optuna reads are equal in every state."""
    study = new_study(storage)
    for told in (True, False, None):
        trial = study.ask()
        set_all(trial)
        write(trial)
        assert study.get_trials() == storage.optuna.get_all_trials(study._study_id)
        trial.set_user_attr("pair", [4])
        if told is not None:
            study.tell(trial, [1.0, 2.5] if told else None, state=None if told else TrialState.FAIL)
    other = reading_once(replace(storage)).optuna
    trials = as_optuna_reads(storage, study)
    assert trials == storage.optuna.get_all_trials(study._study_id)
    assert trials == other.get_all_trials(study._study_id)
    assert trials[:2] == study.get_trials()[:2]
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING]
    assert [trial.state for trial in trials] == states
    assert trials[0].values == [1.0, 2.5] and trials[0].user_attrs == {"pair": [4]}


def test_others_see_a_trial_run(storage: Storage) -> None:
    """A trial is visible at once, its parameters after they are written."""
    study = new_study(storage)
    trial = study.ask()
    (seen,) = as_optuna_reads(storage, study)
    assert seen.state == TrialState.RUNNING and seen.params == {}
    set_all(trial)
    write(trial)
    (seen,) = as_optuna_reads(storage, study)
    assert seen.state == TrialState.RUNNING and seen.params == trial.params


def test_a_trial_that_was_closed_stays_as_it_is(storage: Storage) -> None:
    """Nothing is written into a trial that somebody else has finished meanwhile."""
    study = new_study(storage)
    for act in (write, lambda trial: study.tell(trial, [1.0, 1.0])):
        trial = study.ask()
        set_all(trial)
        storage.optuna.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        with pytest.raises(UpdateFinishedTrialError):
            act(trial)
    for seen in as_optuna_reads(storage, study):
        assert seen.state == TrialState.FAIL and seen.params == seen.user_attrs == {}
    assert study.get_trials() == as_optuna_reads(storage, study)


def test_a_parameter_keeps_its_kind(storage: Storage) -> None:
    """As in Optuna, a parameter of another kind than in the trials before is refused."""
    study = new_study(storage)
    study.ask().suggest_int("x", 0, 8)
    with pytest.raises(ValueError, match="different distribution kind"):
        study.ask().suggest_categorical("x", ["a"])


def fails(*_: object) -> bool:
    """Fail within a transaction."""
    raise ZeroDivisionError


def test_what_is_joined_is_written_with_the_trial_or_not_at_all(storage: Storage) -> None:
    """A trial that is made, or told; other changes of it do not ask."""
    study = new_study(storage)
    kept: Any = study._storage
    with pytest.raises(ZeroDivisionError), kept.join(fails):
        study.ask()
    assert as_optuna_reads(storage, study) == []
    numbers: list[int] = []

    def told_no(_: object, changed: FrozenTrial) -> bool:
        numbers.append(changed.number)
        return False

    with kept.join(told_no) as successes:
        trial = study.ask()
    assert successes == [False] and numbers == [trial.number] == [0]
    with kept.join(fails):
        set_all(trial)
        write(trial)
        with pytest.raises(ZeroDivisionError):
            study.tell(trial, [1.0, 2.0])
    (running,) = as_optuna_reads(storage, study)
    assert running.state == TrialState.RUNNING and running.params == trial.params
    with kept.join(told_no):
        study.tell(trial, [1.0, 2.0])
    (told,) = as_optuna_reads(storage, study)
    assert told.state == TrialState.COMPLETE and told.params == trial.params
    assert numbers == [0, 0]


def test_a_trial_that_is_given_is_not_made(storage: Storage) -> None:
    """Whoever asks for a trial out of Optuna's queue is not answered."""
    study = new_study(storage)
    study.enqueue_trial({"x": 2})
    kept: Any = study._storage
    with kept.join(fails) as successes:
        assert study.ask().number == 0
    assert successes == []
    assert study.get_trials(states=(TrialState.WAITING,)) == []
    other = reading_once(replace(storage)).optuna
    for number in (1, 2):
        optuna.load_study(study_name="a", storage=other).enqueue_trial({"x": 2 * number})
        (waiting,) = study.get_trials(states=(TrialState.WAITING,))
        assert waiting.number == number == study.ask().number
    with pytest.raises(KeyError):
        kept.create_new_trial(study._study_id + 1)
