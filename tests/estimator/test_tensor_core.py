import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phaze_opt.estimator.gemm_kernel import (
    MEMORY_CYCLES,
    MOST_TILINGS,
    TILES,
    TILING_ROWS,
    WAVE_CYCLES,
    FloatArray,
    hbm_traffic_bytes,
    lay_out_tilings,
)
from phaze_opt.estimator.tensor_core import (
    Column,
    Dataflow,
    gemm_plan,
    gemm_table,
    tensor_core_pool,
)
from phaze_opt.hardware.accelerator import Accelerator, Calibration
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.units import MIB
from phaze_opt.workload.graph import Gemm
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
"""Hard cases for batches, and real chips."""


def tiling_table(gemm: Gemm, accelerator: Accelerator) -> FloatArray:
    """Lay out the tilings of one product on all cores."""
    _, x, y, l2_bytes, l2_rate, glb_bytes, glb_rate, hbm_rate, overhead = tensor_core_pool(
        accelerator, accelerator.num_tc
    )
    m, n, k = gemm.m, gemm.n, gemm.k
    hbm_cycles = hbm_traffic_bytes(m, n, k, glb_bytes) / hbm_rate
    tilings = np.empty((TILING_ROWS, MOST_TILINGS))
    count = lay_out_tilings(
        m, n, k, x, y, l2_bytes, l2_rate, glb_rate, overhead, hbm_cycles, tilings
    )
    return tilings[:, :count]


def estimate_rows(
    products: list[Gemm], accelerator: Accelerator, all_cores: bool = True
) -> FloatArray:
    """Run the kernel on one accelerator."""
    shapes = np.array([(g.m, g.n, g.k, g.batch) for g in products], dtype=np.int64)
    cores = accelerator.num_tc if all_cores else 1
    rows: FloatArray = gemm_table(shapes, [accelerator], [cores])[0]
    return rows


def latency_cycles(gemm: Gemm, accelerator: Accelerator) -> float:
    """Cycles of a product on all cores, from the kernel's columns."""
    row = estimate_rows([gemm], accelerator)[0]
    hbm_bytes = compulsory_bytes(gemm) + row[Column.HBM_EXTRA_BYTES]
    hbm_rate = accelerator.sustained_hbm_bytes_per_s / accelerator.sustained_clock_hz
    return float(
        max(
            row[Column.ARRAY_CYCLES],
            (row[Column.GLB_READ_BYTES] + row[Column.GLB_WRITE_BYTES])
            / accelerator.glb_bytes_per_cycle,
            hbm_bytes / hbm_rate,
        )
    )


def compulsory_bytes(gemm: Gemm) -> float:
    """Operands and result once, in bf16."""
    return 2.0 * gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)


@given(gemms, accelerators)
def test_never_below_a_roofline(gemm: Gemm, accelerator: Accelerator) -> None:
    """No product beats the PE arrays, the global buffer or the HBM."""
    row = estimate_rows([gemm], accelerator)[0]
    peak = accelerator.num_tc * accelerator.pe_x * accelerator.pe_y
    assert row[Column.ARRAY_CYCLES] >= gemm.flops / 2 / peak
    assert row[Column.GLB_READ_BYTES] + row[Column.GLB_WRITE_BYTES] >= compulsory_bytes(gemm)
    assert row[Column.HBM_EXTRA_BYTES] >= 0.0


@given(
    gemms,
    accelerators,
    st.sampled_from(
        ["num_tc", "glb_bytes", "glb_bytes_per_cycle", "hbm_bytes_per_s", "l2_tc_bytes"]
    ),
)
def test_more_of_anything_is_never_slower(gemm: Gemm, accelerator: Accelerator, field: str) -> None:
    """Doubling cores, a buffer or a bandwidth never costs cycles for a product on all cores."""
    doubled = dataclasses.replace(accelerator, **{field: 2 * getattr(accelerator, field)})
    assert latency_cycles(gemm, doubled) <= latency_cycles(gemm, accelerator)


@given(gemms, accelerators)
def test_a_faster_clock_is_never_slower(gemm: Gemm, accelerator: Accelerator) -> None:
    """Seconds never grow with the clock."""
    faster = dataclasses.replace(accelerator, clock_hz=1.5 * accelerator.clock_hz)
    before_s = latency_cycles(gemm, accelerator) / accelerator.clock_hz
    assert latency_cycles(gemm, faster) / faster.clock_hz <= before_s * (1 + 1e-12)


