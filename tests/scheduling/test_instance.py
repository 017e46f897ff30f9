import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.scheduling.instance import (
    direct_predecessors,
    proving_bound,
    starts_in_order,
)

blocks = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.floats(0.1, 5.0)), min_size=1, max_size=12
)


def test_direct_predecessors_are_those_nothing_follows() -> None:
    """Only the two arms of a diamond directly precede its end."""
    ancestors = np.array([[0b0], [0b1], [0b1], [0b111]])
    assert direct_predecessors(ancestors) == ((), (0,), (0,), (2, 1))


@given(blocks=blocks)
def test_replay_keeps_the_order(blocks: list[tuple[int, int, float]]) -> None:
    """Operators wait for all that ended before them in the plan, and for no other."""
    start = [block[0] for block in blocks]
    end = [block[0] + block[1] for block in blocks]
    duration_s = [block[2] for block in blocks]
    start_s = starts_in_order(start, end, duration_s, 7.0)
    for later, begin_s in enumerate(start_s):
        ends_s = [start_s[i] + duration_s[i] for i in range(len(blocks)) if end[i] <= start[later]]
        assert begin_s == max([7.0, *ends_s])


@given(makespan=st.integers(0, 2**41))
def test_near_is_within_a_billionth(makespan: int) -> None:
    """A makespan counts as optimal within 1e-9 of it."""
    assert makespan * (1 - 1e-9) <= proving_bound(makespan) <= makespan
