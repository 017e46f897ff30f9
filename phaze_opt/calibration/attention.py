"""The overlap of products and softmax from measured fused attention cores.

A row is the time of a call: beside the kernel it holds what a framework adds per call, and the
traffic of kernels that run before it (they split, scale and turn queries, keys and values). Both
belong to the table, not to the chip; they are fitted with the overlap and are not kept. A table of
kernels alone gives values near 0 for both.

The rate of exponentials is not fitted: only the product of exposed share and lane cycles shows in
a time, so it comes from the data sheet. Rows of forwards, of one chip and of bf16 only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit, FittedConstant
from phaze_opt.calibration.least_squares import fit
from phaze_opt.errors import InputError
from phaze_opt.estimator.estimate import ModeEstimate, estimate_on_cores
from phaze_opt.estimator.isolated import isolated_s
from phaze_opt.estimator.single import attention_graph
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import side_by_side

TABLE_CONSTANTS = (
    Constant("call_overhead_s", 25e-6, 0.0, 100e-6, prior=False, scale="linear", unit="s"),
    Constant("earlier_traffic", 2.0, 0.0, 6.0, prior=False, scale="linear"),
)
"""Of a table: seconds per call, and the traffic of the kernels before in multiples of what the
attention kernel reads and writes. No launch takes 100 µs, and three kernels that each read and
write everything are 6."""


@dataclass(frozen=True)
class MeasuredAttention:
    """One forward of a fused attention core and the time of its call."""

    shape: AttentionShape
    latency_s: float


def fit_attention(rows: Sequence[MeasuredAttention], chip: Accelerator) -> Fit:
    """Fit a chip's overlap to measured forwards, with the two constants of their table.

    Parameters
    ----------
    rows
        Of one table.
    chip
        With the rates of its arrays, memories and exponentials.

    Returns
    -------
    fit
        The overlap, the constants of the table, and the rate of exponentials as it was stated (of
        the lanes, where the chip states none).

    Raises
    ------
    InputError
        If there are fewer rows than constants, or one of them cannot be estimated.
    """
    constants = (_overlap(chip), *TABLE_CONSTANTS)
    if len(rows) < len(constants):
        names = ", ".join(constant.name for constant in constants)
        raise InputError(
            f"There are {len(rows)} measured rows of fused attention for {len(constants)} "
            f"constants ({names}), but there must be at least as many rows."
        )
    calls = AttentionCalls([row.shape for row in rows], chip)
    found = fit(constants, calls.seconds, np.array([row.latency_s for row in rows]))
    return Fit((*found.constants, _exponentials(chip)), found.errors)


def with_attention_constants(chip: Accelerator, values: Mapping[str, float]) -> Accelerator:
    """Return the chip with a fitted overlap; constants of the table are left out."""
    overlap = values["attention_overlap"]
    return replace(chip, calibration=replace(chip.calibration, attention_overlap=overlap))


class AttentionCalls:
    """Measured calls of fused attention on one chip, for many values of the constants.

    The parts of each kernel are estimated once: the overlap only says how they add up.
    """

    def __init__(self, shapes: Sequence[AttentionShape], chip: Accelerator) -> None:
        graph = side_by_side(tuple(map(attention_graph, shapes)))
        alternating = with_attention_constants(chip, {"attention_overlap": 0.0})
        self._burst = estimate_on_cores(graph, alternating.in_burst, chip.num_tc)
        self._sustained = estimate_on_cores(graph, alternating, chip.num_tc)
        self._traffic_s = np.array(graph.moved_bytes) / chip.sustained_hbm_bytes_per_s

    def seconds(self, values: Mapping[str, float]) -> FloatArray:
        """Predict every call for the values of all constants."""
        overlap = values["attention_overlap"]
        kernel_s = isolated_s(_busy_s(self._burst, overlap), _busy_s(self._sustained, overlap))
        return values["call_overhead_s"] + kernel_s + values["earlier_traffic"] * self._traffic_s


def _busy_s(alternating: ModeEstimate, overlap: float) -> FloatArray:
    """Time of kernels that hide a part of what products and softmax take in turns."""
    tc_s = alternating.tc_s - overlap * alternating.exposed_lanes_s
    busy_s = [tc_s, alternating.vc_s, alternating.glb_s, alternating.hbm_s]
    return np.asarray(np.maximum.reduce(busy_s))


def _overlap(chip: Accelerator) -> Constant:
    """Return the constant that is kept."""
    stated = chip.calibration.attention_overlap
    return Constant("attention_overlap", stated, 0.0, 1.0, prior=False, scale="linear")


def _exponentials(chip: Accelerator) -> FittedConstant:
    """Return the rate of exponentials as one that rows do not determine."""
    rate = chip.calibration.exponentials_per_cycle
    if rate is None:
        rate = chip.pe_vc / vector_operator("exponential").exponential_cycles
    return FittedConstant(
        "exponentials_per_cycle", "1/cycle", rate, "kept", None, determined=False, at_bound=False
    )
