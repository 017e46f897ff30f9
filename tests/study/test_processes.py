"""Workers as processes: exactly N, whoever is stopped, stalled or killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

import phaze_opt.store.tickets as tickets_module
from phaze_opt.errors import PhazeError
from phaze_opt.evaluation import Evaluation
from phaze_opt.spec.sampler_options import SamplerName
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.store.tables import EvaluationRow
from phaze_opt.store.tickets import MOST_DEATHS
from phaze_opt.store.workers import list_workers
from phaze_opt.study.processes import StopSignals, WorkerJob, WorkerProcesses
from phaze_opt.study.running import worker_main
from phaze_opt.study.study import Study
from tests.databases import Drive, DrivenProcess
from tests.study.fakes import (
    COUNT_VARIABLE,
    STUCK_VARIABLE,
    deadly_evaluator,
    reopened,
    toy_evaluator,
    toy_study,
)

PATIENCE_S = 60


def counted(study: Study) -> Counter[str]:
    """Count the trials by kind."""
    return Counter(trial.kind for trial in study.trials())


def assert_exactly(study: Study, total: int) -> None:
    """As many complete trials as asked, and nothing left open."""
    kinds = counted(study)
    assert kinds["feasible"] + kinds["infeasible"] == total
    assert kinds["running"] == kinds["waiting"] == 0
    counts = study.office().counts()
    assert (counts.done, counts.open, counts.held) == (total, 0, 0)


def points(study: Study) -> list[DesignPoint | None]:
    """Return the points of the complete trials, in the order of their numbers."""
    return [trial.point for trial in study.trials() if trial.kind in ("feasible", "infeasible")]


def wait_for(study: Study, done: int) -> None:
    """Wait until so many trials are complete."""
    wait_until(lambda: study.office().counts().done >= done)


def wait_until(reached: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end_s, "the study does not get on"
        time.sleep(0.02)


def ended(process: DrivenProcess) -> int | None:
    """Wait for the end of a process, and return its exit code."""
    process.communicate(timeout=PATIENCE_S)
    return process.returncode


def test_exactly_n_with_several_processes(
    any_url: str, tmp_path: Path, forked_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes make exactly the trials asked for, and compute no point twice."""
    total, processes = 60, 2
    monkeypatch.setenv(COUNT_VARIABLE, str(tmp_path / "count"))
    study = toy_study(any_url, search=SearchSpec(sampler="random", trials=total, seed=1))
    assert study.run(workers=processes).counts.done == total
    assert_exactly(study, total)
    lines = (tmp_path / "count").read_text().splitlines()
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("where", ["in-ask", "before-assign", "before-done", "after-tell"])
def test_killed_where_it_hurts(any_url: str, drive: Drive, where: str) -> None:
    """Killed inside ask, before the ticket knows the trial, before it is closed, or right after."""
    study = toy_study(any_url)
    dead = drive(any_url, "--total", "6", "--die", where)
    assert ended(dead) == -signal.SIGKILL
    assert ended(drive(any_url, "--total", "6")) == 0
    assert_exactly(study, 6)


def test_many_kills_among_three_workers(any_url: str, drive: Drive) -> None:
    """Workers that are killed again and again leave exactly the trials asked for."""
    total, kills = 40, 6
    study = toy_study(any_url, search=SearchSpec(sampler="random", trials=total, seed=2))
    arguments = ("--total", str(total), "--evaluator", "slow_evaluator", "--lease", "2")
    workers = [drive(any_url, *arguments) for _ in range(3)]
    for kill in range(kills):
        wait_for(study, 2 + 4 * kill)
        workers[kill % 3].kill()
        workers[kill % 3].communicate()
        workers[kill % 3] = drive(any_url, *arguments)
    for worker in workers:
        assert ended(worker) == 0
    assert_exactly(study, total)


