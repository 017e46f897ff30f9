"""Trace a module with AOTAutograd into its forward and backward ATen graphs, without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from functorch.compile import aot_function, default_partition
from torch import Tensor, fx, nn

from phaze_opt.errors import InputError


@dataclass(frozen=True)
class Trace:
    """The two graphs of one module and what their placeholders are.

    Attributes
    ----------
    forward, backward
        Graphs of ATen operators; each node's ``meta["val"]`` is its fake tensor. The outputs of the
        forward are the module's results, then what autograd saves; a saved value has the same name
        in both graphs. The backward returns a gradient (or None) per forward placeholder.
    held
        Parameter or buffer by forward placeholder; the other placeholders are the microbatch's.
    results
        Number of results of the module.
    """

    forward: fx.Graph
    backward: fx.Graph
    held: Mapping[str, str]
    results: int


class _Traced(Exception):
    """Ends tracing once both graphs are there: nothing shall be compiled or run."""


def _unreached(part: fx.GraphModule, example_inputs: Any) -> fx.GraphModule:
    """Compile a graph: not reached, as tracing ends before."""
    return part


def trace(module: nn.Module, inputs: Sequence[Tensor]) -> Trace:
    """Trace one training step's forward and backward of a module.

    Parameters
    ----------
    module
        On the meta device, in training mode.
    inputs
        Positional inputs on the meta device; a gradient is wanted for those that require one.
    """
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return trace_function(partial(torch.func.functional_call, module), held, inputs)


def trace_function(
    function: Callable[[dict[str, Tensor], tuple[Tensor, ...]], Any],
    held: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
) -> Trace:
    """Trace a function of what a model holds and of a microbatch.

    Parameters
    ----------
    function
        Called once with tensors like ``held`` and ``inputs``.
    held
        Parameters and buffers by name.
    inputs
        Of the microbatch.

    Raises
    ------
    InputError
        If no gradient is wanted for anything.
    """
    graphs: list[fx.Graph] = []
    results = 0

    def call(tensors: Sequence[Tensor], arguments: Sequence[Tensor]) -> Any:
        return function(dict(zip(held, tensors, strict=True)), tuple(arguments))

    def partition(joint: fx.GraphModule, joint_inputs: Any, **options: Any) -> Any:
        nonlocal results
        results = options["num_fwd_outputs"]
        pair = default_partition(joint, joint_inputs, **options)
        graphs.extend(part.graph for part in pair)
        raise _Traced

    with suppress(_Traced):
        aot_function(call, _unreached, partition_fn=partition)(list(held.values()), list(inputs))
    if not graphs:
        raise InputError("The module has no result that depends on a parameter being trained.")
    placeholders = [node.name for node in graphs[0].find_nodes(op="placeholder")]
    return Trace(
        forward=graphs[0],
        backward=graphs[1],
        held=dict(zip(placeholders, held, strict=False)),
        results=results,
    )
