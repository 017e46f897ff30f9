"""Totals of a captured workload, layer by layer, as data to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from phaze_opt.workload.graph import BytesByRecompute, Layer, Operator, OperatorGraph, Workload


@dataclass(frozen=True)
class LayerSummary:
    """One distinct layer, on one device and for one microbatch.

    Attributes
    ----------
    name
        Of the layer; a module's layer is named after its first occurrence.
    count
        Occurrences of the layer in the model.
    parameters
        Of one occurrence.
    tied_parameters
        Those among them that another layer holds too.
    forward_flops, backward_flops
        Floating-point operations of matrix products, without recompute.
    stash_bytes, transient_bytes
        Activations kept for the backward, and the most that is alive beside them while a pass runs,
        under each recompute.
    output_bytes
        Activation passed to the next layer; the gradient that comes back has this size too.
    forward_operators, backward_operators
        Number of operators by kind: ``gemm``, ``fused`` (products and vector work in one), the kind
        of a collective, or the kind of vector work.
    collective_bytes
        Sizes of whole tensors communicated in forward and backward, by kind of collective.
    routed_parameters
        Those among ``parameters`` that belong to routed experts; not set where there are none.
    frozen_parameters
        Those among ``parameters`` that are not trained; not set where all are.
    """

    name: str
    count: int
    parameters: int
    tied_parameters: int
    forward_flops: int
    backward_flops: int
    stash_bytes: BytesByRecompute
    transient_bytes: BytesByRecompute
    output_bytes: int
    forward_operators: Mapping[str, int]
    backward_operators: Mapping[str, int]
    collective_bytes: Mapping[str, int]
    routed_parameters: int | UnsetType = UNSET
    frozen_parameters: int | UnsetType = UNSET


@dataclass(frozen=True)
class WorkloadSummary:
    """One captured variant, as ``workload show --json`` prints it; its keys stay.

    Attributes
    ----------
    model
        The string that names it.
    sequence
        Tokens per sample.
    parameters
        Of the whole model, whatever the tensor degree; tied weights count once.
    tensor_parallel, microbatch, sequence_parallel
        What the variant was captured at.
    layers
        The distinct layers, of one device.
    active_parameters
        Those among ``parameters`` that work on a token; not set where all of them do.
    """

    model: str
    sequence: int
    parameters: int
    tensor_parallel: int
    microbatch: int
    sequence_parallel: bool
    layers: tuple[LayerSummary, ...]
    active_parameters: int | UnsetType = UNSET

    @property
    def forward_flops(self) -> int:
        """Floating-point operations of the whole model's forward on one device."""
        return sum(layer.count * layer.forward_flops for layer in self.layers)

    @property
    def backward_flops(self) -> int:
        """Floating-point operations of the whole model's backward on one device."""
        return sum(layer.count * layer.backward_flops for layer in self.layers)


def summarise(workload: Workload, variant: int = 0) -> WorkloadSummary:
    """Summarise one captured variant.

    Parameters
    ----------
    workload
        From `phaze_opt.workload.zoo.load_workload`.
    variant
        Index into its variants.
    """
    chosen = workload.variants[variant]
    return WorkloadSummary(
        model=workload.model,
        sequence=workload.sequence,
        parameters=workload.parameters,
        tensor_parallel=chosen.tensor_parallel,
        microbatch=chosen.microbatch,
        sequence_parallel=chosen.sequence_parallel,
        layers=tuple(
            _summarise_layer(layer, count)
            for layer, count in zip(chosen.layers, chosen.counts, strict=True)
        ),
        active_parameters=workload.active_parameters,
    )


def operator_kind(operator: Operator) -> str:
    """Return the kind of an operator in one word."""
    if operator.gemms:
        return "fused" if operator.vector else "gemm"
    if operator.collective is not None:
        return operator.collective.kind
    return operator.vector[0].kind if operator.vector else "none"


def collective_bytes(graph: OperatorGraph) -> dict[str, int]:
    """Return the bytes of whole tensors that a graph communicates, by kind of collective."""
    totals: Counter[str] = Counter()
    for operator in graph.operators:
        if operator.collective is not None:
            totals[operator.collective.kind] += operator.collective.size_bytes
    return dict(sorted(totals.items()))


def _summarise_layer(layer: Layer, count: int) -> LayerSummary:
    forward, backward = collective_bytes(layer.forward), collective_bytes(layer.backward)
    return LayerSummary(
        name=layer.name,
        count=count,
        parameters=layer.parameters,
        tied_parameters=layer.tied_parameters,
        forward_flops=layer.forward.flops,
        backward_flops=layer.backward.flops,
        stash_bytes=layer.stash_bytes,
        transient_bytes=layer.transient_bytes,
        output_bytes=layer.output_bytes,
        forward_operators=_kinds(layer.forward),
        backward_operators=_kinds(layer.backward),
        collective_bytes=dict(sorted((Counter(forward) + Counter(backward)).items())),
        routed_parameters=layer.routed_parameters,
        frozen_parameters=layer.frozen_parameters,
    )


def _kinds(graph: OperatorGraph) -> dict[str, int]:
    """Count the operators of a graph by kind."""
    return dict(sorted(Counter(operator_kind(operator) for operator in graph.operators).items()))
