"""The best plan for products on a pool of tensor cores: cycles, traffic and tilings.

`gemm_kernel` lays out one product in every way; the fastest for the whole batch is taken, and
`gemm_groups` splits the batch where groups with tilings of their own are faster. Of equally fast
tilings the one with the least traffic is taken.

The kernel is one scalar function compiled by numba; arrays of products and accelerators loop over
it, so a single estimate and a table agree bit for bit.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, compiled
from phaze_opt.estimator.gemm_groups import group_sizes
from phaze_opt.estimator.gemm_kernel import (
    DATAFLOW,
    ELEMENT_BYTES,
    MEMORY_CYCLES,
    MOST_TILINGS,
    READ_BYTES,
    TILE_K,
    TILE_M,
    TILE_N,
    TILES,
    TILING_ROWS,
    WAVE_CYCLES,
    WRITTEN_BYTES,
    hbm_traffic_bytes,
    lay_out_tilings,
    tile_l2_bytes,
)


@callee("float64(float64[:,::1],int64,int64,int64)")
def _cycles(tilings: FloatArray, tiling: int, batch: int, cores: int) -> float:
    """Cycles of so many products with one tiling."""
    waves = np.ceil(batch * tilings[TILES, tiling] / cores)
    memory = batch * tilings[MEMORY_CYCLES, tiling]
    return float(max(waves * tilings[WAVE_CYCLES, tiling], memory))


@callee("int64(float64[:,::1],int64,int64,int64)")
def _best_tiling(tilings: FloatArray, count: int, batch: int, cores: int) -> int:
    """Return the tiling with the fewest cycles for so many products, then the least traffic."""
    best, best_cycles, best_bytes = -1, np.inf, np.inf
    for tiling in range(count):
        cycles = _cycles(tilings, tiling, batch, cores)
        if cycles <= best_cycles:
            moved = tilings[READ_BYTES, tiling] + tilings[WRITTEN_BYTES, tiling]
            if cycles < best_cycles or moved < best_bytes:
                best, best_cycles, best_bytes = tiling, cycles, moved
    return best


@callee("int64[:,::1](float64[:,::1],int64,int64,int64)")
def _plan(tilings: FloatArray, count: int, batch: int, cores: int) -> IntArray:
    """Return tiling and products of each group, the largest first.

    Returns
    -------
    groups : (groups, 2)
    """
    best = _best_tiling(tilings, count, batch, cores)
    sizes = group_sizes(tilings, count, batch, cores, _cycles(tilings, best, batch, cores))
    groups = np.zeros((max(sizes.size, 1), 2), np.int64)
    if sizes.size == 0:
        groups[0, 0], groups[0, 1] = best, batch
        return groups
    used = 0
    for index in range(sizes.size):
        size = sizes[index]
        tiling = _best_tiling(tilings, count, size, cores)
        # Two groups of one tiling take no less than both together.
        slot = 0
        while slot < used and groups[slot, 0] != tiling:
            slot += 1
        used = max(used, slot + 1)
        groups[slot, 0] = tiling
        groups[slot, 1] += size
        if groups[slot, 1] > groups[0, 1]:
            for column in range(2):
                groups[0, column], groups[slot, column] = groups[slot, column], groups[0, column]
    return groups[:used]


@callee(
    "int64(int64[::1],int64,int64,float64,float64,float64,float64,float64,float64,float64[:,::1])"
)
def _lay_out(
    gemm: IntArray, x: int, y: int, l2_bytes: float, l2_rate: float,
    glb_bytes: float, glb_rate: float, hbm_rate: float, overhead: float, tilings: FloatArray,
) -> int:  # fmt: skip
    """Lay out the tilings of a product and return how many there are."""
    m, n, k = gemm[0], gemm[1], gemm[2]
    hbm_cycles = hbm_traffic_bytes(m, n, k, glb_bytes) / hbm_rate
    return lay_out_tilings(
        m, n, k, x, y, l2_bytes, l2_rate, glb_rate, overhead, hbm_cycles, tilings
    )


@callee(
    "void(int64[::1],int64,int64,int64,float64,float64,float64,float64,float64,float64,"
    "float64[:,::1],float64[::1])"
)
def _fill_row(
    gemm: IntArray, cores: int, x: int, y: int, l2_bytes: float, l2_rate: float,
    glb_bytes: float, glb_rate: float, hbm_rate: float, overhead: float,
    tilings: FloatArray, row: FloatArray,
) -> None:  # fmt: skip
    """Estimate one product; see `tensor_core.Column` for the row."""
    count = _lay_out(
        gemm, x, y, l2_bytes, l2_rate, glb_bytes, glb_rate, hbm_rate, overhead, tilings
    )
    for column in range(row.size):
        row[column] = 0.0
    if count == 0:
        row[0] = np.inf
        return
    m, n, k, batch = gemm[0], gemm[1], gemm[2], gemm[3]
    compulsory = float(ELEMENT_BYTES) * (float(m) * k + float(k) * n + float(m) * n)
    row[3] = batch * (hbm_traffic_bytes(m, n, k, glb_bytes) - compulsory)
    plan = _plan(tilings, count, batch, cores)
    for group in range(plan.shape[0]):
        tiling, products = plan[group, 0], plan[group, 1]
        tiles = products * tilings[TILES, tiling]
        row[1] += products * tilings[READ_BYTES, tiling]
        row[2] += products * tilings[WRITTEN_BYTES, tiling]
        row[4] += tiles * tile_l2_bytes(
            int(tilings[DATAFLOW, tiling]), int(tilings[TILE_M, tiling]),
            int(tilings[TILE_N, tiling]), int(tilings[TILE_K, tiling]), x, y,
        )  # fmt: skip
        # A group follows when the one before is done, its memory traffic included.
        row[0] += (
            np.ceil(tiles / cores) * tilings[WAVE_CYCLES, tiling]
            if plan.shape[0] == 1
            else _cycles(tilings, tiling, products, cores)
        )
    for column in range(DATAFLOW, TILE_K + 1):
        row[column] = tilings[column, plan[0, 0]]


@compiled(
    "void(int64[:,::1],int64,int64,int64,float64,float64,float64,float64,float64,float64,"
    "float64[:,::1])"
)
def fill_rows(
    gemms: IntArray, cores: int, x: int, y: int, l2_bytes: float, l2_rate: float,
    glb_bytes: float, glb_rate: float, hbm_rate: float, overhead: float, rows: FloatArray,
) -> None:  # fmt: skip
    """Estimate every product on one pool of tensor cores; all rates are in bytes per cycle."""
    tilings = np.empty((TILING_ROWS, MOST_TILINGS))
    for index in range(gemms.shape[0]):
        _fill_row(
            gemms[index], cores, x, y, l2_bytes, l2_rate, glb_bytes, glb_rate, hbm_rate, overhead,
            tilings, rows[index],
        )  # fmt: skip


@compiled(
    "float64[:,::1](int64[::1],int64,int64,int64,float64,float64,float64,float64,float64,float64)"
)
def plan_rows(
    gemm: IntArray, cores: int, x: int, y: int, l2_bytes: float, l2_rate: float,
    glb_bytes: float, glb_rate: float, hbm_rate: float, overhead: float,
) -> FloatArray:  # fmt: skip
    """Return the groups in which one product runs, the largest first.

    Returns
    -------
    groups : (groups, 5)
        Products, dataflow, and the edges of the tile along m, n and k; none if no tile fits.
    """
    tilings = np.empty((TILING_ROWS, MOST_TILINGS))
    count = _lay_out(
        gemm, x, y, l2_bytes, l2_rate, glb_bytes, glb_rate, hbm_rate, overhead, tilings
    )
    if count == 0:
        return np.empty((0, 5))
    plan = _plan(tilings, count, gemm[3], cores)
    groups = np.empty((plan.shape[0], 5))
    for group in range(plan.shape[0]):
        groups[group, 0] = plan[group, 1]
        for column in range(4):
            groups[group, 1 + column] = tilings[DATAFLOW + column, plan[group, 0]]
    return groups
