"""Pools: the answer does not depend on where points are bounded and evaluated."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from phaze_opt.errors import InputError
from phaze_opt.spec.space import Space
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space import pools
from phaze_opt.whole_space.certificate import Certificate
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study
from phaze_opt.whole_space.exhaustive import EnumerationProgress
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


def test_a_dask_cluster_gives_the_same_answer(study: Study, expected: Certificate) -> None:
    """With two worker processes, of which one is lost."""
    start: Any = LocalCluster
    with start(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        lost: list[int] = []

        def lose(progress: EnumerationProgress) -> None:
            if progress.level == "evaluations" and not lost:
                lost.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)

        enumeration = enumerate_study(
            study, top=TOP, dask=cluster.scheduler_address, on_progress=lose
        )
    assert lost
    assert certificate_of(study, enumeration, TOP) == expected


def test_refusals(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few workers, and no scheduler, are refused in a sentence."""
    monkeypatch.setattr(pools, "CONNECT_S", 1)
    with pytest.raises(InputError, match="workers is 0"):
        enumerate_study(study, workers=0)
    with pytest.raises(InputError, match="no dask scheduler at tcp"):
        enumerate_study(study, dask="tcp://127.0.0.1:1")
