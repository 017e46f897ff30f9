"""Compile functions with numba, once per installation where its cache can be written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit

MODEL_DATA = resources.files("phaze_opt.hardware").joinpath("data/tensor_core.toml")
"""Constants that are compiled into the model of products."""

# Numba's cache notices a change of the file that holds a function, but not of the files whose
# functions it calls or whose numbers it holds. So the name under which it is stored depends on all
# of them.
_SOURCES = [*sorted(Path(__file__).parent.glob("gemm_*.py")), MODEL_DATA]
_DIGEST = hashlib.blake2b(b"".join(path.read_bytes() for path in _SOURCES), digest_size=6)


def compiled(signature: str, **options: bool | str) -> Callable[[F], F]:
    """Compile for one signature, so that nothing is compiled twice, or read what was compiled.

    Floating-point operations keep their order: results do not depend on the machine.

    Parameters
    ----------
    signature
        In numba's notation.
    **options
        Further options of `numba.njit`.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}_{_DIGEST.hexdigest()}"
        try:
            result: F = _njit(signature, cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            result = _njit(signature, **options)(function)
        return result

    return decorate


def inner(signature: str) -> Callable[[F], F]:
    """Compile a function that only compiled ones call."""
    return compiled(signature, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inline(function: F) -> F:
    """Copy a function into every compiled one that calls it."""
    result: F = _njit(inline="always")(function)
    return result
