import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.estimator.estimate import estimate_on_cores
from phaze_opt.estimator.isolated import BURST_S, estimate_isolated
from phaze_opt.estimator.single import estimate_gemm, gemm_graph
from phaze_opt.estimator.tensor_core import tensor_core_pool
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.graph import Gemm, Operator, OperatorGraph, VectorWork
from tests.strategies import accelerators, gemms


def product(gemm: Gemm) -> OperatorGraph:
    """Return a graph of one product."""
    return gemm_graph(gemm)


def calibrated(chip: Accelerator, **constants: float) -> Accelerator:
    """Return the chip with other constants."""
    return dataclasses.replace(chip, calibration=dataclasses.replace(chip.calibration, **constants))


@given(gemms, accelerators)
def test_a_chip_without_the_two_constants_keeps_every_bit(gemm: Gemm, chip: Accelerator) -> None:
    """Arrays at full efficiency and no burst: pool and times are those of the plain chip."""
    overhead = chip.calibration.tile_overhead_cycles
    assert chip.calibration.array_efficiency == 1.0
    assert tensor_core_pool(chip, chip.num_tc) == (
        chip.num_tc,
        chip.pe_x,
        chip.pe_y,
        chip.l2_tc_bytes,
        np.inf if chip.l2_bytes_per_cycle is None else chip.l2_bytes_per_cycle / 2,
        chip.glb_bytes,
        chip.glb_bytes_per_cycle,
        chip.pe_x + chip.pe_y if overhead is None else overhead,
        2.0,
        2.0,
    )
    assert chip.array_clock_hz == chip.sustained_clock_hz
    assert chip.in_burst is chip
    alone = estimate_isolated(product(gemm), chip, chip.num_tc)
    assert alone.latency_s == estimate_on_cores(product(gemm), chip, chip.num_tc).busy_s


@given(gemms, accelerators, st.floats(0.3, 1.0))
def test_less_efficient_arrays_are_never_faster(
    gemm: Gemm, chip: Accelerator, efficiency: float
) -> None:
    """Nor slower than by the efficiency: what else binds keeps its rate."""
    whole_s = estimate_gemm(gemm, chip).latency_s
    part_s = estimate_gemm(gemm, calibrated(chip, array_efficiency=efficiency)).latency_s
    assert whole_s * (1 - 1e-12) <= part_s <= whole_s / efficiency * (1 + 1e-12)


def test_the_lanes_keep_the_clock() -> None:
    """A vector operator takes the same time, whatever share of the cycles the arrays work."""
    chip = load_accelerator("a100-80", hbm_bytes_per_s=1e16, glb_bytes_per_cycle=1e9)
    work = VectorWork("softmax", 4096, 1024)
    graph = OperatorGraph((Operator("softmax", vector=(work,)),))
    at = [
        estimate_on_cores(graph, calibrated(chip, array_efficiency=share), chip.num_vc).latency_s
        for share in (1.0, 0.5)
    ]
    assert at[0] == at[1]


@given(st.integers(1, 40))
def test_the_rate_falls_from_the_burst_to_the_sustained_one(thousands: int) -> None:
    """Short kernels run at the burst clock; long ones approach the sustained clock."""
    chip = load_accelerator("h100")
    gemm = Gemm(8192, 8192, 1000 * thousands)
    alone_s = estimate_gemm(gemm, chip).latency_s
    burst_s = estimate_gemm(gemm, chip.in_burst).latency_s
    sustained_s = estimate_gemm(gemm, calibrated(chip, burst_clock_hz=1.47e9)).latency_s
    assert burst_s <= alone_s <= sustained_s
    assert sustained_s - alone_s <= BURST_S
    if burst_s <= BURST_S:
        assert alone_s == burst_s


def test_a_longer_kernel_is_never_shorter() -> None:
    """Also where the power limit takes hold."""
    chip = load_accelerator("h100")
    times = [estimate_gemm(Gemm(8192, 8192, k), chip).latency_s for k in range(512, 40960, 512)]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["h100", "tpuv4-lanes"])
def test_utilisation_is_of_the_clock_that_the_kernel_starts_with(name: str) -> None:
    """So that it never exceeds one."""
    estimate = estimate_gemm(Gemm(8192, 8192, 8192), load_accelerator(name))
    assert 0.5 < estimate.utilisation <= 1.0
