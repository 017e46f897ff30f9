"""Pools: the answer does not depend on where points are bounded and evaluated."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from sqlalchemy import func, select

from phaze_opt.bounds import best_first
from phaze_opt.errors import InputError
from phaze_opt.spec.space import Space
from phaze_opt.store.tables import EvaluationRow
from phaze_opt.study import lasting_executors
from phaze_opt.study.study import Study, create_study, load_study
from phaze_opt.whole_space import pools
from phaze_opt.whole_space.certificate import Certificate
from phaze_opt.whole_space.engine import EngineJob
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study
from phaze_opt.whole_space.exhaustive import EnumerationProgress
from tests.dask_cluster import Cluster
from tests.study.fakes import TOY, toy_spec

TOP = 5
SPACE = Space("tpuv4-lanes", num_tc=[2, 4, 8], pe_x=[64, 128], hbm_gib=[16, 32], microbatch=(1, 2))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Return a study of a small model, which the cost model evaluates."""
    spec = toy_spec(space=SPACE, baselines=())
    return create_study(spec, f"sqlite:///{tmp_path / 'a.db'}", workload=TOY)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Return the certificate that one process makes."""
    url = f"sqlite:///{tmp_path_factory.mktemp('here') / 'a.db'}"
    study = create_study(toy_spec(space=SPACE, baselines=()), url, workload=TOY)
    return certificate_of(study, enumerate_study(study, top=TOP), TOP)


def test_killed_processes_change_nothing(study: Study, expected: Certificate) -> None:
    """One of two processes is killed; the certificate is that of one process."""
    killed: list[int] = []

    def kill(progress: EnumerationProgress) -> None:
        if progress.level != "evaluations":
            return
        mine = list(children())
        if mine and not killed:
            killed.append(mine[0])
            os.kill(mine[0], signal.SIGKILL)

    enumeration = enumerate_study(study, top=TOP, workers=2, on_progress=kill)
    assert killed
    assert certificate_of(study, enumeration, TOP) == expected


def enumerate_and_die(name: str, url: str) -> None:
    """Enumerate, and end as by kill -9 when the first points are evaluated."""

    def die(progress: EnumerationProgress) -> None:
        if progress.level == "evaluations" and progress.done > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    best_first.FIRST_ROWS = best_first.BATCH_ROWS = 1
    enumerate_study(load_study(name, url), top=TOP, on_progress=die)


def test_a_killed_enumeration_goes_on(
    study: Study, expected: Certificate, tmp_path: Path, forks: ForkServerContext
) -> None:
    """What it had evaluated is not evaluated again, and the certificate is the same."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    process = forks.Process(target=enumerate_and_die, args=(study.name, url))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    before = evaluated(study)
    enumeration = enumerate_study(study, top=TOP)
    assert 0 < before < evaluated(study)
    assert certificate_of(study, enumeration, TOP) == expected


def evaluated(study: Study) -> int:
    """Count the evaluations that are stored."""
    with study.storage.reading() as session:
        return session.scalar(select(func.count()).select_from(EvaluationRow)) or 0


def children() -> Iterator[int]:
    """Yield the spawned processes of this one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(status[1]) == os.getpid() and b"spawn_main" in command and status[0] != "Z":
                yield int(entry.name)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start a cluster, and end it with the test."""
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.end()


def test_a_dask_cluster_gives_the_same_answer(
    study: Study, expected: Certificate, cluster: Cluster
) -> None:
    """Though a worker is killed, and then the scheduler, which is started again."""
    lost: list[str] = []

    def lose(progress: EnumerationProgress) -> None:
        if progress.level == "evaluations" and not lost:
            lost.append("worker")
            cluster.workers[0].kill()
        elif lost == ["worker"]:
            lost.append("scheduler")
            cluster.scheduler.kill()
            cluster.scheduler.wait()
            cluster.start()

    enumeration = enumerate_study(study, top=TOP, dask=cluster.address, on_progress=lose)
    assert lost == ["worker", "scheduler"]
    assert certificate_of(study, enumeration, TOP) == expected


def test_work_of_a_lost_scheduler_is_given_again(
    study: Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It had begun, and is done by the workers of the next scheduler; a person is told."""
    cluster = Cluster(tmp_path, workers=1)
    try:
        job = EngineJob(None, study.name, study.evaluator)
        with pools.dask_cluster(job, cluster.address) as pool:
            begun = pool._executor.submit(partial(time.sleep, 2.0))
            cluster.scheduler.kill()
            cluster.scheduler.wait()
            cluster.start()
            begun.result()
    finally:
        cluster.end()
    assert "is gone; waiting for another one" in caplog.text


def test_refusals(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few workers, and no scheduler, are refused in a sentence."""
    monkeypatch.setattr(lasting_executors, "CONNECT_S", 1)
    with pytest.raises(InputError, match="workers is 0"):
        enumerate_study(study, workers=0)
    with pytest.raises(InputError, match="no dask scheduler at tcp"):
        enumerate_study(study, dask="tcp://127.0.0.1:1")
