"""Few constants from many measured times: bounded least squares on the logarithm.

The residual of a row is log(predicted / measured), so that a row counts the same whatever its
length and in either direction. Beyond a few per cent it counts linearly instead of squared: single
rows for which a library chose a bad kernel then do not pull the constants.

A constant moves only where the rows reject its stated value, or where they determine it and that
value is a mere default. To see whether they reject it, it is held there while all others are fitted
again; to see how well they determine it, it is held a step below and a step above: its standard
error is the step over what it costs (the profile likelihood). Slopes at the solution would not do:
a model of maxima is flat where a constant does not bind and steep just beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit, FittedConstant
from phaze_opt.errors import InputError

Predict = Callable[[Mapping[str, float]], FloatArray]
"""Predicts the time of every row from the constants by name."""

ROBUST_SCALE = 0.05
"""Residual from which a row counts linearly: what two runs of one product differ by."""
_LEAST_NOISE = 0.01
"""No timing is repeated more closely than to 1 %, even where the fit is closer."""
_DIFFERENCE = 3e-3
"""Step of a coordinate for a slope, large enough to cross the steps of a tiling."""
_PROBE = 0.2
"""Step of a coordinate by which a constant is moved to see what that costs."""
_GREATEST_ERROR = {"logarithm": 0.1, "linear": 0.25, "root": 0.25}
"""Standard error of a coordinate up to which a constant is determined, by scale."""
_NOTHING_SEEN = 10.0
"""Standard error of a coordinate from which the rows say nothing about a constant."""
_REJECTED = 2.0
"""Standard errors between the fitted and the stated value from which the rows reject the latter."""
_SCANNED, _SCANS = 9, 2
"""Values of each constant in the search for a start, and how often all of them are gone through."""
_AT_BOUND = 2e-3
"""Distance of a coordinate within which a constant is at its bound."""
_NORMAL = 1.4826
"""Standard deviation over median absolute value of a normal distribution."""
_NO_COST = 1e-9
_LEAST_GAIN = 1e-6
"""Relative change of cost and coordinates at which a search stops."""
_FAR = 3.0
"""Standard errors from which a step is too far for the error to be read off it."""
_HALVINGS = 8
_MOST_ROUNDS = 5
_SETTLED = 5e-3
"""Change of a coordinate below which a constant has not moved."""
_LEAST_TIME_S = 1e-12
"""Below any time that is measured; the logarithm of a prediction of 0 is that of this."""


def fit(
    constants: Sequence[Constant],
    predict: Predict,
    measured_s: FloatArray,
    scatter: float = ROBUST_SCALE,
) -> Fit:
    """Fit those constants whose stated values the rows reject, and defaults that they determine.

    First those that the rows bound on one side only are held, one after the other, while the others
    are fitted again. Then the same is done with those that the rows accept as stated, beginning
    with the one that the rows would move least (the later one, where only a product of two shows).
    All of this is repeated with the values found until nothing moves, so that another fit changes
    nothing.

    Parameters
    ----------
    constants
        At least one, the surest first.
    predict
        The model.
    measured_s : (rows,)
        All positive.
    scatter
        Residual from which a row counts linearly.

    Raises
    ------
    InputError
        If there are fewer rows than constants.
    """
    if len(measured_s) < len(constants):
        names = ", ".join(constant.name for constant in constants)
        raise InputError(
            f"There are {len(measured_s)} measured rows for {len(constants)} constants ({names}), "
            "but there must be at least as many rows."
        )
    predict = _remembered(predict)
    result = _fit_once(constants, predict, measured_s, scatter)
    for _ in range(_MOST_ROUNDS):
        stated = [
            replace(constant, stated=fitted.value)
            for constant, fitted in zip(constants, result.constants, strict=True)
        ]
        again = _fit_once(stated, predict, measured_s, scatter)
        pairs = list(zip(stated, again.constants, result.constants, strict=True))
        if not any(_has_moved(constant, new.value, old.value) for constant, new, old in pairs):
            break
        # A constant that keeps its value now may have moved before.
        merged = (
            new if new.origin != "kept" else replace(new, origin=old.origin)
            for _, new, old in pairs
        )
        result = Fit(tuple(merged), again.errors)
    return result


def _remembered(predict: Predict) -> Predict:
    """Predict once for the same constants: rounds begin with one search, and end near one point."""
    known: dict[frozenset[tuple[str, float]], FloatArray] = {}

    def remembered(values: Mapping[str, float]) -> FloatArray:
        point = frozenset(values.items())
        if point not in known:
            known[point] = predict(values)
        return known[point]

    return remembered


def _has_moved(constant: Constant, new: float, old: float) -> bool:
    """Say whether two values of a constant differ."""
    return abs(constant.coordinate(new) - constant.coordinate(old)) > _SETTLED


def _fit_once(
    constants: Sequence[Constant], predict: Predict, measured_s: FloatArray, scatter: float
) -> Fit:
    """Hold one constant after the other, as `fit` says."""
    problem = _Problem(tuple(constants), {}, predict, measured_s, scatter)
    fitted: dict[str, FittedConstant] = {}
    while True:
        solution = _solve(problem)
        judged = [_judge(problem, solution, index) for index in range(len(solution))]
        fitted |= {constant.name: constant for constant, _ in judged}
        for origin in ("limited", "kept"):
            candidates = [(away, c) for c, away in reversed(judged) if c.origin == origin]
            if candidates:
                _, held = min(candidates, key=lambda candidate: candidate[0])
                problem = problem.holding(held.name, held.value)
                break
        else:
            break
    return Fit(
        tuple(fitted[c.name] for c in constants),
        np.expm1(problem.residuals(solution)),
    )


@dataclass(frozen=True)
class _Problem:
    """Residuals as a function of the coordinates of those constants that are not held."""

    every: tuple[Constant, ...]
    held: Mapping[str, float]
    predict: Predict
    measured_s: FloatArray
    scatter: float

    @property
    def free(self) -> list[Constant]:
        """The constants that are not held, in order."""
        return [constant for constant in self.every if constant.name not in self.held]

    def holding(self, name: str, value: float) -> _Problem:
        """Return the problem with one free constant fewer."""
        return replace(self, held={**self.held, name: value})

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Return the lower and the upper ends of the coordinates."""
        lower, upper = np.array([constant.ends for constant in self.free]).T
        return lower, upper

    def residuals(self, point: FloatArray) -> FloatArray:
        """Return log(predicted / measured) of every row."""
        pairs = zip(self.free, point.tolist(), strict=True)
        values = {constant.name: constant.value(coordinate) for constant, coordinate in pairs}
        predicted_s = np.maximum(self.predict({**self.held, **values}), _LEAST_TIME_S)
        return np.asarray(np.log(predicted_s / self.measured_s))

    def slopes(self, point: FloatArray) -> FloatArray:
        """Return the derivatives of the residuals, of shape (rows, free constants)."""
        lower, upper = self.bounds()
        columns = []
        for index in range(len(point)):
            below, above = point.copy(), point.copy()
            below[index] = max(lower[index], point[index] - _DIFFERENCE)
            above[index] = min(upper[index], point[index] + _DIFFERENCE)
            difference = self.residuals(above) - self.residuals(below)
            columns.append(difference / (above[index] - below[index]))
        return np.stack(columns, axis=-1)

    def cost(self, point: FloatArray) -> float:
        """Return what is minimised: half the squares of small residuals, in units of the scale."""
        scaled = (self.residuals(point) / self.scatter) ** 2
        return float(np.sum(np.sqrt(1.0 + scaled) - 1.0))


