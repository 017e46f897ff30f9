"""Exchanges of all runs of layers, in one loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.network.term import Term
from phaze_opt.placement.costs import collective_table_s
from phaze_opt.placement.exchanges import exchanges_per_batch, lines_of
from phaze_opt.placement.overlap import backward_queue_s

seconds = st.floats(0.0, 1e-2)
terms = st.lists(
    st.builds(
        Term, st.just("ring"), seconds, st.floats(0.0, 1e-9), st.just((1.0,)),
        st.sampled_from([0.0, 1e-7]),
    ),
    max_size=3,
)  # fmt: skip


@given(st.data(), terms, st.floats(0.0, 0.3), st.booleans())
def test_the_loop_is_the_queue_and_the_table(
    data: st.DataObject, algorithms: list[Term], share: float, overlaps: bool
) -> None:
    """Layer by layer through the queue, or at once where that takes no longer, bit for bit."""
    layers = data.draw(st.integers(1, 6))
    sizes = st.lists(st.sampled_from([0.0, 1e3, 1e6, 3e7]), min_size=layers, max_size=layers)
    ends = np.array([*data.draw(st.sets(st.integers(1, layers - 1))), layers]) if layers > 1 else (
        np.array([1])
    )  # fmt: skip
    ends = np.unique(ends).astype(np.int64)
    own = np.array([data.draw(sizes) for _ in ends])
    cover = np.array(data.draw(st.lists(seconds, min_size=layers, max_size=layers)))
    whole = np.zeros((layers, layers + 1))
    for i in range(layers):
        whole[i, i + 1 :] = np.cumsum(own[0, i:])
    # Stages begin at some of the layers.
    starts = sorted({0} | data.draw(st.sets(st.integers(0, layers - 1))))
    cuts, places = [*starts, layers], np.full(layers + 1, -1)
    places[cuts] = np.arange(len(cuts))
    of_stages = np.ascontiguousarray(whole[starts][:, cuts]) / 2.0
    none, nothing = np.zeros(layers), np.zeros_like(of_stages)
    tables = ends, own, none, cover, places, of_stages, nothing
    loop = lines_of(algorithms), lines_of([]), *tables, 2.0, share, overlaps
    exposed_s, total_s = exchanges_per_batch(*loop)
    at_once_s = collective_table_s(algorithms, whole)
    begin = 0
    for end, sent_bytes in zip(ends, own, strict=True):
        sent_s = collective_table_s(algorithms, sent_bytes)
        _, left_s, _, all_s = backward_queue_s(np.zeros(layers), sent_s, cover)
        charged_s = left_s + share * (all_s - left_s) if overlaps else all_s
        less = at_once_s <= charged_s
        for i in (start for start in starts if begin <= start < end):
            for j in (cut for cut in cuts if cut > i):
                expected = (at_once_s, at_once_s) if less[i, j] else (charged_s, all_s)
                found = exposed_s[places[i], places[j]], total_s[places[i], places[j]]
                assert found == (expected[0][i, j], expected[1][i, j])
        begin = int(end)


def test_nothing_to_send_takes_no_time() -> None:
    """Without algorithms (a single device) or without bytes."""
    each, runs = np.ones(2), np.ones((2, 3))
    layers = np.array([2]), np.ones((1, 2)), each, each, np.arange(3), runs, runs
    none = exchanges_per_batch(lines_of([]), lines_of([]), *layers, 4.0, 0.1, True)
    assert not none[0].any() and not none[1].any()
