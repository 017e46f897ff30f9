from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.scheduling.instance import PackedDemand, last_of

amounts = st.lists(st.integers(0, 10**9), min_size=3, max_size=3)


@given(capacity=amounts, single=amounts, intra=amounts)
def test_packed_demands_compare_as_the_amounts_do(
    capacity: list[int], single: list[int], intra: list[int]
) -> None:
    """A demand fits what is free where no guard bit is lost, and giving it back restores all."""
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
    """Of a diamond's ancestors only the two arms come directly before its end."""
    ancestors = [0b0, 0b1, 0b1, 0b111]
    assert last_of(ancestors[3], ancestors) == (2, 1)
    assert last_of(0, ancestors) == ()
