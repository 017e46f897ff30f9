"""Typed access to numba: functions compiled once with an explicit signature and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(signature: str) -> Callable[[F], F]:
    """Return a decorator that compiles a function for exactly this signature.

    The machine code is cached beside the source (or in the user's cache folder), so only the first
    run ever pays for it. Floating-point operations keep their order: results do not depend on the
    machine.
    """

    def decorate(function: F) -> F:
        return cast(F, numba.njit(signature, cache=True, fastmath=False)(function))

    return decorate
