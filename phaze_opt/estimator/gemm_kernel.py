"""Cycles and traffic of matrix products on tensor cores, from first principles.

A product of ``batch`` pairs ``(m × k)·(k × n)`` on ``cores`` tensor cores, each an array of
``pe_x × pe_y`` processing elements with a private L2:

* Every core works on one tile at a time; tiles run in waves over the cores. Which operand stays in
  the L2 while the others stream is the dataflow: output-, weight- or input-stationary. Within a
  tile the array holds whichever operand takes the fewest cycles, with every edge rounded up to the
  array, so that tile and wave quantisation appear by themselves.
* Every wave pays the fill and drain of the array once.
* Tiles are double-buffered in the L2; sums are kept in fp32. A weight- or input-stationary tile
  that does not span the whole reduction spills its partial sums to the global buffer.
* There is no multicast: global-buffer traffic is the sum of what every core reads and writes.
* HBM traffic is that of the best blocking through half of the global buffer (the other half holds
  the streams), with whichever operand stays resident.

The kernel is one scalar function compiled by numba; arrays of products and accelerators loop over
it, so a single estimate and a table agree bit for bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

ELEMENT_BYTES = 2
"""bf16 operands and results."""
SUM_BYTES = 4
"""fp32 partial sums."""
_REGISTERS_PER_PE = 8
"""Values of the held operand in each processing element (a power of two; an assumption)."""
_STREAM_BYTES_PER_ROW = 16
"""Double-buffered 64-bit words (four bf16 elements) per row of a streamed operand."""

_MOST_CUTS = 4
"""Every edge is tried whole and cut into up to so many tiles (rounded up to the array)."""
_DOUBLINGS = 8
"""Tiles of 1, 2, 4, ... arrays are tried too, as tuned libraries have them."""
_MOST_EDGES = 16
_HALVINGS = 13
"""Streams of a stationary tile are tried whole and cut into 2, 4, ... parts."""


@njit(cache=True, inline="always")
def _ceil_div(numerator: int, denominator: int) -> int:
    return (numerator + denominator - 1) // denominator


@njit("float64(int64,int64,int64,float64)", cache=True)
def hbm_traffic_bytes(m: int, n: int, k: int, glb_bytes: float) -> float:
    """Least HBM traffic of one product blocked through the global buffer.

    The resident block takes half of the buffer. Either whole rows of the first operand stay and
    the second streams by, or the reverse, or a block of the result stays in fp32 while slices of
    both stream by.

    Returns
    -------
    bytes
        Operands as often as they are read, the result once.
    """
    resident = glb_bytes / 2.0
    first, second, result = (
        float(ELEMENT_BYTES) * m * k,
        float(ELEMENT_BYTES) * k * n,
        float(ELEMENT_BYTES) * m * n,
    )
    best = np.inf
    panel = int(resident // (ELEMENT_BYTES * k))
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


@njit(cache=True, inline="always")
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


@njit(cache=True, inline="always")
def _pass_cycles(
    across_1: int, across_2: int, through: int, x: int, y: int, l2_rate: float, held: float
) -> float:
    """Cycles of one tile held in one way; see `_moved_bytes` for the arguments."""
    cycles = float(_ceil_div(across_1, x) * _ceil_div(across_2, y)) * through
    if l2_rate < np.inf:
        cycles = max(cycles, _moved_bytes(across_1, across_2, through, x, y, held) / l2_rate)
    return cycles


@njit(cache=True, inline="always")
def _array_cycles(m: int, n: int, k: int, x: int, y: int, l2_rate: float) -> float:
    """Least cycles of one tile over the three ways to hold an operand in the array."""
    result_stays = _pass_cycles(m, n, k, x, y, l2_rate, ELEMENT_BYTES)
    second_stays = _pass_cycles(k, n, m, x, y, l2_rate, 2.0 * SUM_BYTES)
    first_stays = _pass_cycles(k, m, n, x, y, l2_rate, 2.0 * SUM_BYTES)
    return min(result_stays, second_stays, first_stays)


@njit("float64(float64[::1],int64,int64,int64,int64,int64)", cache=True)
def _tile_l2_bytes(row: FloatArray, m: int, n: int, k: int, x: int, y: int) -> float:
    """L2 traffic of one tile of a finished row, held in the way that takes fewest cycles."""
    tile_m, tile_n, tile_k = int(row[6]), int(row[7]), int(row[8])
    if row[5] == 1.0:
        return _moved_bytes(tile_k, tile_n, tile_m, x, y, 2.0 * SUM_BYTES)
    if row[5] == 2.0:
        return _moved_bytes(tile_k, tile_m, tile_n, x, y, 2.0 * SUM_BYTES)
    moved = _moved_bytes(tile_m, tile_n, k, x, y, ELEMENT_BYTES)
    cycles = _pass_cycles(tile_m, tile_n, k, x, y, np.inf, 0.0)
    if _pass_cycles(k, tile_n, tile_m, x, y, np.inf, 0.0) < cycles:
        cycles = _pass_cycles(k, tile_n, tile_m, x, y, np.inf, 0.0)
        moved = _moved_bytes(k, tile_n, tile_m, x, y, 2.0 * SUM_BYTES)
    if _pass_cycles(k, tile_m, tile_n, x, y, np.inf, 0.0) < cycles:
        moved = _moved_bytes(k, tile_m, tile_n, x, y, 2.0 * SUM_BYTES)
    return moved


@njit(cache=True, inline="always")
def _better(time: float, traffic: float, best: FloatArray) -> bool:
    """Whether a tiling is faster, or as fast with less traffic; ``best`` is (time, traffic)."""
    return bool(time < best[0] or (time == best[0] and traffic < best[1]))


@njit(cache=True, inline="always")
def _fits(edge_1: int, edge_2: int, l2_bytes: float) -> bool:
    """Whether a resident tile and the double-buffered streams along its edges fit the L2."""
    return (
        SUM_BYTES * float(edge_1) * edge_2 + _STREAM_BYTES_PER_ROW * (edge_1 + edge_2) <= l2_bytes
    )


@njit("int64(int64,int64,int64[::1])", cache=True)
def _tile_edges(size: int, array: int, edges: IntArray) -> int:
    """Fill in the tile edges to try for one dimension, rising, and return how many there are."""
    for doublings in range(_DOUBLINGS):
        edges[doublings] = min(array << doublings, size)
    for cuts in range(1, _MOST_CUTS + 1):
        edge = _ceil_div(size, cuts)
        if edge > array:
            edge = min(_ceil_div(edge, array) * array, size)
        edges[_DOUBLINGS + cuts - 1] = edge
    candidates = edges[: _DOUBLINGS + _MOST_CUTS]
    candidates.sort()
    count = 1
    for edge in candidates:
        if edge > edges[count - 1]:
            edges[count] = edge
            count += 1
    return count


@njit(
    "void(int64,int64,int64,int64,int64,int64,int64,float64,float64,float64,float64,float64,"
    "float64[::1],float64[::1])",
    cache=True,
)
def _output_stationary(
    m: int, n: int, k: int, batch: int, cores: int, x: int, y: int,
    l2_bytes: float, l2_rate: float, glb_rate: float, overhead: float, floor: float,
    best: FloatArray, row: FloatArray,
) -> None:  # fmt: skip
    """Try tiles of the result that accumulate in the L2 over the whole reduction."""
    edges_m, edges_n = np.empty(_MOST_EDGES, np.int64), np.empty(_MOST_EDGES, np.int64)
    count_m, count_n = _tile_edges(m, x, edges_m), _tile_edges(n, y, edges_n)
    written = float(ELEMENT_BYTES) * batch * m * n
    for tile_m in edges_m[:count_m]:
        tiles_m = _ceil_div(m, tile_m)
        for tile_n in edges_n[:count_n]:
            if not _fits(tile_m, tile_n, l2_bytes):
                break
            tiles_n = _ceil_div(n, tile_n)
            tiles = float(batch) * tiles_m * tiles_n
            per_tile = _array_cycles(tile_m, tile_n, k, x, y, l2_rate)
            cycles = np.ceil(tiles / cores) * (per_tile + overhead)
            read = float(ELEMENT_BYTES) * batch * k * (float(m) * tiles_n + float(n) * tiles_m)
            time = max(cycles, (read + written) / glb_rate, floor)
            if _better(time, read + written, best):
                best[0], best[1] = time, read + written
                row[0], row[1], row[2], row[4] = cycles, read, written, tiles
                row[5], row[6], row[7], row[8] = 0.0, tile_m, tile_n, k


@njit(
    "void(int64,int64,int64,int64,int64,int64,int64,float64,float64,float64,float64,float64,"
    "int64,float64[::1],float64[::1])",
    cache=True,
)
def _operand_stationary(
    m: int, n: int, k: int, batch: int, cores: int, x: int, y: int,
    l2_bytes: float, l2_rate: float, glb_rate: float, overhead: float, floor: float,
    dataflow: int, best: FloatArray, row: FloatArray,
) -> None:  # fmt: skip
    """Try tiles of the second operand (k × n) that stay while rows of the first stream by.

    The input-stationary dataflow is the same with the product transposed (m and n exchanged).
    """
    edges_k, edges_n = np.empty(_MOST_EDGES, np.int64), np.empty(_MOST_EDGES, np.int64)
    count_k, count_n = _tile_edges(k, x, edges_k), _tile_edges(n, y, edges_n)
    for tile_k in edges_k[:count_k]:
        tiles_k = _ceil_div(k, tile_k)
        spilled = float(SUM_BYTES) * batch * (tiles_k - 1) * float(m) * n
        written = float(ELEMENT_BYTES) * batch * m * n + spilled
        for tile_n in edges_n[:count_n]:
            if not _fits(tile_k, tile_n, l2_bytes):
                break
            tiles_n = _ceil_div(n, tile_n)
            part = 1
            for _ in range(_HALVINGS):
                stream = _ceil_div(m, part)
                streams = _ceil_div(m, stream)
                per_tile = _pass_cycles(tile_k, tile_n, stream, x, y, l2_rate, 2.0 * SUM_BYTES)
                tiles = float(batch) * tiles_k * tiles_n * streams
                cycles = np.ceil(tiles / cores) * (per_tile + overhead)
                read = (
                    float(ELEMENT_BYTES) * batch * k * (float(n) * streams + float(m) * tiles_n)
                    + spilled
                )
                time = max(cycles, (read + written) / glb_rate, floor)
                if _better(time, read + written, best):
                    best[0], best[1] = time, read + written
                    row[0], row[1], row[2], row[4] = cycles, read, written, tiles
                    row[5], row[6], row[7], row[8] = dataflow, stream, tile_n, tile_k
                if stream == 1:
                    break
                part *= 2


@njit(
    "void(int64[::1],int64,int64,int64,float64,float64,float64,float64,float64,float64,"
    "float64[::1])",
    cache=True,
)
def _gemm(
    gemm: IntArray, cores: int, x: int, y: int, l2_bytes: float, l2_rate: float,
    glb_bytes: float, glb_rate: float, hbm_rate: float, overhead: float, row: FloatArray,
) -> None:  # fmt: skip
    """Fill one row of the table for one product; all rates are in bytes per cycle."""
    m, n, k, batch = gemm[0], gemm[1], gemm[2], gemm[3]
    hbm_bytes = batch * hbm_traffic_bytes(m, n, k, glb_bytes)
    compulsory = float(ELEMENT_BYTES) * batch * (float(m) * k + float(k) * n + float(m) * n)
    row[0] = np.inf
    row[3] = hbm_bytes - compulsory
    floor = hbm_bytes / hbm_rate
    best = np.array([np.inf, np.inf])
    _output_stationary(
        m, n, k, batch, cores, x, y, l2_bytes, l2_rate, glb_rate, overhead, floor, best, row
    )
    _operand_stationary(
        m, n, k, batch, cores, x, y, l2_bytes, l2_rate, glb_rate, overhead, floor, 1, best, row
    )
    before = best[0], best[1]
    _operand_stationary(
        n, m, k, batch, cores, x, y, l2_bytes, l2_rate, glb_rate, overhead, floor, 2, best, row
    )
    if before != (best[0], best[1]):
        row[6], row[7] = row[7], row[6]
    # So far the column holds the number of tiles.
    row[4] *= _tile_l2_bytes(row, m, n, k, x, y)


@njit(
    "void(int64[:,::1],int64,int64,int64,float64,float64,float64,float64,float64,float64,"
    "float64[:,::1])",
    cache=True,
)
def fill_rows(
    gemms: IntArray, cores: int, x: int, y: int, l2_bytes: float, l2_rate: float,
    glb_bytes: float, glb_rate: float, hbm_rate: float, overhead: float, rows: FloatArray,
) -> None:  # fmt: skip
    """Estimate every product on one pool of tensor cores; see `_gemm`."""
    for index in range(gemms.shape[0]):
        _gemm(
            gemms[index], cores, x, y, l2_bytes, l2_rate, glb_bytes, glb_rate, hbm_rate, overhead,
            rows[index],
        )  # fmt: skip
