"""The fastest plan of matrix products on the tensor cores of one accelerator or many.

`gemm_tilings` lays out one product in every way; the fastest tiling for the whole operator is
taken, epilogue and batch included, and `gemm_groups` splits the batch where groups with tilings of
their own are faster. Of equally fast tilings the one with the least traffic is taken. The HBM has
no say: no tiling changes its traffic, and where tensors stay on the chip it may not bind.

The estimate of one product is a compiled scalar function; tables of products and accelerators loop
over it, so that a single estimate and a table agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray, distinct_rows
from phaze_opt.compiled import callee, lazily_compiled
from phaze_opt.errors import InputError
from phaze_opt.estimator.gemm_groups import group_sizes
from phaze_opt.estimator.gemm_tilings import (
    POOL,
    TABLE_SHAPE,
    Row,
    TensorCorePool,
    array_cycles,
    lay_out_tilings,
)
from phaze_opt.estimator.gemm_traffic import (
    Dataflow,
    repeated_bytes,
    tile_l2_bytes,
)
from phaze_opt.hardware.accelerator import Accelerator, AttentionKernel
from phaze_opt.hardware.buildable import check_precision
from phaze_opt.on_demand import cached_property
from phaze_opt.precision import BF16, PRECISIONS, Precision

_CORES, _GLB_BYTES = 0, 5
"""Places of the number of cores and of the global buffer in a `TensorCorePool`: no tiling depends
on them, and the best one not on the latter."""


class NoTileFitsError(InputError):
    """A private buffer that cannot hold one tile with its streams: nothing runs on the chip."""


class GemmColumn(IntEnum):
    """Last axis of the table that `gemm_table` returns.

    A batch that runs in groups has the sums of its groups.
    """

    ARRAY_CYCLES = 0
    """PE array, fill and drain of every wave included, in cycles of `Accelerator.array_clock_hz`. A
    group starts when the traffic through the global buffer of the one before is done; the arrays'
    wait for it is included too."""
    GLB_READ_BYTES = 1
    """From the global buffer into the cores; a tile that two cores read counts twice."""
    GLB_WRITE_BYTES = 2
    """From the cores into the global buffer: the result, and spilled partial sums."""
    HBM_EXTRA_BYTES = 3
    """HBM traffic beyond reading each operand and writing the result once."""
    L2_BYTES = 4
    """Between the private buffers and the arrays of all cores."""


@dataclass(frozen=True)
class GroupTiling:
    """One group of a batch: products that run together, and the tile of one core.

    Attributes
    ----------
    products
        Size of the group; the rest of the batch runs before or after it.
    dataflow
        Name of a `Dataflow`, in lower case.
    tile_m, tile_n, tile_k
        Edges of the tile.
    """

    products: int
    dataflow: str
    tile_m: int
    tile_n: int
    tile_k: int


def tensor_core_pool(accelerator: Accelerator, cores: int) -> TensorCorePool:
    """Return the pool of some tensor cores with their share of the global buffer, for `BF16`.

    Its cycles are those in which the arrays work (`Accelerator.array_clock_hz`): the global buffer,
    which keeps the clock, moves more bytes per such cycle, and the overhead of a wave takes fewer
    of them.
    """
    efficiency = accelerator.calibration.array_efficiency
    stated = accelerator.calibration.tile_overhead_cycles
    overhead = accelerator.pe_x + accelerator.pe_y if stated is None else stated
    l2_rate = accelerator.l2_bytes_per_cycle
    return (
        cores,
        accelerator.pe_x,
        accelerator.pe_y,
        float(accelerator.l2_tc_bytes),
        np.inf if l2_rate is None else l2_rate / efficiency / BF16.operand_bytes,
        accelerator.glb_bytes * cores / accelerator.num_tc,
        accelerator.glb_bytes_per_cycle / efficiency,
        overhead * efficiency,
        float(BF16.operand_bytes),
        float(BF16.result_bytes),
    )


def _in_precision(pool: TensorCorePool, precision: Precision, rate: float) -> TensorCorePool:
    """Return a pool for another precision, with the chip's rate relative to `BF16`.

    Its cycles are those in which an element makes one product.
    """
    if precision is BF16:
        return pool
    cores, x, y, l2_bytes, l2_rate, glb_bytes, glb_rate, overhead, before_bytes, _ = pool
    sizes = float(precision.operand_bytes), float(precision.result_bytes)
    arrays = cores, x, y, l2_bytes, l2_rate / rate * (before_bytes / precision.operand_bytes)
    return (*arrays, glb_bytes, glb_rate / rate, overhead * rate, *sizes)


@dataclass(frozen=True, eq=False)
class Pools:
    """The distinct tensor-core pools of some accelerators, by pool and kernel of attention.

    Attributes
    ----------
    distinct
        Each once.
    first
        First accelerator with each.
    which : (accelerators,)
        Place of the pool of each accelerator in ``distinct``.
    """

    distinct: tuple[TensorCorePool, ...]
    first: tuple[Accelerator, ...]
    which: IntArray

    @cached_property
    def rates(self) -> FloatArray:
        """Rates relative to bf16: (pools, precisions)."""
        return np.array([chip.array_rates for chip in self.first], dtype=np.float64)

    @cached_property
    def kernels(self) -> FloatArray:
        """The kernels of attention of the pools: (pools, numbers of a kernel)."""
        return np.array([chip.attention_kernel for chip in self.first], dtype=np.float64)

    @cached_property
    def alike(self) -> IntArray:
        """The first pool with the tilings of each, (pools,): all but the global buffer is equal."""
        if len(self.distinct) == 1:
            return np.zeros(1, dtype=np.int64)
        pools = np.hstack([np.array(self.distinct), self.rates])
        first, which = distinct_rows(np.delete(pools, _GLB_BYTES, axis=1))
        return first[which]

    @cached_property
    def by_core(self) -> IntArray:
        """The pools in an order in which those with the same cores are next to each other."""
        if len(self.distinct) == 1:
            return np.zeros(1, dtype=np.int64)
        _, which = distinct_rows(np.delete(np.array(self.distinct), (_CORES, _GLB_BYTES), axis=1))
        return np.argsort(which, kind="stable")


def pools_of(accelerators: Sequence[Accelerator], cores: Sequence[int]) -> Pools:
    """Return the distinct pools of some tensor cores of each accelerator."""
    places: dict[tuple[TensorCorePool, AttentionKernel, tuple[float, ...]], int] = {}
    first: list[Accelerator] = []
    which = np.empty(len(accelerators), dtype=np.int64)
    for index, (accelerator, used) in enumerate(zip(accelerators, cores, strict=True)):
        pool = tensor_core_pool(accelerator, used)
        key = pool, accelerator.attention_kernel, accelerator.array_rates
        place = places.setdefault(key, len(places))
        if place == len(first):
            first.append(accelerator)
        which[index] = place
    return Pools(tuple([pool for pool, *_ in places]), tuple(first), which)


def gemm_table(
    gemms: IntArray, accelerators: Sequence[Accelerator], cores: Sequence[int]
) -> FloatArray:
    """Estimate many products on many accelerators.

    Parameters
    ----------
    gemms : (products, 6)
        m, n, k, batch, the bytes that the operator moves through the global buffer beside the tiles
        of the whole batch: those of its epilogue, and the place of the precision in `PRECISIONS`.
        The bytes are negative where the epilogue keeps on the chip what the tiles count.
    accelerators
        Accelerators with the same `TensorCorePool` are estimated once.
    cores
        Tensor cores of each accelerator that a product runs on, with their share of the global
        buffer.

    Returns
    -------
    table : (accelerators, products, len(GemmColumn))

    Raises
    ------
    NoTileFitsError
        If a private buffer cannot hold one tile with its streams.
    """
    pools = pools_of(accelerators, cores)
    return products_on_pools(gemms, pools)[pools.which]


def products_on_pools(gemms: IntArray, pools: Pools) -> FloatArray:
    """Estimate many products on every distinct pool.

    Parameters
    ----------
    gemms : (products, 6)
        As for `gemm_table`.
    pools
        Those of the accelerators.

    Returns
    -------
    table : (pools, products, len(GemmColumn))

    Raises
    ------
    InputError
        As `gemm_table`.
    """
    table = np.zeros((len(pools.distinct), len(gemms), len(GemmColumn)))
    for number, name in enumerate(PRECISIONS):
        own = np.flatnonzero(gemms[:, -1] == number)
        if len(own) == 0:
            continue
        if not pools.rates[:, number].all():
            check_precision(pools.first[int(pools.rates[:, number].argmin())], name)
        if len(own) == len(gemms):
            _fill_table(gemms, number, pools, table)
        else:
            part = np.zeros((len(table), len(own), len(GemmColumn)))
            _fill_table(np.ascontiguousarray(gemms[own]), number, pools, part)
            table[:, own] = part
    return table


def _fill_table(gemms: IntArray, number: int, pools: Pools, table: FloatArray) -> None:
    """Estimate products of one precision, by its place, on every distinct pool."""
    precision = tuple(PRECISIONS.values())[number]
    rates = pools.rates[:, number]
    pairs = zip(pools.distinct, rates.tolist(), strict=True)
    in_precision = np.array([_in_precision(pool, precision, rate) for pool, rate in pairs])
    _fill_rows(gemms, in_precision, pools.by_core, pools.alike, table)
    untiled = np.isinf(table[:, :, GemmColumn.ARRAY_CYCLES]).any(axis=1)
    if untiled.any():
        raise no_tile_fits(pools.first[int(untiled.argmax())])
    if precision is not BF16:
        table[:, :, GemmColumn.ARRAY_CYCLES] /= rates[:, np.newaxis]


def gemm_plan(gemm: IntArray, accelerator: Accelerator, cores: int) -> tuple[GroupTiling, ...]:
    """Return the groups in which a batch of products runs, the largest first; mostly one.

    Parameters
    ----------
    gemm : (6,)
        A row of those of `gemm_table`.
    accelerator, cores
        As for `gemm_table`.

    Raises
    ------
    InputError
        As `gemm_table`.
    """
    precision = tuple(PRECISIONS.values())[gemm[-1]]
    pool, rate = tensor_core_pool(accelerator, cores), accelerator.array_rates[gemm[-1]]
    groups = _groups(gemm, _in_precision(pool, precision, rate))
    if len(groups) == 0:
        raise no_tile_fits(accelerator)
    return tuple(
        GroupTiling(products, Dataflow(dataflow).name.lower(), *edges)
        for products, dataflow, *edges in groups.astype(np.int64).tolist()
    )


def no_tile_fits(accelerator: Accelerator) -> NoTileFitsError:
    """Build the error that names the buffer that is too small."""
    return NoTileFitsError(
        f"l2_tc_bytes is {accelerator.l2_tc_bytes}, too small for one tile of "
        f"{accelerator.pe_x} × {accelerator.pe_y} with its streams."
    )


@callee("float64(float64[:,::1],int64,int64,int64)")
def _cycles(tilings: FloatArray, tiling: int, batch: int, cores: int) -> float:
    """Cycles of a batch with one tiling."""
    arrays = array_cycles(
        batch * tilings[Row.TILES, tiling], tilings[Row.WAVE_CYCLES, tiling], cores
    )
    return float(max(arrays, batch * tilings[Row.GLB_CYCLES, tiling]))


@callee("int64(float64[:,::1],int64,int64,int64)")
def _best_tiling(tilings: FloatArray, count: int, batch: int, cores: int) -> int:
    """Return the tiling with the fewest cycles for a batch; of several, that of least traffic."""
    best, best_cycles, best_bytes = -1, np.inf, np.inf
    for tiling in range(count):
        cycles = _cycles(tilings, tiling, batch, cores)
        if cycles <= best_cycles:
            moved = tilings[Row.READ_BYTES, tiling] + tilings[Row.WRITTEN_BYTES, tiling]
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
        # Two groups of one tiling are joined: together they take no longer.
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


@callee(f"void(int64[::1],{POOL},float64[:,::1],int64,float64[::1])")
def _fill_row(
    gemm: IntArray, pool: TensorCorePool, tilings: FloatArray, count: int, row: FloatArray
) -> None:
    """Estimate one product, without the traffic of the HBM, which is the same for all tilings.

    Parameters
    ----------
    gemm, pool, tilings, count
        As `lay_out_tilings` takes and returns them.
    row : (len(GemmColumn),)
        Filled in; infinite cycles if no tile fits.
    """
    cores, x, y, operand_bytes, batch = pool[0], pool[1], pool[2], pool[8], gemm[3]
    row[:] = 0.0
    if count == 0:
        row[GemmColumn.ARRAY_CYCLES] = np.inf
        return
    plan = _plan(tilings, count, batch, cores)
    for group in range(plan.shape[0]):
        tiling, products = plan[group, 0], plan[group, 1]
        tiles = products * tilings[Row.TILES, tiling]
        row[GemmColumn.GLB_READ_BYTES] += products * tilings[Row.READ_BYTES, tiling]
        row[GemmColumn.GLB_WRITE_BYTES] += products * tilings[Row.WRITTEN_BYTES, tiling]
        row[GemmColumn.L2_BYTES] += tiles * tile_l2_bytes(
            int(tilings[Row.DATAFLOW, tiling]), int(tilings[Row.TILE_M, tiling]),
            int(tilings[Row.TILE_N, tiling]), int(tilings[Row.TILE_K, tiling]), x, y, operand_bytes,
        )  # fmt: skip
        # A group starts when the one before is done, its traffic included.
        row[GemmColumn.ARRAY_CYCLES] += (
            array_cycles(tiles, tilings[Row.WAVE_CYCLES, tiling], cores)
            if plan.shape[0] == 1
            else _cycles(tilings, tiling, products, cores)
        )


@lazily_compiled("void(int64[:,::1],float64[:,::1],int64[::1],int64[::1],float64[:,:,::1])")
def _fill_rows(
    gemms: IntArray, pools: FloatArray, by_core: IntArray, alike: IntArray, table: FloatArray
) -> None:
    """Estimate every product on every pool of tensor cores; see `_fill_row` and `Pools`."""
    tilings = np.empty(TABLE_SHAPE)
    for index in range(gemms.shape[0]):
        m, n, k, batch = gemms[index, 0], gemms[index, 1], gemms[index, 2], gemms[index, 3]
        count, laid_out = 0, -1
        for p in by_core:
            own, row = pools[p], table[p, index]
            arrays = int(own[_CORES]), int(own[1]), int(own[2])
            pool = (*arrays, own[3], own[4], own[_GLB_BYTES], own[6], own[7], own[8], own[9])
            if alike[p] == p:
                same = laid_out >= 0
                for column in range(len(own)):
                    if column != _CORES and column != _GLB_BYTES:
                        same = same and own[column] == pools[laid_out, column]
                if not same:
                    count, laid_out = lay_out_tilings(gemms[index], pool, tilings), p
                _fill_row(gemms[index], pool, tilings, count, row)
            else:
                row[:] = table[alike[p], index]
            repeated = batch * repeated_bytes(m, n, k, own[8], own[_GLB_BYTES])
            row[GemmColumn.HBM_EXTRA_BYTES] = repeated


@lazily_compiled(f"float64[:,::1](int64[::1],{POOL})")
def _groups(gemm: IntArray, pool: TensorCorePool) -> FloatArray:
    """Return the groups in which one product runs, the largest first.

    Returns
    -------
    groups : (groups, 5)
        Products, dataflow, and the edges of the tile along m, n and k; none if no tile fits.
    """
    tilings = np.empty(TABLE_SHAPE)
    count = lay_out_tilings(gemm, pool, tilings)
    if count == 0:
        return np.empty((0, 5))
    plan = _plan(tilings, count, gemm[3], pool[0])
    groups = np.empty((plan.shape[0], 5))
    for group in range(plan.shape[0]):
        groups[group, 0] = plan[group, 1]
        groups[group, 1:] = tilings[Row.DATAFLOW : Row.TILE_K + 1, plan[group, 0]]
    return groups
