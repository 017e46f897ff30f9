"""How plots look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.figure_style import thinned


@given(st.integers(0, 5_000), st.integers(1, 300))
def test_thinned_keeps_order_and_the_last(length: int, most: int) -> None:
    """At most so many items stay, in order, the last one among them."""
    kept = thinned(range(length), most)
    assert len(kept) == min(length, most) and kept == sorted(set(kept))
    assert not length or kept[-1] == length - 1
