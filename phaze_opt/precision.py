"""Bytes of the elements of tensors, and bytes and rates of what tensor cores multiply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

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


PrecisionName = Literal["bf16", "fp8", "fp8-row", "fp8-block", "mxfp8", "nvfp4", "int8"]
"""In what linear layers multiply, as recipes of Transformer Engine: 16 bits, or 8 with a scale per
tensor, per row, per block of 128 or of 32 (MX), 4 with one per 16, or integers of 8 bits."""

ProductPrecision = Literal[PrecisionName, "fp8-block-gradient"]
"""In what a product multiplies: a recipe's weight gradients may have scales of their own form."""

AttentionPrecision = Literal["bf16", "fp8", "mxfp8"]
"""In what fused attention multiplies, where a kernel for it was measured."""

ATTENTION_PRECISIONS: tuple[AttentionPrecision, ...] = ("bf16", "fp8", "mxfp8")
"""In the order in which `phaze_opt.hardware.accelerator.AttentionKernel` holds their rates."""

Fp8Scaling = Literal["current", "delayed"]
"""Whence the one scale of a tensor in fp8: its own largest element, or those of steps before."""

ArrayKind = Literal["bf16", "fp8", "fp8-block", "fp8-block-gradient", "fp4", "int8"]
"""What arrays multiply at a rate of its own; scales per block of fp8 may take cycles too."""


class Precision(NamedTuple):
    """What tensor cores multiply.

    Attributes
    ----------
    arrays
        Which rate of a chip's arrays holds, see `phaze_opt.hardware.accelerator.Accelerator`.
    operand_bytes
        Bytes of an element of an operand, with its share of the scales.
    result_bytes
        Bytes of an element of the result as it leaves the cores.
    weight_bytes
        Of a weight as an operand, where its scales are fewer than those of activations.
    """

    arrays: ArrayKind
    operand_bytes: float
    result_bytes: int
    weight_bytes: float

    @property
    def element(self) -> str:
        """What its arrays multiply, however it is scaled: a chip states a rate for each."""
        return self.arrays.partition("-")[0]

    def stored(self, elements: int) -> tuple[int, Dtype]:
        """Return number and type of what some elements of an operand are in memory.

        Narrow ones are counted in bytes, scales included.
        """
        if self.arrays == "bf16":
            return elements, "bf16"
        return math.ceil(elements * self.operand_bytes), "uint8"


PRECISIONS: Mapping[ProductPrecision, Precision] = {
    "bf16": Precision("bf16", 2.0, 2, 2.0),
    # One scale per tensor, or per row.
    "fp8": Precision("fp8", 1.0, 2, 1.0),
    "fp8-row": Precision("fp8", 1.0, 2, 1.0),
    # One fp32 scale per 128 elements of an activation or a gradient, or 128 × 128 of a weight.
    "fp8-block": Precision("fp8-block", 1.0 + 4 / 128, 2, 1.0 + 4 / 128**2),
    # One scale of a byte per 32 elements, or per 16 elements of half a byte.
    "mxfp8": Precision("fp8", 1.0 + 1 / 32, 2, 1.0 + 1 / 32),
    "nvfp4": Precision("fp4", 0.5 + 1 / 16, 2, 0.5 + 1 / 16),
    "int8": Precision("int8", 1.0, 2, 1.0),
    # A weight gradient in fp8-block: both operands have a scale per 128 elements of the tokens, so
    # that each partial sum takes two multiplications on its way into the sums, not one.
    "fp8-block-gradient": Precision("fp8-block-gradient", 1.0 + 4 / 128, 2, 1.0 + 4 / 128**2),
}
"""All precisions; arrays of numbers hold their place in this order."""

GRADIENT_PRECISIONS: Mapping[PrecisionName, ProductPrecision] = {"fp8-block": "fp8-block-gradient"}
"""In what weight gradients multiply, of the recipes where they do not as other products do."""

RECIPES: tuple[PrecisionName, ...] = get_args(PrecisionName)
"""In what a training may run."""

PRIMARY_WEIGHTS: tuple[PrecisionName, ...] = ("fp8", "fp8-row", "fp8-block", "mxfp8")
"""Precisions in which Transformer Engine holds weights with no copy in 16 bits."""
PARAM_GATHER: tuple[PrecisionName, ...] = ("fp8", "fp8-row", "fp8-block")
"""Precisions in which replicas can gather weights: copies by columns follow from those by rows."""

BF16 = PRECISIONS["bf16"]
"""The precision of all that says no other."""