def test_a_stalled_worker_loses_its_trial(sqlite_url: str, drive: Drive) -> None:
    """Stopped longer than its lease and woken again, a worker neither crashes nor counts twice."""
    study = toy_study(sqlite_url)
    arguments = ("--total", "12", "--evaluator", "slow_evaluator", "--lease", "1")
    stalled = drive(sqlite_url, *arguments)
    wait_for(study, 2)
    os.kill(stalled.pid, signal.SIGSTOP)
    other = drive(sqlite_url, *arguments)
    # It may have been stopped while it held the write lock, so that the other one waits, too.
    time.sleep(1.5)
    os.kill(stalled.pid, signal.SIGCONT)
    assert ended(stalled) == 0
    assert ended(other) == 0
    assert_exactly(study, 12)


def test_clocks_an_hour_apart(
    any_url: str, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are on the database's clock: nobody takes over what another one is computing."""
    monkeypatch.setenv(COUNT_VARIABLE, str(tmp_path / "count"))
    study = toy_study(any_url)
    arguments = ("--total", "14", "--evaluator", "slow_evaluator", "--lease", "5")
    workers = [drive(any_url, *arguments, "--clock", hours) for hours in ("-1", "0", "1")]
    assert [ended(worker) for worker in workers] == [0, 0, 0]
    assert_exactly(study, 14)
    assert counted(study)["failed"] == 0
    lines = (tmp_path / "count").read_text().splitlines()
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("number", "code", "workers"), [(signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 1)]
)
def test_a_signal_finishes_the_running_trial(
    sqlite_url: str, drive: Drive, number: signal.Signals, code: int, workers: int
) -> None:
    """The first signal ends the run cleanly; running again goes on to exactly N."""
    study = toy_study(sqlite_url)
    arguments = ("--total", "20", "--workers", str(workers))
    process = drive(sqlite_url, *arguments, "--evaluator", "slow_evaluator")
    wait_for(study, 2)
    # A terminal sends it to the whole group.
    os.killpg(process.pid, number)
    assert ended(process) == code
    kinds = counted(study)
    assert kinds["running"] == kinds["failed"] == 0
    assert 2 <= kinds.total() < 20
    assert reopened(sqlite_url).run(20).counts.done == 20
    assert_exactly(study, 20)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_gives_the_ticket_back(
    sqlite_url: str,
    drive: Drive,
    workers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second signal does not wait for the running trial, whose ticket is open at once."""
    stuck = tmp_path / "stuck"
    monkeypatch.setenv(STUCK_VARIABLE, str(stuck))
    study = toy_study(sqlite_url)
    arguments = ("--total", "5", "--workers", str(workers))
    process = drive(sqlite_url, *arguments, "--evaluator", "stuck_evaluator")
    # Points above the area limit are over at once; the first one that is not is stuck.
    wait_until(stuck.exists)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert ended(process) == 130
    counts = study.office().counts()
    assert (counts.held, counts.failed) == (0, 0) and counts.open == 5 - counts.done > 0
    assert counted(study)["running"] == 0
    assert study.run(5).counts.done == 5
    assert_exactly(study, 5)


def test_killed_workers_keep_no_study_running(
    sqlite_url: str, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study whose workers were killed on this machine is stopped before their leases end."""
    stuck = tmp_path / "stuck"
    monkeypatch.setenv(STUCK_VARIABLE, str(stuck))
    study = toy_study(sqlite_url)
    process = drive(sqlite_url, "--evaluator", "stuck_evaluator")
    wait_until(stuck.exists)
    running = study.summary()
    assert (running.state, running.trials["running"]) == ("running", 1)
    process.kill()
    process.communicate()
    after = study.summary()
    assert (after.state, after.trials["running"], after.left_s) == ("stopped", 0, None)
    assert study.run().counts.done == 20


def test_a_deadly_point_is_reported(sqlite_url: str, forked_workers: None) -> None:
    """A point on which three workers die in turn is given up, told, and the rest is done."""
    study = toy_study(sqlite_url, search=SearchSpec(sampler="random", trials=4, seed=3))
    study.evaluator = deadly_evaluator
    outcome = study.run(workers=2)
    assert outcome.counts.failed >= 1
    assert outcome.counts.done == 4 - outcome.counts.failed
    assert all("3 workers in turn died on" in reason for reason in outcome.failures)
    assert counted(study)["running"] == 0


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_lone_worker_killed_again_and_again_finds_the_same(
    sqlite_url: str, drive: Drive, tmp_path: Path, sampler: SamplerName
) -> None:
    """Its trials are those of an undisturbed one, and no kill is blamed on a point."""
    search = SearchSpec(sampler=sampler, trials=15, seed=5)
    undisturbed = toy_study(f"sqlite:///{tmp_path / 'other.db'}", search=search)
    undisturbed.run()
    study = toy_study(sqlite_url, search=search)
    for kill in range(2 * MOST_DEATHS):
        # The first trials are those of baselines, and cached.
        where = ("in-evaluation", "in-ask", "before-assign", "before-done")[kill % 4]
        assert ended(drive(sqlite_url, "--die", where)) == -signal.SIGKILL
    assert ended(drive(sqlite_url)) == 0
    assert_exactly(study, 15)
    assert points(study) == points(undisturbed)


def test_memory_that_runs_out_is_a_lost_worker(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ticket is tried again, and given up only where it happens every time."""
    monkeypatch.setattr(tickets_module, "FIRST_REST_S", 0.01)
    study = toy_study(sqlite_url, search=SearchSpec(sampler="random", trials=12, seed=3))
    study.evaluator = toy_evaluator
    study.run(8)
    failures = iter([MemoryError, MemoryError])

    def greedy_evaluator(*args: Any) -> Evaluation:
        for failure in failures:
            raise failure
        return toy_evaluator(*args)

    study.evaluator = greedy_evaluator
    assert study.run().failures == ()
    assert_exactly(study, 12)


def test_workers_end_with_their_parent(sqlite_url: str, drive: Drive) -> None:
    """Nobody goes on alone, and the next run completes what they held at once."""
    study = toy_study(sqlite_url)
    process = drive(sqlite_url, "--workers", "2", "--evaluator", "slow_evaluator")
    wait_for(study, 2)
    workers: set[int | None] = set()

    def listed() -> bool:
        # Between two trials a worker holds nothing.
        workers.update(worker.process for worker in list_workers(study))
        return bool(workers)

    wait_until(listed)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert study.run().counts.done == 20
    assert_exactly(study, 20)
    with study.storage.reading() as session:
        assert not session.scalar(select(func.count()).where(EvaluationRow.body.is_(None)))


def test_failing_workers_are_reported(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """When no worker can begin, the run fails instead of waiting for ever."""
    study = toy_study(sqlite_url)
    study.run(2)
    monkeypatch.setattr(study, "name", "gone")
    monkeypatch.setattr("phaze_opt.study.running.prepare_trials", lambda study: None)
    monkeypatch.setattr(Study, "best_value", lambda self: None)
    with pytest.raises(PhazeError, match="All workers"):
        study.run(4, workers=2)
    assert "no study 'gone'" in capfd.readouterr().err


def test_no_password_on_the_command_line(sqlite_url: str, drive: Drive) -> None:
    """Worker processes get the storage through the environment."""
    study = toy_study(sqlite_url)
    process = drive(sqlite_url, "--total", "20", "--workers", "2", "--evaluator", "slow_evaluator")
    wait_for(study, 2)
    lines = [
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.is_dir()
    ]
    assert not any(b"study.db" in line and b"pytest" not in line for line in lines)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 143


def test_workers_begin_when_told(tmp_path: Path) -> None:
    """Processes that are started before there is work do none, and end, unless they are told."""
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", search=SearchSpec("random", 2, 0))
    study.run(1)
    job = WorkerJob(worker_main, study.name, 2, 60.0, toy_evaluator)
    with StopSignals() as stop:
        with WorkerProcesses(job, study.storage, 2, stop) as processes:
            started = list(processes._running)
            assert [process.is_alive() for process in started] == [True, True]
        assert [process.exitcode for process in started] == [-signal.SIGKILL] * 2
        assert_exactly(study, 1)
        study.office().issue(2, [])
        with WorkerProcesses(job, study.storage, 1, stop) as processes:
            processes.run(lambda: 0)
    assert_exactly(study, 2)