def _solve(problem: _Problem, start: FloatArray | None = None) -> FloatArray:
    """Return the coordinates of the free constants that fit best."""
    if not problem.free:
        return np.empty(0)
    lower, upper = problem.bounds()
    begin = _scan(problem) if start is None else start
    # least_squares starts strictly inside.
    inside = np.clip(begin, lower + 1e-6, upper - 1e-6)
    solution = least_squares(
        problem.residuals,
        inside,
        jac=problem.slopes,
        bounds=(lower, upper),
        x_scale=problem.scatter,
        loss="soft_l1",
        f_scale=problem.scatter,
        ftol=_LEAST_GAIN,
        xtol=_LEAST_GAIN,
    )
    # A search that stops at a kink of the model may end above its start.
    return min(np.asarray(solution.x), inside, key=problem.cost)


def _scan(problem: _Problem) -> FloatArray:
    """Go through values of the constants one after the other for a start.

    The stated values play no part, so that another fit gives the same constants.
    """
    lower, upper = problem.bounds()
    point = (lower + upper) / 2.0
    shares = (np.arange(_SCANNED) + 0.5) / _SCANNED
    for _ in range(_SCANS):
        for index in range(len(point)):
            tried = np.tile(point, (_SCANNED, 1))
            tried[:, index] = lower[index] + shares * (upper[index] - lower[index])
            point = min(tried, key=problem.cost)
    return point


