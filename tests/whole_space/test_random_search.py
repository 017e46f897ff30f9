"""Random search in closed form."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.whole_space.random_search import random_search


@given(st.integers(1, 30), st.integers(1, 30))
def test_random_search_in_closed_form(points: int, good: int) -> None:
    """Expectation and median are those of the first good point in a shuffled row of points."""
    good = min(good, points)
    search = random_search(0.01, points, good)
    ways = math.comb(points, good)
    first_at = [Fraction(math.comb(points - n, good - 1), ways) for n in range(1, points + 1)]
    assert sum(first_at) == 1
    mean = sum(n * share for n, share in enumerate(first_at, start=1))
    assert search.expected_trials == pytest.approx(float(mean))
    median = next(n for n in range(1, points + 1) if sum(first_at[:n]) >= Fraction(1, 2))
    assert search.median_trials == median
