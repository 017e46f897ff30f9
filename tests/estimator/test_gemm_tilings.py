"""The tilings that are tried are those that the module describes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.estimator.gemm_tilings import TABLE_SHAPE, Row, lay_out_tilings
from phaze_opt.estimator.gemm_traffic import Dataflow

sizes = st.one_of(st.integers(1, 70), st.integers(1, 10**6))
arrays = st.one_of(st.integers(0, 9).map(lambda power: 2**power), st.integers(1, 300))


def edges(size: int, array: int) -> list[int]:
    """Return the edges that are tried: cut into 1 to 4 tiles, and of 1, 2, 4, … arrays."""
    cut = [-(-size // cuts) for cuts in range(1, 5)]
    rounded = [edge if edge <= array else -(-edge // array) * array for edge in cut]
    doubled = [array << doublings for doublings in range(8) if array << doublings < size]
    return sorted({*(min(edge, size) for edge in rounded), *doubled})


@given(sizes, sizes, arrays, arrays)
def test_edges_are_as_described(m: int, n: int, x: int, y: int) -> None:
    """Every pair of edges is a tile of the result where the private buffer holds all of them."""
    pool = (1, x, y, 1e30, np.inf, 2.0**27, 1e3, 10.0)
    tilings = np.empty(TABLE_SHAPE)
    count = lay_out_tilings(np.array([m, n, 64, 1, 0]), pool, tilings)
    laid_out = tilings[:, :count]
    of_result = laid_out[:, laid_out[Row.DATAFLOW] == Dataflow.OUTPUT_STATIONARY.value]
    pairs = [(i, j) for i in edges(m, x) for j in edges(n, y)]
    assert of_result[[Row.TILE_M, Row.TILE_N]].T.tolist() == [[*pair] for pair in pairs]
    assert of_result[Row.TILES].tolist() == [-(-m // i) * -(-n // j) for i, j in pairs]
    assert of_result[Row.TILE_K].tolist() == [64] * len(pairs)
