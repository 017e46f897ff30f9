"""Matrix products on the tensor cores of many accelerators; `gemm_kernel` holds the model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from phaze_opt.errors import InputError
from phaze_opt.estimator.gemm_kernel import FloatArray, IntArray, fill_rows
from phaze_opt.hardware.accelerator import Accelerator


class Dataflow(IntEnum):
    """Operand that stays in the private L2 of a core."""

    OUTPUT_STATIONARY = 0
    WEIGHT_STATIONARY = 1
    INPUT_STATIONARY = 2


class Column(IntEnum):
    """Last axis of the table that `gemm_table` returns."""

    ARRAY_CYCLES = 0
    """PE array, fill and drain of every wave included."""
    GLB_READ_BYTES = 1
    """From the global buffer into the cores; a tile that two cores read counts twice."""
    GLB_WRITE_BYTES = 2
    """From the cores into the global buffer: the result, and spilled partial sums."""
    HBM_EXTRA_BYTES = 3
    """HBM traffic beyond reading each operand and writing the result once."""
    L2_BYTES = 4
    """Between the private buffers and the arrays, all cores."""
    DATAFLOW = 5
    TILE_M = 6
    TILE_N = 7
    TILE_K = 8


TensorCorePool = tuple[int, int, int, float, float, float, float, float, float]
"""What the estimate of a product depends on: cores, pe_x, pe_y, L2 bytes and bytes per cycle,
global buffer bytes and bytes per cycle, HBM bytes per cycle, cycles of overhead per wave."""


def tensor_core_pool(accelerator: Accelerator, cores: int) -> TensorCorePool:
    """Return the pool of some tensor cores with their share of the global buffer."""
    overhead = accelerator.calibration.tile_overhead_cycles
    l2_rate = accelerator.l2_bytes_per_cycle
    return (
        cores,
        accelerator.pe_x,
        accelerator.pe_y,
        float(accelerator.l2_tc_bytes),
        np.inf if l2_rate is None else float(l2_rate),
        accelerator.glb_bytes * cores / accelerator.num_tc,
        float(accelerator.glb_bytes_per_cycle),
        accelerator.sustained_hbm_bytes_per_s / accelerator.sustained_clock_hz,
        float(accelerator.pe_x + accelerator.pe_y) if overhead is None else float(overhead),
    )


def gemm_table(
    gemms: IntArray, accelerators: Sequence[Accelerator], cores: Sequence[int]
) -> FloatArray:
    """Estimate many products on many accelerators.

    Parameters
    ----------
    gemms : (products, 4)
        m, n, k, batch.
    accelerators
        Those that share a `TensorCorePool` share the work.
    cores
        Tensor cores of each accelerator that a product runs on, with their share of the global
        buffer.

    Returns
    -------
    table : (accelerators, products, len(Column))

    Raises
    ------
    InputError
        If a private buffer cannot hold one tile with its streams.
    """
    table = np.zeros((len(accelerators), len(gemms), len(Column)))
    first_with: dict[TensorCorePool, int] = {}
    for index, (accelerator, used) in enumerate(zip(accelerators, cores, strict=True)):
        pool = tensor_core_pool(accelerator, used)
        first = first_with.setdefault(pool, index)
        if first < index:
            table[index] = table[first]
            continue
        fill_rows(gemms, *pool, table[index])
        if np.any(np.isinf(table[index, :, Column.ARRAY_CYCLES])):
            raise InputError(
                f"l2_tc_bytes is {accelerator.l2_tc_bytes}, too small for one tile of "
                f"{accelerator.pe_x} × {accelerator.pe_y} with its streams."
            )
    return table
