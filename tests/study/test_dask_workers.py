"""Studies on a dask cluster: exactly N, whatever is lost, and a signal lets trials end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from phaze_opt.cli.study import app
from typer.testing import CliRunner

from phaze_opt.errors import InputError
from phaze_opt.spec.study_spec import SearchSpec
from phaze_opt.study import lasting_executors
from phaze_opt.study.running import Progress
from phaze_opt.study.study import Study
from tests.dask_cluster import Cluster
from tests.study.fakes import failing_evaluator, slow_evaluator, toy_study
from tests.study.test_processes import assert_exactly

TRIALS = 60
LEASE_S = 2.0


@pytest.fixture
def study(sqlite_url: str) -> Study:
    """Return a study of trials that take a tenth of a second."""
    study = toy_study(sqlite_url, search=SearchSpec(sampler="random", trials=TRIALS, seed=3))
    study.evaluator = slow_evaluator
    return study


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start a cluster of four processes, and end it with the test."""
    cluster = Cluster(tmp_path, workers=3)
    try:
        yield cluster
    finally:
        cluster.end()


def test_exactly_n_on_a_cluster(study: Study, cluster: Cluster) -> None:
    """Though a worker is killed, and then the scheduler, which is started again.

    It is stopped by a signal before, after which no trial is left open.
    """
    lost: list[str] = []

    def interrupt(progress: Progress) -> None:
        if progress.counts.done > 2 and not lost:
            lost.append("interrupted")
            os.kill(os.getpid(), signal.SIGINT)

    stopped = study.run(dask=cluster.address, lease_s=LEASE_S, on_progress=interrupt)
    assert stopped.exit_code == 130 and 0 < stopped.counts.done < TRIALS
    assert stopped.counts.held == 0

    def lose(progress: Progress) -> None:
        done = progress.counts.done - stopped.counts.done
        if done > 2 and lost == ["interrupted"]:
            lost.append("worker")
            cluster.workers[0].kill()
        elif done > 8 and lost[-1] == "worker":
            lost.append("scheduler")
            cluster.scheduler.kill()
            cluster.scheduler.wait()
            cluster.start()

    outcome = study.run(dask=cluster.address, lease_s=LEASE_S, on_progress=lose)
    assert lost[-1] == "scheduler" and outcome.counts.done == TRIALS
    assert_exactly(study, TRIALS)


def test_workers_that_fail_are_reported(study: Study, tmp_path: Path) -> None:
    """All but the baseline fail, and the outcome says why."""
    study.evaluator = failing_evaluator
    cluster = Cluster(tmp_path, workers=1)
    try:
        outcome = study.run(2, dask=cluster.address)
    finally:
        cluster.end()
    assert outcome.counts.failed == 1 and "the cost model stumbled" in outcome.failures[0]


def test_refusals(study: Study, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler, and processes beside a cluster; nothing is asked of the study."""
    monkeypatch.setattr(lasting_executors, "CONNECT_S", 1)
    with pytest.raises(InputError, match="workers is 2, but the workers are those of the dask"):
        study.run(workers=2, dask="tcp://127.0.0.1:1")
    with pytest.raises(InputError, match="no dask scheduler at tcp"):
        study.run(dask="tcp://127.0.0.1:1")
    given = ["run", "toy", "--dask", "tcp://127.0.0.1:1", "--storage", sqlite_url]
    refused = CliRunner().invoke(app, given).exception
    assert isinstance(refused, InputError) and "no dask scheduler" in str(refused)
    assert not study.trials()
