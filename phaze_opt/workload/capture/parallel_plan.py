"""Split a user's own module over a tensor-parallel group, by a plan.

A plan gives a style to layers by name, as PyTorch's and Hugging Face's plans do: ``"colwise"`` (a
layer's outputs are split; what follows works on the device's share), ``"rowwise"`` (its inputs are
split; partial results are summed over the group), ``"colwise_gather_output"`` (outputs are split,
then gathered), ``"loss_parallel"`` (the last layer: outputs are split, and
`torch.nn.functional.cross_entropy` works on shares of the vocabulary) and ``"replicate"``. The
style ``"experts"`` names routed experts, which are replaced before anything else; each of them is
split (`phaze_opt.workload.capture.own_experts`). A ``*`` in a name stands for any letters between
two dots. What is not planned is whole on every device.

The module's own code runs with the shapes of one device, so a view names the size of a head and
writes -1 for their number, as for PyTorch's plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.errors import InputError, unknown_name
from phaze_opt.workload.capture.own_experts import EXPERTS_STYLE, OwnExperts, replace_experts
from phaze_opt.workload.capture.tensor_parallel import (
    TensorGroup,
    all_gather_columns,
    copy_to_group,
    sum_over_group,
    token_losses,
)
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant

_WHOLE_ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm")
"""Kinds of vector work that need every column of a row."""

Plan = Mapping[str, str]
"""Style by name of a layer."""

_SYNONYMS = {
    "colwise_rep": "colwise_gather_output",
    "replicated_with_grad_allreduce": "replicate",
}
_OUTPUTS_SPLIT = ("colwise", "colwise_gather_output", "loss_parallel")
_STYLES = (*_OUTPUTS_SPLIT, "rowwise", "replicate", "experts")
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
"""A part of a layer's name that counts layers."""


@dataclass(frozen=True)
class _Share:
    """One device's share of the weight of a layer, split along a dimension."""

    layer: str
    dimension: int
    whole: Tensor  # kept, so that no other weight takes its identity
    share: nn.Parameter


