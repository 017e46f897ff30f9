"""Keeping on disk what numba has compiled, and reading it without what only compiling needs.

A file is code, and reading it is running it: a pickle, and machine code that nothing checks. So a
file begins with the hash of what follows, and is read only where none but its owner may write: this
user, the system, or who owns the source itself. Whatever is not so is compiled anew, which is said
once. That anything is compiled at all, where nothing is in doubt, one line tells a person who looks
on: it takes up to a minute, in silence otherwise. The name of a file has the hash of all that
decides its content. It is written whole, in the first folder that may be used, so that processes
which compile the same do not disturb one another.

Numba stores two forms of a function: machine code, and bitcode for functions that are compiled
later and call it. By itself it first declares everything that it can compile, which takes 0.15 s
and imports half of its modules, and then reads both forms and asks for every name in the second,
which takes as long as all else. Here both are left until something is compiled. That takes private
classes of numba, so it is done with the versions that they were read in (`_NUMBA`) only: with any
other one every process compiles anew, and says so.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import logging
import multiprocessing
import os
import pickle
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

_NUMBA = "0.68"
"""The versions of numba whose private classes are known here; pyproject.toml asks for them."""

_BEGIN = b"phaze-opt code 1\n"
_HASH_BYTES = 32
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_log = logging.getLogger(__name__)
_said: list[str] = []
"""The doubt that this process has put in words: others are of the same kind."""
_announced: list[str] = []
"""The line that told a person of compiling, once it has."""

_COMPILING = (
    "Compiling loops for this machine, once per installation: about a minute of processor time "
    "for all of them."
)


class StoredCode:
    """The stored forms of one function, by signature: what numba asks for as its cache.

    Parameters
    ----------
    function
        Its qualified name has to change with every file that its code depends on.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._source = Path(function.__code__.co_filename)
        self._doubt: str | None = None

    @property
    def cache_path(self) -> str:
        """The folder that is asked first."""
        return str(next(_folders(self._source), ""))

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what is stored for a signature; ``None`` where nothing is that may be used."""
        if not self._knows_numba():
            _announce_compiling()
            return None
        runtime: Any = importlib.import_module("numba.core.runtime")
        compiler: Any = importlib.import_module("numba.core.compiler")
        runtime.rtsys.initialize(context)
        name = self._name(signature, context.codegen())
        for folder in _folders(self._source):
            content = self._read(folder / name)
            if content is None:
                continue
            try:
                with _read_libraries(context.codegen()):
                    return compiler.CompileResult._rebuild(context, *pickle.loads(content))
            except Exception:
                self._doubt = f"in {folder} cannot be used"
        self._say_doubt()
        _announce_compiling()
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a function; where that is not possible, each process compiles anew."""
        if compiled.lifted or compiled.library.has_dynamic_globals or not self._knows_numba():
            return
        serialize: Any = importlib.import_module("numba.core.serialize")
        content = serialize.dumps(compiled._reduce())
        name = self._name(signature, compiled.codegen)
        for folder in _folders(self._source):
            with suppress(OSError):
                _make(folder)
                if self._is_trusted(folder.stat()):
                    _write(folder / name, _BEGIN + _hash(name, content) + content)
                    return

    def enable(self) -> None:
        """Do nothing: it is enabled."""

    def _knows_numba(self) -> bool:
        """Whether this version of numba is one whose private classes are known."""
        numba: Any = importlib.import_module("numba")
        if numba.__version__.startswith(f"{_NUMBA}."):
            return True
        self._doubt = f"is kept with numba {_NUMBA} only, and this is {numba.__version__}"
        self._say_doubt()
        return False

    def _say_doubt(self) -> None:
        """Say once why what is stored is not used."""
        if self._doubt is not None and not _said:
            _said.append(self._doubt)
            _log.warning("Compiling anew: the compiled code %s.", self._doubt)

    def _name(self, signature: Any, codegen: Any) -> str:
        """Return the name of the file of a signature on this machine."""
        numba: Any = importlib.import_module("numba")
        serialize: Any = importlib.import_module("numba.core.serialize")
        cells = self._function.__closure__
        key = (
            numba.__version__,
            str(signature),
            codegen.magic_tuple(),
            self._function.__code__.co_code,
            cells and serialize.dumps([cell.cell_contents for cell in cells]),
        )
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        name = f"{self._source.stem}.{self._function.__qualname__}".translate({60: None, 62: None})
        return f"{name}-{digest}.py{sys.version_info[0]}{sys.version_info[1]}.nbc"

    def _read(self, path: Path) -> bytes | None:
        """Return the content of a file that may be used, and remember why one may not be."""
        try:
            with _opened(path) as (file, status):
                if not (self._is_trusted(status) and self._is_trusted(path.parent.stat())):
                    self._doubt = f"in {path.parent} may be written by others (chmod go-w mends it)"
                    return None
                written = file.read()
        except OSError:
            return None
        content = written[len(_BEGIN) + _HASH_BYTES :]
        if written.startswith(_BEGIN + _hash(path.name, content)):
            return content
        self._doubt = f"in {path.parent} is damaged"
        return None

    def _is_trusted(self, status: os.stat_result) -> bool:
        """Whether only those may write a folder or file who may change what this process runs."""
        owners = (0, os.geteuid(), self._source.stat().st_uid)
        return status.st_uid in owners and not status.st_mode & _OTHERS_WRITE


