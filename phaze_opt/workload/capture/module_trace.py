"""Trace a whole module once and capture its layers, on one device of a tensor-parallel group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from msgspec import UNSET
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from phaze_opt.workload.capture import kernels
from phaze_opt.workload.capture.aot import trace_function
from phaze_opt.workload.capture.failures import unknown_products_located
from phaze_opt.workload.capture.layer import LayerNodes, TracedModel
from phaze_opt.workload.capture.layer_cuts import Segments, cut_into_layers, find_layers
from phaze_opt.workload.capture.loops import scans_as_loops
from phaze_opt.workload.capture.own_experts import OwnExperts
from phaze_opt.workload.capture.parallel_plan import SplitModule
from phaze_opt.workload.capture.repeated_layers import (
    FEWEST_CALLS,
    MOST_OPENED,
    Repeats,
    find_kinds,
)
from phaze_opt.workload.capture.tensor_parallel import DTYPE
from phaze_opt.workload.capture.tokens import tokens_per_sample
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
    tokens_per_sample
        ``None`` where that is not clear; see `phaze_opt.workload.capture.tokens`.
    """

    variant: WorkloadVariant
    has_loss: bool
    tokens_per_sample: int | None


def capture_module(
    module: nn.Module, inputs: Any, samples: int, split: SplitModule | None = None
) -> ModuleCapture:
    """Trace a whole module and capture its layers at one microbatch.

    Parameters
    ----------
    module
        In training mode; its tensors are on the meta device.
    inputs
        A tensor, positional or keyword arguments, with one microbatch of ``samples``.
    split
        What made the module one device's share; ``None`` where it is whole.
    """
    tracer = _ModuleTracer(module, inputs, split)
    cut = _cut_deep(tracer) or tracer.cut()
    tensor_degree = split.group.tensor_degree if split else 1
    tokens = tokens_per_sample(tracer.segments.shapes, inputs, samples)
    return ModuleCapture(_variant(cut, samples, tensor_degree), tracer.has_loss, tokens)


def run_forward(module: nn.Module, inputs: Any) -> None:
    """Run a module's forward once, as it is traced; parameters as for `capture_module`."""
    _ModuleTracer(module, inputs, None).run_once()


@dataclass(frozen=True)
class _Cut:
    """A traced module, cut into layers.

    Attributes
    ----------
    names
        Of the parts, in order of execution.
    layers
        Of the parts, without a name.
    edges
        Activations between parts.
    segments
        Numbers of the segments that the parts were cut from.
    """

    names: tuple[str, ...]
    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int, int], ...]
    segments: tuple[int, ...]


