"""What a measured product in fp8 holds beside its kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze_opt.calibration.products import LEAST_FLOPS, MeasuredProduct
from phaze_opt.calibration.quantised_products import QuantisedCalls, fit_quantised_products
from phaze_opt.codec import data_rows, data_table
from phaze_opt.errors import InputError
from phaze_opt.estimator.single import estimate_gemm
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.graph import Gemm

PROVENANCE = data_table("validation", "gemm_chips.toml")
TABLES = [(chip, framework) for chip, found in PROVENANCE["fp8"].items() for framework in found]
CONSTANTS = {"call_overhead_s": 12e-6, "quantisation_bytes": 6.0}
SHAPES = [Gemm(m, n, k) for m in (512, 4096, 16384) for n in (2048, 8192) for k in (4096, 16384)]


def measured_rows(chip: str, framework: str) -> list[MeasuredProduct]:
    """Return the products in fp8 that come with the package."""
    return [
        MeasuredProduct(
            Gemm(int(row["m"]), int(row["n"]), int(row["k"])), float(row["latency_ms"]) * 1e-3
        )
        for row in data_rows("validation", "gemm_chips.csv")
        if (row["chip"], row["framework"], row["dtype"]) == (chip, framework, "fp8")
    ]


def made_up() -> list[MeasuredProduct]:
    """Return rows that the model predicts with `CONSTANTS`."""
    seconds = QuantisedCalls(SHAPES, load_accelerator("h100")).seconds(CONSTANTS)
    pairs = zip(SHAPES, seconds.tolist(), strict=True)
    return [MeasuredProduct(gemm, second) for gemm, second in pairs]


@pytest.mark.parametrize(("chip", "framework"), TABLES)
def test_stated_constants_are_what_the_fit_gives(chip: str, framework: str) -> None:
    """Those beside the tables are the fit's on their rows, and every row in fp8 has some."""
    accelerator = load_accelerator(PROVENANCE["accelerator"][chip])
    values = fit_quantised_products(measured_rows(chip, framework), accelerator).values
    stated = PROVENANCE["fp8"][chip][framework]
    assert values["call_overhead_s"] == pytest.approx(stated["call_overhead_s"], abs=1e-7)
    assert values["quantisation_bytes"] == pytest.approx(stated["quantisation_bytes"], abs=1e-2)


@pytest.mark.parametrize(("chip", "framework"), TABLES)
def test_half_of_a_table_predicts_the_other_half(chip: str, framework: str) -> None:
    """Two constants say what all calls have in common: rows that they never saw have no bias."""
    accelerator = load_accelerator(PROVENANCE["accelerator"][chip])
    rows = [row for row in measured_rows(chip, framework) if row.gemm.flops >= LEAST_FLOPS]
    seen, others = rows[::2], rows[1::2]
    values = fit_quantised_products(seen, accelerator).values
    predicted_s = QuantisedCalls([row.gemm for row in others], accelerator).seconds(values)
    errors = predicted_s / np.array([row.latency_s for row in others]) - 1.0
    assert abs(errors.mean()) <= 0.08


def test_a_call_is_its_product_and_what_is_around_it() -> None:
    """Without a constant per call and without traffic it is the product in its precision."""
    chip = load_accelerator("h100")
    bare = QuantisedCalls(SHAPES, chip).seconds({"call_overhead_s": 0.0, "quantisation_bytes": 0.0})
    narrow = [replace(one, precision="fp8") for one in SHAPES]
    assert bare.tolist() == [estimate_gemm(one, chip).latency_s for one in narrow]
    around_s = QuantisedCalls(SHAPES, chip).seconds(CONSTANTS) - bare
    traffic = np.array([6.0 * one.m * one.k for one in SHAPES]) / chip.sustained_hbm_bytes_per_s
    np.testing.assert_allclose(around_s, 12e-6 + traffic, rtol=1e-9)


def test_a_result_that_is_written_late_takes_its_own_time() -> None:
    """Two bytes of an element at the rate of the HBM, beside what the product takes anyway."""
    chip = load_accelerator("b200")
    beside, late = (
        QuantisedCalls(SHAPES, chip, "nvfp4", writes_late=late).seconds(CONSTANTS)
        for late in (False, True)
    )
    written_s = np.array([2.0 * one.m * one.n for one in SHAPES]) / chip.sustained_hbm_bytes_per_s
    np.testing.assert_allclose(late - beside, written_s, rtol=1e-9)


def test_constants_that_made_the_rows_are_found() -> None:
    """Rows of the model itself give back what they were made with."""
    found = fit_quantised_products(made_up(), load_accelerator("h100"))
    for name, value in CONSTANTS.items():
        assert found.values[name] == pytest.approx(value, rel=1e-2)
    assert np.abs(found.errors).max() < 1e-3


def test_one_row_is_too_few() -> None:
    """The sentence names the constants."""
    with pytest.raises(InputError, match="1 measured rows for 2 constants"):
        fit_quantised_products(made_up()[1:2], load_accelerator("h100"))
