"""What kernels of fused attention make of a chip, from measured forwards and backwards.

The constants are those of `phaze_opt.hardware.kernels`, of either direction by itself:

* the rate of the arrays, as a share of the nominal clock;
* the overlap of products and softmax: the rows show it apart from the rate where heads of several
  widths were measured, for the softmax does not grow with the width;
* cycles of fill and epilogue per row of tiles, where sequences of several lengths were;
* of a backward, the rate with heads wider than 128 relative to narrower ones, where there are some.

A row is the time of a call: beside the kernel it holds what a framework adds per call, and before a
forward of a serving engine (not in long runs of training) the traffic of kernels that split, scale
and turn queries, keys and values. Both belong to the table, not to the chip; they are fitted with
the others and are not kept. A table of kernels alone gives values near 0 for both.

The rate of exponentials is not fitted: only the product of exposed share and lane cycles shows in
a time, so it comes from the data sheet. Rows of one chip, one kernel and of bf16 only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit, FittedConstant
from phaze_opt.calibration.least_squares import fit
from phaze_opt.errors import InputError
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.estimator.operator_table import WIDE_HEAD
from phaze_opt.estimator.single import attention_graph
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import side_by_side

CALL_OVERHEAD = Constant(
    "call_overhead_s", 25e-6, 0.0, 100e-6, prior=False, scale="linear", unit="s"
)
EARLIER_TRAFFIC = Constant("earlier_traffic", 2.0, 0.0, 6.0, prior=False, scale="linear")
"""Of a table: seconds per call, and the traffic of the kernels before in multiples of what the
attention kernel reads and writes. No launch takes 100 µs, and three kernels that each read and
write everything are 6."""
_LEAST_RATE = 0.1
_MOST_ROW_CYCLES = 40_000.0
"""Some 20 µs: the last gradients of a column leave a core within that."""
_LEAST_WIDE_RATE = 0.4


@dataclass(frozen=True)
class MeasuredAttention:
    """One fused attention core, forward or backward, and the time of its call."""

    shape: AttentionShape
    latency_s: float
    backward: bool = False


def fit_attention(
    rows: Sequence[MeasuredAttention],
    chip: Accelerator,
    *,
    sustained: bool = False,
    calls: bool = True,
) -> Fit:
    """Fit the constants of a kernel on a chip, with those of the table of its calls.

    Parameters
    ----------
    rows
        Of one table: forwards, backwards, or both.
    chip
        With the rates of its arrays, memories and exponentials.
    sustained
        Whether the rows are of long runs, and not bursts.
    calls
        Whether they are times of calls, and not of kernels alone.

    Returns
    -------
    fit
        Constants of the forward and of the backward, those of the table, and the rate of
        exponentials as it was stated (of the lanes, where the chip states none). Errors are of
        forwards first.

    Raises
    ------
    InputError
        If one direction has fewer rows than constants, or a row cannot be estimated.
    """
    fits = [
        _fit_direction(some, AttentionCalls(some, chip, sustained=sustained), calls)
        for some in (
            [row for row in rows if not row.backward],
            [row for row in rows if row.backward],
        )
        if some
    ]
    constants = tuple(constant for direction in fits for constant in direction.constants)
    errors = np.concatenate([np.zeros(0), *(direction.errors for direction in fits)])
    return Fit((*constants, _exponentials(chip)), errors)


def _fit_direction(rows: Sequence[MeasuredAttention], timed: AttentionCalls, calls: bool) -> Fit:
    """Fit the constants of one direction."""
    constants = attention_constants(rows, timed.chip)
    if timed.sustained:
        # Training stacks hand their tensors over as they are; engines of serving turn them first.
        constants = tuple(constant for constant in constants if constant is not EARLIER_TRAFFIC)
    if not calls:
        constants = tuple(c for c in constants if c.name.startswith("attention_"))
    if len(rows) < len(constants):
        names = ", ".join(constant.name for constant in constants)
        raise InputError(
            f"There are {len(rows)} measured rows of fused attention for {len(constants)} "
            f"constants ({names}), but there must be at least as many rows."
        )
    return fit(constants, timed.seconds, np.array([row.latency_s for row in rows]))


def attention_constants(
    rows: Sequence[MeasuredAttention], chip: Accelerator
) -> tuple[Constant, ...]:
    """Return what rows of one direction may determine, with what physics allows."""
    own, kernel = chip.calibration, chip.attention_kernel
    working = chip.array_clock_hz / chip.clock_hz
    row_cycles = kernel.row_cycles / own.array_efficiency
    several = len({row.shape.queries for row in rows}) > 1
    if not rows[0].backward:
        shown = [
            _rate("attention_rate", min(working / kernel.forward, 1.0)),
            _overlap("attention_overlap", own.attention_overlap, rows),
        ]
        if several:
            shown.append(_row_cycles("attention_row_cycles", row_cycles))
        return (*shown, CALL_OVERHEAD, EARLIER_TRAFFIC)
    row_cycles = kernel.column_cycles / own.array_efficiency
    shown = [
        _rate("attention_backward_rate", min(working / kernel.backward, 1.0)),
        _overlap("attention_backward_overlap", chip.attention_backward_overlap, rows),
    ]
    if several:
        shown.append(_row_cycles("attention_backward_row_cycles", row_cycles))
    wide = {_is_wide(row.shape) for row in rows}
    if len(wide) > 1:
        stated = own.attention_wide_rate
        shown.append(Constant("attention_wide_rate", stated, _LEAST_WIDE_RATE, 1.0, prior=False))
    return (*shown, CALL_OVERHEAD)


def with_attention_constants(chip: Accelerator, values: Mapping[str, float]) -> Accelerator:
    """Return the chip with fitted constants; those of the table are left out."""
    own = {name: value for name, value in values.items() if name.startswith("attention_")}
    return replace(chip, calibration=replace(chip.calibration, **own))


class AttentionCalls:
    """Measured calls of fused attention on one chip, for many values of the constants."""

    def __init__(
        self, rows: Sequence[MeasuredAttention], chip: Accelerator, *, sustained: bool = False
    ) -> None:
        graphs = [attention_graph(row.shape, backward=row.backward) for row in rows]
        self._graph, self.chip = side_by_side(tuple(graphs)), chip
        self.sustained = sustained
        is_forward = np.array([not row.backward for row in rows], dtype=np.float64)
        traffic_bytes = np.array(self._graph.moved_bytes) * is_forward
        self._traffic_s = traffic_bytes / chip.memory_bytes_per_s

    def seconds(self, values: Mapping[str, float]) -> FloatArray:
        """Predict every call for the values of all constants."""
        chip = with_attention_constants(self.chip, values)
        kernel_s = estimate_isolated(
            self._graph, chip, chip.num_tc, sustained=self.sustained
        ).latency_s
        earlier_s = values.get(EARLIER_TRAFFIC.name, 0.0) * self._traffic_s
        return values.get(CALL_OVERHEAD.name, 0.0) + kernel_s + earlier_s


def _is_wide(shape: AttentionShape) -> bool:
    """Say whether the heads of a core are wider than what a core holds sums of side by side."""
    return max(shape.head_dim, shape.width) > WIDE_HEAD


def _rate(name: str, stated: float) -> Constant:
    """Return a rate of the arrays."""
    return Constant(name, stated, _LEAST_RATE, 1.0, prior=False)


def _overlap(name: str, stated: float, rows: Sequence[MeasuredAttention]) -> Constant:
    """Return an overlap: a finding of its own where all heads have one width."""
    widths = {row.shape.head_dim + row.shape.width for row in rows}
    return Constant(name, stated, 0.0, 1.0, prior=len(widths) == 1, scale="linear")


def _row_cycles(name: str, stated: float) -> Constant:
    """Return the fill and epilogue of a row of tiles."""
    return Constant(name, stated, 0.0, max(_MOST_ROW_CYCLES, stated), scale="root", unit="cycles")


def _exponentials(chip: Accelerator) -> FittedConstant:
    """Return the rate of exponentials as one that rows do not determine."""
    rate = chip.calibration.exponentials_per_cycle
    if rate is None:
        rate = chip.pe_vc / vector_operator("exponential").exponential_cycles
    return FittedConstant(
        "exponentials_per_cycle", "1/cycle", rate, "kept", None, determined=False, at_bound=False
    )
