"""Numbers as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.units import format_number


@given(st.floats(1e-12, 1e15))
def test_a_number_has_four_digits_and_no_power(number: float) -> None:
    """What is written is within half of its last digit, and whole from a thousand on."""
    text = format_number(number)
    assert "e" not in text
    shown = float(text.replace(",", ""))
    assert shown == pytest.approx(number, rel=5.001e-4, abs=0.0)
    assert number < 1000.0 or text == f"{number:,.0f}"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (1e-5, "0.00001"),
        (0.5, "0.5"),
        (81.15321, "81.15"),
        (999.96, "1,000"),
        (248_991.4, "248,991"),
        (-12.345, "-12.35"),
    ],
)
def test_numbers_as_text(number: float, text: str) -> None:
    """Neither a zero at the end nor a digit that nobody needs."""
    assert format_number(number) == text
