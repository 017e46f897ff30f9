"""The work of one ATen operator: matrix products, vector work or a collective.

The bias of a product (``addmm``) is the initial value of its accumulators, as in cuBLAS and in a
systolic array: it is read, but it is not vector work.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from phaze_opt.errors import InputError
from phaze_opt.precision import Dtype
from phaze_opt.workload.attention import AttentionShape, backward_work, forward_work
from phaze_opt.workload.capture.aten_kinds import (
    BY_ROW,
    ELEMENTWISE,
    SHAPE_ONLY,
    UNKNOWN_PRODUCTS,
    VIEWS,
)
from phaze_opt.workload.experts import (
    grouped_product,
    grouped_weight_gradient,
    is_gated,
    surplus_flops,
)
from phaze_opt.workload.graph import (
    AttentionScores,
    Collective,
    CollectiveKind,
    Gemm,
    VectorWork,
)

_DTYPES: Mapping[torch.dtype, Dtype] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


class UnknownProductError(InputError):
    """An operator multiplies matrices of sizes that capture does not know.

    Parameters
    ----------
    operator
        Its qualified name.
    """

    def __init__(self, operator: str) -> None:
        super().__init__(f"The operator {operator} has products that capture cannot size.")


@dataclass(frozen=True)
class NodeWork:
    """The work of a node, or of one piece of it that is scheduled by itself.

    Attributes
    ----------
    operands
        Nodes whose results the piece reads; None for all operands of the node.
    results
        Indices of the node's results that the piece writes; None for all of them.
    part_elements
        What the piece writes of a result that several pieces write together; None where it writes
        whole results.
    suffix
        Tells the pieces of a node apart in operator names.
    factors
        Nodes whose results are the first and the second operand of the product, where it has two.
    surplus_flops
        FLOPs of the product that are no part of the model.
    """

    gemms: tuple[Gemm, ...] = ()
    vector: tuple[VectorWork, ...] = ()
    collective: Collective | None = None
    attention: AttentionScores | None = None
    operands: tuple[fx.Node, ...] | None = None
    results: tuple[int, ...] | None = None
    part_elements: int | None = None
    suffix: str = ""
    factors: tuple[fx.Node, ...] = ()
    surplus_flops: int = 0


def name_of(node: fx.Node) -> str:
    """Return the qualified operator name, for example ``"aten::mm"``."""
    if node.target is python_operator.getitem:
        return "getitem"
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name)
    return str(node.target)


def is_view(node: fx.Node) -> bool:
    """Say whether a node only renames or reshapes memory."""
    return node.target is python_operator.getitem or name_of(node) in VIEWS


def results_of(node: fx.Node) -> tuple[Tensor | None, ...]:
    """Return the fake tensors a node produces, a single one as a tuple of one."""
    value: Any = node.meta["val"]
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def value_of(node: Any) -> Tensor:
    """Return the fake tensor of a node with one result."""
    return cast(Tensor, node.meta["val"])


def size_bytes(tensor: Tensor) -> int:
    """Return the memory of a tensor by its element type."""
    return tensor.numel() * tensor.element_size()


def dtype_of(tensor: Tensor) -> Dtype:
    """Return the type of a tensor's elements.

    Raises
    ------
    InputError
        If it is none that is known.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InputError(
            f"A tensor has elements of {tensor.dtype}; known are {', '.join(map(str, _DTYPES))}."
        )
    return dtype


