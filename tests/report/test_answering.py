"""Processes that answer questions, and that can be ended in the middle of one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from phaze_opt.errors import ConflictError, PhazeError
from phaze_opt.report import answering
from phaze_opt.report.answering import AnsweringProcess


def answer(question: str) -> tuple[bool, bytes]:
    """Say which process answers; some questions take long, or end it."""
    if question == "end":
        os._exit(3)
    if question == "long":
        time.sleep(60)
    return question != "improper", f"{os.getpid()} {question}".encode()


@pytest.fixture(scope="module")
def process() -> Iterator[AnsweringProcess]:
    """Start a process that nobody waits for."""
    made = AnsweringProcess(answer, "first", limit_s=30.0)
    made.start()
    yield made
    made.close()


def test_one_process_answers_all(process: AnsweringProcess) -> None:
    """In the order of the questions; whether one is proper comes along."""
    proper, first = process.ask("a", "me")
    improper, second = process.ask("improper", "you")
    assert (proper, improper) == (True, False)
    assert first.split()[0] == second.split()[0] != str(os.getpid()).encode()


def test_a_newer_question_ends_the_older_one(process: AnsweringProcess) -> None:
    """Of the same asker only, and at once: another process stands ready."""
    with ThreadPoolExecutor() as threads:
        long = threads.submit(process.ask, "long", "me")
        while process._running is None:
            time.sleep(0.01)
        others = threads.submit(process.ask, "b", "you")
        time.sleep(0.3)
        assert not others.done() and not long.done()
        begun_s = time.monotonic()
        assert process.ask("c", "me")[1].endswith(b" c")
        assert time.monotonic() - begun_s < 20.0
        assert others.result()[1].endswith(b" b")
        with pytest.raises(ConflictError, match="A newer question"):
            long.result()


def test_a_process_that_fails_is_replaced(process: AnsweringProcess) -> None:
    """The question has no answer, the next one has."""
    with pytest.raises(PhazeError, match="has failed"):
        process.ask("end", "me")
    assert process.ask("d", "me")[1].endswith(b" d")


def test_what_takes_too_long_is_given_up() -> None:
    """The limit is named; afterwards all processes are gone."""
    short = AnsweringProcess(answer, "first", limit_s=0.2)
    with pytest.raises(PhazeError, match=r"longer than 0\.2 s"):
        short.ask("long", "me")
    ready = list(short._ready)
    short.close()
    assert ready and not any(worker.process.is_alive() for worker in ready)


def test_few_questions_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks without end is refused."""
    monkeypatch.setattr(answering, "MOST_WAITING", 1)
    busy = AnsweringProcess(answer, "first")
    busy._turn.acquire()
    waiting = threading.Thread(target=busy.ask, args=("a", "me"), daemon=True)
    waiting.start()
    while busy._waiting < 1:
        time.sleep(0.01)
    with pytest.raises(PhazeError, match="Too many questions"):
        busy.ask("b", "you")
    busy._turn.release()
    waiting.join()
    busy.close()
