import numpy as np
import pytest

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.bounded import Constant, fit_constants, log_errors
from phaze_opt.errors import InputError

START = Constant("start_s", "s", 0.0, 1e-3, "a launch")
RATE = Constant("rate", "B/s", 1e6, 1e12, "a link", "log")
ROOT = Constant("root_bytes", "B", 0.0, 1e8, "buffers", "root")
BOTH = {"start_s": 2e-5, "rate": 3e9}
SIZES = np.logspace(3, 9, 13)


def line_s(values: dict[str, float]) -> FloatArray:
    """Return the time of every size on one link."""
    return np.asarray(values["start_s"] + SIZES / values["rate"])


@pytest.mark.parametrize("constant", [START, RATE, ROOT])
def test_a_share_and_its_value_are_inverse(constant: Constant) -> None:
    """The ends of a range are 0 and 1, and what is outside is taken to the nearest end."""
    for share in (0.0, 0.3, 1.0):
        assert constant.share(constant.value(share)) == pytest.approx(share)
    assert constant.value(0.0) == pytest.approx(constant.least)
    assert constant.value(1.0) == pytest.approx(constant.most)
    assert constant.share(10 * constant.most) == pytest.approx(1.0)


@pytest.mark.parametrize("spread", [False, True])
def test_exact_rows_give_exact_constants(spread: bool) -> None:
    """Whatever the start, within its bounds or not."""
    measured = line_s(BOTH)
    for start in ({"start_s": 0.0, "rate": 1e6}, {"start_s": 1.0, "rate": 1e12}):
        fit = fit_constants(
            (START, RATE), start, lambda v: log_errors(line_s(dict(v)), measured), spread
        )
        assert fit.values == pytest.approx(BOTH, rel=1e-4)
        assert fit.undetermined == ()
        assert max(map(abs, fit.residuals)) < 1e-4


def test_standard_errors_are_those_of_repeated_measurements() -> None:
    """Over many noisy repetitions the constants scatter about as much as each says."""
    noise = np.random.default_rng(7)
    fits = []
    for _ in range(60):
        measured = line_s(BOTH) * np.exp(0.05 * noise.standard_normal(len(SIZES)))

        def residuals(values: object, measured: FloatArray = measured) -> FloatArray:
            assert isinstance(values, dict)
            return log_errors(line_s(values), measured)

        fits.append(fit_constants((START, RATE), BOTH, residuals, spread=False))
    for index, name in enumerate(BOTH):
        scatter = np.std([fit.values[name] for fit in fits])
        errors = [fit.constants[index].error for fit in fits]
        stated = np.mean([error for error in errors if error is not None])
        assert stated == pytest.approx(scatter, rel=0.35)


def test_what_no_row_depends_on_keeps_its_value() -> None:
    """Even one outside the bounds, and the others are fitted."""
    measured = line_s(BOTH)
    start = {"start_s": 0.0, "rate": 1e9, "root_bytes": 5e8}
    fit = fit_constants((START, RATE, ROOT), start, lambda v: log_errors(line_s(dict(v)), measured))
    assert fit.undetermined == ("root_bytes",)
    assert fit.values["root_bytes"] == 5e8
    assert fit.values["rate"] == pytest.approx(3e9, rel=1e-4)


def test_of_two_constants_that_only_add_up_one_is_not_determined() -> None:
    """One keeps its value and the other makes up the sum, also where the rows are exact."""
    more = Constant("more_s", "s", 0.0, 5e-4, "another launch")
    measured = line_s(BOTH)

    def residuals(values: object) -> FloatArray:
        assert isinstance(values, dict)
        return log_errors(line_s(values) + values["more_s"], measured)

    fit = fit_constants((START, more, RATE), {**BOTH, "start_s": 1e-5, "more_s": 0.0}, residuals)
    assert len(fit.undetermined) == 1
    assert fit.values["start_s"] + fit.values["more_s"] == pytest.approx(2e-5, rel=1e-3)


def test_a_constant_stays_within_its_bounds_and_says_so() -> None:
    """Rows of a faster link than physics allows give the fastest that it allows."""
    slow = Constant("rate", "B/s", 1e6, 1e9, "a slow link", "log")
    fit = fit_constants((START, slow), BOTH, lambda v: log_errors(line_s(dict(v)), line_s(BOTH)))
    start, rate = fit.constants
    assert rate.value == pytest.approx(1e9)
    assert rate.at_bound and not start.at_bound


def test_fewer_rows_than_constants_are_refused() -> None:
    """The sentence names the constants."""
    with pytest.raises(InputError, match=r"1 rows for 2 constants \(start_s, rate\)"):
        fit_constants((START, RATE), BOTH, lambda _: np.zeros(1))


def test_a_time_of_zero_has_a_logarithm() -> None:
    """Predictions of nothing are compared, too."""
    assert np.isfinite(log_errors(np.array([0.0]), np.array([1e-6]))).all()
