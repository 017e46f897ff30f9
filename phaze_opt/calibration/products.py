"""Rates of a chip from measured matrix products.

Rows are bursts, products that were timed alone; or sustained, products of long runs, which the
power limit holds back (`phaze_opt.estimator.power_limit`). Sustained rows give
``sustained_peak_share``, whatever their layout, and the rate of the arrays where some of them take
longer than that; a burst clock has no place beside them. Their scatter is that of a limiter that
has or has not taken hold, on both sides of what a long run has, so that no row counts less for it.

What bursts may determine, the surest first:

* the rate of the arrays in long kernels: ``array_efficiency`` where the chip's file states the
  clock under load (a driver reports it), else that clock itself, for only their product shows;
* ``burst_clock_hz``: short kernels are faster;
* ``glb_bytes_per_cycle``, with everything that cores share on the way (multicast in a cluster).

The overhead per tile and the HBM efficiency are left alone: only small products would show them,
in which they mix with the time of a launch.

Rows of one chip and of bf16 only: other precisions have other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit
from phaze_opt.calibration.least_squares import ROBUST_SCALE, fit
from phaze_opt.choices import Layout
from phaze_opt.errors import InputError
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.estimator.power_limit import accumulator_s
from phaze_opt.estimator.single import gemm_graph
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.precision import BF16, SUM_BYTES
from phaze_opt.workload.graph import Gemm, OperatorGraph, side_by_side

LEAST_FLOPS = 10e9
"""Shorter products are mostly launch and library choices, which are no constants of the chip."""

SUSTAINED_SCATTER = 0.15
"""Residual of a sustained row from which it counts linearly: half of that by which a product is
faster that ends before the power limit takes hold."""

_LEAST_EFFICIENCY = 0.5
_LEAST_SHARE = 0.2
_LEAST_CLOCK = 0.4
"""Share of the nominal clock below which no chip runs under its own power limit."""
_CHIP_FIELDS = ("glb_bytes_per_cycle",)
"""Constants that are fields of the accelerator; the others belong to its calibration."""


@dataclass(frozen=True)
class MeasuredProduct:
    """One product, the time of its kernel alone, and its layout (`power_limit.Layout`)."""

    gemm: Gemm
    latency_s: float
    layout: Layout = "tn"


def fit_products(
    rows: Sequence[MeasuredProduct], chip: Accelerator, *, sustained: bool = False
) -> Fit:
    """Fit a chip's constants to measured products.

    Parameters
    ----------
    rows
        Those below `LEAST_FLOPS` are left out.
    chip
        With the stated values of all constants.
    sustained
        Whether they are of long runs, and not bursts.

    Raises
    ------
    InputError
        If there are fewer rows than constants, or one of them cannot be estimated.
    """
    used = large_products(rows)
    constants = sustained_constants(chip) if sustained else product_constants(chip)
    if len(used) < len(constants):
        names = ", ".join(constant.name for constant in constants)
        raise InputError(
            f"There are {len(used)} measured products from {LEAST_FLOPS / 1e9:g} GFLOP up for "
            f"{len(constants)} constants ({names}), but there must be at least as many rows."
        )
    graph = products_graph([row.gemm for row in used], [row.layout for row in used])
    waits_s = np.array([accumulator_s(row.gemm, row.layout, chip) for row in used])

    def predict(values: Mapping[str, float]) -> FloatArray:
        changed = with_product_constants(chip, values)
        return np.asarray(products_s(graph, changed, sustained=sustained) + waits_s)

    scatter = SUSTAINED_SCATTER if sustained else ROBUST_SCALE
    return fit(constants, predict, np.array([row.latency_s for row in used]), scatter)


def large_products(rows: Sequence[MeasuredProduct]) -> list[MeasuredProduct]:
    """Return the rows that constants are fitted to."""
    return [row for row in rows if row.gemm.flops >= LEAST_FLOPS]


def product_constants(chip: Accelerator) -> tuple[Constant, ...]:
    """Return what products may determine of a chip, with what physics allows."""
    stated = chip.calibration
    least_hz, clock_hz = _LEAST_CLOCK * chip.clock_hz, chip.clock_hz
    sustained_hz = chip.sustained_clock_hz
    burst_hz = stated.burst_clock_hz or sustained_hz
    if stated.sustained_clock_hz is None:
        rate = _clock("sustained_clock_hz", sustained_hz, least_hz, clock_hz, prior=False)
        burst = _clock("burst_clock_hz", burst_hz, least_hz, clock_hz)
    else:
        efficiency = stated.array_efficiency
        rate = Constant("array_efficiency", efficiency, _LEAST_EFFICIENCY, 1.0, prior=False)
        burst = _clock("burst_clock_hz", burst_hz, sustained_hz, clock_hz)
    rates = (rate, burst) if burst.lower < burst.upper else (rate,)
    least, greatest = _glb_bounds(chip)
    stated_rate = chip.glb_bytes_per_cycle
    return (
        *rates,
        Constant("glb_bytes_per_cycle", stated_rate, least, greatest, unit="B/cycle"),
    )


def sustained_constants(chip: Accelerator) -> tuple[Constant, ...]:
    """Return what products of long runs may determine of a chip, with what physics allows.

    Of a chip that is known to be held back, bursts have shown the rate of the arrays.
    """
    stated = chip.calibration
    if stated.sustained_peak_share is not None:
        return (_peak_share(stated.sustained_peak_share),)
    working = chip.array_clock_hz / chip.clock_hz
    efficiency = stated.array_efficiency
    rate = Constant("array_efficiency", efficiency, _LEAST_EFFICIENCY, 1.0)
    return (_peak_share(min(working, 1.0)), rate)


def _peak_share(stated: float) -> Constant:
    """Return the share of the peak that long runs reach."""
    return Constant("sustained_peak_share", stated, _LEAST_SHARE, 1.0, prior=False)


def with_product_constants(chip: Accelerator, values: Mapping[str, float]) -> Accelerator:
    """Return the chip with other constants; a burst is never slower than the sustained clock."""
    own: dict[str, Any] = {name: value for name, value in values.items() if name in _CHIP_FIELDS}
    changed: dict[str, Any] = {name: value for name, value in values.items() if name not in own}
    calibration = replace(chip.calibration, **changed)
    if "sustained_peak_share" in changed and calibration.burst_clock_hz is not None:
        # What was the clock of long bursts is replaced by the rate of long runs.
        burst_hz = calibration.burst_clock_hz
        calibration = replace(calibration, sustained_clock_hz=burst_hz, burst_clock_hz=None)
    if calibration.burst_clock_hz is not None:
        sustained_hz = calibration.sustained_clock_hz or chip.clock_hz
        burst_hz = max(calibration.burst_clock_hz, sustained_hz)
        calibration = replace(calibration, burst_clock_hz=burst_hz)
    return replace(chip, calibration=calibration, **own)


def products_graph(gemms: Sequence[Gemm], layouts: Sequence[Layout] | None = None) -> OperatorGraph:
    """Lay out products as a graph in which each operator is one of them, forwards by default."""
    forwards: Sequence[Layout] = ["tn"] * len(gemms)
    pairs = zip(gemms, layouts or forwards, strict=True)
    return side_by_side(tuple([gemm_graph(gemm, layout) for gemm, layout in pairs]))


def products_s(
    products: OperatorGraph, chip: Accelerator, *, sustained: bool = False
) -> FloatArray:
    """Predict the time of each product on all cores, as `estimate_gemm` does.

    Without what a weight gradient waits for its accumulator.
    """
    return estimate_isolated(products, chip, chip.num_tc, sustained=sustained).latency_s


def _clock(
    name: str, stated_hz: float, lower_hz: float, upper_hz: float, prior: bool = True
) -> Constant:
    """Return a clock to fit."""
    return Constant(name, stated_hz, lower_hz, upper_hz, prior, unit="Hz")


def _glb_bounds(chip: Accelerator) -> tuple[float, float]:
    """Return the least and the greatest bandwidth of the global buffer that a chip may have.

    With the least one the largest tiles of all cores, which fill the private buffers with sums in
    fp32, just keep the arrays busy; with the greatest one a core takes in two new edges of its
    array in every cycle, and nothing is used again but within the array. The stated bandwidth is
    always allowed.
    """
    edge = math.sqrt(chip.l2_tc_bytes / SUM_BYTES)
    least = chip.num_tc * 2.0 * BF16.operand_bytes * chip.pe_x * chip.pe_y / edge
    greatest = chip.num_tc * float(BF16.operand_bytes) * (chip.pe_x + chip.pe_y)
    stated = chip.glb_bytes_per_cycle
    return min(least, stated), max(greatest, stated)
