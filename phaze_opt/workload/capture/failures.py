"""Why a module cannot be captured, as one sentence: the user's own line, the reason, a way on.

A captured workload is a static graph: the operators and the sizes of a training step, without the
values. Code whose work hangs on values has none, and PyTorch then stops inside an operator of its
own, far from the line that asked for it.
"""

from __future__ import annotations

import linecache
import logging
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.aten import UnknownProductError, is_unknown_product

_OWN = Path(__file__).parents[2]
_TORCH = Path(torch.__file__).parent
_LIBRARY, _PACKAGES = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))

_SIZES = (
    "the size of its result depends on values, and a static graph has fixed sizes",
    "compute all elements and mask them with torch.where or a product, or take a fixed number with "
    'torch.topk; the plan of a mixture of experts says which module they are, {"blocks.*.experts": '
    '"experts"}, and replaces it',
)
_VALUES = (
    "it reads a value of a tensor, and a static graph has no values",
    "choose between tensors with torch.where, or let the factory choose by a Python number",
)
_FOURIER = (
    "a Fourier transform has no bf16 and is no product that tensor cores run",
    "multiply by a constant matrix of sines and cosines, or use a convolution",
)
_PRODUCTS = (
    "its matrix products have sizes that capture does not know",
    "write them with torch.matmul, torch.einsum or torch.nn.Linear",
)
_NUMBERS = (
    "training is captured in bf16, which this operator does not take",
    "write it with products and elementwise operators, or prepare its result as an input",
)

_POINTWISE = (
    "this mode of associative_scan is for compiled kernels only",
    'leave combine_mode out, or say combine_mode="generic"',
)

_ENDING = (
    "it ends the program",
    "raise an error where something is wrong, and else return the module and its inputs",
)

_REASONS = (
    ("SystemExit", _ENDING),
    ("combine_mode='pointwise'", _POINTWISE),
    ("_fft_", _FOURIER),
    ("fft", _FOURIER),
    ("_local_scalar_dense", _VALUES),
    ("DataDependentOutput", _VALUES),
    ("GuardOnDataDependent", _VALUES),
    (".numpy()", _VALUES),
    ("DynamicOutputShape", _SIZES),
    ("nonzero", _SIZES),
    ("products that capture cannot size", _PRODUCTS),
    ("ow precision dtypes", _NUMBERS),
    ("BFloat16", _NUMBERS),
)
"""By a part of an error's text or of the line that raised it: the reason, and what to write."""


@contextmanager
def one_sentence(problem: str, hint: str = "") -> Iterator[None]:
    """Turn any exception of the user's code into one sentence; Ctrl-C stays what it is.

    Parameters
    ----------
    problem
        The clause that says what failed.
    hint
        What to look at where the reason is not one that is known.
    """
    loud = logging.getLogger("torch._subclasses.fake_tensor")
    level = loud.level
    loud.setLevel(logging.CRITICAL)  # PyTorch prints a traceback of its own
    try:
        yield
    except UnknownProductError as error:
        raise InputError(_sentence(problem, error, hint)) from error
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(_sentence(problem, error, hint)) from error
    finally:
        loud.setLevel(level)


def _sentence(problem: str, error: BaseException, hint: str) -> str:
    """Return what failed, at which line of the user, why, and what to write instead."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].rstrip('.') if lines else 'no message'}"
    place, source = _users_line(error.__traceback__)
    where = f" at {place} (`{source}`)" if place else ""
    for part, (reason, instead) in _REASONS:
        if part in text or (part == "fft" and part in source):
            return f"{problem}{where}: {reason} ({text}); {instead}."
    return f"{problem}{where}: {text}{hint}."


def _users_line(traceback: TracebackType | None) -> tuple[str, str]:
    """Return the innermost line outside PyTorch, the standard library and this package."""
    place, source = "", ""
    while traceback is not None:
        name, number = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        if _is_users(name):
            line = linecache.getline(name, number).strip()
            place, source = f"{Path(name).name}:{number}", line
        traceback = traceback.tb_next
    return place, source


def _is_users(name: str) -> bool:
    """Say whether a file holds code of the user, or of a library that the user chose."""
    path = Path(name)
    if name.startswith("<") or any(path.is_relative_to(folder) for folder in (_OWN, _TORCH)):
        return False
    return path.is_relative_to(_PACKAGES) or not path.is_relative_to(_LIBRARY)


class _StopAtUnknownProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where an operator runs whose products cannot be sized, under the line calling it."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        if is_unknown_product(function._schema.name):
            raise UnknownProductError(function._schema.name)
        return function(*arguments, **(keywords or {}))


@contextmanager
def unknown_products_located(run: Callable[[], object]) -> Iterator[None]:
    """Raise an operator's error under the user's line, by running the forward once more.

    A traced operator no longer knows the line that called it.
    """
    try:
        yield
    except UnknownProductError:
        with _StopAtUnknownProducts():  # type: ignore[no-untyped-call]
            run()
        raise
