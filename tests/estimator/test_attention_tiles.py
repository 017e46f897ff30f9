"""Tiles of fused attention: whole under a causal mask, and what passes by the blocks of a core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.estimator.attention import masked_work
from phaze_opt.estimator.attention_tiles import CoreColumn, attention_on_pools
from phaze_opt.estimator.gemm_traffic import least_operands_per_mac
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.estimator.single import attention_graph, estimate_attention
from phaze_opt.estimator.tensor_core import NoTileFitsError, pools_of
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.attention import AttentionShape
from tests.strategies import accelerators, attention_shapes

H100, B200 = load_accelerator("h100"), load_accelerator("b200")
SHAPE = AttentionShape(2, 1024, 1024, 32, 8, 128, causal=True)

shapes = attention_shapes(700, 500, [32, 64, 80, 128])


def row_of(shape: AttentionShape, chip: Accelerator, *, backward: bool = False) -> FloatArray:
    """Return one core's row of `CoreColumn` on all tensor cores of a chip."""
    table = operator_table(attention_graph(shape, backward=backward))
    return np.asarray(attention_on_pools(table, pools_of([chip], [chip.num_tc]))[0, 0])


def tiled_share(shape: AttentionShape, chip: Accelerator) -> float:
    """Return the scores of the computed tiles over all scores; lanes work on the former."""
    table = operator_table(attention_graph(shape))
    rows = attention_on_pools(table, pools_of([chip], [chip.num_tc]))
    elements = masked_work(table, [chip], rows).elements[0, 0]
    return float(elements) / shape.scores.elements


def rows_that_pass(visible: BoolArray, block: int, tile: int) -> int:
    """Walk along the columns for every block of rows, and count those of tiles that it sees.

    A column passes by if a block sees it or one after it in its tile.
    """
    rows, columns = visible.shape
    count = 0
    for first in range(0, rows, block):
        seen = np.any(visible[first : first + block], axis=0, keepdims=True)[0]
        for start in range(0, columns, tile):
            count += len(seen[start : start + tile]) * bool(seen[start : start + tile].any())
    return count


def held_at_a_time(tile: int, row_bytes: int, l2_bytes: int) -> int:
    """Return the largest doubling or halving of a tile that fits, and at least one row."""
    sizes = {tile << power for power in range(20)} | {tile >> power for power in range(10)}
    return max([size for size in sizes if size and size * row_bytes <= l2_bytes], default=1)


@given(shapes, accelerators, st.booleans())
def test_what_cores_read_again_is_what_passes_by(
    shape: AttentionShape, chip: Accelerator, backward: bool
) -> None:
    """The bytes are those of a walk over the mask itself, block by block and tile by tile."""
    edge = max(chip.pe_x, chip.pe_y)
    tile_queries, tile_keys = max(64, edge), max(128, edge)
    visible = np.ones((shape.queries, shape.keys), dtype=np.bool_)
    if shape.causal:
        visible = np.tri(shape.queries, shape.keys, shape.keys - shape.queries, dtype=np.bool_)
    heads, size = shape.scores.heads, shape.head_dim
    if backward:
        # A key, a value, their gradients in fp32, and two rows of scores.
        block = held_at_a_time(tile_keys, 12 * size + 8 * tile_queries, chip.l2_tc_bytes)
        passing = rows_that_pass(visible[::-1, ::-1].T, block, tile_queries)
        again = heads * (passing - shape.queries)
        # The query and the gradient of the result; the gradient of the query in fp32, both ways.
        read, written = (2 + 2 + 4) * size * again, 4 * size * again
    else:
        # A query, its result in fp32, and a row of scores.
        block = held_at_a_time(tile_queries, 6 * size + 4 * tile_keys, chip.l2_tc_bytes)
        passing = rows_that_pass(visible, block, tile_keys)
        again = heads * passing - shape.batch * shape.kv_heads * shape.keys
        read, written = (2 + 2) * size * again, 0  # a key and a value
    row = row_of(shape, chip, backward=backward)
    assert row[CoreColumn.GLB_READ_BYTES] == read
    assert row[CoreColumn.GLB_WRITE_BYTES] == written


@given(shapes, accelerators, st.booleans(), st.sampled_from(["num_tc", "hbm_bytes_per_s"]))
def test_blocks_depend_on_no_rate(
    shape: AttentionShape, chip: Accelerator, backward: bool, field: str
) -> None:
    """More cores, or faster memories, move the same bytes."""
    more: Accelerator = replace(chip, **{field: 2 * getattr(chip, field)})
    row, other = (row_of(shape, each, backward=backward) for each in (chip, more))
    assert np.array_equal(row[CoreColumn.SCORES :], other[CoreColumn.SCORES :])


