"""Reading what numba has compiled from disk, without what only compiling needs.

Numba stores two forms of a function: machine code, and bitcode for functions that are compiled
later and call it. By itself it first declares everything that it can compile, which takes 0.15 s
and imports half of its modules, and then reads both forms and asks for every name in the second,
which takes as long as all else. Here both are left until something is compiled.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


def stored_code(function: Callable[..., Any]) -> Any:
    """Return numba's cache of a function, which reads machine code only."""
    caching: Any = importlib.import_module("numba.core.caching")
    runtime: Any = importlib.import_module("numba.core.runtime")
    stored = caching.FunctionCache(function)

    def read(signature: Any, context: Any) -> Any:
        runtime.rtsys.initialize(context)
        with stored._guard_against_spurious_io_errors(), _read_libraries(context.codegen()):
            return stored._load_overload(signature, context)

    stored.load_overload = read
    return stored


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
