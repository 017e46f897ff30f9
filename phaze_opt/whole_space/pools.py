"""Where the points of an enumeration are bounded and evaluated: here, in processes, on a cluster.

Every pool does the same independent tasks (`phaze_opt.whole_space.engine`), and answers are taken
in the order in which they were asked for: what comes out does not depend on the pool.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounding import SpacePart
from phaze_opt.errors import InputError, PhazeError
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.leases import expire_dead_workers
from phaze_opt.store.storage import Storage
from phaze_opt.study.processes import end_with_parent, storage_in_environment
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.engine import Engine, EngineJob, bound_there, evaluate_there

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CONNECT_S = 10
"""Seconds to wait for a dask scheduler."""

MOST_RESTARTS = 30
"""Times that killed processes are replaced before something else must be wrong."""


class Answer(Protocol[T_co]):
    """What a task will return."""

    def result(self) -> T_co:
        """Wait for it."""
        ...


class Pool(Protocol):
    """Bounds and evaluates points.

    Attributes
    ----------
    ahead
        Tasks that are worth to be given before their answers are needed.
    """

    ahead: int

    def bound(self, parts: Sequence[SpacePart]) -> Answer[list[FloatArray]]:
        """Bound the architectures of each part, with arrays of shape (sizes, architectures)."""
        ...

    def evaluate(self, points: Sequence[DesignPoint]) -> Answer[list[Metrics]]:
        """Evaluate some points."""
        ...


class Here:
    """Does every task in this process."""

    ahead = 0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def bound(self, parts: Sequence[SpacePart]) -> Answer[list[FloatArray]]:
        """Bound parts."""
        return _Asked(partial(self._engine.bound, parts))

    def evaluate(self, points: Sequence[DesignPoint]) -> Answer[list[Metrics]]:
        """Evaluate points."""
        return _Asked(partial(self._engine.evaluate, points))


class Elsewhere:
    """Gives tasks to other processes; those of lost processes are given again.

    Parameters
    ----------
    job
        What the processes work on.
    workers
        How many there are.
    start
        Starts them.
    on_lost
        Called where some were lost.
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
        self._given: set[Future[Any]] = set()

    def bound(self, parts: Sequence[SpacePart]) -> Answer[list[FloatArray]]:
        """Bound parts."""
        return _Given(self, partial(bound_there, self._job, parts))

    def evaluate(self, points: Sequence[DesignPoint]) -> Answer[list[Metrics]]:
        """Evaluate points."""
        return _Given(self, partial(evaluate_there, self._job, points))

    def give(self, task: Callable[[], T]) -> tuple[Executor, Future[T]]:
        """Give a task; return who has it."""
        try:
            future = self._executor.submit(task)
        except BrokenExecutor:
            self.replace(self._executor)
            future = self._executor.submit(task)
        self._given.add(future)
        future.add_done_callback(self._given.discard)
        return self._executor, future

    def replace(self, lost: Executor) -> None:
        """Start the processes again, unless that was done."""
        if self._executor is not lost:
            return
        self._restarts += 1
        if self._restarts > MOST_RESTARTS:
            raise PhazeError(f"Processes of the enumeration were killed {self._restarts} times.")
        lost.shutdown(wait=True)
        self._on_lost()
        self._executor = self._start()

    def end(self) -> None:
        """End the processes; tasks that have not begun are dropped."""
        for future in tuple(self._given):
            future.cancel()
        self._executor.shutdown(wait=True)


class _Given(Generic[T]):
    """A task that was given to another process."""

    def __init__(self, pool: Elsewhere, task: Callable[[], T]) -> None:
        self._pool = pool
        self._task = task
        self._owner, self._future = pool.give(task)

    def result(self) -> T:
        """Wait for the answer; give the task again if its process was lost."""
        while True:
            try:
                return self._future.result()
            except BrokenExecutor:
                self._pool.replace(self._owner)
                self._owner, self._future = self._pool.give(self._task)


@contextmanager
def processes(job: EngineJob, storage: Storage, workers: int) -> Iterator[Elsewhere]:
    """Start processes on this machine, and end them with the context.

    Parameters
    ----------
    job
        Without a URL: the processes find it in their environment.
    storage
        The database.
    """
    context = multiprocessing.get_context("spawn")
    start = partial(ProcessPoolExecutor, workers, mp_context=context, initializer=_begin_in_process)
    with storage_in_environment(storage):
        # Others need not wait for the points that lost processes were evaluating.
        pool = Elsewhere(job, workers, start, partial(expire_dead_workers, storage))
        try:
            yield pool
        finally:
            pool.end()


@contextmanager
def dask_cluster(job: EngineJob, address: str) -> Iterator[Elsewhere]:
    """Use the workers of a running dask cluster.

    Parameters
    ----------
    job
        With the URL of a database that every worker reaches.
    address
        Of the cluster's scheduler.

    Raises
    ------
    InputError
        If dask is not installed, or there is no scheduler.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--dask needs the package distributed: pip install 'phaze-opt[dask]'."
        ) from None
    try:
        connect: Any = Client
        client = connect(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"There is no dask scheduler at {address}: {reason}.") from None
    with client:
        workers = max(1, sum(client.nthreads().values()))
        # The same task is asked for again only where its answer was lost.
        pool = Elsewhere(job, workers, partial(client.get_executor, pure=False, retries=3))
        try:
            yield pool
        finally:
            pool.end()


@dataclass(frozen=True)
class _Asked(Generic[T]):
    """A task that is done when its answer is needed."""

    task: Callable[[], T]

    def result(self) -> T:
        """Do it."""
        return self.task()


def _begin_in_process() -> None:
    """Leave signals to the process that gives the tasks, and end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
