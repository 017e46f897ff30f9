"""Products and fused attention of long runs, which the power limit of a chip holds back.

A power limiter averages over some ten milliseconds, so that in a long run the energy of all work
over its time is the limit. Every multiply-accumulate takes about the same energy, while cores that
wait take little: a product that leaves cores idle (edges of arrays, a last wave with few tiles)
runs at a higher clock than one that fills them all, and both end at the same rate of useful work.
So a product takes

    max(cycles / clock, multiply-accumulates / sustained rate),

with the clock that the chip has where nothing limits it. So does fused attention, of which the
tiles that are computed count (a B200 sustains forwards at 1,060 to 1,130 TFLOP/s, and products at
1,110; its bursts are at 1,350). Of 257 sustained products of a B200 this leaves 9.7 %, and a slower
clock for all cycles 11.7 %; a fit without a form leaves 9.4 %.

The layouts of forward (TN), data gradient (NN) and weight gradient (NT) have the same rate. What a
weight gradient takes longer is its epilogue: it adds to an accumulator in fp32, which is read after
the last multiplication of a tile. These four bytes per element of the result are exposed
(`accumulator_s`); that the difference falls with the reduction (8 % at 2,048, none at 32,768) says
the same. A training run counts its accumulators by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.choices import Layout
from phaze_opt.estimator.chips import chip_column
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.graph import Gemm

LAYOUTS: tuple[Layout, ...] = get_args(Layout)

ACCUMULATOR_BYTES = 4


def limited_seconds_per_mac(
    accelerators: Sequence[Accelerator], tensor_cores: Sequence[int] | IntArray
) -> FloatArray:
    """Return what the power limit leaves some tensor cores, as seconds per multiply-accumulate.

    Some of the cores have their share of the chip's power.

    Returns
    -------
    seconds_per_mac : (accelerators, 1)
        0 where no limit is known.
    """
    elements = chip_column(accelerators, "pe_x") * chip_column(accelerators, "pe_y")
    clock_hz = chip_column(accelerators, "power_limited_clock_hz")
    cores = np.asarray(tensor_cores, dtype=np.float64)[:, np.newaxis]
    return np.asarray(1.0 / (cores * elements * clock_hz))


def accumulator_s(gemm: Gemm, layout: Layout, accelerator: Accelerator) -> float:
    """Return the seconds for which a product waits for its accumulator; 0 without one."""
    if layout != "nt":
        return 0.0
    read_bytes = float(ACCUMULATOR_BYTES * gemm.batch * gemm.m * gemm.n)
    return read_bytes / accelerator.bulk_bytes_per_s