class _ModuleTracer:
    """Traces a module, with all calls of layers open or some of them closed."""

    def __init__(self, module: nn.Module, inputs: Any, split: SplitModule | None) -> None:
        self.has_loss = False
        self.layers = find_layers(module)
        self._module, self._split = module, split
        self.segments = Segments()
        self._values, self._structure = pytree.tree_flatten(inputs)
        self._places = [i for i, value in enumerate(self._values) if isinstance(value, Tensor)]
        parameters = dict(module.named_parameters())
        names = {id(parameter): name for name, parameter in parameters.items()}
        self._sizes = {name: parameter.numel() for name, parameter in parameters.items()}
        self._frozen = frozenset(
            name for name, parameter in parameters.items() if not parameter.requires_grad
        )
        self._held = {
            name: frozenset(names[id(parameter)] for parameter in layer.parameters())
            for name, layer in self.layers.items()
        }
        aliases = Counter(
            id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)
        )
        self._shared = {
            name for name, parameter in parameters.items() if aliases[id(parameter)] > 1
        }
        held = {**parameters, **dict(module.named_buffers())}
        self._routed = {
            f"{name}.{key}"
            for name, part in module.named_modules()
            if isinstance(part, OwnExperts)
            for key, _ in part.routed
        }
        self._mode = FakeTensorMode()
        self._tensors = {name: _fake(self._mode, tensor) for name, tensor in held.items()}
        self._arguments = [_fake(self._mode, self._values[place]) for place in self._places]

    def cut(self, repeats: Repeats | None = None) -> _Cut:
        """Trace once and cut the trace into layers.

        Parameters
        ----------
        repeats
            What closes calls of layers; ``None`` where all are traced.
        """

        def run(tensors: dict[str, Tensor], arguments: tuple[Tensor, ...]) -> Any:
            return self._run(tensors, arguments, repeats)

        tensors = self._tensors
        if repeats:
            self.run_once(repeats)  # finds the calls that will be closed
            tensors = self._read_by(repeats.traced)
        model = TracedModel(trace_function(run, tensors, self._arguments))
        parts = cut_into_layers(model, self.segments.names)
        with unknown_products_located(partial(self.run_once, repeats)):
            closed = self._closed_segments(repeats)
            held = _held_by(model, parts, self._sizes, closed)
            reached = self._reached(held, _edges(model, list(parts.values())))
            layers = _layers(model, parts, self._sizes, self._frozen, self._routed, held, reached)
        return _Cut(
            names=tuple(parts),
            layers=layers,
            edges=_edges(model, list(parts.values())),
            segments=tuple(part.segment for part in parts.values()),
        )

    def run_once(self, repeats: Repeats | None = None) -> None:
        """Run the forward without a trace of it."""
        with self._mode:
            self._run(self._tensors, tuple(self._arguments), repeats)

    def _read_by(self, traced: Collection[str]) -> dict[str, Tensor]:
        """Return the tensors of some layers, and those that are of no layer or of several."""
        inside: set[str] = set()
        for name, layer in self.layers.items():
            if name not in traced:
                inside |= self._held[name] | {f"{name}.{key}" for key, _ in layer.named_buffers()}
        inside -= self._shared.union(*(self._held[name] for name in traced))
        return {name: tensor for name, tensor in self._tensors.items() if name not in inside}

    def _reached(
        self, holdings: Sequence[Set[str]], edges: Sequence[tuple[int, int, int]]
    ) -> list[bool]:
        """Say to which parts gradients come back: that are trained, or after one that is.

        To all of them where everything is trained, or the inputs need gradients.
        """
        if not self._frozen or any(argument.requires_grad for argument in self._arguments):
            return [True] * len(holdings)
        reached = [bool(held - self._frozen) for held in holdings]
        for source, destination, _ in sorted(edges, key=lambda edge: edge[1]):
            reached[destination] = reached[destination] or reached[source]
        return reached

    def _closed_segments(self, repeats: Repeats | None) -> dict[int, frozenset[str]]:
        """Return the parameters of closed calls by the number of their segment."""
        calls = repeats.closed if repeats else {}
        return {2 * place + 1: self._held[layer] for place, layer in calls.items()}

    def _run(
        self, tensors: dict[str, Tensor], arguments: tuple[Tensor, ...], repeats: Repeats | None
    ) -> Any:
        """Run the module's forward."""
        filled = list(self._values)
        for place, argument in zip(self._places, arguments, strict=True):
            filled[place] = argument
        positional, keywords = _arguments(pytree.tree_unflatten(filled, self._structure))
        with (
            self.segments.marking(self.layers),
            repeats.closing(self.layers) if repeats else nullcontext(),
            _whole_kernels(),
            scans_as_loops(),
            self._split.running() if self._split else nullcontext(),
        ):
            result = torch.func.functional_call(self._module, tensors, positional, keywords)
        trained = _trained_results(result)
        self.has_loss = len(trained) == 1 and trained[0].numel() == 1
        return trained


