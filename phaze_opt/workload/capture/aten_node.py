"""A node of a traced graph: its name, its tensors, and the work that it stands for."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from phaze_opt.errors import InputError
from phaze_opt.precision import Dtype
from phaze_opt.workload.capture.aten_kinds import VIEWS
from phaze_opt.workload.graph import AttentionScores, Collective, Gemm, VectorWork

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


def rows_of(kind: str, tensor: Tensor) -> VectorWork:
    """Return the work on all elements of a tensor, by rows of its last dimension."""
    columns = tensor.shape[-1] if tensor.dim() else 1
    return VectorWork(kind, tensor.numel() // max(1, columns), columns)
