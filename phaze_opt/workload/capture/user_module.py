"""Capture a user's own module: the only place that runs the user's code."""

from __future__ import annotations

import copy
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from phaze_opt.errors import InputError
from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.aot import trace_function
from phaze_opt.workload.capture.layer import Part, TracedModel
from phaze_opt.workload.capture.layer_cuts import Segments, cut_into_layers, find_layers
from phaze_opt.workload.capture.tensor_parallel import DTYPE
from phaze_opt.workload.graph import Layer, Workload, WorkloadVariant

Factory = Callable[[int], Any]
"""Makes a module and its inputs for a microbatch."""


def capture(
    model: str | Factory | nn.Module,
    inputs: Any = None,
    *,
    microbatch: Sequence[int] | None = None,
    sequence: int = 1,
) -> Workload:
    """Capture a module, or the module that a factory makes, on one device.

    A factory is called with the microbatch, on the meta device, and returns the module and its
    inputs: a tensor, a tuple of positional or a dict of keyword arguments. The first scalar among
    the module's results is the loss; without a scalar, every result gets a gradient. Parameters and
    inputs are taken as bf16; neither weights nor values of the inputs are read.

    Members of a ``ModuleList`` are layers, and the code before and after them makes a first and a
    last layer; any other module is split at its top-level children. Branches are kept (see
    `phaze_opt.workload.capture.layer_cuts`).

    Parameters
    ----------
    model
        A factory, or its name ``package.module:factory`` (the working directory is searched too);
        or a module, which stays as it is.
    inputs
        Inputs of a module, with one microbatch of samples.
    microbatch
        Microbatches to capture, in samples; 1 by default. A module needs the one of its inputs.
    sequence
        Tokens per sample, for reports per token.

    Returns
    -------
    Workload
        At the tensor-parallel width 1, named after the factory or the class of the module.

    Raises
    ------
    InputError
        If the factory cannot be imported, fails, or returns a module that cannot be traced.
    """
    sizes = [1] if microbatch is None else sorted(set(microbatch))
    if not sizes or min(sizes) < 1:
        raise InputError(f"The microbatches are {sizes}, but each must be at least 1.")
    if isinstance(model, nn.Module):
        if inputs is None or microbatch is None or len(sizes) > 1:
            raise InputError(
                "A module is captured with its inputs and their one microbatch, for example "
                "microbatch=(4,); several microbatches need a factory, which makes the module and "
                "the inputs of each."
            )
    elif inputs is not None:
        raise InputError("A factory makes the inputs itself; leave out inputs.")
    variants, parameters = [], 0
    with _working_directory_searched():
        name, make = _factory(model, inputs)
        for samples in sizes:
            module, given = _make(name, make, samples)
            parameters = sum(parameter.numel() for parameter in module.parameters())
            with _one_sentence(f"The module of {name} cannot be traced"):
                variants.append(_capture(module, given, samples))
    return Workload(name, sequence, parameters, tuple(variants))


def _factory(model: str | Factory | nn.Module, inputs: Any) -> tuple[str, Factory]:
    """Return the name of a model and what makes it for a microbatch."""
    if isinstance(model, nn.Module):
        name = type(model).__qualname__
        with _one_sentence(f"The module {name} cannot be copied"):
            copied = _without_weights(model)
        return name, lambda samples: (copied, inputs)
    if isinstance(model, str):
        return model, _import_factory(model)
    return f"{model.__module__}:{getattr(model, '__qualname__', type(model).__qualname__)}", model


def _without_weights(module: nn.Module) -> nn.Module:
    """Copy a module onto the meta device; tied weights stay tied."""
    memo: dict[int, Any] = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad)
        for one in module.parameters()
    }
    memo |= {id(one): torch.empty_like(one, device="meta") for one in module.buffers()}
    return copy.deepcopy(module, memo)


@contextmanager
def _working_directory_searched() -> Iterator[None]:
    """Let modules in the working directory be imported, as the interpreter does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def _one_sentence(problem: str) -> Iterator[None]:
    """Turn any exception of the user's code into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem}: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    """Return an exception's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.') if lines else 'no message'}"


def _import_factory(factory: str) -> Factory:
    """Import the factory that a string names."""
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"The factory is {factory!r}, but it must be package.module:factory.")
    with _one_sentence(f"{module_name} cannot be imported"):
        module = importlib.import_module(module_name)
    make = getattr(module, name, None)
    if not callable(make):
        raise InputError(f"{module_name} has no function {name!r}.")
    return cast(Factory, make)


def _make(factory: str, make: Factory, samples: int) -> tuple[nn.Module, Any]:
    """Call the factory on the meta device."""
    with _one_sentence(f"The factory {factory} failed"), torch.device("meta"):
        made = make(samples)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise InputError(f"The factory {factory} must return a module and its inputs.")
    module, inputs = made
    if not isinstance(inputs, tuple | list | dict | Tensor):
        raise InputError(
            f"The factory {factory} must return inputs as a tensor, a tuple or a dict, "
            f"but it returned a {type(inputs).__name__}."
        )
    _hold_plain_tensors(module)
    return module.train(), inputs