def _cut_deep(tracer: _ModuleTracer) -> _Cut | None:
    """Return a deep module cut into layers, most of them never traced; None where all must be."""
    if len(tracer.layers) < FEWEST_CALLS:
        return None
    repeats = Repeats()
    try:
        closed = tracer.cut(repeats)
        # Layers that look alike closed may work differently.
        alike = [repeats.alike[n // 2] if n % 2 else None for n in closed.segments]
        works = list(zip(closed.layers, alike, strict=True))
        example_of, to_open = find_kinds(works, closed.edges)
        if not repeats.closed or len(to_open) > MOST_OPENED * len(closed.layers):
            return None
        calls = {closed.segments[part] // 2 for part in to_open if closed.segments[part] % 2}
        opened = tracer.cut(Repeats(calls))
    except Exception:
        return None  # the whole trace says what is wrong
    if (opened.names, opened.edges) != (closed.names, closed.edges):
        return None
    examples = tuple(opened.layers[example] for example in example_of)
    for before, after in zip(closed.layers, examples, strict=True):
        if (before.parameters, before.tied_parameters) != (
            after.parameters,
            after.tied_parameters,
        ):
            return None
    return replace(opened, layers=examples)


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
    tensors = [tensor for tensor in pytree.tree_leaves(result) if isinstance(tensor, Tensor)]
    trained = [tensor for tensor in tensors if tensor.requires_grad]
    losses = [tensor for tensor in trained if tensor.numel() == 1]
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


def _held_by(
    model: TracedModel,
    parts: Mapping[str, LayerNodes],
    sizes: Mapping[str, int],
    closed: Mapping[int, frozenset[str]],
) -> list[Set[str]]:
    """Return the parameters that every part holds.

    Parameters
    ----------
    model, parts
        The traced module and what it was cut into.
    sizes
        Elements of every parameter.
    closed
        Parameters of the closed calls, which their operators do not read, by segment.
    """
    return [
        (_parameters(model, part.forward) & sizes.keys()) | closed.get(part.segment, frozenset())
        for part in parts.values()
    ]


def _layers(
    model: TracedModel,
    parts: Mapping[str, LayerNodes],
    sizes: Mapping[str, int],
    frozen: frozenset[str],
    routed: Set[str],
    holdings: Sequence[Set[str]],
    reached: Sequence[bool],
) -> tuple[Layer, ...]:
    """Return the layer of every part, without a name.

    Parameters
    ----------
    model, parts
        The traced module and what it was cut into.
    sizes
        Elements of every parameter.
    frozen, routed
        Parameters that are not trained, and those of routed experts.
    holdings
        The parameters of every part.
    reached
        Whether gradients come back to each.
    """
    holders = Counter(parameter for held in holdings for parameter in held)
    shared = {parameter for parameter, count in holders.items() if count > 1}

    def count(parameters: Set[str]) -> int:
        return sum(sizes[parameter] for parameter in parameters)

    return tuple(
        replace(
            model.layer("", part, count(held), count(held & shared), has_backward),
            routed_parameters=count(held & routed) or UNSET,
            frozen_parameters=count(held & frozen) or UNSET,
            frozen_tied_parameters=count(held & frozen & shared) or UNSET,
        )
        for part, held, has_backward in zip(parts.values(), holdings, reached, strict=True)
    )


def _variant(cut: _Cut, samples: int, tensor_degree: int) -> WorkloadVariant:
    """Return the distinct layers of the parts, and the place of each part in the model."""
    layers: list[Layer] = []
    nodes: list[tuple[str, int]] = []
    index_of: dict[Layer, int] = {}
    for name, layer in zip(cut.names, cut.layers, strict=True):
        if layer not in index_of:
            index_of[layer] = len(layers)
            layers.append(replace(layer, name=name))
        nodes.append((name, index_of[layer]))
    return WorkloadVariant(
        tensor_parallel=tensor_degree,
        microbatch=samples,
        sequence_parallel=False,
        layers=tuple(layers),
        nodes=tuple(nodes),
        edges=cut.edges,
    )


def _parameters(model: TracedModel, nodes: Sequence[fx.Node]) -> set[str]:
    """Return the names of the parameters and buffers that some nodes read."""
    held = model.traced.held
    bases = (base for node in nodes for base in model.forward.operands(node))
    return {held[base.node] for base in bases if base.node in held}


def _edges(model: TracedModel, parts: Sequence[LayerNodes]) -> tuple[tuple[int, int, int], ...]:
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
