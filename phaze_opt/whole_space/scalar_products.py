"""The least that matrix products take of a chip, one tiling at a time; see `scalar_bounds`.

Written apart from `phaze_opt.estimator` on purpose: nothing of what follows is taken from its
arrays. Of every resource, the least over all tilings counts, so that the numbers bound a product
whichever tiling is chosen, for the product alone or with what is fused to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from phaze_opt.codec import data_table
from phaze_opt.estimator.gemm_traffic import HALVINGS, RESIDENT_SHARE
from phaze_opt.estimator.operator_table import WIDE_HEAD
from phaze_opt.hardware.accelerator import AttentionKernel
from phaze_opt.precision import PRECISIONS, SUM_BYTES
from phaze_opt.workload.graph import AttentionScores, Gemm

_ASSUMED = data_table("estimator", "tensor_core.toml")
_STREAM_BYTES = int(_ASSUMED["stream_bytes_per_row"])
_REGISTERS = int(_ASSUMED["registers_per_pe"])
_SCORE_TILE = int(_ASSUMED["score_tile_queries"]), int(_ASSUMED["score_tile_keys"])


class Arrays(NamedTuple):
    """Some tensor cores of a chip: all that a product sees of it, but for the HBM.

    Attributes
    ----------
    cores, pe_x, pe_y
        Number, and edges of each array.
    l2_bytes, l2_rate
        Private buffer of each, and its bytes per array cycle; infinite where nothing limits it.
    glb_rate
        Bytes per array cycle of the global buffer.
    fill
        Array cycles that every wave of tiles pays.
    """

    cores: int
    pe_x: int
    pe_y: int
    l2_bytes: int
    l2_rate: float
    glb_rate: float
    fill: float

    def faster(self, times: float) -> Arrays:
        """Return them in cycles that are so many times shorter: of another precision."""
        return self._replace(
            l2_rate=self.l2_rate / times, glb_rate=self.glb_rate / times, fill=self.fill * times
        )


class ProductWork(NamedTuple):
    """The least of a batch of products.

    Attributes
    ----------
    array_cycles, glb_bytes
        Of the arrays and of the global buffer, each by itself.
    busy_cycles
        Array cycles until both are done, whatever the operator moves beside the product included.
    """

    array_cycles: float
    glb_bytes: float
    busy_cycles: float


class _Tiling(NamedTuple):
    """One way to lay out one product: least array cycles alone, and in a large batch; bytes."""

    alone: float
    each: float
    glb_bytes: float


@lru_cache(maxsize=2**17)
def product_work(gemm: Gemm, arrays: Arrays, beside_bytes: float) -> ProductWork:
    """Bound a batch of products.

    A batch on several cores may run in groups with tilings of their own. Then no product takes less
    than in the best large batch, and the batch not less than one of its products.

    Parameters
    ----------
    gemm, arrays
        The batch, and what it runs on.
    beside_bytes
        What the operator moves through the global buffer beside operands and results.

    Returns
    -------
    work
        Infinite where no tile fits.
    """
    times = PRECISIONS[gemm.precision].rate
    arrays = arrays.faster(times)
    batch, rate = gemm.batch, arrays.glb_rate
    tilings = list(_tilings(gemm, arrays))
    if not tilings:
        return ProductWork(math.inf, math.inf, math.inf)
    glb_bytes = batch * min(one.glb_bytes for one in tilings)
    each = batch * min(one.each for one in tilings)
    if batch == 1 or arrays.cores == 1:
        cycles = [one.alone if batch == 1 else batch * one.each for one in tilings]
        busy = min(
            max(own, (batch * one.glb_bytes + beside_bytes) / rate)
            for own, one in zip(cycles, tilings, strict=True)
        )
        return ProductWork(min(cycles) / times, glb_bytes, busy / times)
    array_cycles = max(min(one.alone for one in tilings), each)
    together = batch * min(max(one.each, one.glb_bytes / rate) for one in tilings)
    busy = max(array_cycles, together, (glb_bytes + beside_bytes) / rate)
    return ProductWork(array_cycles / times, glb_bytes, busy / times)


def _tilings(gemm: Gemm, arrays: Arrays) -> Iterator[_Tiling]:
    """Yield the tilings of one product that fit the private buffer, in every dataflow.

    Streams can be cut so that all cores have the same; that is counted as if it moved nothing more.
    """
    m, n, k = gemm.m, gemm.n, gemm.k
    cores, x, y, fill = arrays.cores, arrays.pe_x, arrays.pe_y, arrays.fill
    operand_bytes = PRECISIONS[gemm.precision].operand_bytes
    result_bytes = PRECISIONS[gemm.precision].result_bytes * m * n
    # Every value that passes through an array is used with all that its elements hold.
    l2_bytes = 2.0 * operand_bytes * m * n * k / math.sqrt(x * y * _REGISTERS)
    least = l2_bytes / arrays.l2_rate / cores
    for tile_m, tile_n in _fitting(_edges(m, x), _edges(n, y), arrays.l2_bytes):
        tiles_m, tiles_n = _ceil(m, tile_m), _ceil(n, tile_n)
        tiles = tiles_m * tiles_n
        wave = fill + min(
            _ceil(tile_m, x) * _ceil(tile_n, y) * k,
            _ceil(k, x) * _ceil(tile_n, y) * tile_m,
            _ceil(k, x) * _ceil(tile_m, y) * tile_n,
        )
        moved = operand_bytes * k * (m * tiles_n + n * tiles_m) + result_bytes
        alone, each = _ceil(tiles, cores) * wave, tiles * wave / cores
        yield _Tiling(max(alone, least), max(each, least), moved)
    for rows, columns in ((m, n), (n, m)):
        for tile_k, tile_n in _fitting(_edges(k, x), _edges(columns, y), arrays.l2_bytes):
            tiles_k, tiles_n = _ceil(k, tile_k), _ceil(columns, tile_n)
            tiles = tiles_k * tiles_n
            spilled = 2 * SUM_BYTES * (tiles_k - 1) * m * n
            moved = operand_bytes * k * (columns + rows * tiles_n) + result_bytes + spilled
            streamed = tiles * _ceil(tile_k, x) * _ceil(tile_n, y) * rows / cores
            alone = streamed + fill * max(tiles / cores, 1.0)
            each = streamed + fill * tiles / cores
            yield _Tiling(max(alone, least), max(each, least), moved)


def _fitting(first: list[int], second: list[int], l2_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the edges of tiles that fit a private buffer beside the streams along them."""
    for one in first:
        for other in second:
            if SUM_BYTES * one * other + _STREAM_BYTES * (one + other) > l2_bytes:
                break
            yield one, other


