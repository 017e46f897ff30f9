"""Worker processes on one machine, and the signals that end them.

Workers are spawned and open the database themselves. After the first Ctrl-C or SIGTERM the running
trial finishes; after the second, its ticket is given back at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Self

from phaze_opt.child_processes import end_with_parent
from phaze_opt.errors import PhazeError
from phaze_opt.printing import print_error
from phaze_opt.store.failures import LostConnectionError, patiently
from phaze_opt.store.leases import expire_dead_workers
from phaze_opt.store.opening import URL_VARIABLE
from phaze_opt.store.storage import Storage
from phaze_opt.study.objective import Evaluator
from phaze_opt.study.watching import ShowStudy

_POLL_S = 0.2
_MOST_IN_VAIN = 60
"""Largest number of killed workers in turn without a closed ticket; one more ends the run."""

_LONGEST_PAUSE_S = 5.0
"""Longest time in seconds until a killed worker is replaced."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopNow(BaseException):
    """Raised in the main thread by the second signal, at any statement."""


class StopSignals:
    """A context in which signals become a request that loops check.

    Parameters
    ----------
    ignore_interrupt
        For worker processes: a terminal sends Ctrl-C to all processes, but only the parent acts on
        it, and sends SIGTERM to the workers.
    raise_on_repeat
        Whether the second signal raises `StopNow`.

    Attributes
    ----------
    received
        Number of the first signal, or ``None``.
    repeated
        Whether there was a second signal.
    """

    def __init__(self, *, ignore_interrupt: bool = False, raise_on_repeat: bool = True) -> None:
        self.received: int | None = None
        self.repeated = False
        self._ignore_interrupt = ignore_interrupt
        self._raise_on_repeat = raise_on_repeat
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether no further trial may begin."""
        return self.received is not None

    @property
    def exit_code(self) -> int | None:
        """Exit code: 130 after Ctrl-C, 143 after SIGTERM; ``None`` without a signal."""
        return None if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                ignored = self._ignore_interrupt and number == signal.SIGINT
                handler = signal.SIG_IGN if ignored else self._on_signal
                self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; raise at the second."""
        if self.received is None:
            self.received = number
            return
        self.repeated = True
        if self._raise_on_repeat:
            raise StopNow


@dataclass(frozen=True)
class WorkerJob:
    """The arguments of a worker process; the URL of the storage is in its environment.

    Attributes
    ----------
    work
        Opens the study of this name and works on it until it is done.
    total, lease_s, evaluator, show
        See `phaze_opt.study.running.run_study`.
    """

    work: Callable[[WorkerJob, StopSignals], None]
    name: str
    total: int
    lease_s: float
    evaluator: Evaluator
    show: ShowStudy | None = None


class WorkerProcesses:
    """Worker processes that import their modules at once, and wait for the start of the work.

    A context: at its end, workers that still wait are ended.
    """

    def __init__(self, job: WorkerJob, storage: Storage, workers: int, stop: StopSignals) -> None:
        self._job = job
        self._storage = storage
        self._stop = stop
        self._workers = workers
        self._context = multiprocessing.get_context("spawn")
        self._waiting: list[Connection] = []
        with storage_in_environment(storage):
            self._running = [self._start() for _ in range(workers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._waiting:
            # The processes still wait, and hold no ticket.
            for process in self._running:
                process.kill()
                process.join()
            self._let_go()

    def _start(self) -> BaseProcess:
        """Start a process, which waits until `_let_go`."""
        begin, let_go = self._context.Pipe(duplex=False)
        process = self._context.Process(target=worker_process, args=(self._job, begin), daemon=True)
        process.start()
        begin.close()
        self._waiting.append(let_go)
        return process

    def _let_go(self) -> None:
        """Let the waiting processes begin."""
        for let_go in self._waiting:
            let_go.close()
        self._waiting = []

    def run(self, on_poll: Callable[[], int]) -> None:
        """Let workers work until all have ended, and replace killed workers.

        The pause before a replacement grows, unless trials are finished between the kills.

        Parameters
        ----------
        on_poll
            Called a few times per second; returns the number of closed tickets.

        Raises
        ------
        PhazeError
            If all workers fail, or workers are killed repeatedly and finish no trial.
        """
        job, stop, running = self._job, self._stop, self._running
        with storage_in_environment(self._storage):
            due_s: list[float] = []
            finished, in_vain, failures, passed_on = 0, 0, 0, 0
            while running or (due_s and not stop.requested):
                self._let_go()
                time.sleep(_POLL_S)
                with suppress(LostConnectionError):
                    # The workers wait for a lost database themselves, and fail if it stays away.
                    finished, before = on_poll(), finished
                    in_vain = 0 if finished > before else in_vain
                passed_on = _pass_on(stop, running, passed_on)
                now_s = time.monotonic()
                if not stop.requested:
                    running += [self._start() for due in due_s if due <= now_s]
                due_s = [due for due in due_s if due > now_s]
                for process in [worker for worker in running if not worker.is_alive()]:
                    running.remove(process)
                    code = process.exitcode or 0
                    failures += code == 1
                    if code < 0 and not stop.requested:
                        patiently(partial(expire_dead_workers, self._storage))
                        in_vain += 1
                        if in_vain > _MOST_IN_VAIN:
                            raise PhazeError(
                                f"Workers of the study {job.name!r} were killed {in_vain} times "
                                "in turn, and finished no trial between."
                            )
                        more = in_vain - self._workers
                        pause_s = 0.0 if more <= 0 else _POLL_S * 2.0**more
                        due_s.append(now_s + min(pause_s, _LONGEST_PAUSE_S))
        if failures == self._workers:
            raise PhazeError(
                f"All workers of the study {job.name!r} failed; their errors are above."
            )


def worker_process(job: WorkerJob, begin: Connection) -> None:
    """Run a worker process; its exit code is 0, 1 after an error, 143 after a signal.

    Parameters
    ----------
    job
        The arguments of the work.
    begin
        Closed at the other end when the work shall begin.
    """
    end_with_parent()
    with StopSignals(ignore_interrupt=True) as stop:
        connection.wait([begin])
        try:
            job.work(job, stop)
        except StopNow:
            pass
        except Exception as error:
            unexpected = (
                "" if isinstance(error, PhazeError) else f"Unexpected {type(error).__name__}: "
            )
            print_error(unexpected + str(error))
            sys.exit(1)
        if stop.exit_code is not None:
            sys.exit(stop.exit_code)


def _pass_on(stop: StopSignals, running: list[BaseProcess], passed_on: int) -> int:
    """Send the workers a SIGTERM for each of the first two signals; return the number sent."""
    wanted = int(stop.requested) + int(stop.repeated)
    for _ in range(passed_on, wanted):
        for process in running:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
    return wanted


@contextmanager
def storage_in_environment(storage: Storage) -> Iterator[None]:
    """Put the URL of a database into the environment of processes that start in this context.

    The URL may hold a password: other users can read a command line, but not the environment.
    """
    name, value = URL_VARIABLE, storage.url.render_as_string(hide_password=False)
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
