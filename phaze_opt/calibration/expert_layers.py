"""What a measured layer of experts holds beside its two grouped products and its activation.

A row is the time of a framework's whole layer after its router: it sorts the rows by expert, copies
them, multiplies, applies the activation, multiplies, and sums the rows of each token. What the
kernels around the products move per row and element of the residual stream belongs to the table of
a chip and a framework. It is fitted here, and nothing else is: the products are those of dense
layers, each expert with its own weights and its rows filled to whole tiles
(`phaze_opt.workload.experts`). Seconds per call, fitted beside it, are not determined by the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit
from phaze_opt.calibration.least_squares import fit
from phaze_opt.calibration.products import products_graph, products_s
from phaze_opt.codec import data_table
from phaze_opt.errors import InputError
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.estimator.single import array_flops_per_s
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import check_chip, check_precision
from phaze_opt.limits import MOST_SIZE, MOST_WORK, check_size, is_finite
from phaze_opt.precision import PrecisionName
from phaze_opt.workload.experts import grouped_product, rows_of_expert
from phaze_opt.workload.graph import (
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
    VectorWork,
    side_by_side,
)

TABLE_CONSTANTS = (Constant("row_bytes", 8.0, 4.0, 24.0, prior=False, scale="linear", unit="B"),)
"""Traffic per row and element of the residual stream. Copying a row writes 2 bytes, and summing
reads 2; both move 8 where nothing stays in a cache, and kernels that sum in fp32, or take the rows
through memory once more, up to three times that."""


@dataclass(frozen=True)
class ExpertLayer:
    """One layer of gated experts on one device: tokens, and sizes of `Experts`.

    Raises
    ------
    InputError
        If a size, or the work of a product, is not allowed, or a token goes to more experts than
        there are.
    """

    tokens: int
    hidden: int
    inner: int
    top_k: int
    experts: int
    precision: PrecisionName = "bf16"

    def __post_init__(self) -> None:
        for name in ("tokens", "hidden", "inner", "top_k", "experts"):
            check_size(name, getattr(self, name), MOST_SIZE)
        if self.top_k > self.experts:
            raise InputError(
                f"top_k is {self.top_k}, but a token has at most all {self.experts} experts."
            )
        filled = self.experts * rows_of_expert(self.rows, self.experts)
        work = 2 * filled * self.hidden * self.inner
        check_size("the work of a product of the layer", work, MOST_WORK)

    @property
    def rows(self) -> int:
        """Tokens times the experts of each."""
        return self.tokens * self.top_k


def fit_expert_layers(
    layers: Sequence[ExpertLayer], measured_s: FloatArray, chip: Accelerator
) -> Fit:
    """Fit the constant of a table.

    Parameters
    ----------
    layers, measured_s
        Of one chip and framework.
    chip
        With the constants of its products.

    Raises
    ------
    InputError
        If there are no rows.
    """
    return fit(TABLE_CONSTANTS, ExpertCalls(layers, chip).seconds, np.asarray(measured_s))


class ExpertCalls:
    """Layers of experts, for any constant of a table; their kernels are estimated once."""

    def __init__(self, layers: Sequence[ExpertLayer], chip: Accelerator) -> None:
        shapes = ((2 * each.inner, each.hidden, each) for each in layers)
        back = ((each.hidden, each.inner, each) for each in layers)
        gemms = [
            replace(
                grouped_product(each.rows, (each.experts, outputs, inputs)),
                precision=each.precision,
            )
            for outputs, inputs, each in (*shapes, *back)
        ]
        products = products_s(products_graph(gemms), chip).reshape(2, -1)
        activations = side_by_side(tuple(_activation(each) for each in layers))
        activation_s = estimate_isolated(activations, chip, chip.num_tc).latency_s
        self.products_s = products.sum(axis=0)
        self._kernels_s = self.products_s + activation_s
        elements = np.array([float(each.rows * each.hidden) for each in layers])
        self._byte_s = elements / chip.memory_bytes_per_s

    def seconds(self, values: Mapping[str, float]) -> FloatArray:
        """Predict every call for the values of `TABLE_CONSTANTS`."""
        moved_s = values["row_bytes"] * self._byte_s
        return np.asarray(self._kernels_s + moved_s)


@dataclass(frozen=True)
class ExpertLayerEstimate:
    """The time of a layer of experts after its router, all of them on one device.

    Attributes
    ----------
    latency_s
        Of all kernels, one after another, and what a framework adds.
    utilisation
        Time at the peak of all cores for the rows that the tokens have, divided by ``latency_s``.
    rows
        Tokens times the experts of each.
    around_s
        Of ``latency_s``, what the kernels around the products take.
    """

    latency_s: float
    utilisation: float
    rows: int
    around_s: float


def estimate_expert_layer(
    layer: ExpertLayer, chip: Accelerator, row_bytes: float, call_overhead_s: float = 0.0
) -> ExpertLayerEstimate:
    """Estimate a layer of experts as measured ones are predicted.

    Parameters
    ----------
    layer, chip
        What runs, evenly routed, and on what.
    row_bytes
        See `row_bytes_of`.
    call_overhead_s
        Seconds that a framework adds.

    Raises
    ------
    InputError
        If the chip cannot be built or has no rate for the precision, or a number is negative.
    """
    check_chip(chip)
    check_precision(chip, layer.precision)
    for name, value in (("row_bytes", row_bytes), ("call_overhead_s", call_overhead_s)):
        if not (is_finite(value) and value >= 0.0):
            raise InputError(f"{name} is {value}, but it must be finite and at least 0.")
    calls = ExpertCalls([layer], chip)
    kernels_s = calls.seconds({"row_bytes": row_bytes})
    latency_s = float(kernels_s[0] + call_overhead_s)
    around_s = float(kernels_s[0] - calls.products_s[0])
    flops = 6.0 * layer.rows * layer.hidden * layer.inner
    ideal_s = flops / array_flops_per_s(chip, chip.num_tc, layer.precision)
    return ExpertLayerEstimate(latency_s, ideal_s / latency_s, layer.rows, around_s)


def row_bytes_of(accelerator: str) -> float:
    """Return what the kernels around the products move on a chip, see `TABLE_CONSTANTS`.

    Parameters
    ----------
    accelerator
        Its name; of one without measured layers each row is copied and summed once.
    """
    table = data_table("calibration", "expert_layers.toml")
    return float(table.get(accelerator, table["else"]))


def _activation(layer: ExpertLayer) -> OperatorGraph:
    """Return the gated activation of all rows."""
    works = (
        VectorWork("silu", layer.rows, layer.inner),
        VectorWork("multiply", layer.rows, layer.inner),
    )
    read, written = 2 * layer.rows * layer.inner, layer.rows * layer.inner
    tensors = (
        Tensor(read, readers=(TensorRead(0, read),)),
        Tensor(written, writers=((0, written),), outlives=True),
    )
    return OperatorGraph((Operator("activation", vector=works),), tensors)