@given(shapes, accelerators, st.booleans(), st.integers(1, 40))
def test_a_larger_private_buffer_moves_no_more(
    shape: AttentionShape, chip: Accelerator, backward: bool, times: int
) -> None:
    """Taller blocks hold what shorter ones hold, also where a mask cuts them."""
    more = replace(chip, l2_tc_bytes=times * chip.l2_tc_bytes)
    before, after = (row_of(shape, each, backward=backward) for each in (chip, more))
    for column in (CoreColumn.GLB_READ_BYTES, CoreColumn.GLB_WRITE_BYTES):
        assert 0.0 <= after[column] <= before[column]


@given(shapes, accelerators, st.booleans())
def test_arrays_are_fed_at_least_what_their_registers_demand(
    shape: AttentionShape, chip: Accelerator, backward: bool
) -> None:
    """The bound on energy relies on it."""
    graph = attention_graph(shape, backward=backward)
    macs = graph.flops / 2 * shape.scores.visible / shape.scores.elements
    least = 2 * least_operands_per_mac(np.array([chip.pe_x]), np.array([chip.pe_y]))[0]
    fed = row_of(shape, chip, backward=backward)[CoreColumn.L2_BYTES]
    assert fed >= macs * least * (1 - 1e-12)


@given(shapes, accelerators)
def test_whole_tiles_cover_what_the_mask_leaves(shape: AttentionShape, chip: Accelerator) -> None:
    """Tiles have at least the visible scores, and no more than all tiles of the matrix."""
    visible = shape.scores.visible / shape.scores.elements
    full = tiled_share(replace(shape, causal=False), chip)
    assert visible * (1 - 1e-12) <= tiled_share(shape, chip) <= full
    assert full >= 1.0


def test_tiles_on_the_diagonal_are_whole() -> None:
    """Of 16 × 8 tiles of 64 × 128 scores, two rows each see 1 to 8: 72 tiles."""
    assert tiled_share(SHAPE, H100) == 72 / 128


def test_keys_pass_by_once_for_each_block_of_queries() -> None:
    """The H100 holds 256 queries of 768 B with 512 B of scores: four blocks see 1 to 4 quarters."""
    seen = 64 * (256 + 512 + 768 + 1024) - 2 * 8 * 1024
    assert row_of(SHAPE, H100)[CoreColumn.GLB_READ_BYTES] == seen * 2 * 2 * 128


def test_a_buffer_that_holds_no_tile_is_refused() -> None:
    """As for a product by itself."""
    with pytest.raises(NoTileFitsError, match="l2_tc_bytes is 1000, too small for one tile"):
        row_of(SHAPE, replace(H100, l2_tc_bytes=1000))


@given(
    shapes,
    accelerators,
    st.booleans(),
    st.sampled_from([0, 32, 256]),
    st.integers(0, 600),
)
def test_cycles_are_those_of_a_walk_over_the_tiles(
    shape: AttentionShape, chip: Accelerator, backward: bool, tile: int, window: int
) -> None:
    """Rows of a forward, columns of a backward: all of them, the longest, and half of the last."""
    if window and shape.causal and shape.queries == shape.keys:
        shape = replace(shape, window=window)
    chip = replace(chip, calibration=replace(chip.calibration, attention_tile_queries=tile or None))
    edge = max(chip.pe_x, chip.pe_y)
    tile_queries, tile_keys = max(tile if tile and not backward else 64, edge), max(128, edge)
    visible = np.ones((shape.queries, shape.keys), dtype=np.bool_)
    if shape.causal:
        visible = np.tri(shape.queries, shape.keys, shape.keys - shape.queries, dtype=np.bool_)
    if shape.seen_keys < shape.keys:
        visible &= ~np.tri(shape.queries, shape.keys, -shape.seen_keys, dtype=np.bool_)
    seen = np.array(
        [
            [
                visible[row : row + tile_queries, column : column + tile_keys].any()
                for column in range(0, shape.keys, tile_keys)
            ]
            for row in range(0, shape.queries, tile_queries)
        ]
    )
    lines = seen.sum(axis=0) if backward else seen.sum(axis=1)
    row = row_of(shape, chip, backward=backward)
    assert row[CoreColumn.SCORES] == shape.scores.heads * seen.sum() * tile_queries * tile_keys
    single = replace(chip, num_tc=1)
    fill = chip.attention_kernel.column_cycles if backward else chip.attention_kernel.row_cycles
    heads = shape.scores.heads
    alone = row_of(shape, single, backward=backward)[CoreColumn.ARRAY_CYCLES]
    each = (alone / heads - len(lines) * fill) / seen.sum()
    lost = 0.5 * (lines[-1] * each + fill) * (1.0 - 1.0 / chip.num_tc)
    expected = max(alone / chip.num_tc + lost, lines.max() * each + fill)
    assert row[CoreColumn.ARRAY_CYCLES] == pytest.approx(expected, rel=1e-9)


def test_few_heads_wait_for_the_last_rows() -> None:
    """Eight heads of a B200 take far longer than an eighth of 64: there are rows for few cores."""
    few, many = (
        estimate_attention(
            AttentionShape(1, 4096, 4096, heads, 1, 128, causal=True), B200
        ).latency_s
        for heads in (8, 64)
    )
    assert few > 1.8 * many / 8
