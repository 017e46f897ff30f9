"""Tilings of a matrix product on tensor cores: cycles and traffic from first principles.

A product ``(m × k)·(k × n)`` on cores that each are an array of ``pe_x × pe_y`` processing
elements with a private L2:

* Every core works on one tile at a time; tiles run in waves over the cores. Which operand stays in
  the L2 while the others stream is the dataflow: output-, weight- or input-stationary. Within a
  tile the array holds whichever operand takes the fewest cycles, with every edge rounded up to the
  array, so that tile and wave quantisation appear by themselves.
* Every wave pays the fill and drain of the array once.
* Tiles are double-buffered in the L2; sums are kept in fp32. A weight- or input-stationary tile
  that does not span the whole reduction spills its partial sums to the global buffer.
* There is no multicast: global-buffer traffic is the sum of what every core reads and writes.
* HBM traffic is that of the best blocking through the global buffer, a part of which holds the
  streams, with whichever operand stays resident.

Here one product is laid out in every way that is tried; `gemm_rows` chooses.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.codec import data_table
from phaze_opt.compiled import callee, compiled, inlined

ELEMENT_BYTES = 2
"""bf16 operands and results."""
SUM_BYTES = 4
"""fp32 partial sums."""
_BOTH_WAYS = 2.0 * SUM_BYTES
"""Partial sums are read and written."""

_ASSUMED = data_table("estimator", "tensor_core.toml")
_REGISTERS_PER_PE = int(_ASSUMED["registers_per_pe"])
"""Values of the held operand in each processing element."""
_STREAM_BYTES_PER_ROW = int(_ASSUMED["stream_bytes_per_row"])
"""Private buffer per row of a streamed operand."""
_RESIDENT_SHARE = float(_ASSUMED["resident_glb_share"])
"""Of the global buffer."""

_MOST_CUTS = 4
"""Every edge is tried whole and cut into up to so many tiles (rounded up to the array)."""
_DOUBLINGS = 8
"""Tiles of 1, 2, 4, ... arrays are tried too, as tuned libraries have them."""
_MOST_EDGES = _MOST_CUTS + _DOUBLINGS
_HALVINGS = 13
"""Streams of a stationary tile are tried whole and cut into 2, 4, ... parts."""
MOST_TILINGS = _MOST_EDGES * _MOST_EDGES * (1 + 2 * _HALVINGS)

# Rows of the table of tilings, all of one product.
TILES = 0
WAVE_CYCLES = 1
"""Cycles of one tile on one core, and so of one wave over the cores, fill and drain included."""
MEMORY_CYCLES = 2
"""The slower of the global buffer and the HBM."""
READ_BYTES = 3
"""From the global buffer into the cores."""
WRITTEN_BYTES = 4
DATAFLOW = 5
TILE_M = 6
TILE_N = 7
TILE_K = 8
TILING_ROWS = 9


@inlined
def _ceil_div(numerator: int, denominator: int) -> int:
    return (numerator + denominator - 1) // denominator


@compiled("float64(int64,int64,int64,float64)")
def hbm_traffic_bytes(m: int, n: int, k: int, glb_bytes: float) -> float:
    """Least HBM traffic of one product blocked through the global buffer.

    The resident block takes its share of the buffer: whole rows of the first operand while the
    second streams by, or the reverse, or a block of the result in fp32 while slices of both stream
    by.

    Returns
    -------
    bytes
        Operands as often as they are read, the result once.
    """
    resident = glb_bytes * _RESIDENT_SHARE
    first, second, result = (
        float(ELEMENT_BYTES) * m * k,
        float(ELEMENT_BYTES) * k * n,
        float(ELEMENT_BYTES) * m * n,
    )
    best = np.inf
    panel = int(resident // (ELEMENT_BYTES * k))
    if panel >= m or panel >= n:
        return first + second + result
    if panel >= 1:
        best = first + second * _ceil_div(m, panel)
        best = min(best, second + first * _ceil_div(n, panel))
    block = int(resident // SUM_BYTES)
    part = 1
    for _ in range(_HALVINGS):
        rows = min(_ceil_div(m, part), block)
        columns = min(max(block // rows, 1), n)
        best = min(best, first * _ceil_div(n, columns) + second * _ceil_div(m, rows))
        columns = min(_ceil_div(n, part), block)
        rows = min(max(block // columns, 1), m)
        best = min(best, first * _ceil_div(n, columns) + second * _ceil_div(m, rows))
        part *= 2
    return best + result


@callee("float64(int64,int64,int64,int64,int64,float64)")
def _moved_bytes(across_1: int, across_2: int, through: int, x: int, y: int, held: float) -> float:
    """Least L2 traffic of one tile that lies ``across_1 × across_2`` over the array.

    Every element of the array keeps up to `_REGISTERS_PER_PE` values of the held operand, so that
    what passes through is used again; the split of the registers between the two directions is
    the best one.

    Parameters
    ----------
    across_1, across_2, through
        Edges of the tile over the array, and the edge that passes through.
    x, y
        The array.
    held
        Bytes per element of what passes along the second direction (operands, or partial sums
        both ways).
    """
    best = np.inf
    share = 1
    while share <= _REGISTERS_PER_PE:
        rounds_1 = _ceil_div(across_1, x * share)
        rounds_2 = _ceil_div(across_2, y * (_REGISTERS_PER_PE // share))
        moved = float(through) * (
            ELEMENT_BYTES * float(across_1) * rounds_2 + held * float(across_2) * rounds_1
        )
        best = min(best, moved)
        share *= 2
    return best


@inlined
def _pass_cycles(
    rounds: float, across_1: int, across_2: int, through: int, x: int, y: int,
    l2_rate: float, held: float,
) -> float:  # fmt: skip
    """Cycles of one tile held in one way, which covers the array in so many rounds."""
    cycles = rounds * through
    if l2_rate < np.inf:
        cycles = max(cycles, _moved_bytes(across_1, across_2, through, x, y, held) / l2_rate)
    return cycles


@compiled("float64(int64,int64,int64,int64,int64,int64)")
def tile_l2_bytes(dataflow: int, m: int, n: int, k: int, x: int, y: int) -> float:
    """L2 traffic of one tile ``m × n × k``, held in the way that takes fewest cycles."""
    if dataflow == 1:
        return _moved_bytes(k, n, m, x, y, _BOTH_WAYS)
    if dataflow == 2:
        return _moved_bytes(k, m, n, x, y, _BOTH_WAYS)
    moved = _moved_bytes(m, n, k, x, y, float(ELEMENT_BYTES))
    cycles = float(_ceil_div(m, x)) * _ceil_div(n, y) * k
    second_stays = float(_ceil_div(k, x)) * _ceil_div(n, y) * m
    if second_stays < cycles:
        cycles = second_stays
        moved = _moved_bytes(k, n, m, x, y, _BOTH_WAYS)
    if float(_ceil_div(k, x)) * _ceil_div(m, y) * n < cycles:
        moved = _moved_bytes(k, m, n, x, y, _BOTH_WAYS)
    return moved


@inlined
def _fits(edge_1: int, edge_2: int, l2_bytes: float) -> bool:
    """Whether a resident tile and the double-buffered streams along its edges fit the L2."""
    return (
        SUM_BYTES * float(edge_1) * edge_2 + _STREAM_BYTES_PER_ROW * (edge_1 + edge_2) <= l2_bytes
    )


@callee("int64(int64,int64,int64[:,::1])")
def _tile_edges(size: int, array: int, edges: IntArray) -> int:
    """Lay out the tile edges to try for one dimension, rising, and return how many there are.

    Parameters
    ----------
    edges : (3, _MOST_EDGES)
        Filled with the edges, with how many tiles there are, and with how many arrays one is long.
    """
    count, last, doublings, cuts = 0, 0, 0, _MOST_CUTS
    while cuts > 0:
        edge = _ceil_div(size, cuts)
        if edge > array:
            edge = min(_ceil_div(edge, array) * array, size)
        doubled = min(array << doublings, size)
        if doublings < _DOUBLINGS and doubled < edge:
            edge = doubled
            doublings += 1
        else:
            cuts -= 1
        if edge > last:
            edges[0, count] = edge
            edges[1, count] = _ceil_div(size, edge)
            edges[2, count] = _ceil_div(edge, array)
            count += 1
            last = edge
    return count


@callee("int64(int64,int64,int64,int64,int64,float64,float64,float64,float64[:,::1])")
def _output_stationary(
    m: int, n: int, k: int, x: int, y: int,
    l2_bytes: float, l2_rate: float, overhead: float, tilings: FloatArray,
) -> int:  # fmt: skip
    """Lay out tiles of the result that accumulate in the L2 over the whole reduction."""
    edges_m, edges_n = np.empty((3, _MOST_EDGES), np.int64), np.empty((3, _MOST_EDGES), np.int64)
    count_m, count_n = _tile_edges(m, x, edges_m), _tile_edges(n, y, edges_n)
    rounds_k = float(_ceil_div(k, x))
    count = 0
    for i in range(count_m):
        tile_m, tiles_m, rounds_m = edges_m[0, i], edges_m[1, i], float(edges_m[2, i])
        rounds_turned = rounds_k * _ceil_div(tile_m, y)
        for j in range(count_n):
            tile_n, tiles_n, rounds_n = edges_n[0, j], edges_n[1, j], float(edges_n[2, j])
            if not _fits(tile_m, tile_n, l2_bytes):
                break
            result_stays = _pass_cycles(
                rounds_m * rounds_n, tile_m, tile_n, k, x, y, l2_rate, float(ELEMENT_BYTES)
            )
            second_stays = _pass_cycles(
                rounds_k * rounds_n, k, tile_n, tile_m, x, y, l2_rate, _BOTH_WAYS
            )
            first_stays = _pass_cycles(rounds_turned, k, tile_m, tile_n, x, y, l2_rate, _BOTH_WAYS)
            tilings[TILES, count] = float(tiles_m) * tiles_n
            tilings[WAVE_CYCLES, count] = min(result_stays, second_stays, first_stays) + overhead
            tilings[READ_BYTES, count] = (
                float(ELEMENT_BYTES) * k * (float(m) * tiles_n + float(n) * tiles_m)
            )
            tilings[WRITTEN_BYTES, count] = float(ELEMENT_BYTES) * m * n
            tilings[DATAFLOW, count] = 0.0
            tilings[TILE_M, count] = tile_m
            tilings[TILE_N, count] = tile_n
            tilings[TILE_K, count] = k
            count += 1
    return count


@callee("int64(int64,int64[:,::1])")
def _stream_cuts(size: int, streams: IntArray) -> int:
    """Lay out the lengths of the streams to try and how many there are of each."""
    for halvings in range(_HALVINGS):
        streams[0, halvings] = _ceil_div(size, 1 << halvings)
        streams[1, halvings] = _ceil_div(size, streams[0, halvings])
        if streams[0, halvings] == 1:
            return halvings + 1
    return _HALVINGS


@callee("int64(int64,int64,int64,int64,int64,float64,float64,float64,int64,int64,float64[:,::1])")
def _operand_stationary(
    m: int, n: int, k: int, x: int, y: int,
    l2_bytes: float, l2_rate: float, overhead: float,
    dataflow: int, count: int, tilings: FloatArray,
) -> int:  # fmt: skip
    """Lay out tiles of the second operand (k × n) that stay while rows of the first stream by.

    The input-stationary dataflow is the same with the product transposed (m and n exchanged).
    """
    edges_k, edges_n = np.empty((3, _MOST_EDGES), np.int64), np.empty((3, _MOST_EDGES), np.int64)
    count_k, count_n = _tile_edges(k, x, edges_k), _tile_edges(n, y, edges_n)
    streams = np.empty((2, _HALVINGS), np.int64)
    cuts = _stream_cuts(m, streams)
    streamed, resident = (TILE_N, TILE_M) if dataflow == 2 else (TILE_M, TILE_N)
    for i in range(count_k):
        tile_k, tiles_k, rounds_k = edges_k[0, i], edges_k[1, i], float(edges_k[2, i])
        spilled = float(SUM_BYTES) * (tiles_k - 1) * float(m) * n
        for j in range(count_n):
            tile_n, tiles_n, rounds_n = edges_n[0, j], edges_n[1, j], float(edges_n[2, j])
            if not _fits(tile_k, tile_n, l2_bytes):
                break
            for cut in range(cuts):
                stream, parts = streams[0, cut], streams[1, cut]
                cycles = _pass_cycles(
                    rounds_k * rounds_n, tile_k, tile_n, stream, x, y, l2_rate, _BOTH_WAYS
                )
                read = float(ELEMENT_BYTES) * k * (float(n) * parts + float(m) * tiles_n)
                tilings[TILES, count] = float(tiles_k) * tiles_n * parts
                tilings[WAVE_CYCLES, count] = cycles + overhead
                tilings[READ_BYTES, count] = read + spilled
                tilings[WRITTEN_BYTES, count] = float(ELEMENT_BYTES) * m * n + spilled
                tilings[DATAFLOW, count] = dataflow
                tilings[streamed, count] = stream
                tilings[resident, count] = tile_n
                tilings[TILE_K, count] = tile_k
                count += 1
    return count


@compiled(
    "int64(int64,int64,int64,int64,int64,float64,float64,float64,float64,float64,float64[:,::1])"
)
def lay_out_tilings(
    m: int, n: int, k: int, x: int, y: int,
    l2_bytes: float, l2_rate: float, glb_rate: float, overhead: float, hbm_cycles: float,
    tilings: FloatArray,
) -> int:  # fmt: skip
    """Lay out every tiling of one product that fits the L2; all rates are in bytes per cycle.

    Parameters
    ----------
    hbm_cycles
        Of one product.
    tilings : (TILING_ROWS, MOST_TILINGS)
        Filled with one column per tiling.

    Returns
    -------
    count
        Tilings; 0 if not even one tile fits.
    """
    count = _output_stationary(m, n, k, x, y, l2_bytes, l2_rate, overhead, tilings)
    count = _operand_stationary(m, n, k, x, y, l2_bytes, l2_rate, overhead, 1, count, tilings)
    count = _operand_stationary(n, m, k, x, y, l2_bytes, l2_rate, overhead, 2, count, tilings)
    for index in range(count):
        moved = tilings[READ_BYTES, index] + tilings[WRITTEN_BYTES, index]
        tilings[MEMORY_CYCLES, index] = max(moved / glb_rate, hbm_cycles)
    return count
