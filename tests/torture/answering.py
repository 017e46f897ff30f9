"""Asks the command line within this process, and says what is wrong with an answer."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from phaze_opt.cli.main import run_with

from tests.torture.case import LARGEST_BYTES, LONGEST_TRY_S, LONGEST_WAIT_S, Outcome

EXIT_CODES = range(6)
_LONGEST_SENTENCE = 4000
_OWN_BYTES = 256 * 2**20
"""At most so much has a process of the program before its command begins."""


class Hang(BaseException):
    """Raised in the main thread when a command takes too long."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, its exit code, and the processor time and memory that it took."""

    code: int | None
    out: str
    err: str
    cpu_s: float
    taken_bytes: int = 0

    @property
    def sentence(self) -> str:
        """The error, without the notes before it."""
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def ask(arguments: Sequence[str]) -> Answer:
    """Run one command; its exit code is ``None`` where it was still running after the limit."""
    out, err = StringIO(), StringIO()
    _forget_peak()
    held_bytes, started_s = _peak_bytes(), time.process_time()
    code: int | None
    try:
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            _limited(LONGEST_WAIT_S),
        ):
            code = run_with(list(arguments))
    except Hang:
        code = None
    spent_s, taken_bytes = time.process_time() - started_s, _peak_bytes() - held_bytes
    return Answer(code, out.getvalue(), err.getvalue(), spent_s, taken_bytes)


def why_wrong(answer: Answer, before: object = None, after: object = None) -> Outcome:
    """Say in which way an answer is not one of the contract's; ``None`` if it is one.

    Parameters
    ----------
    answer
        What came.
    before, after
        Hashes of all that a refusal must not change.
    """
    text = answer.out + answer.err
    if answer.code is None or answer.cpu_s > LONGEST_TRY_S:
        return f"took {answer.cpu_s:.1f} s, exit code {answer.code}"
    if answer.code not in EXIT_CODES:
        return f"exit code {answer.code}"
    if "Unexpected" in answer.err or "Traceback" in text:
        return f"not a sentence: {answer.sentence[:300]!r}"
    if any(not (letter.isprintable() or letter in "\n\r\t") for letter in answer.err):
        return f"control characters: {answer.err[:200]!r}"
    if answer.code not in (0, 5):
        if "Error: " not in answer.err and "Usage: " not in text:
            return f"no sentence: {text[:200]!r}"
        if len(answer.sentence) > _LONGEST_SENTENCE:
            return f"a sentence of {len(answer.sentence)} letters: {answer.sentence[:200]!r}"
        if before != after:
            return f"a refusal changed files: {answer.sentence[:200]!r}"
    if answer.taken_bytes + _OWN_BYTES > LARGEST_BYTES:
        return f"took {answer.taken_bytes / 2**20:.0f} MiB: {answer.sentence[:100]!r}"
    return None


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file under a folder; logs of open SQLite files are left out."""
    collect_garbage()
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def collect_garbage() -> None:
    """Close what nobody can reach any more, as databases that a command left open.

    What is imported is never garbage, and searching it takes a tenth of a second.
    """
    gc.collect()
    if len(sys.modules) > _modules[0]:
        _modules[0] = len(sys.modules)
        gc.freeze()


_modules = [0]


def _peak_bytes() -> int:
    """Return the largest memory of this process since `_forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak() -> None:
    """Begin to measure memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Work in a folder, without a storage in the environment."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(os.environ):
            os.environ.pop("PHAZE_STORAGE", None)
            yield
    finally:
        os.chdir(before)


def is_strict_json(text: str) -> bool:
    """Whether a text is JSON, without NaN and infinities."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
