"""Register operators that exist only as shapes: capture runs on meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def shape_only(name: str, fake: Callable[..., Any]) -> Any:
    """Register an operator under the namespace ``phaze`` and return its callable.

    Parameters
    ----------
    name
        Of the operator.
    fake
        Returns empty results of the right shapes; there is no arithmetic.
    """
    operator: Any = torch.library.custom_op(f"phaze::{name}", fake, mutates_args=())
    operator.register_fake(fake)
    return operator


def apply(function: Any, *arguments: Any) -> Any:
    """Apply an autograd function (whose ``apply`` has no types)."""
    return function.apply(*arguments)
