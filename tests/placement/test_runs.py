"""Sums, maxima and messages of all runs of layers, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from phaze_opt.placement.runs import loads_of_runs, maxima_of_runs, receives_of_runs, sums_of_runs

rows = st.lists(st.floats(0, 1e12), min_size=1, max_size=12)


@given(values=rows)
def test_sums_and_maxima_of_runs(values: list[float]) -> None:
    """Every entry is the sum, or the largest, of its run; 0 of none."""
    sums = sums_of_runs(np.array(values))
    maxima = maxima_of_runs(np.array(values))
    for i in range(len(values)):
        for j in range(len(values) + 1):
            assert sums[i, j] == pytest.approx(sum(values[i:j]), rel=1e-12)
            assert maxima[i, j] == max(values[i:j], default=0.0)


@given(count=st.integers(1, 8), data=st.data())
def test_a_stage_receives_one_message_per_layer_outside(count: int, data: st.DataObject) -> None:
    """Activations from each layer before that it needs, gradients back from each later stage."""
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    consumers = {a: [d for s, d in edges if s == a] for a in dict.fromkeys(s for s, _ in edges)}
    returns = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    activation_s, gradient_s, transfer_bytes = receives_of_runs(
        count,
        np.array(list(consumers), dtype=np.int64),
        np.cumsum([0, *map(len, consumers.values())], dtype=np.int64),
        np.array([d for each in consumers.values() for d in each], dtype=np.int64),
        # Powers of two: a sum says which messages it is made of, exactly.
        np.array([2.0**source for source in consumers]),
        np.array([3.0 * 2.0**source for source in consumers]),
        np.array([returns[source] for source in consumers], dtype=np.bool_),
    )
    for i in range(count):
        for j in range(i + 1, count + 1):
            stage = range(i, j)
            taken = sum(2.0**s for s, ds in consumers.items() if s < i and {*ds} & {*stage})
            # A later stage sends the gradient back to the stage of the source, if it is needed.
            back = sum(
                2.0**s for s, ds in consumers.items() if returns[s] and s in stage and max(ds) >= j
            )
            assert activation_s[i, j] == taken
            assert gradient_s[i, j] == back
            assert transfer_bytes[i, j] == 3.0 * (taken + back)


@given(count=st.integers(1, 8), data=st.data())
def test_loads_are_those_of_the_tables(count: int, data: st.DataObject) -> None:
    """To the bit: forward with its messages, then backward, recompute, accumulation, messages."""
    amounts = st.floats(0, 1e6)
    column = arrays(np.float64, count, elements=amounts)
    table = arrays(np.float64, (count, count + 1), elements=amounts)
    forward_s, backward_s, recompute_s = (data.draw(column) for _ in range(3))
    parameters, activation_s, gradient_s = (data.draw(table) for _ in range(3))
    each_s = data.draw(amounts)
    load_s = loads_of_runs(
        forward_s, backward_s, recompute_s, parameters, each_s, activation_s, gradient_s
    )
    backward = sums_of_runs(backward_s) + sums_of_runs(recompute_s) + parameters * each_s
    expected = sums_of_runs(forward_s) + activation_s + (backward + gradient_s)
    runs = np.triu_indices(count)
    assert (load_s[:, 1:][runs] == expected[:, 1:][runs]).all()
