"""The tilings that are tried are those that the module describes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.estimator.gemm_tilings import TABLE_SHAPE, Row, lay_out_tilings
from phaze_opt.estimator.gemm_traffic import Dataflow
from phaze_opt.precision import SUM_BYTES

sizes = st.one_of(st.integers(1, 70), st.integers(1, 10**6))
arrays = st.one_of(st.integers(0, 9).map(lambda power: 2**power), st.integers(1, 300))
EDGES = (Row.TILE_M, Row.TILE_N, Row.TILE_K)


def edges(size: int, array: int) -> list[int]:
    """Return the edges that are tried: cut into 1 to 4 tiles, and of 1, 2, 4, … arrays."""
    cut = [-(-size // cuts) for cuts in range(1, 5)]
    rounded = [edge if edge <= array else -(-edge // array) * array for edge in cut]
    doubled = [array << doublings for doublings in range(8) if array << doublings < size]
    return sorted({*(min(edge, size) for edge in rounded), *doubled})


@given(sizes, sizes, arrays, arrays)
def test_edges_are_as_described(m: int, n: int, x: int, y: int) -> None:
    """Every pair of edges is a tile of the result where the private buffer holds all of them."""
    pool = (1, x, y, 1e30, np.inf, 2.0**27, 1e3, 10.0, 1.0, 4.0)
    tilings = np.empty(TABLE_SHAPE)
    count = lay_out_tilings(np.array([m, n, 64, 1, 0, 0]), pool, tilings)
    laid_out = tilings[:, :count]
    of_result = laid_out[:, laid_out[Row.DATAFLOW] == Dataflow.OUTPUT_STATIONARY.value]
    pairs = [(i, j) for i in edges(m, x) for j in edges(n, y)]
    assert of_result[[Row.TILE_M, Row.TILE_N]].T.tolist() == [[*pair] for pair in pairs]
    assert of_result[Row.TILES].tolist() == [-(-m // i) * -(-n // j) for i, j in pairs]
    assert of_result[Row.TILE_K].tolist() == [64] * len(pairs)


@settings(max_examples=25)
@given(sizes, sizes, sizes, arrays, arrays)
def test_tiles_read_operands_again_and_spill_sums(m: int, n: int, k: int, x: int, y: int) -> None:
    """An operand once for each tile beside it; sums once for each tile that begins with them."""
    tilings = np.empty(TABLE_SHAPE)
    pool = (4, x, y, 2.0**20, np.inf, 2.0**27, 1e3, 10.0, 1.0, 4.0)
    laid_out = tilings[:, : lay_out_tilings(np.array([m, n, k, 1, 0, 0]), pool, tilings)]
    tiles = [np.ceil(size / laid_out[row]) for size, row in zip((m, n, k), EDGES, strict=True)]
    spilled = SUM_BYTES * (tiles[2] - 1.0) * m * n
    read = 1.0 * k * (n * tiles[0] + m * tiles[1]) + spilled
    np.testing.assert_allclose(laid_out[Row.READ_BYTES], read, rtol=1e-12)
    written = 4.0 * m * n + spilled
    np.testing.assert_allclose(laid_out[Row.WRITTEN_BYTES], written, rtol=1e-12)
