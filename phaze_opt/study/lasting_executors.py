"""Executors whose processes may be lost: what they had begun is submitted again.

Processes of this machine are started again; a scheduler of dask is waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from phaze_opt.errors import InputError, PhazeError

T = TypeVar("T")

CONNECT_S = 10
"""Seconds to wait for a dask scheduler."""

RESTART_S = 600
"""Seconds to wait for a dask scheduler that was there, and may be started again."""

MOST_RESTARTS = 30
"""How often killed processes are replaced before the work fails."""

POLL_S = 0.1

CHECK_S = 1.0
"""Seconds between two looks at who the scheduler is."""

_LOST = (BrokenExecutor, CancelledError)
"""What a task ends with whose processes, or whose scheduler of dask, are gone."""

_log = logging.getLogger(__name__)


class LastingExecutor:
    """Runs work in other processes, and again if these are lost.

    Parameters
    ----------
    start
        Starts the processes.
    on_lost
        Called with the executor whose processes were lost, before others are started.
    runner
        Tells who gives work to the processes now: what was submitted to another one is lost, even
        where nobody says so.
    refusals
        What an executor raises, besides `BrokenExecutor`, when it has no processes any more.
    """

    def __init__(
        self,
        start: Callable[[], Executor],
        on_lost: Callable[[Executor], None],
        runner: Callable[[], object] = lambda: None,
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self._start = start
        self._on_lost = on_lost
        self._runner = runner
        self._refusals: tuple[type[BaseException], ...] = (*_LOST, *refusals)
        self._known_runner = runner()
        self._checked_s = time.monotonic()
        self._executor = start()
        self._restarts = 0
        self._unfinished: set[Future[Any]] = set()

    def submit(self, work: Callable[[], T]) -> LastingTask[T]:
        """Submit work now."""
        return LastingTask(self, work)

    def end(self) -> None:
        """End the processes; drop the tasks that have not begun."""
        for future in tuple(self._unfinished):
            future.cancel()
        self._executor.shutdown(wait=True)

    def begin(self, work: Callable[[], T]) -> tuple[Executor, Future[T]]:
        """Submit work; return the executor that has it, and its future."""
        try:
            future = self._executor.submit(work)
        except self._refusals:
            self.replace(self._executor)
            future = self._executor.submit(work)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return self._executor, future

    def replace(self, lost: Executor) -> None:
        """Start new processes in place of lost ones, unless that is done already."""
        if self._executor is not lost:
            return
        self._restarts += 1
        if self._restarts > MOST_RESTARTS:
            raise PhazeError(f"Processes were killed {self._restarts} times.")
        self._on_lost(lost)
        self._executor = self._start()
        self._known_runner = self._runner()

    def forget(self, future: Future[Any]) -> None:
        """Do not cancel a future at the end, since its work was submitted again."""
        self._unfinished.discard(future)

    def is_lost(self, executor: Executor) -> bool:
        """Whether what an executor was given is lost; asks at most once in `CHECK_S`."""
        if executor is self._executor and time.monotonic() > self._checked_s + CHECK_S:
            runner = self._runner()
            self._checked_s = time.monotonic()
            if runner != self._known_runner:
                self.replace(executor)
        return executor is not self._executor


class LastingTask(Generic[T]):
    """Work that was submitted, and is again as often as its processes are lost."""

    def __init__(self, executor: LastingExecutor, work: Callable[[], T]) -> None:
        self._executor = executor
        self._work = work
        self._runs_on, self._future = executor.begin(work)

    def is_done(self) -> bool:
        """Whether there is a result, or an error; lost work is submitted again."""
        if not self._future.done():
            if self._executor.is_lost(self._runs_on):
                self._again()
            return False
        if self._future.cancelled() or isinstance(self._future.exception(), _LOST):
            self._again()
            return False
        return True

    def result(self) -> T:
        """Return the result, as soon as it is computed."""
        while True:
            if not wait((self._future,), CHECK_S).done:
                if self._executor.is_lost(self._runs_on):
                    self._again()
                continue
            try:
                return self._future.result()
            except _LOST:
                self._again()

    def error(self) -> BaseException | None:
        """Return what the work raised, once it is done; ``None`` where it has a result."""
        return self._future.exception()

    def _again(self) -> None:
        """Submit the work to processes that are not lost."""
        self._executor.forget(self._future)
        self._executor.replace(self._runs_on)
        self._runs_on, self._future = self._executor.begin(self._work)


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[LastingExecutor, int]]:
    """Use a running dask cluster, whose scheduler may be started again meanwhile.

    Parameters
    ----------
    address
        Address of the cluster's scheduler.

    Yields
    ------
    executor, workers
        And the number of tasks that it runs at once.

    Raises
    ------
    InputError
        If dask is not installed, or there is no scheduler.
    """
    client = _dask_client(address, CONNECT_S)
    known: str | None = None
    workers = max(1, sum(client.nthreads().values()))

    def start() -> Executor:
        # A task is submitted a second time only if its result was lost.
        executor: Executor = client.get_executor(pure=False, retries=3)
        return executor

    def scheduler() -> str | None:
        # A client that connects again by itself leaves futures open whose results it was fetching.
        nonlocal known
        if client.status == "running":
            with suppress(OSError):
                known = str(client.scheduler_info()["id"])
        elif client.status != "connecting":
            known = None
        return known

    def connect_again(lost: Executor) -> None:
        nonlocal client
        _log.warning("The dask scheduler at %s is gone; waiting for another one.", address)
        while client.status == "connecting":  # by itself, for as long as at first
            time.sleep(POLL_S)
        if client.status != "running":
            client = _dask_client(address, RESTART_S)

    from distributed.client import ClosedClientError

    executor = LastingExecutor(start, connect_again, scheduler, (ClosedClientError,))
    try:
        yield executor, workers
    finally:
        executor.end()
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