def _announce_compiling() -> None:
    """Tell a person who looks on, once, and from one process of several that start together."""
    first = multiprocessing.current_process().name in ("MainProcess", "SpawnProcess-1")
    looked_on = hasattr(sys, "ps1") or (sys.stderr is not None and sys.stderr.isatty())
    if first and looked_on and not _announced:
        _announced.append(_COMPILING)
        print(_COMPILING, file=sys.stderr, flush=True)


def _folders(source: Path) -> Iterator[Path]:
    """Yield the folders for the code of a file: the chosen one, beside the source, the user's."""
    if not source.is_file():
        return
    config: Any = importlib.import_module("numba.core.config")
    room = f"{source.parent.name}_{hashlib.sha256(str(source.parent).encode()).hexdigest()[:40]}"
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR) / room
    yield source.parent / "__pycache__"
    from platformdirs import user_cache_path

    yield user_cache_path("phaze-opt") / "compiled" / room


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a regular file, and only such a one: a pipe may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file, status
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    """Make a folder, and those above it, that only this user may write."""
    if not folder.parent.exists():
        _make(folder.parent)
    folder.mkdir(mode=0o755, exist_ok=True)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole, under another name first."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        part.replace(path)
    except OSError:
        part.unlink()
        raise


def _hash(name: str, content: bytes) -> bytes:
    """Return the hash that stands before a content; with the name, as a file may be copied."""
    return hashlib.sha256(name.encode() + b"\n" + content).digest()


@contextmanager
def _read_libraries(codegen: Any) -> Iterator[None]:
    """Let numba put what it reads into libraries of `_stored_library`."""
    before = codegen._library_class
    codegen._library_class = _stored_library()
    try:
        yield
    finally:
        codegen._library_class = before


@cache
def _stored_library() -> type:
    """Make the kind of library, once numba is imported."""
    codegen: Any = importlib.import_module("numba.core.codegen")
    binding: Any = importlib.import_module("llvmlite.binding")

    class StoredLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
        """Machine code, and bitcode that may not have been read yet."""

        _machine_code = _bitcode = b""

        @classmethod
        def _unserialize(cls, codegen: Any, state: Any) -> Any:
            name, kind, data = state
            if kind != "object":
                return super()._unserialize(codegen, state)
            library = codegen.create_library(name)
            library._machine_code, library._bitcode = data
            library.enable_object_caching()
            library._set_compiled_object(library._machine_code)
            library._finalize_final_module()
            return library

        def _get_module_for_linking(self) -> Any:
            if self._bitcode:
                self._shared_module = binding.parse_bitcode(self._bitcode)
                self._bitcode = b""
            return super()._get_module_for_linking()

        def get_pointer_to_function(self, name: str) -> int:
            # Numba looks names up among those that it has read from bitcode.
            if name.encode() in self._machine_code:
                self._codegen._engine._defined_symbols.add(name)
            return int(super().get_pointer_to_function(name))

    return StoredLibrary
