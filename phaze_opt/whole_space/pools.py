"""Pools that bound and evaluate points: in this process, in other processes, on a dask cluster.

Every pool runs the same independent tasks (`phaze_opt.whole_space.engine`), and callers take the
results in the order of submission: the answer of an enumeration does not depend on the pool.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounding import SpacePart
from phaze_opt.child_processes import begin_in_process
from phaze_opt.errors import InputError, PhazeError
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.leases import expire_dead_workers
from phaze_opt.store.storage import Storage
from phaze_opt.study.processes import storage_in_environment
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.engine import Engine, EngineJob, bound_there, evaluate_there

T = TypeVar("T")

CONNECT_S = 10
"""Seconds to wait for a dask scheduler."""

RESTART_S = 600
"""Seconds to wait for a dask scheduler that was there, and may be started again."""

_POLL_S = 0.1

MOST_RESTARTS = 30
"""How often killed processes are replaced before the enumeration fails."""

_LOST = (BrokenExecutor, CancelledError)
"""What a task ends with whose processes, or whose scheduler of dask, are gone."""

_log = logging.getLogger(__name__)


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

    def evaluate(self, points: Sequence[DesignPoint]) -> Task[list[Metrics]]:
        """Evaluate points."""
        ...


class LocalPool:
    """Runs every task in this process, when its result is needed."""

    ahead = 0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def bound(self, parts: Sequence[SpacePart]) -> Task[list[FloatArray]]:
        """Bound parts."""
        return Task(partial(self._engine.bound, parts))

    def evaluate(self, points: Sequence[DesignPoint]) -> Task[list[Metrics]]:
        """Evaluate points."""
        return Task(partial(self._engine.evaluate, points))


class RemotePool:
    """Submits tasks to other processes; submits those of lost processes again.

    Parameters
    ----------
    job
        Study that the processes bound and evaluate.
    workers
        Number of processes.
    start
        Starts the processes.
    on_lost
        Called after processes were lost.
    """

    def __init__(
        self,
        job: EngineJob,
        workers: int,
        start: Callable[[], Executor],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.ahead = 2 * workers
        self._job = job
        self._start = start
        self._on_lost = on_lost
        self._executor = start()
        self._restarts = 0
        self._unfinished: set[Future[Any]] = set()

    def bound(self, parts: Sequence[SpacePart]) -> Task[list[FloatArray]]:
        """Bound parts."""
        return self._task(partial(bound_there, self._job, parts))

    def evaluate(self, points: Sequence[DesignPoint]) -> Task[list[Metrics]]:
        """Evaluate points."""
        return self._task(partial(evaluate_there, self._job, points))

    def end(self) -> None:
        """End the processes; drop the tasks that have not begun."""
        for future in tuple(self._unfinished):
            future.cancel()
        self._executor.shutdown(wait=True)

    def _task(self, work: Callable[[], T]) -> Task[T]:
        """Submit work now; submit it again if its process is lost."""
        executor, future = self._submit(work)

        def wait() -> T:
            nonlocal executor, future
            while True:
                try:
                    return future.result()
                except _LOST:
                    self._replace(executor)
                    executor, future = self._submit(work)

        return Task(wait)

    def _submit(self, work: Callable[[], T]) -> tuple[Executor, Future[T]]:
        """Submit work; return the executor that has it, and its future."""
        try:
            future = self._executor.submit(work)
        except _LOST:
            self._replace(self._executor)
            future = self._executor.submit(work)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return self._executor, future

    def _replace(self, lost: Executor) -> None:
        """Start new processes in place of lost ones, unless that is done already."""
        if self._executor is not lost:
            return
        self._restarts += 1
        if self._restarts > MOST_RESTARTS:
            raise PhazeError(f"Processes of the enumeration were killed {self._restarts} times.")
        lost.shutdown(wait=True)
        self._on_lost()
        self._executor = self._start()


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
    with storage_in_environment(storage):
        # Other workers need not wait for the points that lost processes were evaluating.
        pool = RemotePool(job, workers, start, partial(expire_dead_workers, storage))
        try:
            yield pool
        finally:
            pool.end()


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
    client = _dask_client(address, CONNECT_S)
    workers = max(1, sum(client.nthreads().values()))

    def start() -> Executor:
        # A task is submitted a second time only if its result was lost.
        executor: Executor = client.get_executor(pure=False, retries=3)
        return executor

    def connect_again() -> None:
        nonlocal client
        _log.warning("The dask scheduler at %s is gone; waiting for another one.", address)
        while client.status == "connecting":  # by itself, for as long as at first
            time.sleep(_POLL_S)
        if client.status != "running":
            client = _dask_client(address, RESTART_S)

    pool = RemotePool(job, workers, start, connect_again)
    try:
        yield pool
    finally:
        pool.end()
        client.close()


def _dask_client(address: str, patience_s: float) -> Any:
    """Connect to a dask scheduler."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--dask needs the package distributed: pip install 'phaze-opt[dask]'."
        ) from None
    try:
        connect: Any = Client
        return connect(address, timeout=patience_s, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"There is no dask scheduler at {address}: {reason}.") from None
