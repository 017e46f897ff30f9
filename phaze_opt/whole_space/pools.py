"""Pools that bound and evaluate points: in this process, in other processes, on a dask cluster.

Every pool runs the same independent tasks (`phaze_opt.whole_space.engine`), and callers take the
results in the order of submission: the answer of an enumeration does not depend on the pool.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounding import SpacePart
from phaze_opt.bounds.point_grid import Place
from phaze_opt.child_processes import begin_in_process
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.leases import expire_dead_workers
from phaze_opt.store.storage import Storage
from phaze_opt.study.lasting_executors import LastingExecutor, dask_executor
from phaze_opt.study.processes import storage_in_environment
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.engine import Engine, EngineJob, bound_there, evaluate_there

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """A task of a pool.

    Attributes
    ----------
    run
        Computes the result, or waits for the process that computes it.
    """

    run: Callable[[], T]

    def result(self) -> T:
        """Return the result, as soon as it is computed."""
        return self.run()


class Pool(Protocol):
    """Bounds and evaluates points.

    Attributes
    ----------
    ahead
        Number of tasks that a caller should submit before it needs their results.
    """

    ahead: int

    def bound(self, parts: Sequence[SpacePart]) -> Task[list[FloatArray]]:
        """Bound the architectures of each part, with arrays of shape (sizes, architectures)."""
        ...

    def evaluate(
        self, points: Sequence[DesignPoint], places: Sequence[Place] = ()
    ) -> Task[list[Metrics]]:
        """Evaluate points, as `phaze_opt.whole_space.engine.Engine.evaluate` does."""
        ...


class LocalPool:
    """Runs every task in this process, when its result is needed."""

    ahead = 0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def bound(self, parts: Sequence[SpacePart]) -> Task[list[FloatArray]]:
        """Bound parts."""
        return Task(partial(self._engine.bound, parts))

    def evaluate(
        self, points: Sequence[DesignPoint], places: Sequence[Place] = ()
    ) -> Task[list[Metrics]]:
        """Evaluate points."""
        return Task(partial(self._engine.evaluate, points, places))


class RemotePool:
    """Submits tasks to other processes; submits those of lost processes again.

    Parameters
    ----------
    job
        Study that the processes bound and evaluate.
    workers
        Number of processes.
    executor
        Of the processes.
    """

    def __init__(self, job: EngineJob, workers: int, executor: LastingExecutor) -> None:
        self.ahead = 2 * workers
        self._job = job
        self._executor = executor

    def bound(self, parts: Sequence[SpacePart]) -> Task[list[FloatArray]]:
        """Bound parts."""
        return Task(self._executor.submit(partial(bound_there, self._job, parts)).result)

    def evaluate(
        self, points: Sequence[DesignPoint], places: Sequence[Place] = ()
    ) -> Task[list[Metrics]]:
        """Evaluate points."""
        there = partial(evaluate_there, self._job, points, places)
        return Task(self._executor.submit(there).result)


@contextmanager
def processes(job: EngineJob, storage: Storage, workers: int) -> Iterator[RemotePool]:
    """Start processes on this machine, and end them with the context.

    Parameters
    ----------
    job
        Without a URL: the processes read it from their environment.
    storage
        The database of the study.
    workers
        Number of processes.
    """
    context = multiprocessing.get_context("spawn")
    start = partial(ProcessPoolExecutor, workers, mp_context=context, initializer=begin_in_process)

    def expire(lost: Executor) -> None:
        # Other workers need not wait for the points that lost processes were evaluating.
        lost.shutdown(wait=True)
        expire_dead_workers(storage)

    with storage_in_environment(storage):
        executor = LastingExecutor(start, expire)
        try:
            yield RemotePool(job, workers, executor)
        finally:
            executor.end()


@contextmanager
def dask_cluster(job: EngineJob, address: str) -> Iterator[RemotePool]:
    """Use the workers of a running dask cluster, whose scheduler may be started again meanwhile.

    Parameters
    ----------
    job
        With the URL of a database that every worker reaches.
    address
        Address of the cluster's scheduler.

    Raises
    ------
    InputError
        If dask is not installed, or there is no scheduler.
    """
    with dask_executor(address) as (executor, workers):
        yield RemotePool(job, workers, executor)
