"""Every tiling of a matrix product on tensor cores: cycles and traffic from first principles.

A product ``(m × k)·(k × n)`` runs on cores that each are an array of ``pe_x × pe_y`` processing
elements with a private L2:

* Every core works on one tile at a time, and tiles run in waves over the cores. The dataflow says
  which operand stays in the L2 while the others stream: output-, weight- or input-stationary.
  Within a tile the array holds the operand that takes the fewest cycles. Every edge is rounded up
  to the array (tile quantisation), and a last wave with few tiles takes as long as a full one (wave
  quantisation).
* Every wave pays the fill and drain of the array once.
* Tiles are double-buffered in the L2; sums are kept in fp32. A weight- or input-stationary tile
  that does not span the whole reduction spills its partial sums to the global buffer.
* There is no multicast: global-buffer traffic is the sum of the reads and writes of every core.
* An epilogue runs while the tiles are computed, and what it moves passes the global buffer beside
  them: a tiling is as fast as the larger of the arrays' time and the buffer's for both.
* HBM traffic is that of the best blocking through the global buffer: one block is resident in a
  part of the buffer, and the rest holds the streams. It is the same for every tiling.

This module lays out one product in every way; `tensor_core` chooses the fastest.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.codec import data_table
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.estimator.gemm_traffic import (
    BOTH_WAYS,
    HALVINGS,
    Dataflow,
    ceil_div,
    moved_operands,
)
from phaze_opt.precision import SUM_BYTES

_STREAM_BYTES_PER_ROW = int(data_table("estimator", "tensor_core.toml")["stream_bytes_per_row"])
"""Private buffer per row of a streamed operand."""
_MOST_CUTS = 4
"""Every edge is tried whole and cut into 2, 3 and 4 tiles (rounded up to the array)."""
_DOUBLINGS = 8
"""Tiles of 1, 2, 4, ... arrays are tried too, as tuned libraries have them."""
_MOST_EDGES = _MOST_CUTS + _DOUBLINGS
_MOST_TILINGS = _MOST_EDGES * _MOST_EDGES * (1 + 2 * HALVINGS)

TensorCorePool = tuple[int, int, int, float, float, float, float, float, float, float]
"""What the estimate of a product depends on: cores, pe_x, pe_y, L2 bytes and operands per cycle,
global buffer bytes and bytes per cycle, cycles of fill and drain per wave, and bytes of an element
of an operand and of the result."""
POOL = f"Tuple(({','.join(3 * ['int64'] + 7 * ['float64'])}))"
"""Signature of a `TensorCorePool`."""


class Row(IntEnum):
    """Rows of a table of tilings; each column is one tiling of one product."""

    TILES = 0
    WAVE_CYCLES = 1
    """Cycles of one tile on one core, fill and drain included; every wave over the cores takes as
    many."""
    GLB_CYCLES = 2
    """Of the global buffer, for all that the operator moves per product."""
    READ_BYTES = 3
    """From the global buffer into the cores."""
    WRITTEN_BYTES = 4
    """From the cores into the global buffer."""
    DATAFLOW = 5
    TILE_M = 6
    TILE_N = 7
    TILE_K = 8


TABLE_SHAPE = (len(Row), _MOST_TILINGS)
"""Shape of a table of tilings."""


@inlined
def array_cycles(tiles: float, wave_cycles: float, cores: int) -> float:
    """Cycles of the PE arrays: tiles run in waves over the cores (wave quantisation).

    The last wave takes as long as the others, however few tiles it has.
    """
    return float(np.ceil(tiles / cores) * wave_cycles)


@inlined
def pass_cycles(
    rounds: float, across_1: int, across_2: int, through: int, x: int, y: int,
    l2_rate: float, held: float,
) -> float:  # fmt: skip
    """Cycles of one tile with one operand held, which covers the array in ``rounds`` rounds."""
    cycles = rounds * through
    if l2_rate < np.inf:
        cycles = max(cycles, moved_operands(across_1, across_2, through, x, y, held) / l2_rate)
    return cycles


@inlined
def fits(edge_1: int, edge_2: int, l2_bytes: float) -> bool:
    """Whether a resident tile and the double-buffered streams along its edges fit the L2."""
    return (
        SUM_BYTES * float(edge_1) * edge_2 + _STREAM_BYTES_PER_ROW * (edge_1 + edge_2) <= l2_bytes
    )


@callee("int64(int64,int64,int64[:,::1])")
def _tile_edges(size: int, array: int, edges: IntArray) -> int:
    """List the tile edges that are tried for one dimension, rising, and return their number.

    Parameters
    ----------
    edges : (3, _MOST_EDGES)
        Filled with the edge, the number of tiles, and the number of arrays along one tile.
    """
    count, doublings = 0, 0
    for cuts in range(_MOST_CUTS, 0, -1):
        edge, arrays = ceil_div(size, cuts), 1
        if edge > array:
            arrays = ceil_div(edge, array)
            edge = min(arrays * array, size)
        while doublings < _DOUBLINGS and array << doublings < edge:
            count = _append_edge(size, array << doublings, 1 << doublings, edges, count)
            doublings += 1
        count = _append_edge(size, edge, arrays, edges, count)
    return count


@inlined
def _append_edge(size: int, edge: int, arrays: int, edges: IntArray, count: int) -> int:
    """Append an edge of so many arrays if it is longer than the last, and return their number."""
    if count > 0 and edge <= edges[0, count - 1]:
        return count
    edges[0, count] = edge
    edges[1, count] = ceil_div(size, edge)
    edges[2, count] = arrays
    return count + 1


@callee(f"int64(int64,int64,int64,{POOL},float64[:,::1])")
def _output_stationary(m: int, n: int, k: int, pool: TensorCorePool, tilings: FloatArray) -> int:
    """Lay out tiles of the result that accumulate in the L2 over the whole reduction."""
    _, x, y, l2_bytes, l2_rate, _, _, overhead, operand_bytes, result_bytes = pool
    sums = BOTH_WAYS / operand_bytes
    edges_m, edges_n = np.empty((3, _MOST_EDGES), np.int64), np.empty((3, _MOST_EDGES), np.int64)
    count_m, count_n = _tile_edges(m, x, edges_m), _tile_edges(n, y, edges_n)
    rounds_k = float(ceil_div(k, x))
    count = 0
    for i in range(count_m):
        tile_m, tiles_m, rounds_m = edges_m[0, i], edges_m[1, i], float(edges_m[2, i])
        rounds_turned = rounds_k * ceil_div(tile_m, y)
        for j in range(count_n):
            tile_n, tiles_n, rounds_n = edges_n[0, j], edges_n[1, j], float(edges_n[2, j])
            if not fits(tile_m, tile_n, l2_bytes):
                break
            result_stays = pass_cycles(rounds_m * rounds_n, tile_m, tile_n, k, x, y, l2_rate, 1.0)
            second_stays = pass_cycles(rounds_k * rounds_n, k, tile_n, tile_m, x, y, l2_rate, sums)
            first_stays = pass_cycles(rounds_turned, k, tile_m, tile_n, x, y, l2_rate, sums)
            tilings[Row.TILES, count] = float(tiles_m) * tiles_n
            tilings[Row.WAVE_CYCLES, count] = (
                min(result_stays, second_stays, first_stays) + overhead
            )
            tilings[Row.READ_BYTES, count] = (
                operand_bytes * k * (float(m) * tiles_n + float(n) * tiles_m)
            )
            tilings[Row.WRITTEN_BYTES, count] = result_bytes * m * n
            tilings[Row.DATAFLOW, count] = Dataflow.OUTPUT_STATIONARY.value
            tilings[Row.TILE_M, count] = tile_m
            tilings[Row.TILE_N, count] = tile_n
            tilings[Row.TILE_K, count] = k
            count += 1
    return count


@callee("int64(int64,int64[:,::1])")
def _stream_cuts(size: int, streams: IntArray) -> int:
    """List the lengths of streams that are tried, and the number of streams of each length."""
    for halvings in range(HALVINGS):
        streams[0, halvings] = ceil_div(size, 1 << halvings)
        streams[1, halvings] = ceil_div(size, streams[0, halvings])
        if streams[0, halvings] == 1:
            return halvings + 1
    return HALVINGS


@callee(f"int64(int64,int64,int64,{POOL},int64,int64,float64[:,::1])")
def _operand_stationary(
    m: int, n: int, k: int, pool: TensorCorePool, dataflow: int, count: int, tilings: FloatArray
) -> int:
    """Lay out tiles of the second operand (k × n) that stay while rows of the first stream by.

    For the input-stationary dataflow the product is transposed: m and n are exchanged.

    Parameters
    ----------
    count
        Tilings that are laid out already.

    Returns
    -------
    count
        With these.
    """
    _, x, y, l2_bytes, l2_rate, _, _, overhead, operand_bytes, result_bytes = pool
    sums = BOTH_WAYS / operand_bytes
    edges_k, edges_n = np.empty((3, _MOST_EDGES), np.int64), np.empty((3, _MOST_EDGES), np.int64)
    count_k, count_n = _tile_edges(k, x, edges_k), _tile_edges(n, y, edges_n)
    streams = np.empty((2, HALVINGS), np.int64)
    cuts = _stream_cuts(m, streams)
    streamed, resident = Row.TILE_M, Row.TILE_N
    if dataflow == Dataflow.INPUT_STATIONARY:
        streamed, resident = Row.TILE_N, Row.TILE_M
    for i in range(count_k):
        tile_k, tiles_k, rounds_k = edges_k[0, i], edges_k[1, i], float(edges_k[2, i])
        spilled = float(SUM_BYTES) * (tiles_k - 1) * float(m) * n
        for j in range(count_n):
            tile_n, tiles_n, rounds_n = edges_n[0, j], edges_n[1, j], float(edges_n[2, j])
            if not fits(tile_k, tile_n, l2_bytes):
                break
            for cut in range(cuts):
                stream, parts = streams[0, cut], streams[1, cut]
                cycles = pass_cycles(
                    rounds_k * rounds_n, tile_k, tile_n, stream, x, y, l2_rate, sums
                )
                read = operand_bytes * k * (float(n) * parts + float(m) * tiles_n)
                tilings[Row.TILES, count] = float(tiles_k) * tiles_n * parts
                tilings[Row.WAVE_CYCLES, count] = cycles + overhead
                tilings[Row.READ_BYTES, count] = read + spilled
                tilings[Row.WRITTEN_BYTES, count] = result_bytes * m * n + spilled
                tilings[Row.DATAFLOW, count] = dataflow
                tilings[streamed, count] = stream
                tilings[resident, count] = tile_n
                tilings[Row.TILE_K, count] = tile_k
                count += 1
    return count


@lazily_compiled(f"int64(int64[::1],{POOL},float64[:,::1])")
def lay_out_tilings(gemm: IntArray, pool: TensorCorePool, tilings: FloatArray) -> int:
    """Lay out every tiling of one product that fits the L2.

    Parameters
    ----------
    gemm : (5,)
        A row of `tensor_core.gemm_table`'s products.
    pool
        Hardware.
    tilings : TABLE_SHAPE
        Filled with one column per tiling.

    Returns
    -------
    count
        Number of tilings; 0 if not even one tile fits.
    """
    m, n, k, beside_bytes = gemm[0], gemm[1], gemm[2], gemm[4] / gemm[3]
    glb_rate = pool[6]
    count = _output_stationary(m, n, k, pool, tilings)
    count = _operand_stationary(m, n, k, pool, Dataflow.WEIGHT_STATIONARY.value, count, tilings)
    count = _operand_stationary(n, m, k, pool, Dataflow.INPUT_STATIONARY.value, count, tilings)
    for index in range(count):
        moved = tilings[Row.READ_BYTES, index] + tilings[Row.WRITTEN_BYTES, index]
        tilings[Row.GLB_CYCLES, index] = (moved + beside_bytes) / glb_rate
    return count
