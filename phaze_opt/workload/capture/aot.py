"""Trace a module with AOTAutograd into its forward and backward ATen graphs, without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from functorch.compile import aot_function, default_partition
from torch import Tensor, fx, nn
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from phaze_opt.errors import InputError


@dataclass(frozen=True)
class Trace:
    """The two graphs of one module and what their placeholders are.

    Attributes
    ----------
    forward, backward
        Graphs of ATen operators; each node's ``meta["val"]`` is its fake tensor. The outputs of the
        forward are the module's results, then the tensors that autograd saves; a saved tensor has
        one name in both graphs. The backward returns a gradient (or None) per forward placeholder.
    held
        By forward placeholder: the name of a parameter or buffer. The other placeholders are inputs
        of the microbatch.
    results
        Number of results of the module.
    """

    forward: fx.Graph
    backward: fx.Graph
    held: Mapping[str, str]
    results: int

    def without_backward(self) -> Trace:
        """Return the forward of a module that is not trained, which keeps nothing."""
        (output,) = self.forward.find_nodes(op="output")
        (values, *_) = output.args
        output.args = (tuple(values)[: self.results],)
        backward = fx.Graph()
        backward.output(())
        return replace(self, backward=backward)


class _Traced(Exception):
    """Ends tracing when both graphs are there, so that nothing is compiled or run."""


def _unreached(part: fx.GraphModule, example_inputs: Any) -> fx.GraphModule:
    """Stand for the compiler, which is not reached because tracing ends before it."""
    return part


def trace(module: nn.Module, inputs: Sequence[Tensor]) -> Trace:
    """Trace one training step's forward and backward of a module.

    Parameters
    ----------
    module
        Module on the meta device, in training mode.
    inputs
        Positional inputs on the meta device; each that requires a gradient gets one.
    """
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return trace_function(partial(torch.func.functional_call, module), held, inputs)


def trace_function(
    function: Callable[[dict[str, Tensor], tuple[Tensor, ...]], Any],
    held: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
) -> Trace:
    """Trace a function of a model's tensors and of a microbatch.

    Parameters
    ----------
    function
        Called once with fake tensors like ``held`` and ``inputs``.
    held
        Parameters and buffers by name.
    inputs
        Tensors of the microbatch.

    Raises
    ------
    InputError
        If no result depends on a tensor that requires a gradient.
    """
    graphs: list[fx.Graph] = []
    results = 0

    def call(tensors: Sequence[Tensor], arguments: Sequence[Tensor]) -> Any:
        return function(dict(zip(held, tensors, strict=True)), tuple(arguments))

    def split_joint_graph(joint: fx.GraphModule, joint_inputs: Any, **options: Any) -> Any:
        nonlocal results
        results = options["num_fwd_outputs"]
        pair = default_partition(joint, joint_inputs, **options)
        graphs.extend(part.graph for part in pair)
        raise _Traced

    # Nobody runs the graphs: they need not be written as code, a tenth of the work.
    with suppress(_Traced), _use_lazy_graph_module(True):
        aot_function(call, _unreached, partition_fn=split_joint_graph)(
            list(held.values()), list(inputs)
        )
    if not graphs:
        raise InputError("The module has no result that depends on a parameter being trained.")
    placeholders = [node.name for node in graphs[0].find_nodes(op="placeholder")]
    return Trace(
        forward=graphs[0],
        backward=graphs[1],
        held=dict(zip(placeholders, held, strict=False)),
        results=results,
    )
