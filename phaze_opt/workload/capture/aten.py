"""The work of one ATen operator: matrix products, vector work or a collective.

The bias of a product (``addmm``) is the initial value of its accumulators, as in cuBLAS and in a
systolic array: it is read, but it is not vector work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from msgspec import UNSET
from torch import Tensor, fx

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.aten_fused import FUSED, of_operand
from phaze_opt.workload.capture.aten_kinds import (
    BY_ROW,
    ELEMENTWISE,
    SHAPE_ONLY,
    UNKNOWN_PRODUCTS,
)
from phaze_opt.workload.capture.aten_node import (
    NodeWork,
    name_of,
    results_of,
    rows_of,
    size_bytes,
    value_of,
)
from phaze_opt.workload.capture.aten_streams import STREAMS
from phaze_opt.workload.graph import (
    Collective,
    CollectiveKind,
    Gemm,
    VectorWork,
)


class UnknownProductError(InputError):
    """An operator multiplies matrices of sizes that capture does not know.

    Parameters
    ----------
    operator
        Its qualified name.
    """

    def __init__(self, operator: str) -> None:
        super().__init__(f"The operator {operator} has products that capture cannot size.")


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
    return (NodeWork(vector=(rows_of(kind, largest),), operands=operands),)


def is_unknown_product(qualified: str) -> bool:
    """Say whether an operator multiplies matrices and has no handler, by its qualified name."""
    name = qualified.partition("::")[2]
    return qualified not in _SPECIAL and any(word in name for word in UNKNOWN_PRODUCTS)


def _shape_only_operand(node: fx.Node, name: str) -> object:
    """Return the operand of which only the shape is used, or None."""
    return node.args[SHAPE_ONLY[name]] if name in SHAPE_ONLY else None


def _reduce(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a reduction: one row per result, whose columns are the elements reduced into it."""
    source, result = value_of(node.args[0]), results_of(node)[0]
    rows = max(1, result.numel()) if result is not None else 1
    return (NodeWork(vector=(VectorWork("reduce", rows, max(1, source.numel() // rows)),)),)


def _concatenation(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return a copy per operand, so that each can be fused into the operator that makes it."""
    return tuple(
        NodeWork(
            vector=(rows_of("copy", value_of(operand)),),
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


def _collective(
    kind: CollectiveKind, whole: str, *, of_experts: bool = False
) -> Callable[[fx.Node], tuple[NodeWork, ...]]:
    """Return the handler of a collective whose whole tensor is its operand or its result.

    Among the devices that split an expert, their number is the last argument.
    """

    def handle(node: fx.Node) -> tuple[NodeWork, ...]:
        tensor = value_of(node.args[0]) if whole == "operand" else value_of(node)
        neighbours = cast(int, node.args[-1]) if of_experts else UNSET
        sent = Collective(kind, size_bytes(tensor), neighbours=neighbours)
        return (NodeWork(collective=sent),)

    return handle


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
    **FUSED,
    **STREAMS,
    "phaze::grouped_bias_gradient": _reduce,
    "phaze::all_reduce": _collective("all_reduce", "operand"),
    "phaze::reduce_scatter": _collective("reduce_scatter", "operand"),
    "phaze::all_gather": _collective("all_gather", "result"),
    "phaze::all_gather_columns": _collective("all_gather", "result"),
    "phaze::expert_all_gather": _collective("all_gather", "result", of_experts=True),
    "phaze::expert_reduce_scatter": _collective("reduce_scatter", "operand", of_experts=True),
    "phaze::closed_layer": lambda node: (NodeWork(),),
    "phaze::closed_layer_backward": lambda node: (NodeWork(),),
    "phaze::cross_entropy_backward": of_operand("cross_entropy_backward", 1),
    **{f"aten::{name}": _reduce for name in _REDUCTIONS},
}