def _judge(problem: _Problem, solution: FloatArray, index: int) -> tuple[FittedConstant, float]:
    """Say whether the rows determine a free constant.

    Returns
    -------
    constant
    away
        Standard errors between its stated value and the fitted one.
    """
    constant = problem.free[index]
    profile = _Profile(problem, solution, index)
    coordinate, stated = float(solution[index]), constant.coordinate(constant.stated)
    away = profile.errors_to(constant.stated)
    error = profile.standard_error()
    if abs(stated - coordinate) > _PROBE:
        # A second minimum may lie beyond the step.
        error = max(error, abs(stated - coordinate) / away)
    determined = error <= _GREATEST_ERROR[constant.scale]
    kept = away <= _REJECTED and (constant.prior or not determined)
    if kept:
        coordinate = stated
    elif not determined:
        coordinate = profile.nearest(stated)
    lower, upper = constant.ends
    fitted = FittedConstant(
        name=constant.name,
        unit=constant.unit,
        value=constant.stated if kept else constant.value(coordinate),
        origin="kept" if kept else "fitted" if determined else "limited",
        standard_error=_in_units(constant, coordinate, error),
        determined=determined,
        at_bound=not kept and min(coordinate - lower, upper - coordinate) < _AT_BOUND,
    )
    return fitted, away


def _in_units(constant: Constant, coordinate: float, error: float) -> float | None:
    """Return the standard error of a coordinate in the unit of the constant."""
    if error > _NOTHING_SEEN:
        return None
    if constant.scale == "logarithm":
        return constant.lower * math.exp(coordinate) * error
    spread = (constant.upper - constant.lower) * error
    return spread * (2.0 * coordinate + error) if constant.scale == "root" else spread


class _Profile:
    """What it costs to hold one constant elsewhere while all others are fitted again."""

    def __init__(self, problem: _Problem, solution: FloatArray, index: int) -> None:
        self._problem = problem
        self._constant = problem.free[index]
        self._coordinate = float(solution[index])
        self._others = np.delete(solution, index)
        self._best = problem.cost(solution)
        residuals = problem.residuals(solution)
        freedom = max(len(residuals) - len(solution), 1)
        # From the median, which single bad rows do not move.
        noise = _NORMAL * np.median(np.abs(residuals)) * np.sqrt(len(residuals) / freedom)
        self._unit = 0.5 * (max(float(noise), _LEAST_NOISE) / problem.scatter) ** 2

    def errors_to(self, value: float) -> float:
        """Return how many standard errors away another value is."""
        held = self._problem.holding(self._constant.name, value)
        cost = held.cost(_solve(held, self._others)) - self._best
        return float(np.sqrt(max(cost, _NO_COST) / self._unit))

    def standard_error(self) -> float:
        """Return the standard error of the coordinate: the larger one of the two sides."""
        lower, upper = self._constant.ends
        sides = (
            max(lower, self._coordinate - _PROBE) - self._coordinate,
            min(upper, self._coordinate + _PROBE) - self._coordinate,
        )
        # There is nothing to probe beyond a bound.
        return max(self._error_towards(step) for step in sides if abs(step) > _AT_BOUND)

    def _error_towards(self, step: float) -> float:
        """Return the standard error from a step, or from a shorter one where that is too far.

        A shorter step counts only if it costs something: beside a kink a constant is free.
        """
        away = self.errors_to(self._constant.value(self._coordinate + step))
        error = abs(step) / away
        if away > _FAR:
            shorter = (2.0 * error, math.sqrt(2.0 * error * abs(step)))
            for distance in shorter:
                nearer = self._constant.value(self._coordinate + math.copysign(distance, step))
                away = self.errors_to(nearer)
                if away >= 1.0:
                    return distance / away
        return error

    def nearest(self, stated: float) -> float:
        """Return the coordinate nearest to the stated one that is within a standard error."""
        accepted, rejected = self._coordinate, stated
        for _ in range(_HALVINGS):
            middle = (accepted + rejected) / 2.0
            if self.errors_to(self._constant.value(middle)) <= 1.0:
                accepted = middle
            else:
                rejected = middle
        return accepted
