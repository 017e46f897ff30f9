"""Trace a layer that occurs many times only where its surroundings differ.

The trace of a deep model takes time with every layer, though most of its layers are alike. So a
module is traced twice with most of its calls *closed*: a closed call is one operator, with the
inputs and results of the layer and nothing inside. The first trace has every call closed whose
layer, inputs and options have been seen before, and shows which parts of the model have the same
surroundings. The second has one call of each kind open, with its neighbours, and those give the
kinds their operators. Where an open call then exchanges other tensors with other parts than it did
closed (a layer that hands an input through, or does not read one), nothing is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from phaze_opt.workload.capture.tensor_parallel import apply

FEWEST_CALLS = 12
"""Models with fewer calls of layers are traced whole: that takes less time than two traces."""

MOST_OPENED = 0.5
"""Models of which a larger share must be open are traced whole, for the same reason."""

_SIMPLE = (int, float, str, bool, type(None), torch.dtype, torch.Size, torch.device)
_BOOKKEEPING = frozenset(vars(nn.Module())) - {"training"}


@dataclass(frozen=True)
class _Meta:
    """What a result of a layer looks like."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool


_CallResults = tuple[tuple[Any, ...], Any]
"""The results of a call, for the calls like it: leaves (a `_Meta` or a value), and structure."""

_results_of: list[_CallResults] = []
"""What the closed calls of the running trace return, by the number that their operators have."""

_operators: Any = torch.library.Library("phaze", "FRAGMENT")  # type: ignore[no-untyped-call]
_operators.define("closed_layer(Tensor[] inputs, int number) -> Tensor[]")
_operators.define("closed_layer_backward(Tensor[] gradients, Tensor[] inputs) -> Tensor[]")


def _closed_layer(inputs: Sequence[Tensor], number: int) -> list[Tensor]:
    """Return results like those of a layer."""
    return [
        inputs[0].new_empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
        for meta in _results_of[number][0]
        if isinstance(meta, _Meta)
    ]


