"""The number of trials of a search that draws points at random, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_HALF = 0.5 * (1.0 + 1e-12)
"""One half, with a margin for the rounding of a product."""


@dataclass(frozen=True)
class RandomSearch:
    """Trials of a random search that draws no point twice.

    Attributes
    ----------
    within
        The distance from the optimum, relative to it; 0 for the optimum itself.
    points
        Number of points within that distance; ``None`` if it is unknown.
    expected_trials, median_trials
        Number of trials until the first of these points.
    """

    within: float
    points: int | None
    expected_trials: float | None
    median_trials: int | None


def random_search(within: float, points: int, good: int | None) -> RandomSearch:
    """Return the trials of a random search without repetition until the first good point.

    The trials before the first of ``good`` points among ``points`` follow a negative
    hypergeometric distribution: its mean is (points + 1) / (good + 1), and no good point is among
    the first n with probability C(points - n, good) / C(points, good).
    """
    if good is None or good < 1:
        return RandomSearch(within, good, None, None)
    drawn_before = points - np.arange(good)

    def missed(trials: int) -> float:
        left = np.maximum(drawn_before - trials, 0) / drawn_before
        return float(np.prod(left))

    low, high = 0, points
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if missed(middle) <= _HALF else (middle, high)
    return RandomSearch(within, good, (points + 1) / (good + 1), high)