@given(gemms, accelerators)
def test_transposing_on_a_square_array_changes_nothing(
    gemm: Gemm, accelerator: Accelerator
) -> None:
    """(A·B)ᵀ = Bᵀ·Aᵀ costs the same where the array does not prefer a side."""
    square = dataclasses.replace(accelerator, pe_y=accelerator.pe_x, l2_tc_bytes=0)
    transposed = dataclasses.replace(gemm, m=gemm.n, n=gemm.m)
    assert latency_cycles(transposed, square) == latency_cycles(gemm, square)


batched = st.one_of(
    st.integers(2, 40), st.integers(41, 1000), st.sampled_from([96, 768, 3072, 10**6])
)
"""Few products, as many as attention has, and far more."""


@st.composite
def batches_in_parts(draw: st.DrawFn, most: int = 2) -> list[int]:
    """Split a batch into up to so many parts, most often very unequal ones."""
    batch, cuts = draw(batched), draw(st.integers(1, most - 1))
    ends = {draw(st.one_of(st.just(1), st.integers(1, batch - 1))) for _ in range(cuts)}
    edges = [0, *sorted(ends), batch]
    return [end - start for start, end in itertools.pairwise(edges)]


def assert_no_dearer_together(gemm: Gemm, accelerator: Accelerator, parts: list[int]) -> None:
    """T(b₁ + b₂ + ...) ≤ T(b₁) + T(b₂) + ..., with every estimate made by itself."""
    together = latency_cycles(dataclasses.replace(gemm, batch=sum(parts)), accelerator)
    apart = sum(latency_cycles(dataclasses.replace(gemm, batch=b), accelerator) for b in parts)
    assert together <= apart * (1 + 1e-12)


@given(gemms, accelerators, batches_in_parts())
def test_a_batch_never_costs_more_than_its_two_parts(
    gemm: Gemm, accelerator: Accelerator, parts: list[int]
) -> None:
    """T(b₁ + b₂) ≤ T(b₁) + T(b₂) for any two parts, 1 + 767 as well as 384 + 384.

    The two could run one after the other. The bar is rounding: 1e-12.
    """
    assert_no_dearer_together(gemm, accelerator, parts)


@given(small_gemms, any_accelerators, batches_in_parts(most=9))
def test_a_batch_never_costs_more_than_its_many_parts(
    gemm: Gemm, accelerator: Accelerator, parts: list[int]
) -> None:
    """The same for many parts, where it is hardest.

    Products of a few tiles leave many cores idle in their last wave, so that each part likes a
    tiling of its own; numbers of cores that are no power of two, slow and fast memories and private
    buffers, no fill, and real GPUs are tried as well.
    """
    assert_no_dearer_together(gemm, accelerator, parts)


@given(small_gemms, any_accelerators, st.integers(1, 60))
def test_a_batch_runs_in_the_best_groups_that_there_are(
    gemm: Gemm, accelerator: Accelerator, batch: int
) -> None:
    """The time of every batch equals brute force over all splits of it into groups."""
    tilings = tiling_table(gemm, accelerator)
    best = [0.0]
    for size in range(1, batch + 1):
        waves = np.ceil(size * tilings[TILES] / accelerator.num_tc)
        one_group = np.maximum(waves * tilings[WAVE_CYCLES], size * tilings[MEMORY_CYCLES]).min()
        best.append(min([one_group, *(best[a] + best[size - a] for a in range(1, size))]))
    ours = latency_cycles(dataclasses.replace(gemm, batch=batch), accelerator)
    assert ours == pytest.approx(best[batch], rel=1e-12)


