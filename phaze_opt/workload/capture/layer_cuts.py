"""Find the layers of a user's module, mark them in a trace, and cut the trace into them.

A forward pass is a sequence of segments: each call of a layer is one, and so is the code between
two calls. Segments are numbered: a layer's call has an odd number, the code between an even one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import traceback
from torch.utils import _pytree as pytree

from phaze_opt.workload.capture.layer import LayerNodes, TracedModel
from phaze_opt.workload.capture.tensor_parallel import apply

Owners = dict[fx.Node, int]
"""By node: the number of the segment whose layer it is part of."""

_TAG = "phaze_segment"


def find_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that are layers, by name.

    The members of every outermost ``ModuleList`` (or ``Sequential`` of equal blocks) are layers. A
    module that has neither is split at its top-level children; a wrapper with a single child is
    looked into.
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
    """Return a module's children by name; a dictionary of modules is replaced by its members."""
    children: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleDict):
            children |= _called_children(child, f"{prefix}{name}.")
        else:
            children[prefix + name] = child
    return children


def _collect_repeated(module: nn.Module, prefix: str, layers: dict[str, nn.Module]) -> None:
    """Add the members of the outermost containers of repeated layers to ``layers``."""
    for name, child in module.named_children():
        if _is_repeated(child):
            layers.update((f"{prefix}{name}.{i}", layer) for i, layer in child.named_children())
        else:
            _collect_repeated(child, f"{prefix}{name}.", layers)


def _is_repeated(module: nn.Module) -> bool:
    """Say whether a module is a container of layers, each of which has parameters."""
    members = list(module.children())
    if not members or not all(any(True for _ in member.parameters()) for member in members):
        return False
    if isinstance(module, nn.Sequential):
        kinds = {type(member) for member in members}
        own = not next(iter(kinds)).__module__.startswith("torch.nn")
        return len(members) > 1 and len(kinds) == 1 and own
    return isinstance(module, nn.ModuleList)


