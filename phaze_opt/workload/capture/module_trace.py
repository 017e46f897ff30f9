"""Trace a whole module once and capture its layers, on one device of a tensor-parallel group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.aot import trace_function
from phaze_opt.workload.capture.failures import unknown_products_located
from phaze_opt.workload.capture.layer import Part, TracedModel
from phaze_opt.workload.capture.layer_cuts import Segments, cut_into_layers, find_layers
from phaze_opt.workload.capture.parallel_plan import SplitModule
from phaze_opt.workload.capture.tensor_parallel import DTYPE
from phaze_opt.workload.graph import Layer, WorkloadVariant


@dataclass(frozen=True)
class ModuleCapture:
    """A captured module.

    Attributes
    ----------
    variant
        Its layers.
    has_loss
        Whether a scalar is among the module's results.
    """

    variant: WorkloadVariant
    has_loss: bool


def capture_module(
    module: nn.Module, inputs: Any, samples: int, split: SplitModule | None = None
) -> ModuleCapture:
    """Trace a whole module once and capture its layers at one microbatch.

    Parameters
    ----------
    module
        In training mode; its tensors are on the meta device.
    inputs
        A tensor, positional or keyword arguments, with one microbatch of ``samples``.
    split
        What made the module one device's share; ``None`` where it is whole.
    """
    segments = Segments()
    has_loss = False
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values, structure = pytree.tree_flatten(inputs)
    places = [place for place, value in enumerate(values) if isinstance(value, Tensor)]

    def run(tensors: dict[str, Tensor], arguments: tuple[Tensor, ...]) -> Any:
        nonlocal has_loss
        filled = list(values)
        for place, argument in zip(places, arguments, strict=True):
            filled[place] = argument
        given = pytree.tree_unflatten(filled, structure)
        positional, keywords = _arguments(given)
        with (
            segments.marking(find_layers(module)),
            _whole_kernels(),
            split.running() if split else nullcontext(),
        ):
            result = torch.func.functional_call(module, tensors, positional, keywords)
        trained = _trained_results(result)
        has_loss = len(trained) == 1 and trained[0].numel() == 1
        return trained

    mode = FakeTensorMode()
    tensors = {name: _fake(mode, tensor) for name, tensor in held.items()}
    arguments = [_fake(mode, values[place]) for place in places]
    model = TracedModel(trace_function(run, tensors, arguments))
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    parts = cut_into_layers(model, segments.names)
    with unknown_products_located(lambda: run(tensors, tuple(arguments))):
        layers = _variant(model, parts, sizes, samples)
    width = split.group.width if split else 1
    return ModuleCapture(replace(layers, tensor_parallel=width), has_loss)


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
def _whole_kernels() -> Iterator[None]:
    """Trace what is one kernel on an accelerator as one, and recurrent layers as their products.

    The CPU that a module seems to be on would cut ``scaled_dot_product_attention`` and ``rms_norm``
    into operators, and has a kernel of its own for recurrent layers.
    """
    attention, norm = functional.scaled_dot_product_attention, functional.rms_norm
    recurrent = torch._C._get_mkldnn_enabled()
    functional.scaled_dot_product_attention = partial(_fused_attention, attention)
    functional.rms_norm = partial(_fused_norm, norm)
    torch._C._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(recurrent)
        functional.scaled_dot_product_attention, functional.rms_norm = attention, norm


def _fused_attention(
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend in one kernel.

    A mask that is learned gets its gradient from scores in memory, so it is not fused.
    """
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


def _fused_norm(
    original: Callable[..., Tensor],
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Normalise along the last dimension in one kernel."""
    if weight is None or len(normalized_shape) != 1:
        return original(input, normalized_shape, weight, eps)
    normed, _ = kernels.rms_norm(input, weight)
    return normed


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
