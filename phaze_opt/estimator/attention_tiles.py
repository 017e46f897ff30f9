"""Tiles of a fused attention core on one pool of tensor cores: cycles, and bytes on the chip.

The kernel cuts every matrix of scores into tiles. In a forward a core takes one row of tiles of one
head and goes along the keys; in a backward it takes a column and goes along the queries:

* Tiles that a causal mask or a window hides entirely are left out. Tiles on the diagonal, and tiles
  at the ends of queries and keys, are computed whole, by the arrays and by the lanes.
* A row pays the fill and epilogue of the arrays once: its running result stays in the core.
* There are no waves: a core takes the next row when it is done. When none is left, the cores end
  evenly spread over the time of one of the last rows, so that half of it is lost; and the kernel
  takes at least the longest row. Under a causal mask the last rows of a forward are the longest
  (the last queries see all keys), the last columns of a backward the shortest (the last key is seen
  by one query). With few heads this counts most: there are few rows for each core.
* How many queries a tile has, what a row pays, and in which share of the cycles the arrays work
  belongs to the kernel and the chip (`Accelerator.attention_kernel`), and so does how much faster
  they are in fp8; what passes between buffers on the chip counts as in 16 bits there too.
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
from phaze_opt.estimator.gemm_tilings import fits, pass_cycles
from phaze_opt.estimator.gemm_traffic import (
    BOTH_WAYS,
    Dataflow,
    ceil_div,
    tile_l2_bytes,
)
from phaze_opt.estimator.operator_table import WIDE_HEAD, OperatorTable
from phaze_opt.estimator.tensor_core import Pools, no_tile_fits
from phaze_opt.precision import SUM_BYTES

_TILE_QUERIES, _TILE_KEYS = (
    int(data_table("estimator", "tensor_core.toml")[f"score_tile_{side}"])
    for side in ("queries", "keys")
)


DIRECTIONS = 3
"""Forward, backward, and backward with wide heads: rates of a kernel for each precision."""


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


@callee("UniTuple(int64,3)(int64,int64,int64,int64,int64)")
def _visible_tiles(
    queries: int, keys: int, causal: int, tile_queries: int, tile_keys: int
) -> tuple[int, int, int]:
    """Count the tiles of one matrix of scores that its mask leaves.

    With fewer keys than queries, a causal mask leaves every query the latest of them: a window.

    Returns
    -------
    all_tiles, longest_row, last_row
        In total, in the row with the most, and in the last one.
    """
    rows, columns = ceil_div(queries, tile_queries), ceil_div(keys, tile_keys)
    if causal == 0:
        return rows * columns, columns, columns
    all_tiles, longest, last = 0, 0, 0
    for row in range(rows):
        end = min((row + 1) * tile_queries, queries)
        if keys < queries:
            begin = max(row * tile_queries - keys + 1, 0)
            last = ceil_div(end, tile_keys) - begin // tile_keys
        else:
            last = ceil_div(max(end + keys - queries, 1), tile_keys)
        all_tiles += last
        longest = max(longest, last)
    return all_tiles, longest, last


@callee("UniTuple(int64,3)(int64,int64,int64,int64,int64)")
def _visible_columns(
    queries: int, keys: int, causal: int, tile_queries: int, tile_keys: int
) -> tuple[int, int, int]:
    """Do as `_visible_tiles` for columns of tiles, along the queries: those of a backward."""
    positions = queries if causal != 0 and keys < queries else keys
    rows, columns = ceil_div(queries, tile_queries), ceil_div(positions, tile_keys)
    if causal == 0:
        return rows * columns, rows, rows
    all_tiles, longest, last = 0, 0, 0
    for column in range(columns):
        if keys < queries:
            begin = column * tile_keys
            end = min((column + 1) * tile_keys + keys - 1, queries)
        else:
            begin, end = max(column * tile_keys + queries - keys, 0), queries
        last = max(ceil_div(end, tile_queries) - begin // tile_queries, 1)
        all_tiles += last
        longest = max(longest, last)
    return all_tiles, longest, last


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
        pass by, and each further one sees one more. Negative: every row sees so many, a window.
    block
        Rows that are held at a time.
    tile
        Rows that pass by together.
    """
    blocks = ceil_div(held, block)
    if causal == 0:
        return blocks * passing
    if ahead < 0:  # a window: a block sees that of its first row up to that of its last
        return blocks * min(ceil_div(block - ahead - 1, tile) * tile, passing)
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
    core : (7,)
        A row of `OperatorTable.attention_cores`.
    head_dim
        Mean over the products.
    tile_queries, tile_keys, l2_bytes
        Edges of a tile, and the private buffer of a core.
    operand_bytes
        Of an element of an operand.
    """
    heads, queries, keys, causal, key_heads, backward, _ = core
    operand, total = operand_bytes * head_dim, SUM_BYTES * head_dim
    window = causal != 0 and keys < queries
    ahead = -keys if window else keys - queries
    positions = queries if window else keys
    if backward == 0:
        # Held are a query, its result and its scores; a key and a value pass by.
        held = operand + total + SUM_BYTES * float(tile_keys)
        block = _block_rows(tile_queries, held, l2_bytes)
        passing = _passing(queries, positions, causal, ahead, block, tile_keys)
        again = float(heads) * passing - float(key_heads) * positions
        return 2.0 * operand * max(again, 0.0), 0.0
    # Held are a key and a value with their gradients, and two matrices of scores. Seen from the
    # end, the mask leaves one query to the first key.
    held = 2.0 * (operand + total + SUM_BYTES * float(tile_queries))
    block = _block_rows(tile_keys, held, l2_bytes)
    passing = _passing(positions, queries, causal, min(ahead, 0), block, tile_queries)
    again = float(heads) * max(passing - queries, 0)
    return (2.0 * operand + total) * again, total * again


@callee("float64(int64[::1],int64,float64,float64,int64,int64,int64)")
def _busy_cycles(
    core: IntArray, tile_queries: int, tile_cycles: float, fill_cycles: float,
    tile_keys: int, pool_cores: int, backward: int,
) -> float:  # fmt: skip
    """Return the cycles until all cores are done with all rows, or columns, of tiles."""
    heads, queries, keys, causal = core[0], core[1], core[2], core[3]
    tiles, longest, last = _visible_tiles(queries, keys, causal, tile_queries, tile_keys)
    rows = ceil_div(queries, tile_queries)
    if backward != 0:
        tiles, longest, last = _visible_columns(queries, keys, causal, tile_queries, tile_keys)
        rows = ceil_div(queries if causal != 0 and keys < queries else keys, tile_keys)
    total = float(heads) * (tiles * tile_cycles + rows * fill_cycles)
    idle = 0.5 * (last * tile_cycles + fill_cycles) * (1.0 - 1.0 / pool_cores)
    return max(total / pool_cores + idle, longest * tile_cycles + fill_cycles)


@callee("void(int64[:,::1],int64[:,::1],float64[::1],float64[::1],float64[:,::1])")
def _fill_pool(
    cores: IntArray, products: IntArray, pool: FloatArray, kernel: FloatArray, rows: FloatArray
) -> None:
    """Estimate every fused attention core on one pool of tensor cores.

    Parameters
    ----------
    cores, products
        As in `OperatorTable`.
    pool, kernel
        Hardware, and how the kernel uses it: a `TensorCorePool` and an `AttentionKernel`.
    rows : (fused attention cores, len(CoreColumn))
        Filled in.
    """
    pool_cores, x, y, l2_bytes, l2_rate, operand_bytes = (
        int(pool[0]), int(pool[1]), int(pool[2]), pool[3], pool[4], pool[8],
    )  # fmt: skip
    edge = max(x, y)
    tile_keys, backward_queries = max(_TILE_KEYS, edge), max(_TILE_QUERIES, edge)
    forward_queries = max(int(kernel[0]), edge) if kernel[0] > 0 else backward_queries
    tile_cycles, tile_bytes = np.zeros(cores.shape[0]), np.zeros(cores.shape[0])
    head_dims, widest = np.zeros((2, cores.shape[0])), np.zeros(cores.shape[0])
    for index in range(products.shape[0]):
        owner, head_dim = products[index, 0], products[index, 1]
        queries = forward_queries if cores[owner, 5] == 0 else backward_queries
        tile_cycles[owner] += _tile_cycles(
            queries, tile_keys, head_dim, x, y, l2_rate, operand_bytes
        )
        tile_bytes[owner] += tile_l2_bytes(
            Dataflow.OUTPUT_STATIONARY.value, queries, tile_keys, head_dim, x, y, operand_bytes
        )
        head_dims[0, owner] += head_dim
        head_dims[1, owner] += 1.0
        widest[owner] = max(widest[owner], head_dim)
    for index in range(cores.shape[0]):
        heads, queries, keys, causal, backward = (
            cores[index, 0], cores[index, 1], cores[index, 2], cores[index, 3], cores[index, 5],
        )  # fmt: skip
        if not fits(min(x, queries), min(y, keys), l2_bytes):
            rows[index, CoreColumn.ARRAY_CYCLES] = np.inf
            continue
        tile_queries = forward_queries if backward == 0 else backward_queries
        fill_cycles, direction = kernel[1], 0
        if backward != 0:
            fill_cycles = kernel[2]
            direction = 2 if widest[index] > WIDE_HEAD else 1
        slowdown = kernel[3 + direction + DIRECTIONS * cores[index, 6]]
        rows[index, CoreColumn.ARRAY_CYCLES] = slowdown * _busy_cycles(
            cores[index], tile_queries, tile_cycles[index], fill_cycles, tile_keys, pool_cores,
            backward,
        )  # fmt: skip
        tiles = _visible_tiles(queries, keys, causal, tile_queries, tile_keys)[0]
        rows[index, CoreColumn.SCORES] = float(heads) * tiles * tile_queries * tile_keys
        head_dim = head_dims[0, index] / head_dims[1, index]
        read, written = _repeated_bytes(
            cores[index], head_dim, tile_queries, tile_keys, l2_bytes, operand_bytes
        )
        rows[index, CoreColumn.GLB_READ_BYTES] = read
        rows[index, CoreColumn.GLB_WRITE_BYTES] = written
        rows[index, CoreColumn.L2_BYTES] = float(heads) * tiles * tile_bytes[index]


@lazily_compiled("void(int64[:,::1],int64[:,::1],float64[:,::1],float64[:,::1],float64[:,:,::1])")
def _fill_rows(
    cores: IntArray, products: IntArray, pools: FloatArray, kernels: FloatArray, rows: FloatArray
) -> None:
    """Estimate every fused attention core on every pool of tensor cores; see `_fill_pool`."""
    for p in range(len(pools)):
        _fill_pool(cores, products, pools[p], kernels[p], rows[p])


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
    if rows.size > 0:
        cores, products = table.attention_cores, table.attention_products
        _fill_rows(cores, products, np.array(pools.distinct), pools.kernels, rows)
        untiled = np.isinf(rows[:, :, CoreColumn.ARRAY_CYCLES]).any(axis=1)
        if untiled.any():
            raise no_tile_fits(pools.first[int(untiled.argmax())])
    return rows
