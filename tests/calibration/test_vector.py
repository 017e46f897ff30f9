from dataclasses import replace

import pytest

from phaze_opt.calibration.vector import MeasuredVector, fit_vector, streaming_rows
from phaze_opt.codec import data_rows
from phaze_opt.errors import InputError
from phaze_opt.estimator.single import estimate_gemm, estimate_vector
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.graph import Gemm

CHIP = load_accelerator("a100-80")
TRUE = replace(CHIP, calibration=replace(CHIP.calibration, hbm_efficiency=0.7))


def made(rows: int, kind: str = "add") -> MeasuredVector:
    """Return the row that the chip with the true efficiency would be measured at."""
    return MeasuredVector(kind, rows, 8192, estimate_vector(kind, rows, 8192, TRUE).latency_s)


def test_the_efficiency_of_the_hbm_is_found() -> None:
    """From operators that stream."""
    (found,) = fit_vector([made(size) for size in (8192, 16384, 32768)], CHIP).constants
    assert (found.name, found.origin) == ("hbm_efficiency", "fitted")
    assert found.value == pytest.approx(0.7, rel=0.01)


def measured_rows(accelerator: str) -> list[MeasuredVector]:
    """Return the rows that come with the package, without their constant per call."""
    rows = [
        (row, float(row["measured_s"]) - float(row["call_overhead_us"]) * 1e-6)
        for row in data_rows("validation", "vector.csv")
        if row["accelerator"] == accelerator
    ]
    return [
        MeasuredVector(row["op"], int(row["rows"]), int(row["columns"]), latency_s)
        for row, latency_s in rows
        if latency_s > 0.0
    ]


def test_the_efficiency_of_the_mi210_is_what_the_fit_gives() -> None:
    """On the table that comes with the package, from the default: its rows determine it.

    Products of few rows, to which it is not fitted, wait for the same HBM and come nearer, too.
    """
    chip = load_accelerator("mi210")
    start = replace(chip, calibration=replace(chip.calibration, hbm_efficiency=0.85))
    (found,) = fit_vector(measured_rows("mi210"), start).constants
    assert found.origin == "fitted"
    assert found.value == pytest.approx(chip.calibration.hbm_efficiency, rel=0.01)
    (again,) = fit_vector(measured_rows("mi210"), chip).constants
    assert again.value == pytest.approx(found.value)
    skinny = Gemm(128, 12288, 12288)
    (measured,) = (
        float(row["measured_s"]) - float(row["call_overhead_us"]) * 1e-6
        for row in data_rows("validation", "gemm.csv")
        if row["accelerator"] == "mi210" and int(row["m"]) == skinny.m
    )
    errors = [estimate_gemm(skinny, one).latency_s / measured - 1.0 for one in (start, chip)]
    assert errors[0] < -0.35 < -0.25 < errors[1] < 0.0


def test_the_rows_of_the_a100_agree_with_its_measured_copy() -> None:
    """The stated efficiency, that of a copy, is within the error of what its table gives."""
    (found,) = fit_vector(measured_rows("a100-80"), CHIP).constants
    assert found.determined and found.standard_error is not None
    assert abs(found.value - CHIP.calibration.hbm_efficiency) <= found.standard_error


def test_rows_that_the_global_buffer_keeps_are_left_out() -> None:
    """Unless there are no others."""
    small, large = made(64), made(8192)
    assert streaming_rows([small, large], CHIP) == [large]
    assert streaming_rows([small], CHIP) == [small]


def test_operators_of_many_cycles_say_nothing() -> None:
    """Where the lanes bind, the efficiency stays as it was stated."""
    lanes = replace(CHIP, pe_vc=4)
    slow = estimate_vector("softmax", 8192, 8192, lanes).latency_s
    (found,) = fit_vector([MeasuredVector("softmax", 8192, 8192, slow)], lanes).constants
    assert (found.value, found.origin, found.standard_error) == (0.89, "kept", None)


def test_impossible_rows_are_refused() -> None:
    """Unknown operators, and no row at all."""
    with pytest.raises(InputError, match="Did you mean 'gelu'"):
        MeasuredVector("gleu", 4, 4, 1e-6)
    with pytest.raises(InputError, match="0 measured rows for 1 constants"):
        fit_vector([], CHIP)
