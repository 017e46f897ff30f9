"""PyTorch's ``scan`` and ``associative_scan`` in a user's module, traced as loops of their body.

Outside a compiler, PyTorch compiles each of them by itself, which a trace cannot enter. A ``scan``
becomes its steps, one after another, as recurrent layers are; an ``associative_scan`` becomes the
tree of its combinations, about two for every element, as its generic form runs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from phaze_opt.errors import InputError

MOST_STEPS = 1024
"""Steps of a scan that are traced: every one of them is an operator, or several, of the graph."""


@contextmanager
def scans_as_loops() -> Iterator[None]:
    """Trace scans as loops while this lasts."""
    scans: Any = importlib.import_module("torch._higher_order_ops.scan")
    trees: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
    run, tree = scans._maybe_compile_and_run_fn, trees.associative_scan
    defaults = tree.__defaults__
    scans._maybe_compile_and_run_fn = _steps
    # The default mode is for compiled kernels only, and asks for a GPU.
    tree.__defaults__ = tuple("generic" if each == "pointwise" else each for each in defaults)
    try:
        yield
    finally:
        scans._maybe_compile_and_run_fn = run
        tree.__defaults__ = defaults


def _steps(
    run: Callable[..., Any],
    combine: Callable[..., tuple[Any, Any]],
    initial: Sequence[Tensor],
    values: Sequence[Tensor],
) -> tuple[Any, Any]:
    """Run the steps of a scan along the first dimension.

    Parameters
    ----------
    run
        What would be compiled.
    combine
        Takes the leaves of what is carried and of one slice; returns what is carried on, and the
        result of the step.
    initial, values
        Leaves of what is carried into the first step, and of what is scanned.

    Raises
    ------
    InputError
        If there are too many steps.
    """
    steps = values[0].shape[0]
    if steps > MOST_STEPS:
        raise InputError(
            f"A scan has {steps} steps, but at most {MOST_STEPS} are captured; scan chunks of the "
            "sequence, or write the recurrence as an associative_scan."
        )
    carried: Any = list(initial)
    results = []
    for step in range(steps):
        leaves = pytree.tree_leaves(carried)
        carried, result = combine(*leaves, *(value.select(0, step) for value in values))
        results.append(result)
    return carried, pytree.tree_map(lambda *each: torch.stack(each), *results)
