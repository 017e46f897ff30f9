"""A study from its creation to its answer."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy import select, update

import phaze_opt.study.study as study_module
import phaze_opt.study.summary as summary_module
from phaze_opt.code_hash import code_hash
from phaze_opt.codec import to_json
from phaze_opt.errors import ConflictError, InputError, NotFoundError
from phaze_opt.evaluation import Evaluation
from phaze_opt.spec.space import DesignPoint, Space
from phaze_opt.spec.study_spec import SearchSpec, StudySpec
from phaze_opt.store.opening import open_storage
from phaze_opt.store.presence import Presence
from phaze_opt.store.studies import study_uids
from phaze_opt.store.tables import StudyRow, WorkerRow, WorkloadRow
from phaze_opt.store.tickets import TicketOffice
from phaze_opt.store.workers import list_workers
from phaze_opt.study.best_design import best_to_json_dict
from phaze_opt.study.study import Study, create_study, list_summaries, load_study
from phaze_opt.study.summary import StudySummary, summary_to_json_dict
from phaze_opt.study.trials import trial_to_json_dict
from phaze_opt.study.worker import Worker
from phaze_opt.units import format_number
from tests.study.fakes import (
    COUNT_VARIABLE,
    TOY,
    failing_evaluator,
    quick_study,
    reopened,
    toy_evaluator,
    toy_spec,
    toy_study,
)


def points(study: Study) -> list[Any]:
    """Return the points of all trials in order."""
    return [trial.point for trial in study.trials()]


def answer(study: Study) -> bytes:
    """Return the answer as its JSON."""
    best = study.best()
    assert best is not None
    return to_json(best_to_json_dict("any", best))


def test_exactly_as_many_as_asked(
    any_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends at N complete trials, a second one does nothing, a longer one adds the rest."""
    monkeypatch.setenv(COUNT_VARIABLE, str(tmp_path / "count"))
    study = toy_study(any_url)
    assert study.run(10).counts.done == 10
    before = study.summary()
    assert study.run(10).counts.done == 10
    assert study.summary() == before
    assert study.run().counts.done == 20
    summary = reopened(any_url).summary()
    assert summary.state == "done"
    assert summary.trials["complete"] == 20
    assert (summary.trials["failed"], summary.trials["running"]) == (0, 0)
    lines = (tmp_path / "count").read_text().splitlines()
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("sampler", ["tpe", "climb", "nsga2", "cmaes", "brute-force"])
def test_a_resumed_study_is_the_same(tmp_path: Path, sampler: Any) -> None:
    """Stopped half-way and resumed by another process, a study has the very same trials."""
    search = SearchSpec(sampler=sampler, trials=18, seed=5)
    whole = toy_study(f"sqlite:///{tmp_path / 'a.db'}", search=search)
    whole.run()
    halves = f"sqlite:///{tmp_path / 'b.db'}"
    toy_study(halves, search=search).run(11)
    second = reopened(halves)
    second.run()
    assert points(whole) == points(second)
    assert answer(whole) == answer(second)


def test_baselines_are_the_first_trials(sqlite_url: str) -> None:
    """Baselines are evaluated at their best, and those in the space are the first trials."""
    study = toy_study(sqlite_url)
    study.run(3)
    phaze, lanes = study.baselines()
    assert (phaze.name, lanes.name) == ("tpuv4-phaze", "tpuv4-lanes")
    first, second = phaze.runs[0], lanes.runs[0]
    assert first is not None and second is not None
    assert phaze.within_area and not lanes.within_area
    assert points(study)[0] == DesignPoint.of(**first.values)
    # The paper's space ties the lanes to the array, so that the other baseline is not in it.
    assert points(study)[1] != DesignPoint.of(**second.values)
    assert phaze.outside is None
    assert lanes.outside == "pe_vc is 1024, but in the space it is pe_x, 128"
    assert study.summary().outside == {"tpuv4-lanes": lanes.outside}
    best = study.best()
    assert best is not None and phaze.values is not None
    assert best.ratio(phaze) == pytest.approx(best.metrics.value / phaze.values[0])


