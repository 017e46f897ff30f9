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
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit
from phaze_opt.calibration.least_squares import fit
from phaze_opt.calibration.products import products_graph, products_s
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.experts import grouped_product
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
    """One layer of gated experts on one device: tokens, and sizes of `Experts`."""

    tokens: int
    hidden: int
    inner: int
    top_k: int
    experts: int

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
        up = [
            grouped_product(each.rows, (each.experts, 2 * each.inner, each.hidden))
            for each in layers
        ]
        down = [
            grouped_product(each.rows, (each.experts, each.hidden, each.inner)) for each in layers
        ]
        products = products_s(products_graph([*up, *down]), chip).reshape(2, -1)
        activations = side_by_side(tuple(_activation(each) for each in layers))
        activation_s = estimate_isolated(activations, chip, chip.num_tc).latency_s
        self._kernels_s = products.sum(axis=0) + activation_s
        elements = np.array([float(each.rows * each.hidden) for each in layers])
        self._byte_s = elements / chip.sustained_hbm_bytes_per_s

    def seconds(self, values: Mapping[str, float]) -> FloatArray:
        """Predict every call for the values of `TABLE_CONSTANTS`."""
        moved_s = values["row_bytes"] * self._byte_s
        return np.asarray(self._kernels_s + moved_s)


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
