"""Totals of a pass in one loop, against NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from phaze_opt.passes.totals import BoundOperators, totals_in_modes

RESOURCES, LEVELS = 6, 4


@given(count=st.integers(0, 40), data=st.data())
def test_totals_are_the_sums_of_the_chosen_modes(count: int, data: st.DataObject) -> None:
    """To the bit: operators in their order."""
    amounts = st.floats(0.0, 1e6)
    on_all = data.draw(arrays(np.bool_, count))
    modes = [
        BoundOperators(
            data.draw(arrays(np.int64, count, elements=st.integers(0, RESOURCES - 1))),
            data.draw(arrays(np.float64, count, elements=amounts)),
            data.draw(arrays(np.float64, (count, LEVELS), elements=amounts)),
        )
        for _ in range(2)
    ]
    operators, seconds, energy_j = totals_in_modes(on_all, RESOURCES, *modes)
    resource, latency_s, energy = (
        np.where(on_all.reshape(-1, *[1] * (every.ndim - 1)), every, on_one)
        for on_one, every in zip(*modes, strict=True)
    )
    assert (operators == np.bincount(resource, minlength=RESOURCES)).all()
    assert (seconds == np.bincount(resource, latency_s, RESOURCES)).all()
    assert (energy_j == energy.sum(axis=0)).all()