def test_answer_is_the_best_by_the_order(sqlite_url: str) -> None:
    """No feasible trial ranks above the answer, and the answer carries its evaluation."""
    study = toy_study(sqlite_url)
    study.run()
    best = study.best()
    assert best is not None
    for trial in study.trials():
        if trial.kind == "feasible":
            assert trial.metrics is not None and trial.point is not None
            rank = trial.metrics.rank(study.resolved, trial.point)
            assert best.metrics.rank(study.resolved, best.point).key <= rank.key
    assert best.evaluation is not None
    assert (best.evaluation.throughput_samples_per_s,) == best.metrics.values


def test_json_forms_hold_what_scripts_rely_on(sqlite_url: str) -> None:
    """The JSON of show, best and trials has the promised keys and nothing that is not JSON."""
    study = toy_study(sqlite_url)
    empty = summary_to_json_dict(study.summary())
    assert (empty["state"], empty["best"]) == ("new", None)
    study.run(12)
    shown = summary_to_json_dict(study.summary())
    to_json(shown)
    assert {"study", "state", "trials", "best", "rate_per_s", "cached_share"} <= shown.keys()
    assert {"proven_schedule_share", "cost_model_version", "spec_hash"} <= shown.keys()
    assert shown["trials"].keys() == {"complete", "infeasible", "failed", "running"}
    assert shown["best"].keys() >= {"study", "number", "params", "values", "evaluation"}
    assert [baseline["name"] for baseline in shown["best"]["baselines"]] == [
        "tpuv4-phaze",
        "tpuv4-lanes",
    ]
    rows = [trial_to_json_dict(trial) for trial in study.trials()]
    assert [row["number"] for row in rows] == list(range(12))


def test_creating_twice(any_url: str) -> None:
    """A name is taken once; the same study is accepted if asked, another one is not."""
    study = toy_study(any_url)
    with pytest.raises(ConflictError, match="exists already"):
        create_study(toy_spec(), study.storage, workload=TOY)
    same = create_study(toy_spec(), study.storage, workload=TOY, exist_ok=True)
    assert same.uid == study.uid
    for change in ({"devices": 16}, {"search": SearchSpec(seed=8)}):
        with pytest.raises(ConflictError, match="another spec"):
            create_study(toy_spec(**change), study.storage, workload=TOY, exist_ok=True)
    other = create_study(toy_spec(), study.storage, workload=TOY, name="other")
    assert other.resolved.hash == study.resolved.hash
    assert list(study_uids(study.storage)) == ["other", "toy"]


def test_two_creators_at_once(any_url: str) -> None:
    """Of two that create one name at the same time one wins, and the other is told."""
    outcomes: list[str] = []
    barrier = threading.Barrier(2)

    def create() -> None:
        barrier.wait()
        try:
            toy_study(any_url)
            outcomes.append("made")
        except ConflictError:
            outcomes.append("conflict")

    threads = [threading.Thread(target=create) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "made"]
    assert len(study_uids(open_storage(any_url))) == 1


def test_a_frozen_study_needs_no_file(any_url: str) -> None:
    """What is read from the database is exactly what was stored, defaults included."""
    study = toy_study(any_url)
    opened = load_study("toy", open_storage(any_url))
    assert opened.resolved == study.resolved
    assert opened.resolved.hash == study.resolved.hash
    assert opened.workloads() == (TOY,)
    assert b'"usable_hbm_share":0.94' in to_json(opened.resolved)


def test_a_process_reads_a_workload_once(sqlite_url: str) -> None:
    """Who opens a study again has the same object: captures of large models take long to read."""
    first, second = (load_study("toy", study.storage) for study in [toy_study(sqlite_url)] * 2)
    assert first.workloads()[0] is second.workloads()[0]
    assert first.workloads()[0] is first.workloads()[0]


def test_unknown_studies(any_url: str) -> None:
    """A study that is not there is not found; one of another program is not opened."""
    study = toy_study(any_url)
    with pytest.raises(NotFoundError, match="there are: toy"):
        load_study("toi", study.storage)
    optuna.create_study(storage=study.storage.optuna, study_name="foreign")
    with pytest.raises(InputError, match="not made by"):
        load_study("foreign", study.storage)


