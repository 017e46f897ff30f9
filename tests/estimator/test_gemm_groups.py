import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.gemm_groups import group_sizes
from phaze_opt.estimator.gemm_tilings import TABLE_SHAPE, Row, lay_out_tilings
from phaze_opt.estimator.gemm_traffic import Dataflow
from phaze_opt.estimator.tensor_core import GemmColumn, GroupTiling, gemm_plan, tensor_core_pool
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.units import MIB
from phaze_opt.workload.graph import Gemm
from tests.estimator.products import estimate_rows, hbm_cycles, latency_cycles
from tests.strategies import accelerators, gemms

small_gemms = st.builds(Gemm, m=st.integers(1, 600), n=st.integers(1, 600), k=st.integers(1, 600))
any_accelerators = st.one_of(
    st.builds(
        dataclasses.replace,
        accelerators,
        num_tc=st.integers(2, 5000),
        glb_bytes_per_cycle=st.sampled_from([64.0, 1000.0, 1e9]),
        hbm_bytes_per_s=st.sampled_from([1e11, 1.2e12, 1e15]),
        l2_bytes_per_cycle=st.sampled_from([None, 128.0]),
        calibration=st.sampled_from([Calibration(), Calibration(tile_overhead_cycles=0.0)]),
    ),
    st.sampled_from(["a100-80", "v100", "mi210", "h100", "tpuv5e"]).map(load_accelerator),
)
"""Chips on which batches are hard to split, and real chips."""

batched = st.one_of(
    st.integers(2, 40), st.integers(41, 1000), st.sampled_from([96, 768, 3072, 10**6])
)
"""Few products, the numbers that attention has, and far more."""


def tiling_table(gemm: Gemm, accelerator: Accelerator) -> FloatArray:
    """Lay out the tilings of one product on all cores."""
    tilings = np.empty(TABLE_SHAPE)
    shape = np.array([gemm.m, gemm.n, gemm.k, 1, 0, 0])
    count = lay_out_tilings(shape, tensor_core_pool(accelerator, accelerator.num_tc), tilings)
    return tilings[:, :count]


@st.composite
def batches_in_parts(draw: st.DrawFn, most: int = 2) -> list[int]:
    """Split a batch into at most ``most`` parts, which are often very unequal."""
    batch, cuts = draw(batched), draw(st.integers(1, most - 1))
    ends = {draw(st.one_of(st.just(1), st.integers(1, batch - 1))) for _ in range(cuts)}
    edges = [0, *sorted(ends), batch]
    return [end - start for start, end in itertools.pairwise(edges)]


def assert_no_dearer_together(gemm: Gemm, accelerator: Accelerator, parts: list[int]) -> None:
    """T(b₁ + b₂ + ...) ≤ T(b₁) + T(b₂) + ..., with independent estimates."""
    together = latency_cycles(dataclasses.replace(gemm, batch=sum(parts)), accelerator)
    apart = sum(latency_cycles(dataclasses.replace(gemm, batch=b), accelerator) for b in parts)
    assert together <= apart * (1 + 1e-12)


@given(gemms, accelerators, batches_in_parts())
@example(Gemm(512, 64, 512), load_accelerator("mi210"), [1, 767])
@example(Gemm(500, 60, 500), load_accelerator("a100-80"), [384, 383])
def test_a_batch_never_costs_more_than_its_two_parts(
    gemm: Gemm, accelerator: Accelerator, parts: list[int]
) -> None:
    """T(b₁ + b₂) ≤ T(b₁) + T(b₂) for any two parts, 1 + 767 as well as 384 + 384.

    The two could run one after the other. Only rounding is tolerated: 1e-12.
    """
    assert_no_dearer_together(gemm, accelerator, parts)


@given(small_gemms, any_accelerators, batches_in_parts(most=9))
def test_a_batch_never_costs_more_than_its_many_parts(
    gemm: Gemm, accelerator: Accelerator, parts: list[int]
) -> None:
    """T(b₁ + b₂ + ...) ≤ T(b₁) + T(b₂) + ... for up to nine parts, on chips where it is hardest.

    Products of a few tiles leave many cores idle in their last wave, so that each part has another
    best tiling. The chips have numbers of cores that are no power of two, slow and fast memories
    and private buffers, and no fill; real GPUs are tried as well.
    """
    assert_no_dearer_together(gemm, accelerator, parts)


