"""Where a study stands: what the database computes equals what Python computes of every trial."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text, update

import phaze_opt.study.standing as standing_module
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.opening import open_storage
from phaze_opt.store.storage import Storage
from phaze_opt.store.tables import SchemaRow
from phaze_opt.store.trial_facts import trials_without_facts
from phaze_opt.study.pareto import front, undominated
from phaze_opt.study.standing import busy_s, find_best, prepare_trials, read_standing
from phaze_opt.study.study import Study, create_study, load_study
from phaze_opt.study.trials import TrialRecord, best_trial, read_trial
from tests.benchmarks.large_study import enlarge
from tests.study.fakes import TOY, toy_evaluator, toy_spec, toy_study

OBJECTIVES = (("throughput",), ("throughput", "area"), ("energy_per_sample", "area", "throughput"))


def plain_busy_s(trials: list[TrialRecord]) -> float:
    """Add the seconds in which a trial ran, one trial after the other."""
    intervals = sorted(
        (trial.started_s, trial.ended_s)
        for trial in trials
        if trial.started_s is not None and trial.ended_s is not None and trial.kind != "failed"
    )
    total, until = 0.0, float("-inf")
    for start, end in intervals:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def assert_stands_as_its_trials_say(study: Study) -> None:
    """Compare the answer of the database with that of a pass over all trials."""
    standing, trials = read_standing(study), study.trials()
    kinds = Counter(trial.kind for trial in trials)
    assert {kind: standing.tally.count(kind) for kind in kinds} == kinds
    metrics = [
        trial.metrics
        for trial in trials
        if trial.metrics is not None and trial.kind in ("feasible", "infeasible")
    ]
    evaluated = [each for each in metrics if each.evaluation_key is not None]
    sums = ("cached", "schedules", "proven", "needed", "quickly_proven")
    assert [standing.tally.total(name) for name in sums] == [
        sum(each.cached for each in evaluated),
        sum(each.schedules for each in evaluated),
        sum(each.proven_schedules for each in evaluated),
        sum(each.needed_schedules for each in evaluated),
        sum(each.quickly_proven_schedules for each in evaluated),
    ]
    violated = Counter(each.limit for each in metrics if each.limit is not None)
    assert list(standing.tally.violated.items()) == list(violated.items())
    assert standing.busy_s == plain_busy_s(trials)
    assert standing.best == best_trial(trials) == find_best(study)
    expected = front(study.resolved.spec, trials) if len(study.resolved.spec.objectives) > 1 else []
    assert list(standing.front) == expected


@pytest.fixture(scope="module", params=OBJECTIVES, ids=len)
def small(request: pytest.FixtureRequest) -> Iterator[Study]:
    """Run a study in which every seventh evaluation fails."""
    calls = itertools.count(1)

    def sometimes(*args: Any) -> Any:
        if next(calls) % 7 == 0:
            raise RuntimeError("the cost model stumbled")
        return toy_evaluator(*args)

    with tempfile.TemporaryDirectory() as folder:
        study = toy_study(
            f"sqlite:///{Path(folder) / 'a.db'}",
            objectives=request.param,
            search=SearchSpec("random", 30, 3),
        )
        study.run(2)
        study.evaluator = sometimes
        study.run()
        yield study


def test_the_database_counts_as_python_does(small: Study) -> None:
    """Of a study with infeasible and failed trials."""
    assert {trial.kind for trial in small.trials()} == {"feasible", "infeasible", "failed"}
    assert_stands_as_its_trials_say(small)


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), more=st.integers(1, 60), many=st.sampled_from([0, 10**6]))
def test_random_studies(small: Study, seed: int, more: int, many: int) -> None:
    """Of copies of trials too, whether their facts are written first or each trial is read."""
    enlarge(small, len(small.trials()) + more, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standing_module, "_MANY", many)
        assert_stands_as_its_trials_say(small)
        assert_stands_as_its_trials_say(small)


@pytest.mark.parametrize("any_url", ["postgresql"], indirect=True)
def test_a_server_counts_as_python_does(any_url: str) -> None:
    """The same on PostgreSQL, before and after the facts of all trials are written."""
    study = toy_study(any_url, objectives=OBJECTIVES[1])
    study.run(20)
    assert_stands_as_its_trials_say(study)
    with study.storage.writing() as session:
        session.execute(text("DELETE FROM phaze_facts"))
    assert_stands_as_its_trials_say(study)
    prepare_trials(study)
    assert trials_without_facts(study.storage, study.uid, study.optuna_id) == []
    assert_stands_as_its_trials_say(study)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=60),
    st.floats(0.01, 1e6),
)
def test_busy_time_is_added_as_the_trials_come(pairs: list[tuple[int, int]], unit: float) -> None:
    """To the last bit the sum of a loop over intervals that overlap."""
    intervals = [(start * unit, (start + length) * unit) for start, length in pairs]
    trials = [TrialRecord(0, "feasible", None, None, *times) for times in intervals]
    assert busy_s(np.array(intervals).reshape(-1, 2)) == plain_busy_s(trials)


@given(st.integers(1, 4), st.lists(st.integers(0, 6), max_size=1200))
def test_undominated(columns: int, numbers: list[int]) -> None:
    """A row stays if no other one is at least as good in all columns, and better in one."""
    rows = np.array(numbers[: len(numbers) // columns * columns], dtype=float)
    costs = rows.reshape(-1, columns)
    costs = costs[np.lexsort(costs.T[::-1])]
    expected = [
        place
        for place, row in enumerate(costs)
        if not ((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any()
    ]
    assert undominated(costs).tolist() == expected


def statements(storage: Storage, action: Any) -> list[str]:
    """Return the statements that an action sends."""
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        sent.append(statement)

    engines = (storage.engine, storage.optuna.engine)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    action()
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)
    return sent


def test_statements_do_not_grow_with_the_trials(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary and the start of a run send as many of them for 3,000 trials as for 30."""
    study, counts = toy_study(sqlite_url), []
    read: list[int] = []
    study.run(30)
    monkeypatch.setattr(standing_module, "read_trial", _counted(read))
    for total in (30, 1_500):
        enlarge(study, total)
        prepare_trials(study)
        read.clear()
        sent = [statements(study.storage, study.summary)]
        sent.append(statements(study.storage, lambda: prepare_trials(study)))
        counts.append([len(each) for each in sent])
        assert len(read) == 1
    assert counts[0] == counts[1]


