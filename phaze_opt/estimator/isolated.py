"""Operators that run alone: in a burst, until the power limit takes hold.

A chip that was idle starts at its burst clock. Its power limiter averages the power over some time
before it lowers the clock, so that short kernels are faster than the same work in a training run,
where the chip has its sustained clock all the time. With b seconds at the burst clock, s seconds at
the sustained clock and a time T until the limit takes hold, an operator takes

    b if b <= T, else T + (b - T) * s / b.

Where products of long runs were measured by themselves (`Calibration.sustained_peak_share`), no
second rate is read out of the long kernels of bursts: an operator alone is a burst throughout.

Training is evaluated at the sustained rates throughout (`phaze_opt.estimator.power_limit`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.codec import data_table
from phaze_opt.estimator.estimate import ModeEstimate, estimate_on_cores
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.graph import OperatorGraph

BURST_S = float(data_table("estimator", "isolated.toml")["burst_s"])
"""Length up to which a kernel runs at the burst clock."""


@dataclass(frozen=True, eq=False)
class IsolatedEstimate:
    """Operators of a graph, each alone on a chip that was idle.

    Attributes
    ----------
    latency_s : (operators,)
        Without the chip's constant per operator of a stream.
    burst
        The operators in a burst, or as they are in a long run.
    """

    latency_s: FloatArray
    burst: ModeEstimate


def estimate_isolated(
    graph: OperatorGraph, accelerator: Accelerator, cores: int, *, sustained: bool = False
) -> IsolatedEstimate:
    """Estimate every operator of a graph alone.

    Parameters
    ----------
    graph, accelerator, cores
        As for `phaze_opt.estimator.estimate.estimate_on_cores`.
    sustained
        Whether it is one of many in a long run instead, as training is evaluated.

    Raises
    ------
    InputError
        As `phaze_opt.estimator.estimate.estimate_each`.
    """
    chip = accelerator if sustained else accelerator.in_burst
    burst = estimate_on_cores(graph, chip, cores)
    burst_s = burst.busy_s
    if chip is accelerator or accelerator.calibration.sustained_peak_share is not None:
        return IsolatedEstimate(burst_s, burst)
    sustained_s = estimate_on_cores(graph, accelerator, cores).busy_s
    return IsolatedEstimate(isolated_s(burst_s, sustained_s), burst)


def isolated_s(burst_s: FloatArray, sustained_s: FloatArray) -> FloatArray:
    """Time of operators that begin at the burst clock, from the times at either clock."""
    slowdown = np.divide(sustained_s, burst_s, out=np.ones_like(burst_s), where=burst_s > 0.0)
    limited_s = np.maximum(burst_s - BURST_S, 0.0)
    return np.asarray(burst_s + limited_s * (slowdown - 1.0))