def one_group_cycles(tilings: FloatArray, batch: int, cores: int) -> float:
    """Cycles of a batch with the best single tiling."""
    arrays = np.ceil(batch * tilings[Row.TILES] / cores) * tilings[Row.WAVE_CYCLES]
    return float(np.maximum(arrays, batch * tilings[Row.GLB_CYCLES]).min())


def grouped_cycles(tilings: FloatArray, batch: int, cores: int) -> float:
    """Cycles in the groups that the estimator finds."""
    alone = one_group_cycles(tilings, batch, cores)
    sizes = group_sizes(np.ascontiguousarray(tilings), tilings.shape[1], batch, cores, alone)
    assert sizes.sum() in (0, batch)
    return sum(one_group_cycles(tilings, size, cores) for size in sizes.tolist()) or alone


def brute_force_cycles(tilings: FloatArray, batch: int, cores: int) -> float:
    """Cycles of the best split of a batch, found by trying every one."""
    best = np.zeros(batch + 1)
    for size in range(1, batch + 1):
        split = (best[1:size] + best[size - 1 : 0 : -1]).min(initial=np.inf)
        best[size] = min(one_group_cycles(tilings, size, cores), split)
    return float(best[batch])


@given(small_gemms, any_accelerators, st.integers(1, 60))
def test_a_batch_runs_in_the_best_groups_that_there_are(
    gemm: Gemm, accelerator: Accelerator, batch: int
) -> None:
    """The time of every batch equals brute force over all splits of it into groups."""
    expected = brute_force_cycles(tiling_table(gemm, accelerator), batch, accelerator.num_tc)
    batched = dataclasses.replace(gemm, batch=batch)
    expected = max(expected, hbm_cycles(batched, accelerator))
    assert latency_cycles(batched, accelerator) == pytest.approx(expected, rel=1e-12)


@given(small_gemms, any_accelerators, st.integers(1, 60), st.sampled_from(Dataflow))
def test_each_dataflow_runs_in_the_best_groups_that_there_are(
    gemm: Gemm, accelerator: Accelerator, batch: int, dataflow: Dataflow
) -> None:
    """The groups equal brute force where only one dataflow is allowed, too."""
    tilings = tiling_table(gemm, accelerator)
    tilings = tilings[:, tilings[Row.DATAFLOW] == dataflow]
    assert grouped_cycles(tilings, batch, accelerator.num_tc) == pytest.approx(
        brute_force_cycles(tilings, batch, accelerator.num_tc), rel=1e-12
    )


made_up_tilings = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 40), st.sampled_from([0.0, 1.0, 3.5, 10.0])),
    min_size=1,
    max_size=6,
).map(lambda columns: np.array(columns, dtype=np.float64).T)
"""Tiles per product, cycles per wave, buffer cycles per product; many of them are equal."""


@given(made_up_tilings, st.integers(1, 500), st.integers(1, 12))
def test_groups_of_long_batches_on_few_cores_are_the_best(
    tilings: FloatArray, batch: int, cores: int
) -> None:
    """A batch is shortened by multiples of the cores before the search; brute force agrees."""
    assert grouped_cycles(tilings, batch, cores) == pytest.approx(
        brute_force_cycles(tilings, batch, cores), rel=1e-12
    )


def column_of(group: GroupTiling, tilings: FloatArray) -> int:
    """Return the column of a tiling; equal tilings have equal figures."""
    dataflow = Dataflow[group.dataflow.upper()]
    key = np.array([dataflow, group.tile_m, group.tile_n, group.tile_k])
    return int(np.argmax(np.all(tilings[Row.DATAFLOW :] == key[:, np.newaxis], axis=0)))


