"""What a measured product in fewer bits than 16 holds beside its kernel.

A row is the time of a framework's linear layer, which takes its activation in bf16 and quantises it
first. What that costs belongs to the table of a chip and a framework, not to the chip: seconds per
call, for the kernels are several, and bytes that the quantisation reads and writes per element of
the activation. Both are fitted here, and nothing else is: the arrays have the rate that the chip
states for the precision. Kernels write their result beside the next tile, unless those of a table
are known to write it when their arrays are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit
from phaze_opt.calibration.least_squares import fit
from phaze_opt.calibration.products import (
    MeasuredProduct,
    large_products,
    products_graph,
    products_s,
)
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.precision import BF16, PrecisionName
from phaze_opt.workload.graph import Gemm

TABLE_CONSTANTS = (
    Constant("call_overhead_s", 15e-6, 0.0, 100e-6, prior=False, scale="linear", unit="s"),
    Constant("quantisation_bytes", 5.0, 3.0, 27.0, prior=False, scale="linear", unit="B"),
)
"""Of a table: seconds per call, and traffic per element of the activation. One pass that knows the
scale reads 2 bytes and writes 1; a pass before it that looks for the largest element reads 2 more;
a framework that scales, clamps and converts in fp32, one kernel each, moves 27. No launch takes
100 µs."""


def fit_quantised_products(
    rows: Sequence[MeasuredProduct],
    chip: Accelerator,
    precision: PrecisionName = "fp8",
    *,
    writes_late: bool = False,
) -> Fit:
    """Fit the constants of a table of products.

    Parameters
    ----------
    rows
        Of one chip and framework. Those below `phaze_opt.calibration.products.LEAST_FLOPS` are left
        out.
    chip
        With the constants of its products.
    precision
        What is multiplied.
    writes_late
        See `QuantisedCalls`.

    Raises
    ------
    InputError
        If there are fewer rows than constants.
    """
    used = large_products(rows)
    gemms = [row.gemm for row in used]
    calls = QuantisedCalls(gemms, chip, precision, writes_late=writes_late)
    return fit(TABLE_CONSTANTS, calls.seconds, np.array([row.latency_s for row in used]))


class QuantisedCalls:
    """Products with the quantisation of their activations, for any constants of a table.

    The products are estimated once.

    Parameters
    ----------
    gemms, chip, precision
        As for `fit_quantised_products`.
    writes_late
        Whether nothing is multiplied while a kernel writes its result.
    """

    def __init__(
        self,
        gemms: Sequence[Gemm],
        chip: Accelerator,
        precision: PrecisionName = "fp8",
        *,
        writes_late: bool = False,
    ) -> None:
        narrow = [replace(gemm, precision=precision) for gemm in gemms]
        self._products_s = products_s(products_graph(narrow), chip)
        if writes_late:
            result_bytes = [float(BF16.result_bytes * gemm.m * gemm.n) for gemm in gemms]
            self._products_s = self._products_s + np.array(result_bytes) / chip.bulk_bytes_per_s
        activations = np.array([float(gemm.m * gemm.k) for gemm in gemms])
        self._byte_s = activations / chip.memory_bytes_per_s

    def seconds(self, values: Mapping[str, float]) -> FloatArray:
        """Predict every call for the values of `TABLE_CONSTANTS`."""
        quantisation_s = values["quantisation_bytes"] * self._byte_s
        return np.asarray(values["call_overhead_s"] + self._products_s + quantisation_s)
