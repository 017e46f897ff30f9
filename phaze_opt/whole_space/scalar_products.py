"""The least work of matrix products on a chip, one tiling at a time; see `scalar_bounds`.

Written apart from `phaze_opt.estimator` on purpose: this module uses none of its compiled loops.
For every resource, the least over all tilings counts, so that the numbers bound a product with any
tiling, alone or with other operators fused to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from phaze_opt.codec import data_table
from phaze_opt.estimator.attention_tiles import DIRECTIONS
from phaze_opt.estimator.gemm_traffic import HALVINGS, RESIDENT_SHARE
from phaze_opt.estimator.operator_table import WIDE_HEAD
from phaze_opt.hardware.accelerator import AttentionKernel
from phaze_opt.precision import ATTENTION_PRECISIONS, BF16, PRECISIONS, SUM_BYTES
from phaze_opt.workload.graph import AttentionScores, Gemm

_ASSUMED = data_table("estimator", "tensor_core.toml")
_STREAM_BYTES = int(_ASSUMED["stream_bytes_per_row"])
_REGISTERS = int(_ASSUMED["registers_per_pe"])
_SCORE_TILE = int(_ASSUMED["score_tile_queries"]), int(_ASSUMED["score_tile_keys"])


class TensorCores(NamedTuple):
    """Tensor cores of a chip on which an operator runs.

    Attributes
    ----------
    number
        Number of tensor cores.
    pe_x, pe_y
        Edges of the array of each core.
    l2_bytes, l2_rate
        Private buffer of each core, and its bytes per array cycle; infinite if unlimited.
    glb_rate
        Bytes per array cycle of the global buffer.
    fill
        Array cycles to fill and empty an array, once per wave of tiles.
    rates
        Rates relative to bf16, in the order of `PRECISIONS`.
    """

    number: int
    pe_x: int
    pe_y: int
    l2_bytes: int
    l2_rate: float
    glb_rate: float
    fill: float
    rates: tuple[float, ...]

    def rate_of(self, gemm: Gemm) -> float:
        """Return the rate of a product relative to bf16."""
        return self.rates[list(PRECISIONS).index(gemm.precision)]

    def faster(self, times: float) -> TensorCores:
        """Return the cores with an array cycle that is so many times shorter."""
        return self._replace(
            l2_rate=self.l2_rate / times, glb_rate=self.glb_rate / times, fill=self.fill * times
        )


class ProductWork(NamedTuple):
    """The least work of a batch of products.

    Attributes
    ----------
    array_cycles, glb_bytes
        Least array cycles, and least bytes through the global buffer, each by itself.
    busy_cycles
        Array cycles until both are done, with the other bytes that the operator moves.
    """

    array_cycles: float
    glb_bytes: float
    busy_cycles: float


class _Tiling(NamedTuple):
    """One tiling of one product.

    Attributes
    ----------
    alone, in_batch
        Least array cycles of a single product, and of one product of a large batch.
    glb_bytes
        Bytes through the global buffer.
    """

    alone: float
    in_batch: float
    glb_bytes: float


@lru_cache(maxsize=2**17)
def product_work(gemm: Gemm, cores: TensorCores, beside_bytes: float) -> ProductWork:
    """Bound a batch of products.

    A batch on several cores may run in groups, each with its own tiling. Even then, no product
    takes less time than in the best large batch, and the batch takes no less than one product.

    Parameters
    ----------
    gemm, cores
        The batch, and the tensor cores that it runs on.
    beside_bytes
        Bytes that the operator moves through the global buffer beside operands and results.

    Returns
    -------
    work
        Infinite if no tile fits the private buffer.
    """
    times = cores.rate_of(gemm)
    cores = cores.faster(times)
    batch, rate = gemm.batch, cores.glb_rate
    tilings = list(_tilings(gemm, cores))
    if not tilings:
        return ProductWork(math.inf, math.inf, math.inf)
    glb_bytes = batch * min(tiling.glb_bytes for tiling in tilings)
    in_batch = batch * min(tiling.in_batch for tiling in tilings)
    if batch == 1 or cores.number == 1:
        cycles = [tiling.alone if batch == 1 else batch * tiling.in_batch for tiling in tilings]
        busy = min(
            max(own, (batch * tiling.glb_bytes + beside_bytes) / rate)
            for own, tiling in zip(cycles, tilings, strict=True)
        )
        return ProductWork(min(cycles) / times, glb_bytes, busy / times)
    array_cycles = max(min(tiling.alone for tiling in tilings), in_batch)
    together = batch * min(max(tiling.in_batch, tiling.glb_bytes / rate) for tiling in tilings)
    busy = max(array_cycles, together, (glb_bytes + beside_bytes) / rate)
    return ProductWork(array_cycles / times, glb_bytes, busy / times)


def _tilings(gemm: Gemm, cores: TensorCores) -> Iterator[_Tiling]:
    """Yield the tilings of one product that fit the private buffer, in every dataflow.

    Streams can be cut so that all cores have equal shares; the bound counts no bytes for that.
    """
    m, n, k = gemm.m, gemm.n, gemm.k
    count, x, y, fill = cores.number, cores.pe_x, cores.pe_y, cores.fill
    operand_bytes = PRECISIONS[gemm.precision].operand_bytes
    result_bytes = PRECISIONS[gemm.precision].result_bytes * m * n
    # An array uses every value that passes through it with all values that its elements hold.
    l2_bytes = 2.0 * operand_bytes * m * n * k / math.sqrt(x * y * _REGISTERS)
    least = l2_bytes / cores.l2_rate / count
    for tile_m, tile_n in _fitting(_edges(m, x), _edges(n, y), cores.l2_bytes):
        tiles_m, tiles_n = _ceil(m, tile_m), _ceil(n, tile_n)
        tiles = tiles_m * tiles_n
        wave = fill + min(
            _ceil(tile_m, x) * _ceil(tile_n, y) * k,
            _ceil(k, x) * _ceil(tile_n, y) * tile_m,
            _ceil(k, x) * _ceil(tile_m, y) * tile_n,
        )
        moved = operand_bytes * k * (m * tiles_n + n * tiles_m) + result_bytes
        alone, in_batch = _ceil(tiles, count) * wave, tiles * wave / count
        yield _Tiling(max(alone, least), max(in_batch, least), moved)
    for rows, columns in ((m, n), (n, m)):
        for tile_k, tile_n in _fitting(_edges(k, x), _edges(columns, y), cores.l2_bytes):
            tiles_k, tiles_n = _ceil(k, tile_k), _ceil(columns, tile_n)
            tiles = tiles_k * tiles_n
            spilled = 2 * SUM_BYTES * (tiles_k - 1) * m * n
            moved = operand_bytes * k * (columns + rows * tiles_n) + result_bytes + spilled
            streamed = tiles * _ceil(tile_k, x) * _ceil(tile_n, y) * rows / count
            alone = streamed + fill * max(tiles / count, 1.0)
            in_batch = streamed + fill * tiles / count
            yield _Tiling(max(alone, least), max(in_batch, least), moved)


def _fitting(rows: list[int], columns: list[int], l2_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the edges of tiles that fit a private buffer together with their streams."""
    for row in rows:
        for column in columns:
            if SUM_BYTES * row * column + _STREAM_BYTES * (row + column) > l2_bytes:
                break
            yield row, column