class SplitModule:
    """A module whose planned layers hold and compute one device's share."""

    def __init__(self, module: nn.Module, plan: Plan, tensor_degree: int) -> None:
        """Replace the weights and the forward of the planned layers.

        Parameters
        ----------
        module
            On the meta device; changed in place.
        plan
            Style by name of a layer, without experts; empty where there is nothing else to split.
        tensor_degree
            Devices of the group.

        Raises
        ------
        InputError
            If the plan names no layer, a style or kind of layer that cannot be split, a size that
            the tensor degree does not divide, or one of two layers that share a weight.
        """
        self.group = TensorGroup(tensor_degree)
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._loss_columns: set[int] = set()
        self._shares: dict[int, _Share] = {}
        for name, (layer, style) in (planned_layers(module, plan) if plan else {}).items():
            self._split(name, layer, style)
            layer.split_style = style  # type: ignore[assignment]
        for each in module.modules():
            if isinstance(each, OwnExperts):
                each.split(self.group)
        self._refuse_half_split(module)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the loss of split columns be computed over the group, while the module runs."""
        original, self._copies = functional.cross_entropy, {}
        computed = False

        def over_group(logits: Tensor, targets: Tensor, *rest: Any, **options: Any) -> Tensor:
            nonlocal computed
            if logits.shape[-1] not in self._loss_columns or targets.is_floating_point():
                return original(logits, targets, *rest, **options)
            computed = True
            losses = token_losses(logits, targets, self.group)
            return losses if options.get("reduction") == "none" else losses.mean()

        functional.cross_entropy = over_group  # type: ignore[assignment]
        try:
            yield
        finally:
            functional.cross_entropy = original
            self._copies = {}
        if self._loss_columns and not computed:
            raise InputError(
                "The plan has a loss_parallel layer, but torch.nn.functional.cross_entropy is not "
                "called with its columns as the last dimension; call it by that name, or plan the "
                "layer colwise_gather_output."
            )

    def _split(self, name: str, layer: nn.Module, style: str) -> None:
        """Give one layer the share of one device."""
        if isinstance(layer, nn.Embedding):
            self._split_embedding(name, layer, style)
            return
        assert isinstance(layer, nn.Linear)
        if style == "rowwise":
            layer.weight = self._share(name, "weight", layer.weight, 1, "inputs")
            layer.forward = self._rowwise(layer)  # type: ignore[method-assign]
            return
        layer.weight = self._share(name, "weight", layer.weight, 0, "outputs")
        if layer.bias is not None:
            layer.bias = self._share(name, "bias", layer.bias, 0, "outputs")
        if style == "loss_parallel":
            self._loss_columns.add(layer.weight.shape[0])
        layer.forward = self._colwise(layer, style)  # type: ignore[method-assign]

    def _split_embedding(self, name: str, layer: nn.Embedding, style: str) -> None:
        """Split the rows or the columns of a table."""
        if style == "rowwise":
            layer.weight = self._share(name, "weight", layer.weight, 0, "rows")
            layer.forward = self._rows_looked_up(layer)  # type: ignore[method-assign]
            return
        layer.weight = self._share(name, "weight", layer.weight, 1, "columns")
        layer.forward = self._columns_looked_up(layer, style)  # type: ignore[method-assign]

    def _share(
        self, name: str, kind: str, weight: Tensor, dimension: int, what: str
    ) -> nn.Parameter:
        """Return one device's share of a weight; a weight that is tied stays so."""
        known = self._shares.get(id(weight))
        if known is not None:
            if known.dimension != dimension:
                raise InputError(
                    f"The plan splits the weight that {known.layer} and {name} share along two "
                    "dimensions; the rows of an embedding go with the outputs of a layer."
                )
            return known.share
        shape, tensor_degree = list(weight.shape), self.group.tensor_degree
        if shape[dimension] % tensor_degree:
            multiple = 128 * tensor_degree
            padded = -(-shape[dimension] // multiple) * multiple
            raise InputError(
                f"The plan splits {name} over {tensor_degree} devices, but its {kind} of shape "
                f"{_shape(weight)} has {shape[dimension]} {what}, which is not a multiple of "
                f"{tensor_degree}; choose another tensor degree or pad it, for example to {padded}."
            )
        shape[dimension] //= tensor_degree
        empty = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        share = nn.Parameter(empty, weight.requires_grad)
        self._shares[id(weight)] = _Share(name, dimension, weight, share)
        return share

    def _refuse_half_split(self, module: nn.Module) -> None:
        """Refuse a weight that a planned layer shares with one that is not."""
        for name, parameter in module.named_parameters(remove_duplicate=False):
            known = self._shares.get(id(parameter))
            if known is not None:
                raise InputError(
                    f"The plan splits {known.layer} but not {name.rpartition('.')[0]}, which has "
                    f"the same weight of shape {_shape(parameter)}; plan both."
                )

    def _copied(self, x: Tensor) -> Tensor:
        """Return a tensor that all devices hold, whose gradient is summed over the group.

        Several layers that read it share the sum.
        """
        if id(x) not in self._copies:
            self._copies[id(x)] = (x, copy_to_group(x))
        return self._copies[id(x)][1]

    def _colwise(self, layer: nn.Linear, style: str) -> Any:
        def forward(x: Tensor) -> Tensor:
            local = functional.linear(self._copied(x), layer.weight, layer.bias)
            if style == "colwise_gather_output":
                return all_gather_columns(local, self.group.tensor_degree)
            return local

        return forward

    def _rowwise(self, layer: nn.Linear) -> Any:
        def forward(x: Tensor) -> Tensor:
            total = sum_over_group(functional.linear(x, layer.weight), self.group)
            return total if layer.bias is None else total + layer.bias

        return forward

    def _rows_looked_up(self, layer: nn.Embedding) -> Any:
        def forward(tokens: Tensor) -> Tensor:
            elsewhere = tokens >= layer.weight.shape[0]
            embedded = functional.embedding(tokens.masked_fill(elsewhere, 0), layer.weight)
            return sum_over_group(embedded.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.group)

        return forward

    def _columns_looked_up(self, layer: nn.Embedding, style: str) -> Any:
        def forward(tokens: Tensor) -> Tensor:
            embedded = functional.embedding(tokens, layer.weight)
            if style == "colwise_gather_output":
                return all_gather_columns(embedded, self.group.tensor_degree)
            return embedded

        return forward


def _shape(weight: Tensor) -> str:
    """Write the shape of a weight."""
    return " × ".join(map(str, weight.shape))


def planned_layers(module: nn.Module, plan: Plan) -> dict[str, tuple[nn.Module, str]]:
    """Return the layers that a plan splits, by name, each with its style.

    Raises
    ------
    InputError
        If the plan, or a name of it, names no layer, or a style or a kind of layer is none that can
        be split.
    """
    layers = dict(module.named_modules())
    if not plan:
        raise InputError(
            "The plan names no layer; leave it out, or name the layers to split, among them "
            f"{', '.join(sorted(_patterns(layers)))}."
        )
    planned: dict[str, tuple[nn.Module, str]] = {}
    for pattern, given in plan.items():
        style = _SYNONYMS.get(given, given) if isinstance(given, str) else ""
        is_experts = EXPERTS_STYLE.fullmatch(style) is not None
        if style not in _STYLES and not is_experts:
            raise unknown_name(f"style of {pattern} in the plan:", given, (*_STYLES, *_SYNONYMS))
        if not isinstance(pattern, str):
            raise InputError(f"The plan names {pattern!r}, but a name of a layer is text.")
        names = [name for name in layers if _matches(name, pattern)]
        if not names:
            raise unknown_name("layer in the plan:", pattern, _patterns(layers))
        for name in names:
            if style == "replicate":
                planned.pop(name, None)
                continue
            if not is_experts:
                _refuse_other_kinds(name, layers[name], style)
            planned[name] = (layers[name], style)
    return planned


def with_own_experts(module: nn.Module, plan: Plan) -> Plan:
    """Replace the experts that a plan names, and return the plan without them.

    Raises
    ------
    InputError
        If the plan does not fit the module.
    """
    planned = planned_layers(module, plan)
    for name, (_, style) in planned.items():
        if EXPERTS_STYLE.fullmatch(style):
            replace_experts(module, name, style)
    return {pattern: style for pattern, style in plan.items() if not EXPERTS_STYLE.fullmatch(style)}


def _patterns(layers: Iterable[str]) -> set[str]:
    """Return the names of layers as plans write them, with a ``*`` for what counts them."""
    return {pattern_of(name) for name in layers if name}


def pattern_of(name: str) -> str:
    """Return the name of a layer as plans write it, with a ``*`` for what counts it."""
    return _NUMBER.sub("*", name)


def names_part(plan: Plan | None, part: str) -> bool:
    """Say whether a plan names a part of a module, whatever it says of it."""
    return any(_matches(part, pattern) for pattern in plan or {})


def _matches(name: str, pattern: str) -> bool:
    """Say whether a pattern means a layer, part by part."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _refuse_other_kinds(name: str, layer: nn.Module, style: str) -> None:
    """Refuse layers whose split is not known."""
    plain = {nn.Linear: nn.Linear.forward, nn.Embedding: nn.Embedding.forward}
    kind = type(layer)
    if plain.get(kind) is None or (kind is nn.Embedding and style == "loss_parallel"):
        raise InputError(
            f"The plan splits {name} as {style}, but it is a {kind.__name__}; only nn.Linear and "
            "nn.Embedding can be split."
        )


def refuse_wrong_split(whole: WorkloadVariant, share: WorkloadVariant) -> None:
    """Refuse a share that computes something else than its part of the whole module.

    Every product must be the whole one or one device's part of it, a product inside attention must
    sum over the same elements of a head, and what works by rows must see whole rows.

    Raises
    ------
    InputError
        If an operator differs in another way; the message names its layer.
    """
    tensor_degree = share.tensor_parallel
    if [name for name, _ in whole.nodes] != [name for name, _ in share.nodes]:
        raise InputError(
            f"At tensor degree {tensor_degree} the module runs other layers than at 1; "
            "leave choices that hang on sizes out of it."
        )
    for (name, layer), (_, other) in zip(whole.nodes, share.nodes, strict=True):
        problem = _wrong_split(
            whole.layers[layer].forward, share.layers[other].forward, tensor_degree
        )
        if problem is not None:
            raise InputError(
                f"At tensor degree {tensor_degree} the plan splits {name} wrongly: {problem}."
            )


def _wrong_split(whole: OperatorGraph, share: OperatorGraph, tensor_degree: int) -> str | None:
    """Return what is wrong with a share as a clause of a sentence, or None."""
    products = [
        [(gemm, op.id.startswith("grouped_")) for op in graph.operators for gemm in op.gemms]
        for graph in (whole, share)
    ]
    if len(products[0]) != len(products[1]):
        return f"it has {len(products[1])} products in place of {len(products[0])}"
    for (gemm, _), (other, of_experts) in zip(*products, strict=True):
        if other.flops not in (gemm.flops, gemm.flops // tensor_degree):
            return (
                f"a product of {gemm.m} × {gemm.k} × {gemm.n} becomes one of "
                f"{other.m} × {other.k} × {other.n}, which is neither the whole "
                f"nor 1/{tensor_degree} of it"
            )
        if other.k != gemm.k and max(gemm.batch, other.batch) > 1 and not of_experts:
            return (
                f"a product inside attention sums over {other.k} elements in place of {gemm.k}, so "
                "heads are cut; a view names the size of a head and writes -1 for their number"
            )
    by_rows = [
        [work for op in graph.operators for work in op.vector if work.kind in _WHOLE_ROWS]
        for graph in (whole, share)
    ]
    for row, part in zip(*by_rows, strict=False):
        if row.kind == part.kind and row.columns != part.columns:
            return (
                f"{row.kind} works on {part.columns} of {row.columns} columns; gather them before "
                "(colwise_gather_output), or plan the layer before a loss loss_parallel"
            )
    return None
