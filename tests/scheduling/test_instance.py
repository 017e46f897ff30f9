from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.scheduling.instance import (
    PackedDemand,
    last_of,
    proving_bound,
    starts_in_order,
)

amounts = st.lists(st.integers(0, 10**9), min_size=3, max_size=3)
blocks = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.floats(0.1, 5.0)), min_size=1, max_size=12
)


@given(capacity=amounts, single=amounts, intra=amounts)
def test_packed_demands_compare_as_the_amounts_do(
    capacity: list[int], single: list[int], intra: list[int]
) -> None:
    """A demand fits the free amounts if all guard bits stay set; adding it again restores them."""
    single, intra = [
        [min(wanted, limit) for wanted, limit in zip(demand, capacity, strict=True)]
        for demand in (single, intra)
    ]
    packed = PackedDemand([(tuple(single), tuple(intra))], capacity)
    first, second = packed.demand[0]
    left = packed.capacity - first
    assert left & packed.guards == packed.guards
    together = zip(single, intra, capacity, strict=True)
    fits = all(one + other <= limit for one, other, limit in together)
    assert ((left - second) & packed.guards == packed.guards) == fits
    assert left + first == packed.capacity


def test_last_of_a_set_are_those_nothing_follows() -> None:
    """Only the two arms of a diamond directly precede its end."""
    ancestors = [0b0, 0b1, 0b1, 0b111]
    assert last_of(ancestors[3], ancestors) == (2, 1)
    assert last_of(0, ancestors) == ()


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