def _edges(size: int, array: int) -> list[int]:
    """List the edges of tiles: 1, 1/2, 1/3, 1/4 of the size, and 1, 2, 4, … edges of an array."""
    cut = [_ceil(size, parts) for parts in range(1, 5)]
    edges = {edge if edge <= array else min(_ceil(edge, array) * array, size) for edge in cut}
    edges |= {array << doublings for doublings in range(8) if array << doublings < size}
    return sorted(edges)


@lru_cache(maxsize=2**16)
def blocked_bytes(gemm: Gemm, glb_bytes: float) -> float:
    """Return the least HBM traffic of a batch of products, blocked through the global buffer.

    A panel of rows or columns, or a block of the result, stays in its share of the buffer; the
    other operands are read once per panel or block.
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


@lru_cache(maxsize=2**14)
def score_work(
    scores: AttentionScores, gemms: tuple[Gemm, ...], cores: TensorCores, kernel: AttentionKernel
) -> tuple[float, float]:
    """Bound a fused attention core, which computes whole tiles of scores.

    The cores lose half of one of the last rows of tiles until all are done, and the attention takes
    no less than its longest row. The rows of a backward go along the queries.

    Returns
    -------
    array_cycles, scores
        Least array cycles, infinite if no tile fits, and number of scores in the computed tiles.
    """
    x, y, count = cores.pe_x, cores.pe_y, cores.number
    backward = len(gemms) > 2
    queries, keys = _SCORE_TILE
    if kernel.tile_queries and not backward:
        queries = kernel.tile_queries
    queries, keys = max(queries, x, y), max(keys, x, y)
    least = next(_fitting([min(x, scores.queries)], [min(y, scores.keys)], cores.l2_bytes), None)
    if least is None:
        return math.inf, 0.0
    cycles, widest = 0.0, 0
    for gemm in gemms:
        head = gemm.flops // (2 * scores.elements)
        widest = max(widest, head)
        held = (
            _ceil(queries, x) * _ceil(keys, y) * head,
            _ceil(head, x) * _ceil(keys, y) * queries,
            _ceil(head, x) * _ceil(queries, y) * keys,
        )
        l2_bytes = 2.0 * BF16.operand_bytes * queries * keys * head / math.sqrt(x * y * _REGISTERS)
        cycles += max(min(held), l2_bytes / cores.l2_rate)
    rows = [len(columns) for columns in _seen_columns(scores, queries, keys)]
    tiles, lines = sum(rows), rows
    fill, direction = kernel.row_cycles, 0
    if backward:
        lines = _lengths_of_columns(_seen_columns(scores, queries, keys))
        fill = kernel.column_cycles
        direction = 2 if widest > WIDE_HEAD else 1
    precision = [str(name) for name in ATTENTION_PRECISIONS].index(gemms[0].precision)
    slowdown = float(kernel[3 + direction + DIRECTIONS * precision])
    longest = max(lines) * cycles + fill
    total = scores.heads * (tiles * cycles + len(lines) * fill)
    lost = 0.5 * (lines[-1] * cycles + fill) * (1.0 - 1.0 / count)
    computed = float(scores.heads * tiles * queries * keys)
    return slowdown * max(total / count + lost, longest), computed


def _seen_columns(scores: AttentionScores, queries: int, keys: int) -> list[range]:
    """List the columns of tiles that the mask leaves in every row of tiles of one head."""
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
    """Count the rows of tiles that contain each column."""
    begins = Counter(row.start for row in rows)
    ends = Counter(row.stop for row in rows)
    columns = range(max(ends))
    return list(accumulate(begins[column] - ends[column] for column in columns))


def _ceil(numerator: int, denominator: int) -> int:
    """Divide and round up."""
    return -(-numerator // denominator)
