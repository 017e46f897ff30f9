"""Trace a module with AOTAutograd into its forward and backward ATen graphs, without memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import aot_function, default_partition
from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Trace:
    """The two graphs of one module and what their placeholders are.

    Attributes
    ----------
    forward, backward
        Graphs of ATen operators; each node's ``meta["val"]`` is its fake tensor. The outputs of the
        forward are the module's results, then what autograd saves; a saved value has the same name
        in both graphs. The backward returns a gradient (or None) per forward placeholder.
    constants
        Names of forward placeholders that are parameters or buffers: held by the model, not by a
        microbatch.
    inputs
        Names of forward placeholders that are the microbatch's.
    results
        Number of results of the module.
    """

    forward: fx.Graph
    backward: fx.Graph
    constants: frozenset[str]
    inputs: tuple[str, ...]
    results: int


def trace(module: nn.Module, inputs: Sequence[Tensor]) -> Trace:
    """Trace one training step's forward and backward of a module.

    Parameters
    ----------
    module
        On the meta device, in training mode.
    inputs
        Positional inputs on the meta device; a gradient is wanted for those that require one.
    """
    held: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = list(held)
    graphs: list[fx.Graph] = []
    forward_outputs = 0

    def function(tensors: Sequence[Tensor], arguments: Sequence[Tensor]) -> Any:
        state = dict(zip(names, tensors, strict=True))
        return torch.func.functional_call(module, state, tuple(arguments))

    def partition(joint: fx.GraphModule, joint_inputs: Any, **options: Any) -> Any:
        nonlocal forward_outputs
        forward_outputs = options["num_fwd_outputs"]
        pair = default_partition(joint, joint_inputs, **options)
        graphs.extend(part.graph for part in pair)
        return pair

    def keep(part: fx.GraphModule, example_inputs: Any) -> fx.GraphModule:
        return part

    aot_function(function, keep, keep, partition_fn=partition)(list(held.values()), list(inputs))
    placeholders = [node.name for node in graphs[0].find_nodes(op="placeholder")]
    return Trace(
        forward=graphs[0],
        backward=graphs[1],
        constants=frozenset(placeholders[: len(names)]),
        inputs=tuple(placeholders[len(names) :]),
        results=forward_outputs,
    )
