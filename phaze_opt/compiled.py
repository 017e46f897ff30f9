"""Compilation of loops with numba, for all rooms.

Compiled code is kept on disk, so that only the first run on a machine compiles; later ones link its
machine code without numba (`phaze_opt.machine_code`). Where no cache folder can be written, every
process compiles anew. Floating-point operations keep their order, so that results do not depend on
the machine.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from phaze_opt import machine_code

F = TypeVar("F", bound=Callable[..., Any])

NO_NAN = {"nnan", "nsz"}
"""Of a loop without NaN that takes minima or maxima: whatever their order, they are the same."""


def lazily_compiled(
    signature: str, *, allocates: bool = True, **options: object
) -> Callable[[F], F]:
    """Compile a function for one signature at its first call, or read its compiled code from disk.

    Where a time is measured, `load_all` or `load` comes before.

    Parameters
    ----------
    signature
        Types of the result and of the parameters, in numba's notation.
    allocates
        Whether the function makes arrays. If not, numba does not count references to arrays, which
        otherwise costs atomic operations at every call and for every row of an array.
    **options
        Further options of `numba.njit`; `NO_NAN` as its ``fastmath`` keeps every result.
    """

    def decorate(function: F) -> F:
        _renamed(function)
        deferred = _Callable(function, signature, allocates, options)
        _lazily_compiled.append(deferred)
        return cast(F, deferred)

    return decorate


def load_all() -> None:
    """Load all lazily compiled functions of the modules that are imported."""
    load(*_lazily_compiled)


def load(*functions: Callable[..., Any]) -> None:
    """Load some lazily compiled functions."""
    for function in functions:
        cast(_Callable, function).load()


def callee(signature: str) -> Callable[[F], F]:
    """Compile a function that only compiled functions call."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    def decorate(function: F) -> F:
        _renamed(function)
        return cast(F, _Deferred(lambda: _load(function, signature, True, options)))

    return decorate


def inlined(function: F) -> F:
    """Compile a function into each compiled function that calls it; it may make no arrays."""
    return cast(F, _Deferred(lambda: _njit()(forceinline=True, _nrt=False)(function)))


class _Deferred:
    """A function that numba compiles when a caller is compiled."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def _dispatcher(self) -> Any:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        # Numba asks for `_numba_type_` where a function that it compiles calls this one.
        return getattr(self._dispatcher, name)


class _Callable(_Deferred):
    """A function that is compiled, or whose machine code is linked, when it is called."""

    def __init__(
        self, function: Callable[..., Any], signature: str, allocates: bool, options: Any
    ) -> None:
        super().__init__(lambda: _load(function, signature, allocates, options))
        self.py_func = function
        self._signature = signature

    @cached_property
    def _run(self) -> Callable[..., Any]:
        path = _machine_code_path(self.py_func)
        name = self.py_func.__name__
        function = machine_code.linked(path, self.py_func.__module__, name)
        if function is None:
            function = self._dispatcher
            with suppress(Exception):  # numba has kept nothing, or keeps it in another way
                machine_code.write(_machine_code(function, self._signature), path)
        return function

    def load(self) -> None:
        """Load the function now."""
        _ = self._run

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)


_lazily_compiled: list[_Callable] = []


def _machine_code_path(function: Callable[..., Any]) -> Path:
    """Return the file for the machine code of a function."""
    source = Path(function.__code__.co_filename)
    name = f"{source.stem}.{function.__qualname__}.{sys.implementation.cache_tag}.machine"
    return source.parent / "__pycache__" / name


def _machine_code(dispatcher: Any, signature: str) -> machine_code.MachineCode:
    """Return the machine code of a function that numba has compiled and keeps on disk."""
    import llvmlite.binding as llvm

    (result,) = dispatcher.overloads.values()
    if result.reload_init:
        raise ValueError("The function needs something that numba loads before it.")
    kept = dispatcher._cache
    (_, _, (code, bitcode)), *_ = kept._cache_file.load(
        kept._index_key(signature, result.library.codegen)
    )
    module = llvm.parse_bitcode(bitcode)
    return machine_code.MachineCode(
        code=code,
        entry=result.fndesc.llvm_cpython_wrapper_name,
        environment=result.environment.env_name,
        constants=list(result.environment.consts),
        externals=[
            each.name
            for each in (*module.functions, *module.global_variables)
            if each.is_declaration and not each.name.startswith("llvm.")
        ],
        parameters=[_kind(kind) for kind in result.signature.args],
    )


def _kind(kind: Any) -> machine_code.Kind:
    """Return the kind of a parameter of one of numba's types."""
    if hasattr(kind, "layout"):
        return str(kind.dtype), kind.ndim, kind.layout == "C"
    if hasattr(kind, "types"):
        return [_kind(member) for member in kind]
    return None


def _load(function: Callable[..., Any], signature: str, allocates: bool, options: Any) -> Any:
    """Compile a function with numba, or read its compiled code from disk."""
    try:
        return _njit()(signature, cache=True, _nrt=allocates, **options)(function)
    except RuntimeError:  # numba can write neither the package's folder nor the user's cache
        return _njit()(signature, _nrt=allocates, **options)(function)


def _njit() -> Any:
    """Import numba's decorator."""
    import numba

    return numba.njit


def _renamed(function: F) -> F:
    """Give a function the name under which its compiled code is stored.

    At import, whenever it is compiled: the files are then those that the code came from.
    """
    function.__qualname__ = f"{function.__qualname__}_{_digest(_room(function))}"
    return function


def _room(function: Callable[..., Any]) -> Path:
    """Return the folder of the file that defines a function."""
    return Path(function.__code__.co_filename).parent


@cache
def _digest(room: Path) -> str:
    """Hash all files that the compiled code of a room may depend on.

    Numba's cache notices a change of the file that holds a function, but not of the files whose
    functions it calls or whose numbers it reads. So the name under which a function is stored
    contains this hash.
    """
    compiling = [
        text
        for path in sorted(room.glob("*.py"))
        if b"phaze_opt.compiled" in (text := path.read_bytes())
    ]
    data = [path.read_bytes() for path in sorted(room.glob("data/*.toml"))]
    own = [Path(path).read_bytes() for path in (__file__, machine_code.__file__)]
    return hashlib.blake2b(b"".join([*own, *compiling, *data]), digest_size=6).hexdigest()
