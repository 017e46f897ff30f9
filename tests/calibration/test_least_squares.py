from collections.abc import Mapping

import numpy as np
import pytest

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Scale
from phaze_opt.calibration.least_squares import fit
from phaze_opt.errors import InputError

SIZES = np.logspace(3, 9, 25)
TRUE = {"start_s": 2e-5, "rate": 3e9}


def line_s(values: Mapping[str, float]) -> FloatArray:
    """Return the time of every size on one link."""
    return np.asarray(values["start_s"] + SIZES / values["rate"])


def constants(start_s: float = 0.0, rate: float = 1e9, prior: bool = False) -> list[Constant]:
    """Return both constants with stated values."""
    return [
        Constant("start_s", start_s, 0.0, 1e-3, prior, "linear", "s"),
        Constant("rate", rate, 1e6, 1e12, prior, unit="B/s"),
    ]


@pytest.mark.parametrize("scale", ["logarithm", "linear", "root"])
def test_a_coordinate_and_its_value_are_inverse(scale: Scale) -> None:
    """On every scale; a value never leaves the bounds, not even by rounding."""
    constant = Constant("rate", 5.0, 0.3, 9.7, scale=scale)
    for value in (0.3, 1.0, 9.7):
        assert constant.value(constant.coordinate(value)) == pytest.approx(value)
    lower, upper = constant.ends
    assert (constant.value(lower - 1.0), constant.value(upper + 1.0)) == pytest.approx((0.3, 9.7))


@pytest.mark.parametrize(("start_s", "rate"), [(0.0, 1e6), (1e-3, 1e12)])
def test_exact_rows_give_exact_constants(start_s: float, rate: float) -> None:
    """Whatever was stated before."""
    result = fit(constants(start_s, rate), line_s, line_s(TRUE))
    assert result.values == pytest.approx(TRUE, rel=1e-3)
    assert {one.origin for one in result.constants} == {"fitted"}
    assert np.abs(result.errors).max() < 1e-3
    assert result.moved == result.values


def test_another_fit_changes_nothing() -> None:
    """With the constants that were found as the stated ones."""
    noise = np.exp(0.05 * np.random.default_rng(3).standard_normal(len(SIZES)))
    first = fit(constants(), line_s, line_s(TRUE) * noise)
    again = fit(
        constants(first.values["start_s"], first.values["rate"]), line_s, line_s(TRUE) * noise
    )
    assert again.values == pytest.approx(first.values, rel=1e-2)


def test_a_stated_finding_stays_unless_the_rows_reject_it() -> None:
    """A prior that is a per cent off is accepted, and a third off is not."""
    noise = np.exp(0.05 * np.random.default_rng(3).standard_normal(len(SIZES)))
    near = fit(constants(2e-5, 3.03e9, prior=True), line_s, line_s(TRUE) * noise)
    assert near.moved == {}
    assert near.values["rate"] == 3.03e9
    far = fit(constants(2e-5, 4e9, prior=True), line_s, line_s(TRUE) * noise)
    assert far.moved.keys() == {"rate"}


def test_single_bad_rows_do_not_pull_the_constants() -> None:
    """A row that takes three times as long as it should moves the rate by less than a per cent."""
    measured = line_s(TRUE)
    measured[-3] *= 3.0
    assert fit(constants(), line_s, measured).values["rate"] == pytest.approx(3e9, rel=0.01)


def test_what_no_row_depends_on_keeps_its_value() -> None:
    """It has no standard error, and the others are fitted all the same."""
    idle = Constant("idle", 7.0, 1.0, 10.0, prior=False)
    result = fit([*constants(), idle], line_s, line_s(TRUE))
    found = result.constants[-1]
    assert (found.value, found.origin, found.standard_error) == (7.0, "kept", None)
    assert not found.determined
    assert result.values["rate"] == pytest.approx(3e9, rel=1e-3)


def test_a_constant_that_rows_bound_on_one_side_goes_no_further_than_they_ask() -> None:
    """Of a maximum that never binds they say only that it is large enough."""

    def capped(values: Mapping[str, float]) -> FloatArray:
        return np.maximum(SIZES / 3e9, SIZES / values["cap"])

    slow = Constant("cap", 1e9, 1e8, 1e12)
    (found,) = fit([slow], capped, SIZES / 3e9).constants
    assert found.origin == "limited"
    assert found.value == pytest.approx(3e9, rel=0.03)
    fast = Constant("cap", 2e10, 1e8, 1e12)
    (found,) = fit([fast], capped, SIZES / 3e9).constants
    assert (found.value, found.origin) == (2e10, "kept")


def test_a_constant_stays_within_its_bounds_and_says_so() -> None:
    """Rows of a faster link than physics allows give the fastest that it allows."""
    start, _ = constants()
    slow = Constant("rate", 2e9, 1e6, 2.8e9, prior=False)
    rate = fit([start, slow], line_s, line_s(TRUE)).constants[1]
    assert rate.value == pytest.approx(2.8e9)
    assert rate.at_bound


def test_standard_errors_are_those_of_repeated_measurements() -> None:
    """Over noisy repetitions the constants scatter about as much as each says, or less."""
    generator = np.random.default_rng(7)
    fits = [
        fit(constants(), line_s, line_s(TRUE) * np.exp(0.05 * generator.standard_normal(25)))
        for _ in range(12)
    ]
    for index in range(2):
        found = [one.constants[index] for one in fits]
        scatter = np.std([one.value for one in found])
        stated = np.mean([one.standard_error or np.inf for one in found])
        assert 0.4 * scatter <= stated <= 3.0 * scatter


def test_exact_rows_still_have_an_error() -> None:
    """No timing repeats more closely than to 1 %, however well the rows agree with the model."""
    rate = fit(constants(), line_s, line_s(TRUE)).constants[1]
    assert rate.standard_error is not None
    assert 0.001 <= rate.standard_error / rate.value <= 0.02


def test_fewer_rows_than_constants_are_refused() -> None:
    """The sentence names the constants."""
    with pytest.raises(InputError, match=r"1 measured rows for 2 constants \(start_s, rate\)"):
        fit(constants(), lambda _: np.ones(1), np.ones(1))


def test_a_time_of_zero_has_a_logarithm() -> None:
    """Predictions of nothing are compared, too."""
    idle = Constant("idle", 7.0, 1.0, 10.0)
    assert np.isfinite(fit([idle], lambda _: np.zeros(2), np.ones(2)).errors).all()
