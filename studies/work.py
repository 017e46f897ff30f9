"""The parts of a run: each answer is kept in a file, with the seconds that it took."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from phaze_opt.child_processes import begin_in_process
from phaze_opt.codec import from_builtins, from_json, to_builtins, to_json, write_whole
from phaze_opt.errors import InputError
from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.spec.frozen import content_hash
from phaze_opt.store.opening import open_storage
from phaze_opt.store.storage import Storage

Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(frozen=True)
class _Kept:
    """The file of a part; an answer belongs to a question and to a version of the cost model."""

    question: str
    cost_model: str
    cpu_s: float
    wall_s: float
    answer: Any


@dataclass(frozen=True)
class _Line:
    """A part in a file of many."""

    part: str
    kept: _Kept


@dataclass
class _Open:
    """A part that is being computed.

    Attributes
    ----------
    began_s
        In seconds since 1970.
    earlier_s
        Processor seconds of the parts that it is made of and that were kept before it began.
    """

    began_s: float
    earlier_s: float = 0.0


@dataclass
class Work:
    """Where a run keeps what it has done.

    Attributes
    ----------
    folder
        Holds the database and a file for each part.
    workers
        Processes that search a space.
    tell
        Called with a line when a part begins and when it is done.
    cpu_s
        Processor seconds of every part that was asked for, as they were when it was done, with
        those of the parts that it is made of.
    """

    folder: Path
    workers: int = 2
    tell: Callable[[str], None] = print
    cpu_s: dict[str, float] = field(default_factory=dict)
    _open: list[_Open] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "parts").mkdir(parents=True, exist_ok=True)
        self.storage: Storage = open_storage(f"sqlite:///{self.folder / 'studies.db'}", create=True)

    def answer(
        self, part: str, question: object, kind: type[Answer], compute: Callable[[], Answer]
    ) -> Answer:
        """Return the answer of a part, which is computed unless it is kept.

        Parameters
        ----------
        part
            Its name, of which its file is named.
        question
            All that decides the answer, as dataclasses or plain data.
        kind
            Dataclass of the answer.
        compute
            Finds it.
        """
        kept = self._kept(part, question)
        if kept is None:
            self.tell(f"{part} …")
            cpu_s, began_s = _cpu_s(), time.monotonic()
            self._open.append(_Open(time.time()))
            try:
                computed = compute()
            finally:
                earlier_s = self._open.pop().earlier_s
            spent_s, wall_s = _cpu_s() - cpu_s + earlier_s, time.monotonic() - began_s
            if self._open:
                self._open[-1].earlier_s += earlier_s
            plain = to_builtins(computed)
            kept = _Kept(_asked(question), COST_MODEL_VERSION, spent_s, wall_s, plain)
            write_whole(self._path(part), to_json(kept))
            self.tell(f"{part}: {spent_s:.0f} s of a processor in {wall_s:.0f} s")
        elif self._open and self._path(part).stat().st_mtime < self._open[-1].began_s:
            self._open[-1].earlier_s += kept.cpu_s
        self.cpu_s[part] = kept.cpu_s
        return from_builtins(kept.answer, kind, f"answer of {part}")

    def has(self, part: str, question: object) -> bool:
        """Whether the answer of a part is kept."""
        return self._kept(part, question) is not None

    def take_in(self, path: Path) -> None:
        """Keep the answers of a file that `write_all` wrote, where none of this program is kept.

        Parameters
        ----------
        path
            Taken as empty where it is not there.

        Raises
        ------
        InputError
            If a line is no answer; nothing is kept then.
        """
        texts = path.read_bytes().splitlines() if path.exists() else []
        lines = [
            from_json(text, _Line, f"{path}, line {number}") for number, text in enumerate(texts, 1)
        ]
        for line in lines:
            known = _read(self._path(line.part))
            if known is None or known.cost_model != COST_MODEL_VERSION:
                write_whole(self._path(line.part), to_json(line.kept))

    def write_all(self, path: Path, steps: tuple[str, ...] = ()) -> None:
        """Write all answers of this version of the cost model into one file, a line for each.

        Without those that are a step to others, which may take megabytes.

        Parameters
        ----------
        path
            Replaced.
        steps
            How the names of such answers begin.
        """
        parts = (each.stem for each in (self.folder / "parts").glob("*.json"))
        names = sorted(each for each in parts if not each.startswith(steps))
        every = [(name, _read(self._path(name))) for name in names]
        lines = [
            to_json(_Line(name, kept))
            for name, kept in every
            if kept is not None and kept.cost_model == COST_MODEL_VERSION
        ]
        write_whole(path, b"".join(line + b"\n" for line in lines))

    def spent_s(self, checks: bool, steps: tuple[str, ...] = ()) -> float:
        """Return the processor seconds of all kept answers, or of all checks of certificates.

        Of this version of the cost model.

        Parameters
        ----------
        checks
            Whether of the checks.
        steps
            How the names of parts begin that others are made of, and have the seconds of.
        """
        every = (self.folder / "parts").glob("*.json")
        own = [each for each in every if not each.name.startswith(steps)]
        kept = [_read(each) for each in own if each.name.startswith("check-") == checks]
        return sum(each.cpu_s for each in kept if each and each.cost_model == COST_MODEL_VERSION)

    def _kept(self, part: str, question: object) -> _Kept | None:
        """Return what is kept for a question of this program, if anything is."""
        kept = _read(self._path(part))
        return kept if kept is not None and kept.question == _asked(question) else None

    def _path(self, part: str) -> Path:
        return self.folder / "parts" / f"{part}.json"

    def in_processes(
        self, compute: Callable[[Work, Item], Answer], items: Iterable[Item]
    ) -> list[Answer]:
        """Return what a function makes of every item, each in a fresh process of the run.

        Parameters
        ----------
        compute
            Of a module; called with a run of one process in the same folder.
        items
            To be pickled, as the results are.
        """
        if self.workers == 1:
            return [compute(self, item) for item in items]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            self.workers, spawn, initializer=begin_in_process, max_tasks_per_child=1
        ) as pool:
            return list(pool.map(partial(_there, self.folder, compute), items))


def _there(folder: Path, compute: Callable[[Work, Item], Answer], item: Item) -> Answer:
    """Compute in a process of its own."""
    return compute(Work(folder, workers=1), item)


def _asked(question: object) -> str:
    """Return what tells a question from others, and from that of another cost model."""
    return content_hash([to_builtins(question), COST_MODEL_VERSION])


def _read(path: Path) -> _Kept | None:
    """Return what is kept; nothing where a file is missing or of another program."""
    try:
        return from_json(path.read_bytes(), _Kept, str(path))
    except (FileNotFoundError, InputError):
        return None


def _cpu_s() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)
