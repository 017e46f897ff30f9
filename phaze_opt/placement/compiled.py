"""Typed access to numba: functions compiled once with an explicit signature and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])

_njit: Any = numba.njit


def compiled(signature: str) -> Callable[[F], F]:
    """Return a decorator that compiles a function for exactly this signature.

    The machine code is cached beside the source (or in the user's cache folder), so only the first
    run ever pays for it. Floating-point operations keep their order: results do not depend on the
    machine.
    """

    def decorate(function: F) -> F:
        result: F = _njit(signature, cache=True, fastmath=False)(function)
        return result

    return decorate


def inner(function: F) -> F:
    """Compile a function into those that call it, whenever they are compiled.

    It may allocate nothing: numba would count references to its arrays with atomic operations at
    every call.
    """
    result: F = _njit(forceinline=True, _nrt=False)(function)
    return result