class _Boundary(torch.autograd.Function):
    """The identity, which is a view in both directions of a trace and costs nothing.

    The gradients of a tensor's readers are summed before the boundary where these are in one layer,
    and after it where they are in several layers, so each sum belongs to one place.
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

    def crossed(value: Any) -> Any:
        return apply(_Boundary, value) if isinstance(value, Tensor) else value

    return pytree.tree_map(crossed, values)


class Segments:
    """Numbers the segments of a forward pass while it is traced.

    Attributes
    ----------
    names
        By odd number: the name of the layer that was called.
    shapes
        Of the first tensor of every such call.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.shapes: list[tuple[int, ...]] = []
        self._depth = 0
        self._tags = ExitStack()

    @contextmanager
    def marking(self, layers: dict[str, nn.Module]) -> Iterator[None]:
        """Mark every operator that is traced in this context with the number of its segment."""
        handles = []
        for name, layer in layers.items():
            handles.append(layer.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            handles.append(layer.register_forward_hook(self._leave, with_kwargs=True))
        self.names.clear()
        self.shapes.clear()
        try:
            with traceback.preserve_node_meta(), self._tags:
                self._tag(0)
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _tag(self, number: int) -> None:
        """Mark the operators that follow with a number."""
        self._tags.close()
        self._tags.enter_context(traceback.annotate({_TAG: number}))

    def _enter(self, name: str) -> Any:
        """Return the hook that runs before a layer."""

        def hook(module: nn.Module, arguments: Any, keywords: Any) -> Any:
            self._depth += 1
            if self._depth > 1:
                return None
            number = 2 * len(self.names) + 1
            self.names[number] = name
            self._tag(number)
            given = (leaf for leaf in pytree.tree_leaves((arguments, keywords)))
            self.shapes += [tuple(leaf.shape) for leaf in given if isinstance(leaf, Tensor)][:1]
            return _cross((arguments, keywords))

        return hook

    def _leave(self, module: nn.Module, arguments: Any, keywords: Any, result: Any) -> Any:
        """Run as the hook after a layer."""
        self._depth -= 1
        if self._depth:
            return None
        crossed = _cross(result)
        self._tag(2 * len(self.names))
        return crossed


def cut_into_layers(model: TracedModel, names: Mapping[int, str]) -> dict[str, LayerNodes]:
    """Return the parts of a model by name, in order of execution.

    An operator between two layers that reads parameters is of a part of its own: ``first`` before
    all layers, ``last`` after them. Without parameters it belongs to the layer whose result it
    continues (an activation, a loss); if it joins results of several layers, to the layer that
    reads it.

    Parameters
    ----------
    model
        Traced inside `Segments.marking`.
    names
        `Segments.names` of that trace.
    """
    owners = _forward_owners(model)
    owners |= _backward_owners(model, owners)
    forward: dict[int, list[fx.Node]] = {}
    backward: dict[int, list[fx.Node]] = {}
    for nodes, parts in ((model.forward.nodes, forward), (model.backward.nodes, backward)):
        for node in nodes:
            parts.setdefault(owners[node], []).append(node)
    titles = _titles(sorted(forward), names)
    return {titles[n]: LayerNodes(forward[n], backward.get(n, []), n) for n in sorted(forward)}


def _forward_owners(model: TracedModel) -> Owners:
    """Return the number of the segment that each forward node belongs to."""
    owners: Owners = {}
    undecided: dict[fx.Node, None] = {}
    for node in model.forward.order:
        if node.op != "call_function":
            continue
        segment = _segment_of(node)
        sources = {owners[source] for source in node.all_input_nodes if source in owners}
        waits = any(source in undecided for source in node.all_input_nodes)
        if segment % 2 or segment in sources or _reads_parameter(model, node):
            owners[node] = segment
        elif len(sources) == 1 and not waits:
            (owners[node],) = sources
        else:
            undecided[node] = None
    for node in reversed(undecided.keys()):
        readers = [owners[user] for user in node.users if user in owners]
        owners[node] = min(readers) if readers else _segment_of(node)
    return owners


def _reads_parameter(model: TracedModel, node: fx.Node) -> bool:
    """Say whether a node reads a parameter or buffer of the model."""
    return any(base.node in model.traced.held for base in model.forward.operands(node))


def _backward_owners(model: TracedModel, forward: Owners) -> Owners:
    """Return the number of each backward node: that of the forward node it differentiates.

    A sum of gradients belongs to the layer that made the summands. If these are of several layers,
    it belongs to the layer whose result they are gradients of.
    """
    by_number: dict[int, int] = {}
    for node, owner in forward.items():
        by_number.setdefault(node.meta["seq_nr"], owner)
    owners: Owners = {}
    calls = [node for node in model.backward.order if node.op == "call_function"]
    for node in calls:
        number = node.meta.get("seq_nr")
        if not _is_gradient_sum(node) and number in by_number:
            owners[node] = by_number[number]
            continue
        sources = {owners[source] for source in node.all_input_nodes if source in owners}
        if len(sources) == 1:
            (owners[node],) = sources
    for node in reversed(calls):
        if node not in owners:
            owners[node] = max((owners[user] for user in node.users if user in owners), default=0)
    return owners


def _titles(numbers: list[int], names: Mapping[int, str]) -> dict[int, str]:
    """Name the parts: a layer as in the module (its second call with ``#2``), others by place."""
    titles: dict[int, str] = {}
    calls: dict[str, int] = {}
    for number in numbers:
        if number in names:
            title = names[number]
        elif number == numbers[0]:
            title = "first"
        else:
            title = "last" if number == numbers[-1] else f"between.{number // 2}"
        calls[title] = calls.get(title, 0) + 1
        titles[number] = title if calls[title] == 1 else f"{title}#{calls[title]}"
    return titles


def _segment_of(node: fx.Node) -> int:
    """Return the number that a forward node was marked with."""
    return int((node.meta.get("custom") or {}).get(_TAG, 0))


def _is_gradient_sum(node: fx.Node) -> bool:
    """Say whether a backward node sums the gradients that several readers of a tensor return."""
    return bool(node.meta.get("is_gradient_acc", False))
