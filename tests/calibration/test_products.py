from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from phaze_opt.calibration.products import (
    MeasuredProduct,
    fit_products,
    large_products,
    product_constants,
    products_graph,
    products_s,
    with_product_constants,
)
from phaze_opt.choices import Layout
from phaze_opt.codec import data_rows, data_table
from phaze_opt.errors import InputError
from phaze_opt.estimator.single import estimate_gemm
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.graph import Gemm

SHAPES = [
    Gemm(m, n, k)
    for m in (1024, 4096, 8192)
    for n in (2048, 7168)
    for k in (1024, 4096, 16384)
    if m * n * k >= 5e9
]


def measured_rows(accelerator: str) -> list[MeasuredProduct]:
    """Return the products in bf16 that come with the package."""
    presets = data_table("validation", "gemm_chips.toml")["accelerator"]
    return [
        MeasuredProduct(
            Gemm(int(row["m"]), int(row["n"]), int(row["k"])), float(row["latency_ms"]) * 1e-3
        )
        for row in data_rows("validation", "gemm_chips.csv")
        if presets[row["chip"]] == accelerator and row["dtype"] == "bfloat16"
    ]


def uncalibrated(chip: Accelerator) -> Accelerator:
    """Return a chip of which only what its maker states and its clock under load are known."""
    plain = replace(chip.calibration, array_efficiency=1.0, burst_clock_hz=None)
    return replace(chip, calibration=plain)


def made(chip: Accelerator) -> list[MeasuredProduct]:
    """Return the rows that a chip would be measured at."""
    times_s = products_s(products_graph(SHAPES), chip).tolist()
    return [MeasuredProduct(gemm, time_s) for gemm, time_s in zip(SHAPES, times_s, strict=True)]


def test_rows_are_predicted_as_estimates_are() -> None:
    """One product alone on all cores."""
    chip = load_accelerator("h100")
    expected = [estimate_gemm(gemm, chip).latency_s for gemm in SHAPES]
    assert products_s(products_graph(SHAPES), chip).tolist() == expected


def test_a_fit_returns_the_constants_that_made_the_rows() -> None:
    """From rates that are far away."""
    chip = load_accelerator("l40s")
    values = fit_products(made(chip), uncalibrated(chip)).values
    found = with_product_constants(uncalibrated(chip), values)
    assert found.array_clock_hz == pytest.approx(chip.array_clock_hz, rel=0.01)
    assert found.in_burst.array_clock_hz == pytest.approx(chip.in_burst.array_clock_hz, rel=0.01)


def test_without_a_clock_under_load_that_clock_is_fitted() -> None:
    """Only the product of clock and array efficiency shows: the latter stays as it is stated."""
    chip = load_accelerator("a100-80")
    bare = replace(chip, calibration=replace(Calibration(), tile_overhead_cycles=1500.0))
    result = fit_products(made(chip), bare)
    assert tuple(result.values) == ("sustained_clock_hz", "burst_clock_hz", "glb_bytes_per_cycle")
    found = with_product_constants(bare, result.moved)
    assert found.array_clock_hz == pytest.approx(chip.array_clock_hz, rel=0.03)
    assert found.calibration.array_efficiency == 1.0


@pytest.mark.parametrize("name", ["a100-80", "h100", "l40s"])
def test_built_in_constants_are_what_the_fit_gives(name: str) -> None:
    """On the table that comes with the package, from an uncalibrated chip: rates to 1 %.

    Of the bandwidth of the global buffer the rows say only that it is large enough. The other chips
    agree as well, see `test_built_in_constants_are_the_best`; their fits take longest.
    """
    chip = load_accelerator(name)
    start = replace(uncalibrated(chip), glb_bytes_per_cycle=5120.0)
    found = with_product_constants(start, fit_products(measured_rows(name), start).moved)
    assert found.array_clock_hz == pytest.approx(chip.array_clock_hz, rel=0.01)
    assert found.in_burst.array_clock_hz == pytest.approx(chip.in_burst.array_clock_hz, rel=0.01)
    assert found.glb_bytes_per_cycle == pytest.approx(chip.glb_bytes_per_cycle, rel=0.01)