def _closed_layer_backward(gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients of inputs."""
    return [torch.empty_like(tensor) for tensor in inputs]


_operators.impl("closed_layer", _closed_layer, "Meta")
_operators.impl("closed_layer_backward", _closed_layer_backward, "Meta")


class _Closed(torch.autograd.Function):
    """A layer as one operator in each direction."""

    @staticmethod
    def forward(ctx: Any, number: int, *inputs: Tensor) -> Any:
        """Return the results of a closed call."""
        ctx.save_for_backward(*inputs)
        results = tuple(torch.ops.phaze.closed_layer(inputs, number))
        metas = [leaf for leaf in _results_of[number][0] if isinstance(leaf, _Meta)]
        pairs = zip(results, metas, strict=True)
        ctx.mark_non_differentiable(*(result for result, meta in pairs if not meta.differentiable))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients of the inputs that need one."""
        wanted = ctx.needs_input_grad[1:]
        given = [gradient for gradient in gradients if gradient is not None]
        inputs = [tensor for tensor, has in zip(ctx.saved_tensors, wanted, strict=True) if has]
        input_gradients = iter(torch.ops.phaze.closed_layer_backward(given, inputs))
        return None, *(next(input_gradients) if has else None for has in wanted)


class Repeats:
    """Closes calls of layers that have been seen before.

    Attributes
    ----------
    closed
        Names of the layers whose calls were closed in the last run, by the place of the call among
        all calls of layers.
    traced
        Names of the layers of which a call was traced.
    alike
        By the place of a call: a number that calls with the same layer, inputs and options share.
    """

    def __init__(self, opened: Collection[int] | None = None) -> None:
        """Choose the calls to trace.

        Parameters
        ----------
        opened
            Places of calls that are traced; ``None`` for those that have not been seen before.
        """
        self.closed: dict[int, str] = {}
        self.traced: set[str] = set()
        self.alike: dict[int, int] = {}
        self._opened = opened
        self._seen: dict[Any, _CallResults | None] = {}
        self._numbers: dict[Any, int] = {}
        self._calls = self._depth = 0

    @contextmanager
    def closing(self, layers: Mapping[str, nn.Module]) -> Iterator[None]:
        """Close calls while a module runs."""
        self.closed, self.traced, self.alike = {}, set(), {}
        self._seen, self._numbers, self._calls = {}, {}, 0
        _results_of.clear()
        modules = {layer: name for name, layer in layers.items()}
        originals = [layer.forward for layer in modules]
        for (layer, name), original in zip(modules.items(), originals, strict=True):
            forward = self._closing(name, _signature(layer, original), layer, original)
            layer.forward = forward
        try:
            yield
        finally:
            for layer, original in zip(modules, originals, strict=True):
                if "forward" in vars(layer):
                    del layer.forward
                if layer.forward != original:
                    layer.forward = original

    def _closing(
        self, name: str, signature: Any, layer: nn.Module, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the forward that traces a call or closes it."""

        def forward(*arguments: Any, **keywords: Any) -> Any:
            if self._depth:
                return original(*arguments, **keywords)
            place, self._calls = self._calls, self._calls + 1
            given, structure = pytree.tree_flatten((arguments, keywords))
            key = (signature, structure, _inputs_signature(given))
            self.alike[place] = self._numbers.setdefault(key, len(self._numbers))
            seen = self._seen.get(key)
            inputs = [tensor for tensor in given if isinstance(tensor, Tensor)]
            closes = self._opened is None or place not in self._opened
            if seen is not None and closes and any(tensor.requires_grad for tensor in inputs):
                self.closed[place] = name
                _results_of.append(seen)
                return _results(seen, apply(_Closed, len(_results_of) - 1, *inputs))
            self.traced.add(name)
            versions = [buffer._version for buffer in layer.buffers()]
            self._depth += 1
            try:
                result = original(*arguments, **keywords)
            finally:
                self._depth -= 1
            if key not in self._seen:
                changed = versions != [buffer._version for buffer in layer.buffers()]
                self._seen[key] = None if changed else _describe(result)
            return result

        return forward


def _describe(result: Any) -> _CallResults | None:
    """Return what closed calls return like this result; None where that is not known."""
    leaves, structure = pytree.tree_flatten(result)
    if not all(isinstance(leaf, (Tensor, *_SIMPLE)) for leaf in leaves):
        return None
    if not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
        return None
    described = (
        _Meta(leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, Tensor)
        else leaf
        for leaf in leaves
    )
    return tuple(described), structure


def _results(seen: _CallResults, tensors: Sequence[Tensor]) -> Any:
    """Put the tensors of a closed call in the places of the layer's results."""
    made = iter(tensors)
    described, structure = seen
    leaves = [next(made) if isinstance(leaf, _Meta) else leaf for leaf in described]
    return pytree.tree_unflatten(leaves, structure)


def _signature(layer: nn.Module, forward: Callable[..., Any]) -> Any:
    """Return what the work of a layer hangs on, beside its inputs.

    Plain attributes must be equal, and any others the same. A forward that a plan has set is told
    by its style.
    """
    state: list[Any] = []
    for name, module in layer.named_modules():
        tensors = (*module._parameters.items(), *module._buffers.items())
        state.append((name, type(module), tuple((key, _tensor(tensor)) for key, tensor in tensors)))
        attributes = dict(vars(module))
        own = forward if module is layer else attributes.get("forward")
        attributes["forward"] = None
        if not hasattr(module, "split_style") and not hasattr(own, "__func__"):
            attributes["forward"] = own  # not the forward of its class
        for key, value in attributes.items():
            if key not in _BOOKKEEPING and value is not None:
                state.append((key, _plain(value)))
    return tuple(state)


def _tensor(tensor: Tensor | None) -> Any:
    """Return what the work on a tensor hangs on."""
    if tensor is None:
        return None
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)


def _plain(value: Any) -> Any:
    """Return a value to compare others with."""
    if isinstance(value, tuple | list):
        return type(value), tuple(_plain(member) for member in value)
    if isinstance(value, _SIMPLE):
        return type(value), value
    if isinstance(value, dict) and not value:
        return dict
    return id(value)


def _inputs_signature(given: Sequence[Any]) -> Any:
    """Return what the work of a layer hangs on in its inputs, with tensors that are the same."""
    first = {id(value): place for place, value in reversed(list(enumerate(given)))}
    return tuple(
        (_tensor(value), first[id(value)]) if isinstance(value, Tensor) else _plain(value)
        for value in given
    )


def find_kinds(
    works: Sequence[Any], edges: Sequence[tuple[int, int, int]]
) -> tuple[tuple[int, ...], frozenset[int]]:
    """Sort parts into kinds: those with the same work and the same surroundings.

    Parameters
    ----------
    works
        By part, in order of execution: what is equal where two parts work alike.
    edges
        ``(source, destination, bytes)`` between parts.

    Returns
    -------
    By part, the first part of its kind; and these first parts with their neighbours.
    """
    number_of: dict[Any, int] = {}
    numbers = [number_of.setdefault(work, len(number_of)) for work in works]
    around: list[set[int]] = [{part - 1, part, part + 1} for part in range(len(works))]
    exchanged: list[list[tuple[int, ...]]] = [[] for _ in works]
    for source, destination, size in edges:
        around[source].add(destination)
        around[destination].add(source)
        exchanged[source].append((1, destination - source, numbers[destination], size))
        exchanged[destination].append((0, destination - source, numbers[source], size))
    places = range(len(works))
    first: dict[Any, int] = {}
    example = []
    for part in places:
        beside = tuple(numbers[near] if near in places else -1 for near in (part - 1, part + 1))
        kind = (numbers[part], beside, tuple(exchanged[part]))
        example.append(first.setdefault(kind, part))
    opened = frozenset(near for part in set(example) for near in around[part] if near in places)
    return tuple(example), opened
