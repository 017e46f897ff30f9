"""Compiled code on disk: whatever is damaged, or may be another's, is compiled anew."""

from __future__ import annotations

import importlib
import itertools
import logging
import multiprocessing
import os
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phaze_opt import stored_code

KERNEL = """
from phaze_opt.compiled import lazily_compiled
@lazily_compiled("i8(i8)", allocates=False)
def doubled(number):
    return 2 * number
@lazily_compiled("i8(i8)", allocates=False)
def tripled(number):
    return 3 * number
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """Write a room with two compiled functions that are stored; the user's cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    made = tmp_path / "stored_room"
    made.mkdir()
    (made / "__init__.py").touch()
    (made / "kernel.py").write_text(KERNEL)
    assert answers() == (2, 0)
    return made


def answers() -> tuple[int, int]:
    """Ask both functions as a new process would: how many were compiled, and lines said."""
    for name in [name for name in sys.modules if name.startswith("stored_room")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    stored_code._said.clear()
    kernel: Any = importlib.import_module("stored_room.kernel")
    assert (kernel.doubled(21), kernel.tripled(14)) == (42, 42)
    compiled = sum(
        sum(function.stats.cache_misses.values()) for function in (kernel.doubled, kernel.tripled)
    )
    return compiled, len(stored_code._said)


def stored(folder: Path) -> list[Path]:
    """Return the files with compiled code."""
    return sorted(folder.glob("*.nbc"))


def test_what_is_stored_is_read(room: Path) -> None:
    """Without a word, by every later process; no part of a file is left over."""
    assert answers() == (0, 0)
    assert len(stored(room / "__pycache__")) == 2
    assert not [path for path in (room / "__pycache__").iterdir() if ".nbc." in path.name]


def test_machine_code_waits_for_a_call_from_python(room: Path) -> None:
    """What only a compiled function has called is stored as bitcode, and as both once called."""
    (room / "chain.py").write_text("""
from phaze_opt.compiled import lazily_compiled
@lazily_compiled("f8[::1](f8[::1], i8)")
def doubled(values, times):
    if times < 0:
        raise ValueError("times is negative")
    return values * 2.0**times
@lazily_compiled("f8(f8[::1])")
def total(values):
    return doubled(values, 2)[0]
""")

    def loaded() -> Any:
        sys.modules.pop("stored_room.chain", None)
        return importlib.import_module("stored_room.chain")

    def has_machine_code(function: Any) -> bool:
        (compiled,) = function.overloads.values()
        return bool(compiled.library.is_called)

    values = numpy.array([1.5])
    assert loaded().total(values) == 6.0  # compiles both, and Python calls one
    first = loaded()
    assert has_machine_code(first.total) and not has_machine_code(first.doubled)
    assert first.doubled(values, 1).tolist() == [3.0]
    second = loaded()
    assert has_machine_code(second.doubled)
    assert second.doubled(values, 1).tolist() == [3.0]
    with pytest.raises(ValueError, match="times is negative"):
        second.doubled(values, -1)
    hits = (function.stats.cache_hits for function in (first.doubled, second.doubled))
    assert [sum(each.values()) for each in hits] == [1, 1]


def flip(content: bytes) -> bytes:
    """Flip a bit of the machine code."""
    return (
        content[: len(content) // 2]
        + bytes([content[len(content) // 2] ^ 8])
        + content[len(content) // 2 + 1 :]
    )


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: b"",
    "cut": lambda content: content[:-1],
    "cut in the header": lambda content: content[:20],
    "longer": lambda content: content + b"x",
    "a bit": flip,
    "no header": lambda content: content[49:],
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_anew(
    room: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """Which one line says, however many files; afterwards all is as before."""
    for path in stored(room / "__pycache__"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert answers() == (2, 1)
    (said,) = caplog.messages
    assert said == f"Compiling anew: the compiled code in {room / '__pycache__'} is damaged."
    assert answers() == (0, 0)


def test_the_code_of_another_function_is_not_taken(room: Path) -> None:
    """A file under another name is sound, but not what it is taken for."""
    first, second = stored(room / "__pycache__")
    shutil.copy(first, second)
    assert answers() == (1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder, path: folder.chmod(0o775),
        lambda folder, path: folder.chmod(0o777),
        lambda folder, path: path.chmod(0o666),
        lambda folder, path: os.chown(folder, 12345, 12345),
        lambda folder, path: os.chown(path, 12345, 12345),
    ],
    ids=["group", "all", "file", "owner", "owner of the file"],
)
def test_what_others_may_write_is_not_read(
    room: Path, change: Callable[[Path, Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A file is code: it is compiled anew, into the user's cache if the folder is no good."""
    folder = room / "__pycache__"
    path = stored(folder)[0]
    if os.geteuid() != 0:
        change = lambda folder, path: folder.chmod(0o777)  # noqa: E731
    change(folder, path)
    compiled, lines = answers()
    assert compiled >= 1 and lines == 1
    assert "may be written by others" in caplog.messages[-1]
    assert answers() == (0, 0)


def unreadable(path: Path) -> None:
    """Put a folder where the file was."""
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    """Put a pipe where the file was, which nobody writes."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [Path.unlink, unreadable, pipe])
def test_what_is_no_file_is_absent(room: Path, change: Callable[[Path], None]) -> None:
    """Nothing is waited for, and nothing is said of what is only missing."""
    change(stored(room / "__pycache__")[0])
    assert answers() == (1, 0)
    assert answers() == (0, 0)


def test_without_a_folder_beside_the_source(room: Path) -> None:
    """The user's cache is next; where that cannot be written either, every process compiles."""
    shutil.rmtree(room / "__pycache__")
    (room / "__pycache__").touch()
    cache = room.parent / "cache"
    assert (answers(), answers()) == ((2, 0), (0, 0))
    assert all(path.stat().st_mode & 0o022 == 0 for path in cache.rglob("*"))
    shutil.rmtree(cache)
    cache.touch()
    assert (answers(), answers()) == ((2, 0), (2, 0))


def test_a_chosen_folder_is_first(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``NUMBA_CACHE_DIR``, as numba itself has it."""
    chosen = room.parent / "chosen"
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(chosen))
    assert answers() == (0, 0)  # what lies beside the source is as good
    shutil.rmtree(room / "__pycache__")
    assert answers() == (2, 0)
    assert len(list(chosen.rglob("*.nbc"))) == 2
    assert answers() == (0, 0)


def test_a_person_is_told_of_compiling(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, before the first function is compiled, on a terminal or in a notebook only."""
    for looked_on, process in itertools.product(("", "terminal", "notebook"), ("1", "2")):
        shutil.rmtree(room / "__pycache__")
        stored_code._announced.clear()
        with monkeypatch.context() as patch:
            patch.setattr(multiprocessing.current_process(), "_name", f"SpawnProcess-{process}")
            if looked_on == "terminal":
                patch.setattr(sys.stderr, "isatty", lambda: True)
            if looked_on == "notebook":
                patch.setattr(sys, "ps1", "In : ", raising=False)
            assert (answers(), answers()) == ((2, 0), (0, 0))
        lines = capsys.readouterr().err.splitlines()
        assert lines == [stored_code._COMPILING] * (looked_on != "" and process == "1")


def ask_at_once(folder: str, barrier: Any, found: Any) -> None:
    """Compile in a process of its own, at the same moment as others."""
    sys.path.insert(0, folder)
    barrier.wait()
    found.put(answers())


def test_processes_that_compile_at_once(room: Path) -> None:
    """Each gets the answer, and one whole file for each function is left."""
    shutil.rmtree(room / "__pycache__")
    context = multiprocessing.get_context("fork")
    barrier, found = context.Barrier(3), context.Queue()
    asked = (str(room.parent), barrier, found)
    processes = [context.Process(target=ask_at_once, args=asked) for _ in range(3)]
    for process in processes:
        process.start()
    assert all(found.get(timeout=60)[1] == 0 for _ in processes)
    for process in processes:
        process.join()
    assert len(list((room / "__pycache__").glob("*.nbc*"))) == 2
    assert answers() == (0, 0)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_byte_goes_unseen(room: Path, data: st.DataObject) -> None:
    """Whatever the place: the hash stands for all of the content, and for itself."""
    path = stored(room / "__pycache__")[0]
    kernel: Any = importlib.import_module("stored_room.kernel")
    code = stored_code.StoredCode(kernel.doubled.py_func)
    content = path.read_bytes()
    assert code._read(path) is not None
    place = data.draw(st.integers(0, len(content) - 1))
    changed = content[place] ^ data.draw(st.integers(1, 255))
    path.write_bytes(content[:place] + bytes([changed]) + content[place + 1 :])
    assert code._read(path) is None
    path.write_bytes(content)


def test_another_numba_compiles_anew(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its private classes are not known: nothing is read or written, which is said once."""
    files = stored(room / "__pycache__")
    monkeypatch.setattr(numba, "__version__", "0.99.0")
    assert answers() == (2, 1)
    assert stored_code._said == ["is kept with numba 0.68 only, and this is 0.99.0"]
    assert len(files) == 2 and stored(room / "__pycache__") == files


def test_the_numba_that_is_known_is_the_one_that_is_installed() -> None:
    """The sentence, the dependency and the lock file name one version."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    (asked,) = (line for line in project["dependencies"] if line.startswith("numba"))
    assert asked.startswith(f"numba>={stored_code._NUMBA},<")
    assert f"numba=={stored_code._NUMBA}." in (root / "requirements.lock").read_text("utf-8")