def _counted(read: list[int]) -> Any:
    """Return a function that reads trials, and notes their numbers."""

    def noted(resolved: Any, trial: Any) -> TrialRecord:
        read.append(trial.number)
        return read_trial(resolved, trial)

    return noted


def test_a_database_of_an_older_program(sqlite_url: str) -> None:
    """Without facts and their table it opens, answers, and goes on."""
    study = toy_study(sqlite_url)
    study.run(8)
    before = study.summary()
    with study.storage.engine.begin() as connection:
        connection.execute(text("DROP TABLE phaze_facts"))
        connection.execute(update(SchemaRow).values(version=8))
    study.storage.close()
    again = load_study("toy", open_storage(sqlite_url))
    again.evaluator = toy_evaluator
    assert again.summary() == before
    again.run(10)
    assert trials_without_facts(again.storage, again.uid, again.optuna_id) == []
    assert_stands_as_its_trials_say(again)


def test_facts_are_written_anew_where_trials_were_altered(sqlite_url: str) -> None:
    """Trials that still can be read count as they are, once a run has found that they changed."""
    study = toy_study(sqlite_url)
    study.run(8)
    with study.storage.writing() as session:
        changed = "UPDATE trial_user_attributes SET value_json = '0' WHERE key = 'phaze'"
        session.execute(text(changed))
    study.run(9)
    assert_stands_as_its_trials_say(study)


def test_facts_go_with_their_study(sqlite_url: str) -> None:
    """Nothing of a deleted study stays."""
    study = create_study(toy_spec(), open_storage(sqlite_url, create=True), workload=TOY)
    study.evaluator = toy_evaluator
    study.run(3)
    study.delete()
    with study.storage.reading() as session:
        assert session.scalar(text("SELECT count(*) FROM phaze_facts")) == 0
