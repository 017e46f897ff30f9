"""Bounded least squares in a few named constants.

The method is Levenberg's and Marquardt's (D. W. Marquardt, SIAM Journal 11, 1963) in the unit cube
of the constants' ranges. Residuals are usually logarithms of predicted over measured times, see
`log_errors`. The standard error of a constant follows from the slopes at the solution (linear
theory); where it is a large part of the range, the rows do not determine the constant: it keeps
the value that it had, and the others are fitted again without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.errors import InputError

UNDETERMINED = 0.25
"""A standard error above this share of the range leaves a constant undetermined."""

_SLOPE_STEP = 1e-5
"""Of the difference quotients, as a share of the range."""

_MOST_STEPS = 100
_LEAST_GAIN = 1e-9
"""Relative reduction of the sum of squares at which the search stops."""

_FIRST_DAMPING, _MOST_DAMPING = 1e-2, 1e8
_LEAST_NOISE = 0.01
"""No timing is repeated more closely than to 1 %, even where the fit is closer."""

_BLIND = 1e-7
"""A direction in which residuals change so little of the most is one that rows do not see."""

_LEAST_TIME_S = 1e-12
"""Below any time that is measured; the logarithm of a prediction of 0 is that of this."""

Residuals = Callable[[Mapping[str, float]], FloatArray]
"""Residuals of all rows for the values of all constants, by name."""


@dataclass(frozen=True)
class Constant:
    """A constant to fit, and what physics allows it.

    Attributes
    ----------
    least, most
        Its bounds, in ``unit``.
    reason
        Why these are its bounds.
    scale
        In what the predictions are about linear: the constant, its square root or its logarithm
        (where ``least`` is positive and ``most`` many times as much). It only guides the search.
    """

    name: str
    unit: str
    least: float
    most: float
    reason: str
    scale: Literal["linear", "root", "log"] = "linear"

    def share(self, value: float) -> float:
        """Return where in its range a value is, 0 to 1; the nearest end for one outside."""
        value = min(self.most, max(self.least, value))
        if self.scale == "log":
            return math.log(value / self.least) / math.log(self.most / self.least)
        share = (value - self.least) / (self.most - self.least)
        return math.sqrt(share) if self.scale == "root" else share

    def value(self, share: float) -> float:
        """Return the value at a share of the range: the inverse of `share`."""
        if self.scale == "log":
            value = float(self.least * (self.most / self.least) ** share)
        else:
            part = share * share if self.scale == "root" else share
            value = self.least + part * (self.most - self.least)
        # Rounding must not take an end beyond what physics allows.
        return min(self.most, max(self.least, value))


@dataclass(frozen=True)
class FittedConstant:
    """What the rows say about one constant.

    Attributes
    ----------
    value
        Fitted; the given one where the rows do not determine it.
    error
        Its standard error; ``None`` where the rows do not determine it.
    at_bound
        Whether the rows would have it beyond what physics allows.
    """

    name: str
    unit: str
    value: float
    error: float | None
    at_bound: bool


@dataclass(frozen=True)
class Fit:
    """The constants with the least sum of squared residuals.

    Attributes
    ----------
    constants
        All of them, in the order in which they were given.
    residuals
        Of every row.
    """

    constants: tuple[FittedConstant, ...]
    residuals: tuple[float, ...]

    @property
    def values(self) -> dict[str, float]:
        """The value of every constant by its name."""
        return {constant.name: constant.value for constant in self.constants}

    @property
    def undetermined(self) -> tuple[str, ...]:
        """Names of the constants that the rows do not determine."""
        return tuple(constant.name for constant in self.constants if constant.error is None)


def log_errors(predicted_s: FloatArray, measured_s: FloatArray) -> FloatArray:
    """Return the logarithms of predicted over measured times.

    Twice as fast and twice as slow are errors of the same size, and a short time counts as much as
    a long one.
    """
    return np.asarray(np.log(np.maximum(predicted_s, _LEAST_TIME_S)) - np.log(measured_s))


def fit_constants(
    constants: Sequence[Constant],
    start: Mapping[str, float],
    residuals: Residuals,
    spread: bool = True,
) -> Fit:
    """Fit constants to rows.

    Parameters
    ----------
    constants
        What to fit.
    start
        Their values now, by name: where the search begins, and what a constant keeps that the rows
        do not determine.
    residuals
        Of every row, for the values of all constants.
    spread
        Whether to search from points all over the ranges too (2 + 3 per constant). Needed where
        another algorithm becomes the cheapest on the way, which stops a search early.

    Raises
    ------
    InputError
        If there are fewer rows than constants.
    """
    names = [constant.name for constant in constants]
    rows = len(residuals(start))
    if rows < len(names):
        raise InputError(
            f"There are {rows} rows for {len(names)} constants ({', '.join(names)}), but there "
            "must be at least as many rows."
        )
    found: dict[str, FittedConstant] = {}
    free = list(constants)
    while free:
        solution = _search(free, start, residuals, spread)
        worst = int(np.argmax(solution.error))
        if solution.error[worst] <= UNDETERMINED:
            found |= {one.name: one for one in _described(free, solution)}
            break
        constant = free.pop(worst)
        found[constant.name] = FittedConstant(
            constant.name, constant.unit, float(start[constant.name]), None, False
        )
    fitted = tuple(found[name] for name in names)
    values = {constant.name: constant.value for constant in fitted}
    return Fit(fitted, tuple(residuals({**start, **values}).tolist()))


@dataclass(frozen=True)
class _Solution:
    """Where the sum of squares is least: shares of the ranges, and their standard errors.

    An error is infinite where no residual depends on the constant.
    """

    shares: FloatArray
    error: FloatArray
    cost: float


def _search(
    free: Sequence[Constant], start: Mapping[str, float], residuals: Residuals, spread: bool
) -> _Solution:
    """Fit some constants while the others keep their values."""

    def of_shares(shares: FloatArray) -> FloatArray:
        pairs = zip(free, shares.tolist(), strict=True)
        return residuals({**start, **{one.name: one.value(share) for one, share in pairs}})

    starts = [np.array([one.share(start[one.name]) for one in free])]
    if spread:
        starts += _spread_starts(len(free))
    best = min((_least_squares(of_shares, begin) for begin in starts), key=lambda one: one.cost)
    # Once more from there: a search that another cheapest algorithm has stopped goes on.
    return _least_squares(of_shares, best.shares)


def _spread_starts(count: int) -> list[FloatArray]:
    """Return two points on the diagonal, and points where one constant is far from the others."""
    starts = [np.full(count, share) for share in (0.2, 0.5)]
    for index in range(count):
        for share in (0.1, 0.4, 0.9):
            start = np.full(count, 0.3)
            start[index] = share
            starts.append(start)
    return starts


def _described(free: Sequence[Constant], solution: _Solution) -> list[FittedConstant]:
    """Say what was found in the units of the constants."""
    described = []
    for constant, share, error in zip(
        free, solution.shares.tolist(), solution.error.tolist(), strict=True
    ):
        value = constant.value(share)
        upper = constant.value(min(1.0, share + error))
        lower = constant.value(max(0.0, share - error))
        at_bound = share <= 0.0 or share >= 1.0
        error_here = max(upper - value, value - lower)
        described.append(FittedConstant(constant.name, constant.unit, value, error_here, at_bound))
    return described


def _least_squares(residuals: Callable[[FloatArray], FloatArray], start: FloatArray) -> _Solution:
    """Minimise a sum of squares over the unit cube."""
    shares = np.clip(start, 0.0, 1.0)
    found = residuals(shares)
    damping = _FIRST_DAMPING
    for _ in range(_MOST_STEPS):
        slopes = _slopes(residuals, shares, found)
        trial, trial_found = shares, found
        while damping < _MOST_DAMPING:
            trial = _step(shares, found, slopes, damping)
            trial_found = residuals(trial)
            if trial_found @ trial_found < found @ found:
                break
            damping *= 4.0
        gain = 1.0 - float(trial_found @ trial_found) / max(float(found @ found), 1e-300)
        # A residual that is not a number compares as no gain, too.
        if not gain > 0.0:
            break
        shares, found, damping = trial, trial_found, damping / 4.0
        if gain < _LEAST_GAIN:
            break
    slopes = _slopes(residuals, shares, found)
    return _Solution(shares, _standard_error(slopes, found), float(found @ found))


def _slopes(
    residuals: Callable[[FloatArray], FloatArray], shares: FloatArray, found: FloatArray
) -> FloatArray:
    """Return the derivatives of all residuals, by differences that stay inside the cube.

    Returns
    -------
    slopes : (rows, constants)
    """
    slopes = np.empty((len(found), len(shares)))
    for column, share in enumerate(shares):
        step = -_SLOPE_STEP if share > 0.5 else _SLOPE_STEP
        moved = shares.copy()
        moved[column] += step
        slopes[:, column] = (residuals(moved) - found) / step
    return slopes


def _step(shares: FloatArray, found: FloatArray, slopes: FloatArray, damping: float) -> FloatArray:
    """Return the next point; a constant that would leave the cube stays at its face."""
    gradient = slopes.T @ found
    # A constant at a face that the sum of squares pushes against is left out of the step.
    free = ~(((shares <= 0.0) & (gradient > 0.0)) | ((shares >= 1.0) & (gradient < 0.0)))
    trial = shares.copy()
    if free.any():
        inner = slopes[:, free]
        normal = inner.T @ inner
        normal[np.diag_indices_from(normal)] += damping * np.maximum(np.diag(normal), 1e-12)
        trial[free] -= np.linalg.solve(normal, gradient[free])
    return np.clip(trial, 0.0, 1.0)


def _standard_error(slopes: FloatArray, found: FloatArray) -> FloatArray:
    """Return the standard errors by linear theory, infinite where nothing depends on a constant.

    Where only a sum of constants matters, each of them has a very large error.
    """
    rows, count = slopes.shape
    error = np.full(count, np.inf)
    seen = (slopes**2).sum(axis=0) > 0.0
    if seen.any():
        variance = max(float(found @ found) / max(1, rows - count), _LEAST_NOISE**2)
        _, sizes, directions = np.linalg.svd(slopes[:, seen], full_matrices=False)
        sizes = np.maximum(sizes, _BLIND * sizes.max())
        error[seen] = np.sqrt(variance * ((directions / sizes[:, np.newaxis]) ** 2).sum(axis=0))
    return error
