"""Find the layers of a user's module, and mark in a trace which of them every operator is of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import traceback
from torch.utils import _pytree as pytree

from phaze_opt.workload.capture.tensor_parallel import apply

_TAG = "phaze_segment"


def find_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that are layers, by name.

    Members of the outermost ``ModuleList`` (or of a ``Sequential`` of equal blocks) are layers. A
    module without one is split at its top-level children, below wrappers with a single child.
    """
    layers: dict[str, nn.Module] = {}
    _collect_repeated(module, "", layers)
    if layers:
        return layers
    children = _called_children(module, "")
    while len(children) == 1:
        ((name, only),) = children.items()
        below = _called_children(only, f"{name}.")
        if not below:
            break
        children = below
    return children


def _called_children(module: nn.Module, prefix: str) -> dict[str, nn.Module]:
    """Return a module's children by name; those that only hold others are replaced by them."""
    children: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleDict):
            children |= _called_children(child, f"{prefix}{name}.")
        else:
            children[prefix + name] = child
    return children


def _collect_repeated(module: nn.Module, prefix: str, layers: dict[str, nn.Module]) -> None:
    """Add the members of outermost repeated containers."""
    for name, child in module.named_children():
        if _is_repeated(child):
            layers.update((f"{prefix}{name}.{i}", one) for i, one in child.named_children())
        else:
            _collect_repeated(child, f"{prefix}{name}.", layers)


def _is_repeated(module: nn.Module) -> bool:
    """Say whether a container holds layers of the model, each with parameters."""
    members = list(module.children())
    if not members or not all(any(True for _ in one.parameters()) for one in members):
        return False
    if isinstance(module, nn.Sequential):
        kinds = {type(one) for one in members}
        own = not next(iter(kinds)).__module__.startswith("torch.nn")
        return len(members) > 1 and len(kinds) == 1 and own
    return isinstance(module, nn.ModuleList)


class _Boundary(torch.autograd.Function):
    """The identity, visible in both directions of a trace as a view, which costs nothing.

    It keeps the sum of gradients inside a layer apart from the sum over the layers that read the
    same tensor.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Pass a tensor across a boundary."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Pass its gradient back."""
        return gradient.view_as(gradient)


def _cross(values: Any) -> Any:
    """Pass every tensor in nested values across a boundary."""

    def one(value: Any) -> Any:
        return apply(_Boundary, value) if isinstance(value, Tensor) else value

    return pytree.tree_map(one, values)


class Segments:
    """Numbers the stretches of a forward pass: a layer's call is odd, what lies between is even.

    Attributes
    ----------
    names
        By odd number: the name of the layer that was called.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._depth = 0
        self._tags = ExitStack()

    @contextmanager
    def marking(self, layers: dict[str, nn.Module]) -> Iterator[None]:
        """Mark every operator traced inside with the number of its stretch."""
        handles = []
        for name, layer in layers.items():
            handles.append(layer.register_forward_pre_hook(self._entering(name), with_kwargs=True))
            handles.append(layer.register_forward_hook(self._leaving, with_kwargs=True))
        self.names.clear()
        try:
            with traceback.preserve_node_meta(), self._tags:
                self._tag(0)
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _tag(self, number: int) -> None:
        """Mark what follows with a number."""
        self._tags.close()
        self._tags.enter_context(traceback.annotate({_TAG: number}))

    def _entering(self, name: str) -> Any:
        """Return the hook that runs before a layer."""

        def hook(module: nn.Module, arguments: Any, keywords: Any) -> Any:
            self._depth += 1
            if self._depth > 1:
                return None
            number = 2 * len(self.names) + 1
            self.names[number] = name
            self._tag(number)
            return _cross((arguments, keywords))

        return hook

    def _leaving(self, module: nn.Module, arguments: Any, keywords: Any, result: Any) -> Any:
        """Run after a layer."""
        self._depth -= 1
        if self._depth:
            return None
        crossed = _cross(result)
        self._tag(2 * len(self.names))
        return crossed


def segment_of(node: fx.Node) -> int:
    """Return the number that a forward node was marked with."""
    return int((node.meta.get("custom") or {}).get(_TAG, 0))


def is_gradient_sum(node: fx.Node) -> bool:
    """Say whether a backward node adds the gradients that several readers of a tensor return."""
    return bool(node.meta.get("is_gradient_acc", False))
