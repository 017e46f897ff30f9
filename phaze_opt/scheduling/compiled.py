"""Compile functions with numba, once per installation where its cache can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit


def compiled(signature: str, **options: bool) -> Callable[[F], F]:
    """Compile for one signature, so that nothing is compiled twice, or read what was compiled.

    Parameters
    ----------
    signature
        In numba's notation.
    **options
        Further options of `numba.njit`.
    """

    def decorate(function: F) -> F:
        try:
            result: F = _njit(signature, cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            result = _njit(signature, **options)(function)
        return result

    return decorate


def inner(signature: str) -> Callable[[F], F]:
    """Compile a function that only compiled ones call."""
    return compiled(signature, no_cpython_wrapper=True, no_cfunc_wrapper=True)
