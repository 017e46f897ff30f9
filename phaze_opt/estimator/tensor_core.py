"""Matrix products on the tensor cores of many accelerators.

The model is in `gemm_kernel` (tilings of one product), `gemm_groups` (batches) and `gemm_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.errors import InputError
from phaze_opt.estimator.gemm_rows import fill_rows, plan_rows
from phaze_opt.hardware.accelerator import Accelerator


class Dataflow(IntEnum):
    """Operand that stays in the private L2 of a core."""

    OUTPUT_STATIONARY = 0
    WEIGHT_STATIONARY = 1
    INPUT_STATIONARY = 2


class Column(IntEnum):
    """Last axis of the table that `gemm_table` returns.

    A batch that runs in groups has the sums of its groups, and the tiling of the largest.
    """

    ARRAY_CYCLES = 0
    """PE array, fill and drain of every wave included. Between groups the arrays also wait for the
    memory traffic of the one before, which is included too."""
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


@dataclass(frozen=True)
class Tiling:
    """Products of a batch that run together, the tile of one core, and what stays in its L2.

    Attributes
    ----------
    products
        How many of the batch; the others run before or after, with tilings of their own.
    dataflow
        Name of a `Dataflow`.
    tile_m, tile_n, tile_k
        Edges of the tile.
    """

    products: int
    dataflow: str
    tile_m: int
    tile_n: int
    tile_k: int


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
            raise _no_tile_fits(accelerator)
    return table


def gemm_plan(gemm: IntArray, accelerator: Accelerator, cores: int) -> tuple[Tiling, ...]:
    """Return how one product runs: its groups, the largest first; mostly a single one.

    Parameters
    ----------
    gemm : (4,)
        m, n, k, batch.
    accelerator, cores
        As for `gemm_table`.

    Raises
    ------
    InputError
        As `gemm_table`.
    """
    groups = plan_rows(gemm, *tensor_core_pool(accelerator, cores))
    if len(groups) == 0:
        raise _no_tile_fits(accelerator)
    return tuple(
        Tiling(products, Dataflow(dataflow).name.lower(), *edges)
        for products, dataflow, *edges in groups.astype(np.int64).tolist()
    )


def _no_tile_fits(accelerator: Accelerator) -> InputError:
    """Name the buffer that is too small."""
    return InputError(
        f"l2_tc_bytes is {accelerator.l2_tc_bytes}, too small for one tile of "
        f"{accelerator.pe_x} × {accelerator.pe_y} with its streams."
    )
