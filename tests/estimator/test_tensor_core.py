import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phaze_opt.estimator.gemm_tilings import TABLE_SHAPE, Row, lay_out_tilings
from phaze_opt.estimator.gemm_traffic import repeated_bytes
from phaze_opt.estimator.tensor_core import GemmColumn, gemm_table, pools_of, tensor_core_pool
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.units import MIB
from phaze_opt.workload.graph import Gemm
from tests.estimator.products import compulsory_bytes, estimate_rows, latency_cycles
from tests.strategies import accelerators, gemms


@given(gemms, accelerators)
def test_never_below_a_roofline(gemm: Gemm, accelerator: Accelerator) -> None:
    """No product beats the PE arrays, the global buffer or the HBM."""
    row = estimate_rows([gemm], accelerator)[0]
    peak = accelerator.num_tc * accelerator.pe_x * accelerator.pe_y
    assert row[GemmColumn.ARRAY_CYCLES] >= gemm.flops / 2 / peak
    assert row[GemmColumn.GLB_READ_BYTES] + row[GemmColumn.GLB_WRITE_BYTES] >= compulsory_bytes(
        gemm
    )
    assert row[GemmColumn.HBM_EXTRA_BYTES] >= 0.0


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
    assert latency_cycles(gemm, doubled) <= latency_cycles(gemm, accelerator) * (1 + 1e-12)


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
    """(A·B)ᵀ = Bᵀ·Aᵀ takes as long as A·B on a square array."""
    square = dataclasses.replace(accelerator, pe_y=accelerator.pe_x, l2_tc_bytes=0)
    transposed = dataclasses.replace(gemm, m=gemm.n, n=gemm.m)
    assert latency_cycles(transposed, square) == pytest.approx(
        latency_cycles(gemm, square), rel=1e-12
    )


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
    assert row[GemmColumn.ARRAY_CYCLES] == 128 + 256
    assert row[GemmColumn.GLB_READ_BYTES] == 2 * 128 * 128 * 2
    assert row[GemmColumn.GLB_WRITE_BYTES] == 128 * 128 * 2


def test_blocking_reads_again_only_what_the_buffer_cannot_hold() -> None:
    """A product whose one operand fits half the buffer moves its compulsory bytes."""
    m, n, k = 4096, 4096, 1024
    compulsory = compulsory_bytes(Gemm(m, n, k))
    assert repeated_bytes(m, n, k, 2.0, 16.0 * MIB) == 0.0
    assert repeated_bytes(m, n, k, 2.0, 2.0 * MIB) > compulsory


@given(gemms, accelerators)
def test_a_share_of_the_chip_is_never_faster_than_all_of_it(
    gemm: Gemm, accelerator: Accelerator
) -> None:
    """One core with its share of the buffer never beats all cores on the arrays."""
    assume(accelerator.num_tc > 1)
    row = estimate_rows([gemm], accelerator, all_cores=False)[0]
    every = estimate_rows([gemm], accelerator)[0]
    assert row[GemmColumn.HBM_EXTRA_BYTES] >= every[GemmColumn.HBM_EXTRA_BYTES]


@given(gemms, accelerators)
@settings(max_examples=25)
def test_one_core_of_many_is_a_chip_with_its_share_of_the_buffer(
    gemm: Gemm, accelerator: Accelerator
) -> None:
    """Nothing else of the other cores is seen."""
    glb_bytes = accelerator.glb_bytes // accelerator.num_tc
    alone = dataclasses.replace(accelerator, num_tc=1, glb_bytes=glb_bytes)
    rows = estimate_rows([gemm], accelerator, all_cores=False)
    assert np.array_equal(rows, estimate_rows([gemm], alone))


@given(gemms, accelerators)
@settings(max_examples=25)
def test_of_equally_fast_tilings_the_one_that_moves_least_is_taken(
    gemm: Gemm, accelerator: Accelerator
) -> None:
    """Waves of tiles over the cores, or the global buffer, decide how fast each one is."""
    tilings, pool = np.empty(TABLE_SHAPE), tensor_core_pool(accelerator, accelerator.num_tc)
    count = lay_out_tilings(np.array([gemm.m, gemm.n, gemm.k, 1, 0, 0]), pool, tilings)
    laid_out = tilings[:, :count]
    waves = np.ceil(laid_out[Row.TILES] / accelerator.num_tc)
    cycles = np.maximum(waves * laid_out[Row.WAVE_CYCLES], laid_out[Row.GLB_CYCLES])
    moved = laid_out[Row.READ_BYTES] + laid_out[Row.WRITTEN_BYTES]
    row = estimate_rows([dataclasses.replace(gemm, batch=1)], accelerator)[0]
    taken = row[GemmColumn.GLB_READ_BYTES] + row[GemmColumn.GLB_WRITE_BYTES]
    assert taken == moved[cycles == cycles.min()].min()


@given(st.lists(gemms, min_size=1, max_size=3), accelerators, st.data())
@settings(max_examples=25)
def test_chips_with_equal_cores_share_their_tilings(
    products: list[Gemm], accelerator: Accelerator, data: st.DataObject
) -> None:
    """They are laid out once, and each has the estimate that it has alone, bit for bit."""
    sizes = data.draw(st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True))
    chips = [dataclasses.replace(accelerator, glb_bytes=size * MIB) for size in sizes]
    other = dataclasses.replace(chips[0], pe_x=accelerator.pe_x + 1)
    chips += [other, dataclasses.replace(chips[0], num_tc=accelerator.num_tc + 1), other]
    cores = [chip.num_tc for chip in chips]
    pools, count = pools_of(chips, cores), len(sizes)
    assert pools.alike.tolist() == [0] * count + [count, count + 1]
    assert sorted(pools.by_core.tolist()[:-1]) in ([*range(count), count + 1], [*range(count + 1)])
    shapes = np.array([(g.m, g.n, g.k, g.batch, 0, 0) for g in products], dtype=np.int64)
    together = gemm_table(shapes, chips, cores)
    for row, chip in zip(together, chips, strict=True):
        assert np.array_equal(row, estimate_rows(products, chip))
