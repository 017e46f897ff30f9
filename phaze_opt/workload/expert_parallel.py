"""A captured model whose routed experts are shared out among devices.

The capture has all experts on every device. Shared out, a device has its share of the experts and
the rows that all devices of the group have for them, which are as many as its own had been, evenly
routed. Rows sorted by expert are sent to their devices before the grouped products, and the results
back after them; gradients go the other ways (the combine's backward is a dispatch).

An all-to-all of NCCL brings the rows sorted by the device that sends them. Where a device has
several experts they are then sorted by expert in a pass of their own, and the results back by
device before they are sent (``sort_chunks_by_idxs`` in Megatron-Core's
``moe/token_dispatcher.py``). Other dispatchers sort as they receive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from msgspec import UNSET, UnsetType

from phaze_opt.choices import Dispatcher, DispatchPrecision
from phaze_opt.errors import InputError
from phaze_opt.training import Training
from phaze_opt.workload.experts import rows_of_expert, token_bytes
from phaze_opt.workload.graph import (
    BytesByRecompute,
    Collective,
    CollectiveKind,
    Gemm,
    Layer,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
    TokenExchange,
    VectorWork,
    WorkloadVariant,
)
from phaze_opt.workload.narrow_dispatch import with_narrow_dispatch

_GROUPED, _WEIGHT_GRADIENT = "grouped_", "grouped_product_weight"
_ACTIVATION = "expert_activation"
_SENT_AFTER, _SENT_BEFORE = "permute_rows", "combine_rows"
"""Beginnings of the names of operators, see `phaze_opt.workload.capture.expert_kernels`."""


@dataclass(frozen=True)
class _Sharing:
    """Among how many devices experts are shared out, and how; see `Training` and `Layer`."""

    devices: int
    dispatcher: Dispatcher
    imbalance: float
    dispatched: DispatchPrecision = "bf16"
    stride: int | UnsetType = UNSET
    groups: tuple[int, int] = (1, 1)

    def rows(self, rows: int) -> int:
        """Return the rows of the device with the most."""
        return math.ceil(rows * self.imbalance)

    def sorts(self, experts: int) -> bool:
        """Whether rows are sorted again between the exchange and the experts, so many in all."""
        return self.dispatcher == "nccl" and experts > self.devices


def with_experts_shared_out(variant: WorkloadVariant, training: Training) -> WorkloadVariant:
    """Return a model as the devices of an expert-parallel group have it.

    Parameters
    ----------
    variant
        As captured.
    training
        Says among how many devices experts are shared out, and how.

    Raises
    ------
    InputError
        If there are no routed experts, or not that many shares of them.
    """
    if training.expert_parallel == 1:
        return variant
    shape = training.expert_parallel, training.dispatcher, training.expert_imbalance
    sharing = _Sharing(*shape, training.dispatch_precision, variant.expert_tensor)
    return _shared_out(variant, sharing)


@lru_cache(maxsize=512)
def _shared_out(variant: WorkloadVariant, sharing: _Sharing) -> WorkloadVariant:
    """Share the experts of every layer out; see `with_experts_shared_out`."""
    if not any(layer.routed_parameters for layer in variant.layers):
        raise InputError(
            f"expert_parallel is {sharing.devices}, but the model has no routed experts; it must "
            "be 1."
        )
    layers = tuple([_layer(layer, sharing) for layer in variant.layers])
    return replace(variant, layers=layers)


def _layer(layer: Layer, sharing: _Sharing) -> Layer:
    """Share the experts of a layer out."""
    if not layer.routed_parameters:
        return layer
    sharing = replace(sharing, groups=layer.expert_groups or (1, 1))
    forward, backward = (
        _graph(graph, sharing, is_forward)
        for graph, is_forward in ((layer.forward, True), (layer.backward, False))
    )
    local = layer.routed_parameters // sharing.devices
    # Gradients of the weights of fewer experts are alive at once.
    less = _peak_bytes(layer.backward) - _peak_bytes(backward)

    def smaller(sizes: BytesByRecompute) -> BytesByRecompute:
        each = sizes.none, sizes.selective, sizes.full
        return BytesByRecompute(*[max(size - less, 0) for size in each])

    again = _graph(layer.selective_recompute, sharing, True)
    if sharing.dispatched == "fp8":
        forward, backward, again = map(with_narrow_dispatch, (forward, backward, again))
    return replace(
        layer,
        forward=forward,
        backward=backward,
        selective_recompute=again,
        parameters=layer.parameters - layer.routed_parameters + local,
        routed_parameters=local,
        transient_bytes=smaller(layer.transient_bytes),
        fused_transient_bytes=smaller(layer.fused_transient_bytes),
    )


def _peak_bytes(graph: OperatorGraph) -> int:
    """Return the largest sum of live gradients; those of weights live while they are made."""
    changes = [0] * (len(graph.operators) + 1)
    for tensor in graph.tensors:
        if tensor.writers and tensor.kind in ("gradient", "weight_gradient"):
            used = [writer for writer, _ in tensor.writers]
            changes[used[0]] += tensor.elements * tensor.element_bytes
            used += [read.operator for read in tensor.readers]
            changes[max(used) + 1] -= tensor.elements * tensor.element_bytes
    most = alive = 0
    for change in changes:
        alive += change
        most = max(most, alive)
    return most


def _graph(graph: OperatorGraph, sharing: _Sharing, is_forward: bool) -> OperatorGraph:
    """Share the experts of a pass out, and send rows and results."""
    experts = max(map(_experts, graph.operators), default=0)
    if experts == 0:
        return graph
    if experts % sharing.devices:
        raise InputError(
            f"expert_parallel is {sharing.devices}, but it must divide the {experts} experts of a "
            "block."
        )
    on_rows = _on_rows(graph, experts)
    operators = [
        _operator(operator, graph, index, sharing) if index in on_rows else operator
        for index, operator in enumerate(graph.operators)
    ]
    tensors = [_tensor(tensor, on_rows, sharing) for tensor in graph.tensors]
    return _with_exchanges(graph, operators, tensors, sharing, experts, is_forward)


def _experts(operator: Operator) -> int:
    """Return the experts of a grouped product; 0 of any other operator."""
    is_grouped = operator.id.startswith(_GROUPED) and operator.gemms
    return operator.gemms[0].batch if is_grouped else 0


def _on_rows(graph: OperatorGraph, experts: int) -> set[int]:
    """Return the operators on rows sorted by expert.

    A product that every device of a tensor-parallel group repeats, as of a router, is grouped too,
    of one group.
    """
    found = {
        index
        for index, operator in enumerate(graph.operators)
        if operator.id.startswith(_ACTIVATION) or _experts(operator) == experts
    }
    for tensor in graph.tensors:
        readers = {read.operator for read in tensor.readers}
        if not found.isdisjoint(readers):
            # The gradients of biases are sums of the rows that products read.
            sums = {index for index in readers if not graph.operators[index].gemms}
            found |= {i for i in sums if graph.operators[i].id.startswith(_GROUPED)}
    return found


def _operator(operator: Operator, graph: OperatorGraph, index: int, sharing: _Sharing) -> Operator:
    """Give an operator on rows a share of the experts."""
    vector = tuple([replace(each, rows=sharing.rows(each.rows)) for each in operator.vector])
    if not operator.gemms:
        return replace(operator, vector=vector)
    (gemm,) = operator.gemms
    own = gemm.batch // sharing.devices
    rows = rows_of_expert(sharing.rows(_rows(graph, index, gemm, operator)), own)
    if operator.id.startswith(_WEIGHT_GRADIENT):
        gemm = replace(gemm, k=rows, batch=own)
    else:
        gemm = replace(gemm, m=rows, batch=own)
    return replace(
        operator,
        gemms=(gemm,),
        vector=vector,
        surplus_flops=gemm.flops - operator.model_flops,
    )


def _rows(graph: OperatorGraph, index: int, gemm: Gemm, operator: Operator) -> int:
    """Return the rows that a grouped product has for all of its experts."""
    of_rows = gemm.m if operator.id.startswith(_WEIGHT_GRADIENT) else gemm.k
    for tensor in graph.tensors:
        for read in tensor.readers:
            if read.operator == index and read.first_operand:
                return read.elements // of_rows
    raise AssertionError(f"{operator.id} reads no rows")


def _tensor(tensor: Tensor, on_rows: set[int], sharing: _Sharing) -> Tensor:
    """Divide what belongs to routed experts: their weights and the gradients of these."""
    users = {*(writer for writer, _ in tensor.writers), *(r.operator for r in tensor.readers)}
    if tensor.kind not in ("weight", "weight_gradient") or on_rows.isdisjoint(users):
        return tensor
    share = sharing.devices
    return replace(
        tensor,
        elements=tensor.elements // share,
        writers=tuple([(writer, count // share) for writer, count in tensor.writers]),
        readers=tuple([replace(r, elements=r.elements // share) for r in tensor.readers]),
    )


def _with_exchanges(
    graph: OperatorGraph,
    operators: list[Operator],
    tensors: list[Tensor],
    sharing: _Sharing,
    experts: int,
    is_forward: bool,
) -> OperatorGraph:
    """Send the rows after they are sorted, and the results before they are summed."""
    joined: list[Operator] = []
    place: list[int] = []
    sent: dict[int, tuple[list[int], bool]] = {}  # by operator: places on the way, if they follow
    for index, operator in enumerate(operators):
        before = operator.id.startswith(_SENT_BEFORE)
        after = operator.id.startswith(_SENT_AFTER)
        way: list[Operator] = []
        if before or after:
            way.append(_exchange(graph, index, sharing, experts, is_forward))
            if sharing.sorts(experts):
                work = VectorWork("gather", operator.vector[0].rows, operator.vector[0].columns)
                received = replace(work, rows=sharing.rows(work.rows))
                way.insert(int(after), Operator(f"sort_rows_{index}", vector=(received,)))
            sent[index] = [len(joined) + int(after) + step for step in range(len(way))], after
        place.append(len(joined) + len(way) * int(before))
        joined += [*way, operator] if before else [operator, *way]
    moved: list[Tensor] = []
    for tensor in tensors:
        moved += _moved(tensor, sent, place)
    return OperatorGraph(tuple(joined), tuple(moved))


def _exchange(
    graph: OperatorGraph, index: int, sharing: _Sharing, experts: int, is_forward: bool
) -> Operator:
    """Return the exchange of an operator that sorts or sums rows."""
    operator = graph.operators[index]
    rows, columns = operator.vector[0].rows, operator.vector[0].columns
    is_dispatch = operator.id.startswith(_SENT_AFTER)
    chosen = sum(
        read.elements
        for tensor in graph.tensors
        if tensor.dtype == "int32"
        for read in tensor.readers
        if read.operator == index
    )
    # Tokens, which sorting reads and summing writes; with dropped ones it does not read all.
    elements = [
        count
        for tensor in graph.tensors
        if tensor.dtype != "int32"
        for count in (
            [
                tensor.elements if rows < chosen else read.elements
                for read in tensor.readers
                if read.operator == index
            ]
            if is_dispatch
            else [written for writer, written in tensor.writers if writer == index]
        )
    ]
    tokens = max(elements) // columns
    row_bytes = token_bytes(columns, sharing.dispatched if is_dispatch else "bf16")
    exchange = TokenExchange(
        tokens=sharing.rows(tokens),
        top_k=chosen // tokens,
        experts=experts,
        devices=sharing.devices,
        row_bytes=row_bytes,
        dispatcher=sharing.dispatcher,
        plans=is_forward and is_dispatch,
        groups=sharing.groups[0],
        top_groups=sharing.groups[1],
        stride=sharing.stride,
        rows=UNSET if rows == chosen else rows,
    )
    kind: CollectiveKind = "dispatch" if is_dispatch else "combine"
    sent = Collective(kind, exchange.size_bytes, exchange)
    return Operator(f"{kind}_{index}", collective=sent)


def _moved(
    tensor: Tensor, sent: Mapping[int, tuple[list[int], bool]], place: Sequence[int]
) -> list[Tensor]:
    """Return a tensor among the operators with exchanges; one that is sent becomes several.

    Parameters
    ----------
    tensor
        Of the graph without exchanges.
    sent
        By operator that sorts or sums rows: places of its exchange, and of what sorts rows beside
        that, in their order, and whether they follow it.
    place
        New place of every operator.
    """
    writers = tuple([(place[writer], count) for writer, count in tensor.writers])
    readers = tuple([replace(read, operator=place[read.operator]) for read in tensor.readers])
    here = replace(tensor, writers=writers, readers=readers)
    if tensor.kind not in ("activation", "gradient") or tensor.dtype == "int32":
        return [here]
    for writer, _ in tensor.writers:
        if writer in sent and sent[writer][1]:
            way = sent[writer][0]
            sorted_rows = replace(
                here, readers=(TensorRead(way[0], tensor.elements),), outlives=False
            )
            received = replace(here, writers=((way[-1], tensor.elements),))
            return [sorted_rows, *_between(tensor, way), received]
    for read in tensor.readers:
        if read.operator in sent and not sent[read.operator][1]:
            way = sent[read.operator][0]
            others = tuple([r for r in readers if r.operator != place[read.operator]])
            made = replace(here, readers=(*others, TensorRead(way[0], tensor.elements)))
            own = tuple([r for r in readers if r.operator == place[read.operator]])
            back = Tensor(tensor.elements, tensor.dtype, tensor.kind,
                          ((way[-1], tensor.elements),), own)  # fmt: skip
            return [made, *_between(tensor, way), back]
    return [here]


def _between(tensor: Tensor, way: Sequence[int]) -> list[Tensor]:
    """Return what the operators on the way of a tensor, given by place, pass to one another."""
    size, kind = tensor.elements, (tensor.dtype, tensor.kind)
    return [
        Tensor(size, *kind, ((writer, size),), (TensorRead(reader, size),))
        for writer, reader in itertools.pairwise(way)
    ]