def test_deleting_leaves_others_alone(any_url: str) -> None:
    """A deleted study is gone with its tickets; its name is free, and others stay."""
    study = toy_study(any_url)
    create_study(toy_spec(), study.storage, workload=TOY, name="other")
    study.run(3)
    study.delete()
    assert list(study_uids(study.storage)) == ["other"]
    again = toy_study(any_url)
    assert again.run(2).counts.done == 2


def test_another_cost_model_is_refused(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of two versions of the cost model are not mixed."""
    study = toy_study(sqlite_url)
    mine = study.resolved.cost_model_version
    study.run(2)
    study.office().set_target(3)
    study.office().issue(3)
    for module in (study_module, summary_module):
        monkeypatch.setattr(module, "current_version", lambda: "from the future")
    assert "stopped; 'phaze-opt study copy toy NEW --current-version' goes on" in str(study)
    assert f"version {mine}, whose evaluations" in str(study)
    with pytest.raises(ConflictError, match=rf"version {mine}.* has from the future"):
        study.run()
    assert len(study.trials()) == 2


@pytest.mark.parametrize(("trials", "workers"), [(0, 1), (-1, 1), (1, 0)])
def test_counts_must_be_positive(sqlite_url: str, trials: int, workers: int) -> None:
    """Neither zero trials nor zero workers make sense."""
    with pytest.raises(InputError, match="at least 1"):
        toy_study(sqlite_url).run(trials, workers=workers)


def test_a_failing_cost_model_is_reported(sqlite_url: str) -> None:
    """A point whose evaluation fails is a failed trial with a reason; the others go on."""
    study = toy_study(sqlite_url)
    study.evaluator = failing_evaluator
    outcome = study.run(5)
    assert outcome.counts.done + outcome.counts.failed == 5
    assert outcome.counts.failed > 0
    assert "the cost model stumbled" in outcome.failures[0]
    assert study.summary().failures == outcome.failures
    study = reopened(sqlite_url)
    assert study.run(5).counts.done == 5
    assert study.summary().state == "done"


def test_errors_of_the_caller_are_the_caller_s(sqlite_url: str) -> None:
    """What a progress callback raises is not taken for a failed trial."""

    def fail(progress: Any) -> None:
        if progress.counts.done == 2:
            raise RuntimeError("my display broke")

    study = toy_study(sqlite_url)
    with pytest.raises(RuntimeError, match="display"):
        study.run(5, on_progress=fail)
    assert study.office().counts().failed == 0
    assert study.run(5).counts.done == 5


def test_the_target_is_steady(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While trials end, also failed ones, a study is said to want the same number of trials."""
    study = toy_study(sqlite_url)
    assert study.summary().target == 20
    seen: list[StudySummary] = []

    def watched(change: Callable[..., bool]) -> Callable[..., bool]:
        def look_and_change(*arguments: Any) -> bool:
            seen.append(study.summary())
            result = change(*arguments)
            seen.append(study.summary())
            return result

        return look_and_change

    monkeypatch.setattr(Worker, "_tell", watched(Worker._tell))
    monkeypatch.setattr(TicketOffice, "fail", watched(TicketOffice.fail))
    study.evaluator = failing_evaluator
    study.run(7)
    study.evaluator = toy_evaluator
    study.run(7)
    assert {summary.trials["failed"] for summary in seen} == {0, 1}
    assert {summary.target for summary in seen} == {7}
    assert all(summary.trials["complete"] + summary.left <= 7 for summary in seen)
    assert "7 of 7 trials" in repr(study.summary())
    study.run(9)
    assert list_summaries(study.storage)[0][0].target == study.summary().target == 9


def test_the_target_is_that_of_the_last_run(sqlite_url: str) -> None:
    """A run for fewer trials lowers the target, unless others still run for more."""
    office = toy_study(sqlite_url).office()
    office.set_target(30)
    office.set_target(10)
    assert office.target() == 10
    office.issue(20)
    ticket = office.claim("me", 20)
    assert ticket is not None
    office.set_target(15)
    office.set_target(5)
    assert office.target() == 15
    office.finish(ticket)
    office.set_target(5)
    assert office.target() == 5


def test_a_stopping_study_is_not_running(sqlite_url: str) -> None:
    """From the request on no time is left; when the last trial has ended it is stopped."""
    study = toy_study(sqlite_url)
    during: list[StudySummary] = []

    def stopped_evaluator(*arguments: Any) -> Evaluation:
        if arguments[1].num_tc != 8:
            study.stop()
            during.append(study.summary())
        return toy_evaluator(*arguments)

    study.evaluator = stopped_evaluator
    outcome = study.run()
    assert outcome.is_stopped and outcome.counts.done < 20
    assert [(summary.state, summary.left_s) for summary in during] == [("stopping", None)]
    after = study.summary()
    assert (after.state, after.left_s) == ("stopped", None)
    assert after.next_command == "phaze-opt study run toy"


def test_a_study_runs_from_its_first_evaluation_to_its_last_trial(sqlite_url: str) -> None:
    """Also while the baselines are evaluated and between two trials, when no trial is running."""
    study = toy_study(sqlite_url)
    states: list[str] = []

    def looking(*arguments: Any) -> Evaluation:
        states.append(study.summary().state)
        return toy_evaluator(*arguments)

    def look(progress: Any) -> None:
        states.append(study.summary().state)

    study.evaluator = looking
    study.run(5, on_progress=look)
    assert set(states[:-1]) == {"running"} and states[-1] == "done"
    assert study.summary().state == "done"
    states.clear()
    study.run(9, on_progress=look)  # of which the tickets are made first
    assert set(states[:-1]) == {"running"} and states[-1] == "done"
    assert study.run(9).counts.done == 9


def test_a_run_that_is_gone_keeps_no_study_running(sqlite_url: str) -> None:
    """Its word holds no longer than its lease, and the next run removes it."""
    study = toy_study(sqlite_url)
    for token, lease_s in (("a.1.x", 60.0), ("a.2.x", -1.0)):
        Presence(study, token, lease_s).begin()
    assert study.summary().state == "running"
    Presence(study, "a.1.x", -1.0).renew_lease("a.1.x")
    assert study.summary().state == "new"
    study.run(2)
    with study.storage.reading() as session:
        assert session.scalars(select(WorkerRow.token)).all() == []


def test_stop_ends_a_run_and_a_new_run_goes_on(sqlite_url: str) -> None:
    """Workers begin nothing after a stop; running again takes it back."""
    study = toy_study(sqlite_url)

    def stop(progress: Any) -> None:
        if progress.counts.done == 4:
            study.stop()

    assert study.run(on_progress=stop).counts.done == 4
    assert study.summary().state == "stopped"
    assert study.run().counts.done == 20


def test_a_renamed_study_keeps_its_rows(sqlite_url: str) -> None:
    """The dashboard renames by copying: the copy still finds its tickets and its answer."""
    study = toy_study(sqlite_url)
    study.run(6)
    optuna.copy_study(
        from_study_name="toy",
        from_storage=study.storage.optuna,
        to_storage=study.storage.optuna,
        to_study_name="renamed",
    )
    optuna.delete_study(study_name="toy", storage=study.storage.optuna)
    renamed = reopened(sqlite_url, "renamed")
    assert renamed.summary().trials["complete"] == 6
    assert renamed.run(9).counts.done == 9
    assert len(renamed.trials()) == 9


def test_a_study_deleted_while_it_runs(sqlite_url: str) -> None:
    """A run whose study disappears ends with one sentence."""
    study = toy_study(sqlite_url)

    def delete(progress: Any) -> None:
        if progress.counts.done == 3:
            optuna.delete_study(study_name="toy", storage=study.storage.optuna)

    with pytest.raises(NotFoundError, match="deleted or renamed"):
        study.run(on_progress=delete)


@pytest.mark.parametrize(
    "body", ["", "[]", '{"spec": 3}', "[" * 10_000, '{"spec":' * 10_000, '{"a": NaN}', "\x00"]
)
def test_hostile_studies_are_refused(sqlite_url: str, body: str) -> None:
    """A frozen study that is not one is refused in a sentence, and nothing of it is run."""
    study = toy_study(sqlite_url)
    with study.storage.writing() as session:
        session.execute(update(StudyRow).values(resolved=body))
    with pytest.raises(InputError, match="stored study") as caught:
        load_study("toy", study.storage)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("body", [b"", b"PK", zlib.compress(b"[]"), zlib.compress(b"{}")])
def test_hostile_workloads_are_refused(sqlite_url: str, body: bytes) -> None:
    """A stored workload that is damaged or something else is refused."""
    study = toy_study(sqlite_url)
    with study.storage.writing() as session:
        session.execute(update(WorkloadRow).values(body=body))
    with pytest.raises(InputError, match="stored workload"):
        study.run(1)


def test_a_study_from_python_prints_as_on_the_command_line(tmp_path: Path) -> None:
    """A spec in a few lines becomes a study; its objects are one line each, and print as tables."""
    spec = StudySpec("mine", "toy", "tpuv4-ici-flat", 8, 64, space=Space.phaze(num_tc=(1, 64)))
    url = f"sqlite:///{tmp_path / 'a.db'}"
    study = create_study(spec, url, workload=TOY)
    study.evaluator = toy_evaluator
    assert repr(study) == f"Study('mine', {url!r})"
    assert str(study.run(6)) == "6 of 6 trials complete"
    best = load_study("mine", url).best()
    assert best is not None and best.evaluation is not None
    assert best.number is not None
    trial = study.trials()[best.number]
    value = f"{format_number(best.evaluation.throughput_samples_per_s)} samples/s"
    assert repr(best).startswith(f"BestDesign(trial {best.number}, {value}, DesignPoint.of(num_tc=")
    assert repr(trial).startswith(f"TrialRecord({best.number}, feasible, {value}, DesignPoint.of(")
    for printed in (study, best, trial, study.summary()):
        assert "\n" not in repr(printed)
    for table, words in ((best, "throughput"), (study, "6 of 6 complete")):
        assert words in str(table) and "\n" in str(table)


def test_hash_ignores_the_name_only(sqlite_url: str) -> None:
    """Two studies are the same if everything but their names is."""
    resolved = toy_study(sqlite_url).resolved
    renamed = replace(resolved, spec=replace(resolved.spec, name="x"))
    assert renamed.hash == resolved.hash
    assert replace(resolved, area_limit_mm2=1.0).hash != resolved.hash


def test_workers_that_run_different_code_are_named(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under one version of the cost model; the run goes on, and equal workers are no news."""
    study = quick_study(any_url, trials=6)
    for total, code in ((3, "aaa"), (4, "bbb"), (6, "aaa")):
        monkeypatch.setattr("phaze_opt.store.tickets.code_hash", lambda code=code: code)
        assert study.run(total).counts.done == total
        told = " ".join(str(study.summary()).split())
        assert ("different code" in told) == (total > 3)
    summary = study.summary()
    assert list(summary.codes.items()) == [("aaa", 5), ("bbb", 1)]
    assert summary_to_json_dict(summary)["code_hashes"] == {"aaa": 5, "bbb": 1}
    told = " ".join(str(summary).split())
    assert "cost model" in told and "(aaa in 5 trials, bbb in 1 trial)" in told


def test_a_worker_names_its_code(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the moment when it has a trial, and so does the trial when it is done."""
    monkeypatch.setattr("phaze_opt.store.tickets.code_hash", lambda: "aaa")
    study = quick_study(any_url)
    office = study.office()
    office.issue(1)
    ticket = office.claim("worker", 1)
    assert ticket is not None
    assert [worker.code for worker in list_workers(study)] == [None]
    assert office.assign(ticket, 0)
    assert [worker.code for worker in list_workers(study)] == ["aaa"]
    assert office.codes() == {"aaa": 1}
    assert office.finish(ticket)
    assert office.codes() == {"aaa": 1}


def test_trials_of_an_older_program_name_no_code(sqlite_url: str) -> None:
    """Its database is brought up to date, and its trials differ from no other's."""
    study = quick_study(sqlite_url, trials=4)
    study.run(2)
    with study.storage.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE phaze_ticket DROP COLUMN code")
        connection.exec_driver_sql("UPDATE phaze_schema SET version = 7")
    study.storage.close()
    again = reopened(sqlite_url)
    assert again.summary().codes == {}
    again.run(4)
    assert again.summary().codes == {code_hash(): 2}
    assert "different code" not in str(again.summary())
