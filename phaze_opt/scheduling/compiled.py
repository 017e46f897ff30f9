"""Compile functions with numba, once per installation where its cache can be written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit

# Numba's cache notices a change of the file that holds a function, but not of the files whose
# functions it calls, nor of how it is compiled. So the name under which it is stored depends on
# all of them.
_SOURCES = [Path(__file__), *sorted(Path(__file__).parent.glob("search_*.py"))]
_DIGEST = hashlib.blake2b(b"".join(path.read_bytes() for path in _SOURCES), digest_size=6)


def compiled(signature: str) -> Callable[[F], F]:
    """Compile for one signature, so that nothing is compiled twice, or read what was compiled.

    The function may allocate nothing: numba would count references to arrays with atomic
    operations at every call and every row taken, which doubled the time of the search.

    Parameters
    ----------
    signature
        In numba's notation.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}_{_DIGEST.hexdigest()}"
        try:
            result: F = _njit(signature, cache=True, _nrt=False)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            result = _njit(signature, _nrt=False)(function)
        return result

    return decorate


def inner(function: F) -> F:
    """Compile a function into those that call it, whenever they are compiled."""
    result: F = _njit(forceinline=True, _nrt=False)(function)
    return result
