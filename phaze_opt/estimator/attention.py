"""Fused attention cores: products, softmax and a causal mask in one kernel.

The kernel cuts every matrix of scores into tiles. A core takes a block of queries (one row of tiles
of one head) and goes along the keys:

* Tiles that a causal mask hides entirely are left out. Tiles on the diagonal, and tiles at the ends
  of queries and keys, are computed whole, by the arrays and by the lanes.
* A block pays the fill and epilogue of the arrays once: its running result stays in the core.
* There are no waves: a core takes the next block when it is done. When none is left, the cores end
  evenly spread over the time of one block, so that half of a (longest) block is lost; and the
  kernel takes at least the longest block.
* The lanes need the scores of one product for the operand of the next, so only a part of their
  time is hidden: a kernel takes ``arrays + (1 - overlap) · lanes``, and at least the time of its
  lanes, of the global buffer and of the HBM.

The overlap and the rate of exponentials belong to the chip; they are measured on forwards. That the
backward has the same overlap is an assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.codec import data_table
from phaze_opt.compiled import callee, lazily_compiled
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.gemm_tilings import POOL, TensorCorePool, pass_cycles
from phaze_opt.estimator.gemm_traffic import BOTH_WAYS, ELEMENT_BYTES, ceil_div
from phaze_opt.estimator.operator_table import OperatorTable
from phaze_opt.estimator.tensor_core import Pools
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.graph import AttentionScores

_TILE_QUERIES, _TILE_KEYS = (
    int(data_table("estimator", "tensor_core.toml")[f"score_tile_{side}"])
    for side in ("queries", "keys")
)


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


@callee("float64(int64,int64,int64,int64,int64,float64)")
def _tile_cycles(queries: int, keys: int, head_dim: int, x: int, y: int, l2_rate: float) -> float:
    """Cycles of the arrays for one product of one tile, with the operand held that takes fewest.

    The product of the scores stands for the others, which have the same edges.
    """
    scores_stay = pass_cycles(
        float(ceil_div(queries, x)) * ceil_div(keys, y),
        queries, keys, head_dim, x, y, l2_rate, float(ELEMENT_BYTES),
    )  # fmt: skip
    keys_stay = pass_cycles(
        float(ceil_div(head_dim, x)) * ceil_div(keys, y),
        head_dim, keys, queries, x, y, l2_rate, BOTH_WAYS,
    )  # fmt: skip
    queries_stay = pass_cycles(
        float(ceil_div(head_dim, x)) * ceil_div(queries, y),
        head_dim, queries, keys, x, y, l2_rate, BOTH_WAYS,
    )  # fmt: skip
    return min(scores_stay, keys_stay, queries_stay)


@lazily_compiled(f"void(int64[:,::1],int64[:,::1],{POOL},float64[:,::1])")
def _fill_rows(
    scores: IntArray, products: IntArray, pool: TensorCorePool, rows: FloatArray
) -> None:
    """Estimate every fused attention core on one pool of tensor cores; see `AttentionCores`.

    Parameters
    ----------
    scores, products
        As in `OperatorTable`.
    pool
        Hardware.
    rows : (2, fused attention cores)
        Filled with the cycles of the arrays, and the scores of all computed tiles.
    """
    cores, x, y, l2_rate, fill_cycles = pool[0], pool[1], pool[2], pool[4], pool[8]
    edge = max(x, y)
    tile_queries, tile_keys = max(_TILE_QUERIES, edge), max(_TILE_KEYS, edge)
    tile_cycles = np.zeros(scores.shape[0])
    for index in range(products.shape[0]):
        owner, head_dim = products[index, 0], products[index, 1]
        tile_cycles[owner] += _tile_cycles(tile_queries, tile_keys, head_dim, x, y, l2_rate)
    for index in range(scores.shape[0]):
        heads, queries, keys, causal = scores[index]
        tiles = _visible_tiles(queries, keys, causal, tile_queries, tile_keys)
        # The last queries see every key.
        longest = ceil_div(keys, tile_keys) * tile_cycles[index] + fill_cycles
        filled = ceil_div(queries, tile_queries) * fill_cycles
        total = float(heads) * (tiles * tile_cycles[index] + filled)
        idle = 0.5 * longest * (1.0 - 1.0 / cores)
        rows[0, index] = max(total / cores + idle, longest)
        rows[1, index] = float(heads) * tiles * tile_queries * tile_keys


@dataclass(frozen=True, eq=False)
class AttentionCores:
    """The fused attention cores of a graph on some accelerators.

    Attributes
    ----------
    array_cycles : (accelerators, fused attention cores)
        Cycles of the PE arrays.
    elements : (accelerators, vector works)
        Elements of all vector work; that on scores is done on whole tiles.
    lane_cycles : (accelerators, vector works) or (vector works,)
        Lane cycles per element of all vector work, with each chip's own rate of exponentials.
    shares : (accelerators, operators)
        Share of each operator's work that no mask hides, as whole tiles; 1 of others.
    """

    array_cycles: FloatArray
    elements: FloatArray
    lane_cycles: FloatArray
    shares: FloatArray


def attention_on_pools(table: OperatorTable, pools: Pools) -> FloatArray:
    """Estimate the fused attention cores of a graph on every distinct pool.

    Returns
    -------
    rows : (pools, 2, fused attention cores)
        Cycles of the arrays, and the scores of all computed tiles.
    """
    rows = np.empty((len(pools.distinct), 2, len(table.attention_owner)))
    for row, pool in zip(rows, pools.distinct, strict=True):
        _fill_rows(table.attention_scores, table.attention_products, pool, row)
    return rows


def attention_cores(
    table: OperatorTable, accelerators: Sequence[Accelerator], rows: FloatArray
) -> AttentionCores:
    """Return what differs in the fused attention cores of a graph.

    Parameters
    ----------
    table
        The graph.
    accelerators
        What it runs on.
    rows : (accelerators, 2, fused attention cores)
        As in `attention_on_pools`, for the pool of each accelerator.
    """
    scores = table.attention_scores[:, :3].astype(np.float64).prod(axis=1)
    elements = np.empty((len(accelerators), len(table.elements)))
    elements[:] = table.elements
    elements[:, table.score_works] = rows[:, 1, table.score_works_core]
    shares = np.ones((len(accelerators), len(table.operators)))
    shares[:, table.attention_owner] = np.minimum(rows[:, 1] / scores, 1.0)
    return AttentionCores(rows[:, 0], elements, _lane_cycles(table, accelerators), shares)


def _lane_cycles(table: OperatorTable, accelerators: Sequence[Accelerator]) -> FloatArray:
    """Replace the cycles of exponentials where a chip has its own rate."""
    rates = chip_column(accelerators, "calibration.exponentials_per_cycle")
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
    overlap = chip_column(accelerators, "calibration.attention_overlap")
    return np.asarray((1.0 - overlap) * table.is_attention)


def visible_scores(scores: AttentionScores) -> float:
    """Return the number of scores of all heads that the mask leaves, without whole tiles."""
    if not scores.causal:
        return float(scores.elements)
    seen_keys = np.arange(1, scores.queries + 1) + (scores.keys - scores.queries)
    return scores.heads * float(np.sum(np.maximum(seen_keys, 0)))
