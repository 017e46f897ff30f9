"""A process that answers questions, and that can be ended in the middle of one.

A page asks again while a former question is being answered, and a question may take longer than
anyone waits. No thread can be ended from outside, a process can; another one stands ready then.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from phaze_opt.child_processes import begin_in_process
from phaze_opt.errors import ConflictError, PhazeError

MOST_WAITING = 32
"""Questions that may wait for their turn; what comes beyond them is refused."""

_LOOK_S = 0.1

Answer = Callable[[str], tuple[bool, bytes]]
"""Says whether a question is a proper one, and its answer or what is wrong, as JSON.

It runs in a process of its own, so it must be picklable, and never fails.
"""


@dataclass(frozen=True)
class _Worker:
    """A process with the pipe to it."""

    process: BaseProcess
    pipe: Connection


@dataclass(frozen=True)
class _Running:
    """The question that is being answered."""

    worker: _Worker
    asker: str
    since_s: float


class AnsweringProcess:
    """Answers one question at a time in a process.

    Parameters
    ----------
    answer
        What the process does with a question.
    first
        Question that a new process answers before any other, for nobody: afterwards its modules
        are imported and its compiled code is loaded.
    patience_s
        How long a question is left running when its asker has a newer one.
    limit_s
        Longest time of a question.
    spare
        Whether another process stands ready to take the place of one that is ended.
    """

    def __init__(
        self,
        answer: Answer,
        first: str,
        *,
        patience_s: float = 0.0,
        limit_s: float = 300.0,
        spare: bool = True,
    ) -> None:
        self._answer, self._first = answer, first
        self._patience_s, self._limit_s = patience_s, limit_s
        self._most_ready = 1 + spare
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._ready: list[_Worker] = []
        self._running: _Running | None = None
        self._ended: _Worker | None = None
        self._waiting = 0
        self._closed = False

    def start(self) -> None:
        """Start the process, and the one that may take its place."""
        with self._lock:
            while len(self._ready) < self._most_ready and not self._closed:
                self._ready.append(self._started())

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._closed = True
            workers = [*self._ready, *([self._running.worker] if self._running else [])]
            self._ready = []
        for worker in workers:
            _end(worker)

    def ask(self, question: str, asker: str) -> tuple[bool, bytes]:
        """Return the answer to a question.

        Parameters
        ----------
        question
            In the words of the process.
        asker
            Who asks; a newer question of the same asker ends this one.

        Raises
        ------
        ConflictError
            If the question was ended by a newer one.
        PhazeError
            If it took too long, the process failed, or too many questions wait.
        """
        with self._place(asker):
            self.start()
            with self._lock:
                worker = self._ready.pop(0)
                self._running = _Running(worker, asker, time.monotonic())
            kept = False
            try:
                worker.pipe.send(question)
                if not worker.pipe.poll(self._limit_s):
                    raise PhazeError(
                        f"The answer takes longer than {self._limit_s:g} s; ask the command line."
                    )
                answer: tuple[bool, bytes] = worker.pipe.recv()
                kept = True
                return answer
            except (EOFError, OSError):
                if self._ended is worker:
                    raise ConflictError("A newer question took the place of this one.") from None
                raise PhazeError("The process that answers has failed; ask again.") from None
            finally:
                with self._lock:
                    self._running = None
                    kept = kept and not self._closed and self._ended is not worker
                    if kept:
                        self._ready.insert(0, worker)
                if not kept:
                    _end(worker)

    @contextmanager
    def _place(self, asker: str) -> Iterator[None]:
        """Wait for the turn, and end what the asker asked before."""
        with self._lock:
            if self._waiting >= MOST_WAITING:
                raise PhazeError("Too many questions wait for an answer; ask again later.")
            self._waiting += 1
        try:
            self._end_older(asker)
            while not self._turn.acquire(timeout=_LOOK_S):
                self._end_older(asker)
        finally:
            with self._lock:
                self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    def _end_older(self, asker: str) -> None:
        """End the running question of an asker who has a newer one."""
        with self._lock:
            running = self._running
            if running is None or running.asker != asker:
                return
            if time.monotonic() - running.since_s >= self._patience_s:
                self._ended = running.worker
                running.worker.process.kill()

    def _started(self) -> _Worker:
        """Start a process."""
        context = multiprocessing.get_context("spawn")
        ours, its = context.Pipe()
        process = context.Process(target=_serve, args=(self._answer, self._first, its), daemon=True)
        process.start()
        its.close()
        return _Worker(process, ours)


def _serve(answer: Answer, first: str, pipe: Connection) -> None:
    """Answer questions until nobody asks any more; runs in the process."""
    begin_in_process()
    answer(first)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(answer(pipe.recv()))


def _end(worker: _Worker) -> None:
    """End a process, and wait until it is gone."""
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()
