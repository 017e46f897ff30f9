"""Tiles of a fused attention core on one pool of tensor cores: cycles, and bytes on the chip.

The kernel cuts every matrix of scores into tiles. A core takes one row of tiles of one head and
goes along the keys:

* Tiles that a causal mask hides entirely are left out. Tiles on the diagonal, and tiles at the ends
  of queries and keys, are computed whole, by the arrays and by the lanes.
* A row pays the fill and epilogue of the arrays once: its running result stays in the core.
* There are no waves: a core takes the next row when it is done. When none is left, the cores end
  evenly spread over the time of one row, so that half of a (longest) row is lost; and the kernel
  takes at least the longest row.
* What passes by is shared by a block of several rows of tiles, though the cores end row by row. A
  forward holds queries and their running result, and the keys and values that they see pass by. A
  backward holds keys and values with their gradients; queries and the gradient of the result pass
  by, and the gradient of the queries is summed up in the global buffer (Dao 2023, FlashAttention-2,
  section 3). As many rows are held as fit the private buffer with their scores of one tile, by
  doubling or halving those of a tile, so that a larger buffer never reads more; keys that several
  query heads share pass by once for each. None of this depends on how fast a memory is: a faster
  one is never worse.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.codec import data_table
from phaze_opt.compiled import callee, lazily_compiled
from phaze_opt.estimator.gemm_tilings import POOL, TensorCorePool, fits, pass_cycles
from phaze_opt.estimator.gemm_traffic import (
    BOTH_WAYS,
    Dataflow,
    ceil_div,
    tile_l2_bytes,
)
from phaze_opt.estimator.operator_table import OperatorTable
from phaze_opt.estimator.tensor_core import Pools, no_tile_fits
from phaze_opt.precision import SUM_BYTES

_TILE_QUERIES, _TILE_KEYS = (
    int(data_table("estimator", "tensor_core.toml")[f"score_tile_{side}"])
    for side in ("queries", "keys")
)


class CoreColumn(IntEnum):
    """Last axis of the table that `attention_on_pools` returns."""

    ARRAY_CYCLES = 0
    """Cycles of the PE arrays; infinite where not even one tile fits."""
    SCORES = 1
    """Scores of all computed tiles."""
    GLB_READ_BYTES = 2
    """From the global buffer into the cores, beyond reading each operand once."""
    GLB_WRITE_BYTES = 3
    """From the cores into the global buffer, beyond writing each result once."""
    L2_BYTES = 4
    """Between the private buffers and the arrays of all cores."""


@callee("int64(int64,int64,int64,int64,int64)")
def _visible_tiles(queries: int, keys: int, causal: int, tile_queries: int, tile_keys: int) -> int:
    """Count the tiles of one matrix of scores that its mask leaves."""
    rows, columns = ceil_div(queries, tile_queries), ceil_div(keys, tile_keys)
    if causal == 0:
        return rows * columns
    tiles = 0
    for row in range(rows):
        last_query = min((row + 1) * tile_queries, queries)
        tiles += ceil_div(max(last_query + keys - queries, 1), tile_keys)
    return tiles


@callee("float64(int64,int64,int64,int64,int64,float64,float64)")
def _tile_cycles(
    queries: int, keys: int, head_dim: int, x: int, y: int, l2_rate: float, operand_bytes: float
) -> float:
    """Cycles of the arrays for one product of one tile, with the operand held that takes fewest.

    The product of the scores stands for the others, which have the same edges.
    """
    sums = BOTH_WAYS / operand_bytes
    scores_stay = pass_cycles(
        float(ceil_div(queries, x)) * ceil_div(keys, y),
        queries, keys, head_dim, x, y, l2_rate, 1.0,
    )  # fmt: skip
    keys_stay = pass_cycles(
        float(ceil_div(head_dim, x)) * ceil_div(keys, y),
        head_dim, keys, queries, x, y, l2_rate, sums,
    )  # fmt: skip
    queries_stay = pass_cycles(
        float(ceil_div(head_dim, x)) * ceil_div(queries, y),
        head_dim, queries, keys, x, y, l2_rate, sums,
    )  # fmt: skip
    return min(scores_stay, keys_stay, queries_stay)


@callee("int64(int64,int64,int64,int64,int64,int64)")
def _passing(held: int, passing: int, causal: int, ahead: int, block: int, tile: int) -> int:
    """Count the rows that pass by the blocks of one head, each as often as it passes by one.

    Parameters
    ----------
    held, passing
        Rows that are held in blocks, and rows that pass by.
    causal, ahead
        Whether there is a mask. The first row that is held sees one more than so many of those that
        pass by, and each further one sees one more.
    block
        Rows that are held at a time.
    tile
        Rows that pass by together.
    """
    blocks = ceil_div(held, block)
    if causal == 0:
        return blocks * passing
    rows = 0
    for index in range(blocks):
        seen = max(min((index + 1) * block, held) + ahead, 1)
        rows += min(ceil_div(seen, tile) * tile, passing)
    return rows


@callee("int64(int64,float64,float64)")
def _block_rows(tile: int, row_bytes: float, l2_bytes: float) -> int:
    """Return the rows that are held at a time: a tile's, doubled or halved until they fit.

    It is one row where not even that fits: such a core reads and writes the rest of it again, which
    is not counted.
    """
    rows = tile
    if rows * row_bytes <= l2_bytes:
        while 2 * rows * row_bytes <= l2_bytes:
            rows *= 2
        return rows
    while rows > 1 and rows * row_bytes > l2_bytes:
        rows //= 2
    return rows


@callee("UniTuple(float64,2)(int64[::1],float64,int64,int64,float64,float64)")
def _repeated_bytes(
    core: IntArray, head_dim: float, tile_queries: int, tile_keys: int, l2_bytes: float,
    operand_bytes: float,
) -> tuple[float, float]:  # fmt: skip
    """Count the bytes that the cores read from the global buffer again, and that they write again.

    Parameters
    ----------
    core : (6,)
        A row of `OperatorTable.attention_cores`.
    head_dim
        Mean over the products.
    tile_queries, tile_keys, l2_bytes
        Edges of a tile, and the private buffer of a core.
    operand_bytes
        Of an element of an operand.
    """
    heads, queries, keys, causal, key_heads, backward = core
    operand, total = operand_bytes * head_dim, SUM_BYTES * head_dim
    if backward == 0:
        # Held are a query, its result and its scores; a key and a value pass by.
        held = operand + total + SUM_BYTES * float(tile_keys)
        block = _block_rows(tile_queries, held, l2_bytes)
        passing = _passing(queries, keys, causal, keys - queries, block, tile_keys)
        again = float(heads) * passing - float(key_heads) * keys
        return 2.0 * operand * max(again, 0.0), 0.0
    # Held are a key and a value with their gradients, and two matrices of scores. Seen from the
    # end, the mask leaves one query to the first key.
    held = 2.0 * (operand + total + SUM_BYTES * float(tile_queries))
    block = _block_rows(tile_keys, held, l2_bytes)
    passing = _passing(keys, queries, causal, 0, block, tile_queries)
    again = float(heads) * max(passing - queries, 0)
    return (2.0 * operand + total) * again, total * again


@lazily_compiled(f"void(int64[:,::1],int64[:,::1],{POOL},float64[:,::1])")
def _fill_rows(cores: IntArray, products: IntArray, pool: TensorCorePool, rows: FloatArray) -> None:
    """Estimate every fused attention core on one pool of tensor cores.

    Parameters
    ----------
    cores, products
        As in `OperatorTable`.
    pool
        Hardware.
    rows : (fused attention cores, len(CoreColumn))
        Filled in.
    """
    pool_cores, x, y, l2_bytes, l2_rate, _, _, fill_cycles, operand_bytes, _ = pool
    edge = max(x, y)
    tile_queries, tile_keys = max(_TILE_QUERIES, edge), max(_TILE_KEYS, edge)
    tile_cycles, tile_bytes = np.zeros(cores.shape[0]), np.zeros(cores.shape[0])
    head_dims = np.zeros((2, cores.shape[0]))
    for index in range(products.shape[0]):
        owner, head_dim = products[index, 0], products[index, 1]
        tile_cycles[owner] += _tile_cycles(
            tile_queries, tile_keys, head_dim, x, y, l2_rate, operand_bytes
        )
        tile_bytes[owner] += tile_l2_bytes(
            Dataflow.OUTPUT_STATIONARY.value, tile_queries, tile_keys, head_dim, x, y, operand_bytes
        )
        head_dims[0, owner] += head_dim
        head_dims[1, owner] += 1.0
    for index in range(cores.shape[0]):
        heads, queries, keys, causal = cores[index, :4]
        if not fits(min(x, queries), min(y, keys), l2_bytes):
            rows[index, CoreColumn.ARRAY_CYCLES] = np.inf
            continue
        tiles = _visible_tiles(queries, keys, causal, tile_queries, tile_keys)
        # The last queries see every key.
        longest = ceil_div(keys, tile_keys) * tile_cycles[index] + fill_cycles
        filled = ceil_div(queries, tile_queries) * fill_cycles
        total = float(heads) * (tiles * tile_cycles[index] + filled)
        idle = 0.5 * longest * (1.0 - 1.0 / pool_cores)
        rows[index, CoreColumn.ARRAY_CYCLES] = max(total / pool_cores + idle, longest)
        rows[index, CoreColumn.SCORES] = float(heads) * tiles * tile_queries * tile_keys
        head_dim = head_dims[0, index] / head_dims[1, index]
        read, written = _repeated_bytes(
            cores[index], head_dim, tile_queries, tile_keys, l2_bytes, operand_bytes
        )
        rows[index, CoreColumn.GLB_READ_BYTES] = read
        rows[index, CoreColumn.GLB_WRITE_BYTES] = written
        rows[index, CoreColumn.L2_BYTES] = float(heads) * tiles * tile_bytes[index]


def attention_on_pools(table: OperatorTable, pools: Pools) -> FloatArray:
    """Estimate the fused attention cores of a graph on every distinct pool.

    Returns
    -------
    rows : (pools, fused attention cores, len(CoreColumn))

    Raises
    ------
    NoTileFitsError
        If a private buffer cannot hold one tile with its streams.
    """
    shape = len(pools.distinct), len(table.attention_owner), len(CoreColumn)
    rows = np.zeros(shape)
    for row, pool, accelerator in zip(rows, pools.distinct, pools.first, strict=True):
        _fill_rows(table.attention_cores, table.attention_products, pool, row)
        if np.isinf(row[:, CoreColumn.ARRAY_CYCLES]).any():
            raise no_tile_fits(accelerator)
    return rows