@given(small_gemms, any_accelerators, batched)
def test_table_and_groups_describe_one_plan(
    gemm: Gemm, accelerator: Accelerator, batch: int
) -> None:
    """Groups add up to the batch, each with its tiling, and traffic and time are their sums."""
    tilings, cores = tiling_table(gemm, accelerator), accelerator.num_tc
    plan = gemm_plan(np.array([gemm.m, gemm.n, gemm.k, batch, 0]), accelerator, cores)
    row = estimate_rows([dataclasses.replace(gemm, batch=batch)], accelerator)[0]
    products = np.array([group.products for group in plan])
    assert products.sum() == batch
    assert products[0] == products.max()
    chosen = tilings[:, [column_of(group, tilings) for group in plan]]
    assert row[GemmColumn.GLB_READ_BYTES] == pytest.approx(
        products @ chosen[Row.READ_BYTES], rel=1e-12
    )
    assert row[GemmColumn.GLB_WRITE_BYTES] == pytest.approx(
        products @ chosen[Row.WRITTEN_BYTES], rel=1e-12
    )
    waves = np.ceil(products * chosen[Row.TILES] / cores)
    cycles = waves * chosen[Row.WAVE_CYCLES]
    if len(plan) > 1:
        cycles = np.maximum(cycles, products * chosen[Row.GLB_CYCLES])
    assert row[GemmColumn.ARRAY_CYCLES] == pytest.approx(cycles.sum(), rel=1e-12)


@given(small_gemms, any_accelerators, st.integers(1, 400))
def test_one_product_more_is_never_faster(gemm: Gemm, accelerator: Accelerator, batch: int) -> None:
    """Time rises with the batch."""
    fewer = latency_cycles(dataclasses.replace(gemm, batch=batch), accelerator)
    more = latency_cycles(dataclasses.replace(gemm, batch=batch + 1), accelerator)
    assert fewer <= more * (1 + 1e-12)


@given(
    small_gemms,
    any_accelerators,
    batched,
    st.sampled_from(
        ["num_tc", "glb_bytes", "glb_bytes_per_cycle", "hbm_bytes_per_s", "l2_tc_bytes"]
    ),
)
def test_more_of_anything_is_never_slower_for_batches(
    gemm: Gemm, accelerator: Accelerator, batch: int, field: str
) -> None:
    """Twice the cores, the buffer or the bandwidth never slow a batch of products."""
    gemm = dataclasses.replace(gemm, batch=batch)
    doubled = dataclasses.replace(accelerator, **{field: 2 * getattr(accelerator, field)})
    before, after = latency_cycles(gemm, accelerator), latency_cycles(gemm, doubled)
    assert after <= before * (1 + 1e-12)


@given(small_gemms, any_accelerators, batched)
def test_transposing_batches_on_a_square_array_changes_nothing(
    gemm: Gemm, accelerator: Accelerator, batch: int
) -> None:
    """(A·B)ᵀ = Bᵀ·Aᵀ for every product of a batch."""
    square = dataclasses.replace(accelerator, pe_y=accelerator.pe_x, l2_tc_bytes=0)
    transposed = Gemm(gemm.n, gemm.m, gemm.k, batch)
    assert latency_cycles(transposed, square) == pytest.approx(
        latency_cycles(dataclasses.replace(gemm, batch=batch), square), rel=1e-12
    )


@given(small_gemms, any_accelerators, st.lists(batched, min_size=2, max_size=4))
def test_batches_of_a_table_equal_single_ones_bit_for_bit(
    gemm: Gemm, accelerator: Accelerator, batches: list[int]
) -> None:
    """The groups of a product do not depend on the products before it in the table."""
    products = [dataclasses.replace(gemm, batch=batch) for batch in batches]
    together = estimate_rows(products, accelerator)
    for index, product in enumerate(products):
        assert np.array_equal(estimate_rows([product], accelerator)[0], together[index])


def test_an_odd_product_is_spread_over_all_cores() -> None:
    """Eight products fill eight cores; the ninth runs after them, cut into small tiles."""
    accelerator = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB,
        glb_bytes_per_cycle=1e9, hbm_bytes_per_s=1e18,
    )  # fmt: skip
    large, small = gemm_plan(np.array([64, 64, 4096, 9, 0]), accelerator, 8)
    assert (large.products, small.products) == (8, 1)
    assert small.tile_k < large.tile_k == 4096