def _hold_plain_tensors(module: nn.Module) -> None:
    """Make buffers of tensors that are plain attributes (a mask), so that tracing replaces them."""
    for one in module.modules():
        for name, value in list(vars(one).items()):
            if isinstance(value, Tensor):
                delattr(one, name)
                one.register_buffer(name, value, persistent=False)


def _capture(module: nn.Module, inputs: Any, samples: int) -> WorkloadVariant:
    """Trace the whole module once and capture its layers at one microbatch."""
    segments = Segments()
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values, structure = pytree.tree_flatten(inputs)
    places = [place for place, value in enumerate(values) if isinstance(value, Tensor)]

    def run(tensors: dict[str, Tensor], arguments: tuple[Tensor, ...]) -> Any:
        filled = list(values)
        for place, argument in zip(places, arguments, strict=True):
            filled[place] = argument
        given = pytree.tree_unflatten(filled, structure)
        positional, keywords = _arguments(given)
        with segments.marking(find_layers(module)), _fused_attention():
            result = torch.func.functional_call(module, tensors, positional, keywords)
        return _trained_results(result)

    mode = FakeTensorMode()
    traced = trace_function(
        run,
        {name: _fake(mode, tensor) for name, tensor in held.items()},
        [_fake(mode, values[place]) for place in places],
    )
    model = TracedModel(traced)
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    return _variant(model, cut_into_layers(model, segments.names), sizes, samples)


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as positional and keyword arguments."""
    if isinstance(given, dict):
        return (), given
    return (given,) if isinstance(given, Tensor) else tuple(given), {}


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """Return a bf16 tensor without memory that claims to be on a CPU.

    On the meta device some losses have no gradient.
    """
    dtype = DTYPE if tensor.is_floating_point() else tensor.dtype
    with mode:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=dtype, requires_grad=tensor.requires_grad
        )


def _trained_results(result: Any) -> list[Tensor]:
    """Return the loss, or all results that depend on a parameter."""
    tensors = [one for one in pytree.tree_leaves(result) if isinstance(one, Tensor)]
    trained = [one for one in tensors if one.requires_grad]
    losses = [one for one in trained if one.numel() == 1]
    return losses[:1] or trained


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Trace ``scaled_dot_product_attention`` as one fused kernel on every device.

    A mask that is learned gets its gradient from scores in memory, so it is not fused.
    """
    original = functional.scaled_dot_product_attention

    def fused(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        learned = attn_mask is not None and attn_mask.requires_grad
        if learned or query.dim() != 4 or value.shape[-1] != query.shape[-1]:
            return original(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        q, k, v = (tensor.permute(2, 0, 1, 3) for tensor in (query, key, value))
        context, _ = kernels.flash_attention(q, k, v, attn_mask, dropout_p, is_causal, 0, False)
        return context.permute(1, 2, 0, 3)

    functional.scaled_dot_product_attention = fused
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        functional.scaled_dot_product_attention = original


def _variant(
    model: TracedModel, parts: Mapping[str, Part], sizes: Mapping[str, int], samples: int
) -> WorkloadVariant:
    """Return the distinct layers of the parts, and the place of each part in the model."""
    layers: list[Layer] = []
    nodes: list[tuple[str, int]] = []
    index_of: dict[Layer, int] = {}
    holdings = {
        name: _parameters(model, part.forward) & sizes.keys() for name, part in parts.items()
    }
    holders = Counter(one for held in holdings.values() for one in held)
    for name, part in parts.items():
        held = holdings[name]
        layer = model.layer(
            "",
            part,
            parameters=sum(sizes[one] for one in held),
            tied_parameters=sum(sizes[one] for one in held if holders[one] > 1),
        )
        if layer not in index_of:
            index_of[layer] = len(layers)
            layers.append(replace(layer, name=name))
        nodes.append((name, index_of[layer]))
    return WorkloadVariant(
        tensor_parallel=1,
        microbatch=samples,
        sequence_parallel=False,
        layers=tuple(layers),
        nodes=tuple(nodes),
        edges=_edges(model, list(parts.values())),
    )


def _parameters(model: TracedModel, nodes: Sequence[fx.Node]) -> set[str]:
    """Return the names of the parameters and buffers that some nodes read."""
    held = model.traced.held
    bases = (base for node in nodes for base in model.forward.operands(node))
    return {held[base.node] for base in bases if base.node in held}


def _edges(model: TracedModel, parts: Sequence[Part]) -> tuple[tuple[int, int, int], ...]:
    """Return the activations that parts hand to later ones."""
    outputs = [model.outputs(part) for part in parts]
    edges = []
    for destination, part in enumerate(parts):
        needed = model.inputs(part)
        for source in range(destination):
            size = sum(base.size_bytes for base in outputs[source] & needed)
            if size:
                edges.append((source, destination, size))
    return tuple(sorted(edges))