@pytest.mark.parametrize("name", ["a100-80", "h100", "h200", "b200", "l40s", "gb300"])
def test_built_in_constants_are_the_best(name: str) -> None:
    """For the large rows of the table: other rates agree less with them."""
    chip, rows = load_accelerator(name), large_products(measured_rows(name))
    measured = np.array([row.latency_s for row in rows])
    graph = products_graph([row.gemm for row in rows])

    def cost(changed: Accelerator) -> float:
        errors = np.log(products_s(graph, changed) / measured)
        return float(np.sum(np.sqrt(1.0 + (errors / 0.05) ** 2) - 1.0))

    for constant in product_constants(chip)[:2]:
        for factor in (0.97, 1.03):
            if not constant.lower <= constant.stated * factor <= constant.upper:
                continue
            moved = with_product_constants(chip, {constant.name: constant.stated * factor})
            assert cost(moved) > cost(chip)


def test_constants_at_their_bounds_are_plain_numbers() -> None:
    """Reports and files write them as any other, also where a bound is all that the rows say."""
    for name in ("a100-80", "mi210", "tpuv5e"):
        for constant in product_constants(load_accelerator(name)):
            assert {type(constant.value(end)) for end in constant.ends} == {float}


def test_small_products_are_left_out() -> None:
    """They are no reason for a constant, whatever their time."""
    chip = load_accelerator("a100-80")
    rows = made(chip)
    small = [MeasuredProduct(Gemm(512, 512, 512), 1.0)] * 5
    assert fit_products([*rows, *small], chip).errors.shape == (len(rows),)


def test_too_few_large_products_are_refused() -> None:
    """The sentence says which rows count and how many are needed."""
    chip = load_accelerator("a100-80")
    small = [MeasuredProduct(Gemm(512, 512, 512), 1e-5)] * 20
    with pytest.raises(InputError, match="2 measured products from 10 GFLOP up for 3 constants"):
        fit_products([*made(chip)[:2], *small], chip)


def sustained_rows(accelerator: str) -> list[MeasuredProduct]:
    """Return the products of long runs that come with the package."""
    return [
        MeasuredProduct(
            Gemm(int(row["m"]), int(row["n"]), int(row["k"])),
            float(row["latency_s"]),
            cast(Layout, row["layout"]),
        )
        for row in data_rows("validation", "gemm_sustained.csv")
        if row["accelerator"] == accelerator
    ]


@pytest.mark.parametrize("name", ["b200", "h100-96-500w"])
def test_sustained_rows_give_the_share_of_the_peak_that_a_chip_states(name: str) -> None:
    """The presets are the fit's on their rows, and the array efficiency stays that of bursts."""
    chip = load_accelerator(name)
    found = fit_products(sustained_rows(name), chip, sustained=True)
    assert tuple(found.values) == ("sustained_peak_share",)
    stated = chip.calibration.sustained_peak_share
    assert found.values["sustained_peak_share"] == pytest.approx(stated, rel=5e-3)


def test_sustained_rows_of_a_chip_that_nothing_holds_back_give_the_rate_of_its_arrays() -> None:
    """An A100 PCIe runs all products at one clock; no power limit is seen beside it."""
    chip = load_accelerator("a100-pcie")
    found = fit_products(sustained_rows("a100-pcie"), chip, sustained=True)
    assert "sustained_peak_share" not in found.moved
    assert found.values["array_efficiency"] == pytest.approx(
        chip.calibration.array_efficiency, rel=5e-3
    )
    assert found.mean_absolute_error <= 0.06


def test_a_rate_of_long_runs_replaces_the_burst_clock() -> None:
    """The limit is seen in products of long runs alone, and bursts stay what they are."""
    chip = load_accelerator("h100")
    limited = with_product_constants(chip, {"sustained_peak_share": 0.5})
    assert limited.calibration.burst_clock_hz is None
    gemm = Gemm(8192, 8192, 8192)
    assert estimate_gemm(gemm, limited).latency_s <= estimate_gemm(gemm, chip).latency_s
    slow_s = estimate_gemm(gemm, limited, sustained=True).latency_s
    assert slow_s == pytest.approx(gemm.flops / (0.5 * chip.peak_flops_per_s))