@given(small_gemms, any_accelerators, batched)
def test_what_is_reported_belongs_to_the_plan(
    gemm: Gemm, accelerator: Accelerator, batch: int
) -> None:
    """Groups add up to the batch, each with its tiling, and traffic and time are their sums."""
    gemm = dataclasses.replace(gemm, batch=batch)
    shape = np.array([gemm.m, gemm.n, gemm.k, batch], dtype=np.int64)
    plan = gemm_plan(shape, accelerator, accelerator.num_tc)
    row = estimate_rows([gemm], accelerator)[0]
    groups = [
        estimate_rows([dataclasses.replace(gemm, batch=group.products)], accelerator)[0]
        for group in plan
    ]
    assert sum(group.products for group in plan) == batch
    assert plan[0].products == max(group.products for group in plan)
    assert Dataflow[plan[0].dataflow.upper()] == row[Column.DATAFLOW]
    assert (plan[0].tile_m, plan[0].tile_n, plan[0].tile_k) == tuple(row[Column.TILE_M :])
    for column in (Column.GLB_READ_BYTES, Column.GLB_WRITE_BYTES, Column.HBM_EXTRA_BYTES):
        assert row[column] == pytest.approx(sum(group[column] for group in groups), rel=1e-12)


def test_an_odd_product_is_spread_over_all_cores() -> None:
    """Eight products fill eight cores; the ninth runs after them, cut into small tiles."""
    accelerator = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB,
        glb_bytes_per_cycle=1e9, hbm_bytes_per_s=1e18,
    )  # fmt: skip
    large, small = gemm_plan(np.array([64, 64, 4096, 9]), accelerator, 8)
    assert (large.products, small.products) == (8, 1)
    assert small.tile_k < large.tile_k == 4096


@given(st.lists(gemms, min_size=1, max_size=5), accelerators)
def test_a_table_equals_single_estimates_bit_for_bit(
    products: list[Gemm], accelerator: Accelerator
) -> None:
    """Estimating together or one by one gives the same bits."""
    together = estimate_rows(products, accelerator, all_cores=False)
    for index, gemm in enumerate(products):
        assert np.array_equal(
            estimate_rows([gemm], accelerator, all_cores=False)[0], together[index]
        )


def test_a_dimension_without_divisors_costs_its_round_up_only() -> None:
    """A vocabulary of 50,257 on 128-wide arrays costs what 50,304 columns cost."""
    accelerator = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB
    )
    odd, even = Gemm(1024, 50_257, 1600), Gemm(1024, 50_304, 1600)
    assert latency_cycles(odd, accelerator) == pytest.approx(
        latency_cycles(even, accelerator), rel=2e-3
    )


def test_wave_quantisation_appears() -> None:
    """The ninth product on eight cores costs more than another eighth."""
    accelerator = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB,
        glb_bytes_per_cycle=1e9, hbm_bytes_per_s=1e18,
    )  # fmt: skip
    eight, nine = Gemm(64, 64, 4096, batch=8), Gemm(64, 64, 4096, batch=9)
    assert latency_cycles(nine, accelerator) > 1.2 * latency_cycles(eight, accelerator)


def test_a_hand_calculated_tile() -> None:
    """One 128 × 128 tile with k = 128 takes 128 cycles and one fill on a 128 × 128 array."""
    accelerator = Accelerator(
        num_tc=1, num_vc=1, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB,
        glb_bytes_per_cycle=1e9,
    )  # fmt: skip
    row = estimate_rows([Gemm(128, 128, 128)], accelerator, all_cores=False)[0]
    assert row[Column.ARRAY_CYCLES] == 128 + 256
    assert row[Column.GLB_READ_BYTES] == 2 * 128 * 128 * 2
    assert row[Column.GLB_WRITE_BYTES] == 128 * 128 * 2


def test_blocking_reads_again_only_what_the_buffer_cannot_hold() -> None:
    """A product whose one operand fits half the buffer moves its compulsory bytes."""
    m, n, k = 4096, 4096, 1024
    compulsory = compulsory_bytes(Gemm(m, n, k))
    assert hbm_traffic_bytes(m, n, k, 16.0 * MIB) == compulsory
    assert hbm_traffic_bytes(m, n, k, 2.0 * MIB) > 2 * compulsory


@given(gemms, accelerators)
def test_a_share_of_the_chip_is_never_faster_than_all_of_it(
    gemm: Gemm, accelerator: Accelerator
) -> None:
    """One core with its share of the buffer never beats all cores on the arrays."""
    assume(accelerator.num_tc > 1)
    one = estimate_rows([gemm], accelerator, all_cores=False)[0]
    every = estimate_rows([gemm], accelerator)[0]
    assert one[Column.HBM_EXTRA_BYTES] >= every[Column.HBM_EXTRA_BYTES]
