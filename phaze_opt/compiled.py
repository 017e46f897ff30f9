"""Compilation of loops with numba, for all rooms.

Compiled code is kept on disk, so that only the first run on a machine compiles. Where no cache
folder can be written, every process compiles anew. Floating-point operations keep their order, so
that results do not depend on the machine.

Most of the compiled functions take sums and extremes of arrays in loops of their own: with NumPy's,
the compiled code of numba imports SciPy's linear algebra, which takes longer than all the rest.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from phaze_opt.code_library import with_machine_code
from phaze_opt.on_demand import cached_property
from phaze_opt.stored_code import StoredCode

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=type)

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
        Types of the result and of the parameters, in numba's notation; of named tuples see
        `compiled_as`.
    allocates
        Whether the function makes arrays. If not, numba does not count references to arrays, which
        otherwise costs atomic operations at every call and for every row of an array.
    **options
        Further options of `numba.njit`; `NO_NAN` as its ``fastmath`` keeps every result.
    """

    def decorate(function: F) -> F:
        _renamed(function)
        own = {"no_cfunc_wrapper": True, **options}
        deferred = _Callable(lambda: _load(function, signature, allocates, own))
        _lazily_compiled.append(deferred)
        return cast(F, deferred)

    return decorate


def compiled_as(types: str) -> Callable[[R], R]:
    """Let compiled functions take a named tuple, by whose name signatures call it.

    Parameters
    ----------
    types
        Of its fields, in numba's notation.
    """

    def register(record: R) -> R:
        _records[record.__name__] = record, types
        return record

    return register


def load_all() -> None:
    """Load all lazily compiled functions of the modules that are imported."""
    load(*_lazily_compiled)


def load(*functions: Callable[..., Any]) -> None:
    """Load some lazily compiled functions."""
    for function in functions:
        cast(_Callable, function).load()


def callee(signature: str, *, allocates: bool = True) -> Callable[[F], F]:
    """Compile a function that only compiled functions call; see `lazily_compiled`."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    def decorate(function: F) -> F:
        _renamed(function)
        return cast(F, _LazilyCompiled(lambda: _load(function, signature, allocates, options)))

    return decorate


def inlined(function: F) -> F:
    """Compile a function into each compiled function that calls it; it may make no arrays.

    Called from elsewhere it is plain Python, which may be given arrays instead of numbers.
    """
    return cast(F, _Inlined(function))


class _LazilyCompiled:
    """A function that numba compiles when a caller is compiled."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def _dispatcher(self) -> Any:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        # Numba asks for `_numba_type_` where a function that it compiles calls this one.
        return getattr(self._dispatcher, name)


class _Inlined(_LazilyCompiled):
    """A function that is plain Python where nobody compiles it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(lambda: _njit(function, forceinline=True, _nrt=False))
        self._plain = function

    def __call__(self, *arguments: Any) -> Any:
        return self._plain(*arguments)


class _Callable(_LazilyCompiled):
    """A function that is compiled when it is called."""

    def load(self) -> None:
        """Load the function now."""
        _ = self._called

    @cached_property
    def _called(self) -> Any:
        return _with_machine_code(self._dispatcher)

    def __call__(self, *arguments: Any) -> Any:
        return self._called(*arguments)


_lazily_compiled: list[_Callable] = []
_records: dict[str, tuple[type, str]] = {}


def _load(function: Callable[..., Any], signature: str, allocates: bool, options: Any) -> Any:
    """Compile a function with numba, or read its compiled code from disk."""
    dispatcher = _njit(function, _nrt=allocates, **options)
    dispatcher._cache = StoredCode(function)
    with dispatcher._cache.libraries(dispatcher.targetctx):
        dispatcher.compile(_read_types(signature))
    dispatcher.disable_compile()
    return dispatcher


def _with_machine_code(dispatcher: Any) -> Any:
    """Return a function that Python can call; what was made for that is stored."""
    (compiled,) = dispatcher.overloads.values()
    with dispatcher._cache.libraries(dispatcher.targetctx):
        called = with_machine_code(compiled, dispatcher.targetctx)
    if called is compiled:
        return dispatcher
    dispatcher._cache.save_overload(compiled.signature, called)
    caller = _njit(dispatcher.py_func)
    caller.add_overload(called)
    caller.disable_compile()
    return caller


def _read_types(text: str) -> Any:
    """Read numba's notation of types, in which named tuples stand by their names."""
    types: Any = importlib.import_module("numba.core.types")
    records = {name: _record_type(name) for name in _records if name in text}
    return eval(text, vars(types) | records)


@cache
def _record_type(name: str) -> Any:
    """Return the type of a named tuple."""
    types: Any = importlib.import_module("numba.core.types")
    record, fields = _records[name]
    return types.BaseTuple.from_types(_read_types(f"({fields},)"), record)


def _njit(function: Callable[..., Any], **options: Any) -> Any:
    """Hand a function to numba, which is imported only now."""
    import numba

    return numba.njit(**options)(function)


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
    own = Path(__file__).read_bytes()
    return hashlib.blake2b(b"".join([own, *compiling, *data]), digest_size=6).hexdigest()