def work_of(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the pieces of work of one node that is not a view.

    Raises
    ------
    UnknownProductError
        If the node multiplies matrices and has no handler that knows their sizes.
    """
    qualified = name_of(node)
    special = _SPECIAL.get(qualified)
    if special is not None:
        return special(node)
    if is_unknown_product(qualified):
        raise UnknownProductError(qualified)
    name = qualified.partition("::")[2]
    tensors = [tensor for tensor in results_of(node) if isinstance(tensor, Tensor)]
    operands = tuple(n for n in node.all_input_nodes if n is not _shape_only_operand(node, name))
    kind = ELEMENTWISE.get(name, "elementwise")
    if name in BY_ROW:
        kind = BY_ROW[name]
        tensors += [value_of(operand) for operand in node.all_input_nodes]
    largest = max(tensors, key=lambda tensor: tensor.numel())
    return (NodeWork(vector=(_rows(kind, largest),), operands=operands),)


def is_unknown_product(qualified: str) -> bool:
    """Say whether an operator multiplies matrices and has no handler, by its qualified name."""
    name = qualified.partition("::")[2]
    return qualified not in _SPECIAL and any(word in name for word in UNKNOWN_PRODUCTS)


def _shape_only_operand(node: fx.Node, name: str) -> object:
    """Return the operand of which only the shape is used, or None."""
    return node.args[SHAPE_ONLY[name]] if name in SHAPE_ONLY else None


def _rows(kind: str, tensor: Tensor) -> VectorWork:
    """Return the work on all elements of a tensor, by rows of its last dimension."""
    columns = tensor.shape[-1] if tensor.dim() else 1
    return VectorWork(kind, tensor.numel() // max(1, columns), columns)


def _reduce(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a reduction: one row per result, whose columns are the elements reduced into it."""
    source, result = value_of(node.args[0]), results_of(node)[0]
    rows = max(1, result.numel()) if result is not None else 1
    return (NodeWork(vector=(VectorWork("reduce", rows, max(1, source.numel() // rows)),)),)


def _concatenation(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a copy per operand, so that each can be fused into the operator that makes it."""
    return tuple(
        NodeWork(
            vector=(_rows("copy", value_of(operand)),),
            operands=(operand,),
            part_elements=value_of(operand).numel(),
            suffix=f"_{index}",
        )
        for index, operand in enumerate(cast(list[fx.Node], node.args[0]))
    )


def _matrix_product(first: int) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of a product whose left operand is argument ``first``.

    A vector is a matrix with one row on the left, or one column on the right.
    """

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        left, right = value_of(node.args[first]), value_of(node.args[first + 1])
        batch = left.shape[0] if left.dim() == 3 else 1
        rows = left.shape[-2] if left.dim() > 1 else 1
        columns = right.shape[-1] if right.dim() > 1 else 1
        gemm = Gemm(m=rows, n=columns, k=left.shape[-1], batch=batch)
        factors = cast(tuple[fx.Node, ...], tuple(node.args[first : first + 2]))
        return (NodeWork(gemms=(gemm,), factors=factors),)

    return handle


def _convolution(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a convolution as the implicit product of unfolded input and filter."""
    transposed, groups = cast(bool, node.args[-3]), cast(int, node.args[-1])
    source, filters = value_of(node.args[0]), value_of(node.args[1])
    gemm = _convolution_gemm(source if transposed else value_of(node), filters, groups)
    if transposed:
        gemm = Gemm(m=gemm.m, n=gemm.k, k=gemm.n, batch=gemm.batch)
    return (NodeWork(gemms=(gemm,)),)


def _convolution_gemm(positions: Tensor, filters: Tensor, groups: int) -> Gemm:
    """Return the product of unfolded positions (``m``) and filters (``n``) over a window (``k``).

    The positions are those of the output; a transposed convolution has those of the input.
    """
    window = filters.numel() // filters.shape[0]
    rows = positions.numel() // positions.shape[1]
    return Gemm(m=rows, n=filters.shape[0] // groups, k=window, batch=groups)


def _convolution_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Split the backward of a convolution into data, weight and bias gradients."""
    gradient, source, filters = (cast(fx.Node, argument) for argument in node.args[:3])
    transposed, groups, wanted = node.args[-4], cast(int, node.args[-2]), node.args[-1]
    positions = value_of(source if transposed else gradient)
    product = _convolution_gemm(positions, value_of(filters), groups)
    turned = Gemm(m=product.m, n=product.k, k=product.n, batch=groups)
    weight = Gemm(m=product.n, n=product.k, k=product.m, batch=groups)
    channels = value_of(gradient).shape[1]
    bias = VectorWork("reduce", channels, value_of(gradient).numel() // channels)
    data = product if transposed else turned
    pieces = (
        NodeWork((data,), operands=(gradient, filters), results=(0,), suffix="_data"),
        NodeWork((weight,), operands=(gradient, source), results=(1,), suffix="_weight"),
        NodeWork(vector=(bias,), operands=(gradient,), results=(2,), suffix="_bias"),
    )
    used = cast(list[bool], wanted)
    return tuple(piece for piece, is_used in zip(pieces, used, strict=True) if is_used)


def _flash_attention(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the forward of a fused attention core, whose last argument may be a soft cap."""
    query, key, value, _, dropout, causal, window, *softcap = node.args
    shape = _attention_shape((query, key, value), bool(causal), cast(int, window))
    gemms, vector = forward_work(shape, dropout=bool(dropout), softcap=any(softcap))
    return (NodeWork(gemms=gemms, vector=vector, attention=shape.scores),)


def _flash_attention_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the backward of a fused attention core."""
    _, query, key, value, _, _, _, dropout, causal, window, *softcap = node.args
    shape = _attention_shape((query, key, value), bool(causal), cast(int, window))
    gemms, vector = backward_work(shape, dropout=bool(dropout), softcap=any(softcap))
    return (NodeWork(gemms=gemms, vector=vector, attention=shape.scores),)


def _attention_shape(operands: tuple[Any, ...], causal: bool, window: int) -> AttentionShape:
    """Return the sizes of fused attention of ``(sequence, batch, heads, head size)`` tensors."""
    query, key, value = map(value_of, operands)
    queries, batch, heads, head_dim = query.shape
    keys, _, kv_heads, _ = key.shape
    width = value.shape[-1] if value.shape[-1] != head_dim else 0
    return AttentionShape(batch, queries, keys, heads, kv_heads, head_dim, causal, window, width)


def _grouped_product(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a product of rows and the weights of experts, or its gradient of the rows.

    The gradient of the rows is the product with turned weights.
    """
    tile, devices = cast(tuple[int, int], node.args[-2:])
    rows, (experts, *sizes) = len(value_of(node.args[0])), value_of(node.args[1]).shape
    outputs, inputs = sizes if len(node.args) == 5 else reversed(sizes)
    weight = experts, outputs, inputs
    return _grouped(node, grouped_product(rows, weight, tile), rows, weight, devices)


def _grouped_product_weight(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradient of the weights of experts."""
    tile, devices = cast(tuple[int, int], node.args[-2:])
    rows, weight = len(value_of(node.args[0])), cast(tuple[int, int, int], value_of(node).shape)
    return _grouped(node, grouped_weight_gradient(rows, weight, tile), rows, weight, devices)


def _grouped(
    node: fx.Node, gemm: Gemm, rows: int, weight: tuple[int, int, int], devices: int
) -> tuple[NodeWork, ...]:
    """Return the work of a grouped product, whose operands are the first two arguments."""
    factors = cast(tuple[fx.Node, ...], tuple(node.args[:2]))
    surplus = surplus_flops(gemm, rows, weight, devices)
    return (NodeWork(gemms=(gemm,), factors=factors, surplus_flops=surplus),)


def _route(direction: int) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of a router's weights: scores of all experts, of which it takes some."""

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        kind = _SCORES[cast(str, node.args[-1])][direction]
        logits = value_of(node.args[direction])
        choice = (_rows("reduce", logits),) if direction == 0 else ()
        return (NodeWork(vector=(_rows(kind, logits), *choice)),)

    return handle


def _expert_activation(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the activation of experts: with its gate, and the weight of every row."""
    result, activation = value_of(node), cast(str, node.args[-1])
    kinds = [_ACTIVATIONS[activation], *["multiply"] * (1 + is_gated(activation))]
    return (NodeWork(vector=tuple(_rows(kind, result) for kind in kinds)),)


def _expert_activation_backward(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the gradients of the activation, of its gate and of the weights of the rows."""
    gradient, activation = value_of(node.args[0]), cast(str, node.args[-1])
    kinds = [f"{_ACTIVATIONS[activation]}_backward", "multiply", "reduce"]
    kinds += ["multiply"] * 2 * is_gated(activation)
    return (NodeWork(vector=tuple(_rows(kind, gradient) for kind in kinds)),)


def _collective(kind: CollectiveKind, whole: str) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of a collective whose whole tensor is its operand or its result."""

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        tensor = value_of(node.args[0]) if whole == "operand" else value_of(node)
        return (NodeWork(collective=Collective(kind, size_bytes(tensor))),)

    return handle


def _of_operand(kind: str, index: int) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of vector work with the shape of one operand."""

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        return (NodeWork(vector=(_rows(kind, value_of(node.args[index])),)),)

    return handle


_SCORES = {"softmax": ("softmax", "softmax_backward"), "sigmoid": ("sigmoid", "tanh_backward")}
"""Vector work of a router's scores, forward and backward."""

_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "gelu": "gelu", "relu": "relu"}
"""Vector work of the activation of experts, by that of the model."""

_REDUCTIONS: Iterable[str] = (
    "sum",
    "mean",
    "amax",
    "amin",
    "prod",
    "var",
    "var_mean",
    "any",
    "all",
)

_SPECIAL: dict[str, Callable[[fx.Node], tuple[NodeWork, ...]]] = {
    "aten::mm": _matrix_product(0),
    "aten::bmm": _matrix_product(0),
    "aten::addmm": _matrix_product(1),
    "aten::baddbmm": _matrix_product(1),
    "aten::mv": _matrix_product(0),
    "aten::addmv": _matrix_product(1),
    "aten::dot": _matrix_product(0),
    "aten::cat": _concatenation,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "phaze::flash_attention": _flash_attention,
    "phaze::flash_attention_backward": _flash_attention_backward,
    "phaze::sink_attention": _flash_attention,
    "phaze::sink_attention_backward": _flash_attention_backward,
    "phaze::latent_keys_and_values": _of_operand("rotary", 0),
    "phaze::latent_keys_and_values_backward": _of_operand("rotary", 0),
    "phaze::route": _route(0),
    "phaze::route_backward": _route(1),
    "phaze::permute_rows": lambda node: (NodeWork(vector=(_rows("gather", value_of(node)),)),),
    "phaze::combine_rows": _of_operand("reduce", 0),
    "phaze::grouped_product": _grouped_product,
    "phaze::grouped_product_data": _grouped_product,
    "phaze::grouped_product_weight": _grouped_product_weight,
    "phaze::grouped_bias_gradient": _reduce,
    "phaze::expert_activation": _expert_activation,
    "phaze::expert_activation_backward": _expert_activation_backward,
    "phaze::all_reduce": _collective("all_reduce", "operand"),
    "phaze::reduce_scatter": _collective("reduce_scatter", "operand"),
    "phaze::all_gather": _collective("all_gather", "result"),
    "phaze::all_gather_columns": _collective("all_gather", "result"),
    "phaze::closed_layer": lambda node: (NodeWork(),),
    "phaze::closed_layer_backward": lambda node: (NodeWork(),),
    "phaze::cross_entropy_backward": _of_operand("cross_entropy_backward", 1),
    **{f"aten::{name}": _reduce for name in _REDUCTIONS},
}