def _edges(size: int, array: int) -> list[int]:
    """List the edges that tiles may have: a whole one, cut in 2, 3, 4, and 1, 2, 4, … arrays."""
    cut = [_ceil(size, parts) for parts in range(1, 5)]
    edges = {edge if edge <= array else min(_ceil(edge, array) * array, size) for edge in cut}
    edges |= {array << doublings for doublings in range(8) if array << doublings < size}
    return sorted(edges)


@lru_cache(maxsize=2**16)
def blocked_bytes(gemm: Gemm, glb_bytes: float) -> float:
    """Return the least HBM traffic of a batch of products that are blocked through a buffer.

    A panel of rows or columns, or a block of the result, stays in its share of the buffer; what
    streams by is read once for each.
    """
    m, n, k = gemm.m, gemm.n, gemm.k
    operand_bytes = PRECISIONS[gemm.precision].operand_bytes
    first, second = operand_bytes * m * k, operand_bytes * k * n
    resident = glb_bytes * RESIDENT_SHARE
    panel, block = int(resident // (operand_bytes * k)), int(resident // SUM_BYTES)
    ways = [first + second] if panel >= min(m, n) else []
    if not ways:
        if panel >= 1:
            ways += [first + second * _ceil(m, panel), second + first * _ceil(n, panel)]
        for halvings in range(HALVINGS):
            rows = min(_ceil(m, 2**halvings), block)
            columns = min(max(block // rows, 1), n)
            ways.append(first * _ceil(n, columns) + second * _ceil(m, rows))
            columns = min(_ceil(n, 2**halvings), block)
            rows = min(max(block // columns, 1), m)
            ways.append(first * _ceil(n, columns) + second * _ceil(m, rows))
    return float(gemm.batch * (min(ways) + PRECISIONS[gemm.precision].result_bytes * m * n))


class ScoreWork(NamedTuple):
    """The least of a fused attention core: array cycles, and scores of the tiles it computes."""

    array_cycles: float
    scores: float


@lru_cache(maxsize=2**14)
def score_work(
    scores: AttentionScores, gemms: tuple[Gemm, ...], arrays: Arrays, kernel: AttentionKernel
) -> ScoreWork:
    """Bound a fused attention core, of which whole tiles are computed.

    Half of one of the last rows of tiles is lost until all cores are done, and no core is done
    before the longest one. The rows of a backward go along the queries.
    """
    x, y, cores = arrays.pe_x, arrays.pe_y, arrays.cores
    backward = len(gemms) > 2
    queries, keys = _SCORE_TILE
    if kernel.tile_queries and not backward:
        queries = kernel.tile_queries
    queries, keys = max(queries, x, y), max(keys, x, y)
    least = next(_fitting([min(x, scores.queries)], [min(y, scores.keys)], arrays.l2_bytes), None)
    if least is None:
        return ScoreWork(math.inf, 0.0)
    cycles, widest = 0.0, 0
    for gemm in gemms:
        head = gemm.flops // (2 * scores.elements)
        widest = max(widest, head)
        held = (
            _ceil(queries, x) * _ceil(keys, y) * head,
            _ceil(head, x) * _ceil(keys, y) * queries,
            _ceil(head, x) * _ceil(queries, y) * keys,
        )
        l2_bytes = (
            2.0
            * PRECISIONS[gemm.precision].operand_bytes
            * queries
            * keys
            * head
            / math.sqrt(x * y * _REGISTERS)
        )
        cycles += max(min(held), l2_bytes / arrays.l2_rate)
    rows = [len(columns) for columns in _seen_columns(scores, queries, keys)]
    tiles, lines = sum(rows), rows
    fill, slowdown = kernel.row_cycles, kernel.forward
    if backward:
        lines = _lengths_of_columns(_seen_columns(scores, queries, keys))
        fill = kernel.column_cycles
        slowdown = kernel.wide_backward if widest > WIDE_HEAD else kernel.backward
    longest = max(lines) * cycles + fill
    total = scores.heads * (tiles * cycles + len(lines) * fill)
    lost = 0.5 * (lines[-1] * cycles + fill) * (1.0 - 1.0 / cores)
    computed = float(scores.heads * tiles * queries * keys)
    return ScoreWork(slowdown * max(total / cores + lost, longest), computed)


def _seen_columns(scores: AttentionScores, queries: int, keys: int) -> list[range]:
    """List the tiles that a mask leaves of every row of tiles of one matrix of scores."""
    window = scores.causal and scores.keys < scores.queries
    positions = scores.queries if window else scores.keys
    seen = []
    for row in range(_ceil(scores.queries, queries)):
        first, last = row * queries, min((row + 1) * queries, scores.queries) - 1
        newest = last + positions - scores.queries if scores.causal else positions - 1
        oldest = max(first - scores.keys + 1, 0) if window else 0
        seen.append(range(oldest // keys, max(newest, 0) // keys + 1))
    return seen


def _lengths_of_columns(rows: list[range]) -> list[int]:
    """Count the rows that see each column of tiles."""
    begins = Counter(row.start for row in rows)
    ends = Counter(row.stop for row in rows)
    columns = range(max(ends))
    return list(accumulate(begins[column] - ends[column] for column in columns))


def _ceil(numerator: int, denominator: int) -> int:
    """Divide and round up."""
    return -(-numerator // denominator)
