"""Bytes of the elements of tensors, and bytes and rates of what tensor cores multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Dtype = Literal[
    "bf16",
    "fp16",
    "fp32",
    "fp64",
    "fp8",
    "complex64",
    "complex128",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
]
"""Type of the elements of a tensor."""

ELEMENT_BYTES: Mapping[Dtype, int] = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp64": 8,
    "fp8": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of an element in memory."""

SUM_BYTES = ELEMENT_BYTES["fp32"]
"""Of a partial sum of products, whatever is multiplied."""


class Precision(NamedTuple):
    """What tensor cores multiply.

    Attributes
    ----------
    operand
        Type of both operands.
    result
        Type in which the result of a product leaves the cores.
    rate
        Multiply-accumulates per processing element and cycle.
    """

    operand: Dtype
    result: Dtype
    rate: float

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element of an operand."""
        return ELEMENT_BYTES[self.operand]

    @property
    def result_bytes(self) -> int:
        """Bytes of an element of a result."""
        return ELEMENT_BYTES[self.result]


PrecisionName = Literal["bf16"]
"""Name of a precision."""

PRECISIONS: Mapping[PrecisionName, Precision] = {"bf16": Precision("bf16", "bf16", 1.0)}
"""All precisions; arrays of numbers hold their place in this order."""

BF16 = PRECISIONS["bf16"]
"""The precision of all that says no other."""
