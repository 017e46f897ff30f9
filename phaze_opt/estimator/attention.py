"""Fused attention cores: products, softmax and a causal mask in one kernel.

`attention_tiles` lays the kernel out on the tensor cores. The lanes need the scores of one product
for the operand of the next, so only a part of their time is hidden: a kernel takes
``arrays + (1 - overlap) · lanes``, and at least the time of its lanes, of the global buffer and of
the HBM.

The overlaps of forward and backward and the rate of exponentials belong to the chip and the kernel
(`phaze_opt.hardware.kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.attention_tiles import DIRECTIONS, CoreColumn
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.operator_table import OperatorTable
from phaze_opt.hardware.accelerator import Accelerator


@dataclass(frozen=True, eq=False)
class MaskedWork:
    """Work of a graph where masks hide some of it, and chips have exponentials of their own.

    Attributes
    ----------
    elements : (accelerators, vector works)
        Elements of all vector work; that on scores is done on whole tiles.
    lane_cycles : (accelerators, vector works) or (vector works,)
        Lane cycles per element of all vector work, with each chip's own rate of exponentials.
    shares : (accelerators, operators)
        Share of each operator's work that no mask hides, as whole tiles; 1 of others.
    """

    elements: FloatArray
    lane_cycles: FloatArray
    shares: FloatArray


def masked_work(
    table: OperatorTable, accelerators: Sequence[Accelerator], rows: FloatArray
) -> MaskedWork:
    """Return the work of a graph with fused attention.

    Parameters
    ----------
    table
        The graph.
    accelerators
        What it runs on.
    rows : (accelerators, fused attention cores, len(CoreColumn))
        As of `attention_tiles.attention_on_pools`, for the pool of each accelerator.
    """
    scores = table.attention_cores[:, :3].astype(np.float64).prod(axis=1)
    computed = rows[:, :, CoreColumn.SCORES]
    elements = np.empty((len(accelerators), len(table.elements)))
    elements[:] = table.elements
    elements[:, table.score_works] = computed[:, table.score_works_core]
    shares = np.ones((len(accelerators), len(table.operators)))
    shares[:, table.attention_owner] = np.minimum(computed / scores, 1.0)
    return MaskedWork(elements, _lane_cycles(table, accelerators), shares)


def _lane_cycles(table: OperatorTable, accelerators: Sequence[Accelerator]) -> FloatArray:
    """Replace the cycles of exponentials where a chip has its own rate."""
    rates = chip_column(accelerators, "exponentials_per_cycle")
    if np.isnan(rates).all():
        return table.lane_cycles
    exponential = chip_column(accelerators, "pe_vc") / rates - table.exponential_cycles
    own = (table.exponential_cycles > 0.0) & ~np.isnan(rates)
    return table.lane_cycles + np.where(own, exponential, 0.0)


def exposed_share(table: OperatorTable, accelerators: Sequence[Accelerator]) -> FloatArray:
    """Share of the lanes' time for which the tensor cores wait.

    Returns
    -------
    share : (accelerators, operators)
        0 for operators that are not fused attention.
    """
    forward = chip_column(accelerators, "calibration.attention_overlap")
    backward = chip_column(accelerators, "attention_backward_overlap")
    overlap = np.where(table.is_backward_attention > 0.0, backward, forward)
    return np.asarray((1.0 - overlap) * table.is_attention)


def array_slowdown(table: OperatorTable, accelerators: Sequence[Accelerator]) -> FloatArray:
    """Cycles of `Accelerator.array_clock_hz` that a cycle of the arrays takes.

    Returns
    -------
    slowdown : (accelerators, operators)
        1 for operators that are not fused attention.
    """
    slowdown = np.ones((len(accelerators), len(table.operators)))
    if table.attention_owner.size > 0:
        kernels = chip_column(accelerators, "attention_kernel")[:, 0, 3:]
        places = table.attention_direction + DIRECTIONS * table.attention_cores[:, 6]
        slowdown[:, table.attention_owner] = kernels[:, places]
    return slowdown
