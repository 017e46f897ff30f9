"""Work is done though those who had it are gone, whether they say so or not."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.study import lasting_executors
from phaze_opt.study.lasting_executors import LastingExecutor, dask_executor
from tests.dask_cluster import Cluster


class _Silent(Executor):
    """Computes nothing unless it is the second of its kind; its futures stay open."""

    made = 0

    def __init__(self) -> None:
        _Silent.made += 1
        self._computes = _Silent.made > 1

    def submit(self, work: Any, /, *given: Any, **named: Any) -> Future[Any]:
        """Return a future."""
        future: Future[Any] = Future()
        if self._computes:
            future.set_result(work())
        return future


@pytest.mark.parametrize("polled", [False, True])
def test_work_of_an_earlier_runner_is_given_again(
    polled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its future stays open, and nothing says that it is lost."""
    monkeypatch.setattr(lasting_executors, "CHECK_S", 0.01)
    monkeypatch.setattr(_Silent, "made", 0)
    lost: list[Executor] = []
    runners = iter(["first", "first", "second"])
    executor = LastingExecutor(_Silent, lost.append, lambda: next(runners, "second"))
    task = executor.submit(partial(pow, 2, 3))
    while polled and not task.is_done():
        pass
    assert task.result() == 8 and task.error() is None
    assert len(lost) == 1 and _Silent.made == 2
    executor.end()


def test_a_scheduler_that_is_away_for_long_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work is taken meanwhile, though the client has given up."""
    monkeypatch.setattr(lasting_executors, "CONNECT_S", 1)
    cluster = Cluster(tmp_path, workers=1)
    try:
        with dask_executor(cluster.address) as (executor, workers):
            assert workers == 1
            before = executor.submit(partial(pow, 2, 3))
            cluster.scheduler.kill()
            cluster.scheduler.wait()
            away = threading.Timer(3, cluster.start)
            away.start()
            tasks = [before]
            while away.is_alive():
                tasks.append(executor.submit(partial(pow, 2, len(tasks))))
                away.join(0.5)
            assert [task.result() for task in tasks] == [8, *(2**i for i in range(1, len(tasks)))]
    finally:
        cluster.end()
