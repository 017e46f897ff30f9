"""Compilation of loops with numba, for all rooms.

Compiled code is kept on disk, so that only the first run on a machine compiles. Where no cache
folder can be written, every process compiles anew. Floating-point operations keep their order, so
that results do not depend on the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit


def compiled(signature: str, *, allocates: bool = True, **options: bool) -> Callable[[F], F]:
    """Compile a function for one signature, or read its compiled code from disk.

    Parameters
    ----------
    signature
        Types of the result and of the parameters, in numba's notation.
    allocates
        Whether the function makes arrays. If not, numba does not count references to arrays, which
        otherwise costs atomic operations at every call and for every row of an array.
    **options
        Further options of `numba.njit`.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}_{_digest(_room(function))}"
        try:
            result: F = _njit(signature, cache=True, _nrt=allocates, **options)(function)
        except RuntimeError:  # numba can write neither the package's folder nor the user's cache
            result = _njit(signature, _nrt=allocates, **options)(function)
        return result

    return decorate


def callee(signature: str) -> Callable[[F], F]:
    """Compile a function that only compiled functions call."""
    return compiled(signature, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined(function: F) -> F:
    """Compile a function into each compiled function that calls it; it may make no arrays."""
    result: F = _njit(forceinline=True, _nrt=False)(function)
    return result


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
