"""Compile loops with numba: the one place that does.

Compiled code is kept on disk, so that only the first run on a machine pays for it; where no cache
folder can be written it is compiled anew in every process. Floating-point operations keep their
order: results do not depend on the machine.
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
    """Compile for one signature, or read what was compiled.

    Parameters
    ----------
    signature
        In numba's notation.
    allocates
        Whether the function makes arrays. If not, numba does not count references to arrays, which
        it otherwise does with atomic operations at every call and every row taken.
    **options
        Further options of `numba.njit`.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}_{_digest(_room(function))}"
        try:
            result: F = _njit(signature, cache=True, _nrt=allocates, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            result = _njit(signature, _nrt=allocates, **options)(function)
        return result

    return decorate


def callee(signature: str) -> Callable[[F], F]:
    """Compile a function that only compiled ones call."""
    return compiled(signature, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined(function: F) -> F:
    """Compile a function into each compiled one that calls it; it may make no arrays."""
    result: F = _njit(forceinline=True, _nrt=False)(function)
    return result


def _room(function: Callable[..., Any]) -> Path:
    """Return the folder of the file that defines a function."""
    return Path(function.__code__.co_filename).parent


@cache
def _digest(room: Path) -> str:
    """Hash all files of a room that compiled code may depend on.

    Numba's cache notices a change of the file that holds a function, but not of the files whose
    functions it calls or whose numbers it holds. So the name under which a function is stored
    depends on all of them.
    """
    compiling = [
        text
        for path in sorted(room.glob("*.py"))
        if b"phaze_opt.compiled" in (text := path.read_bytes())
    ]
    data = [path.read_bytes() for path in sorted(room.glob("data/*.toml"))]
    own = Path(__file__).read_bytes()
    return hashlib.blake2b(b"".join([own, *compiling, *data]), digest_size=6).hexdigest()
