"""The order of designs."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.spec.ordering import Rank, best_of, value_bin

ranks = st.builds(
    Rank,
    value=st.floats(0.5, 1e6),
    hbm_bytes=st.sampled_from([32, 64, 80]),
    area_mm2=st.floats(1, 300),
    energy_j=st.none() | st.floats(0, 10),
    configuration=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)


@given(st.lists(ranks, min_size=1, max_size=6), st.randoms())
def test_best_does_not_depend_on_the_sequence(some: list[Rank], random: Random) -> None:
    """Whoever compares first, the same design wins."""
    shuffled = list(some)
    random.shuffle(shuffled)
    first = best_of((rank, rank) for rank in some)
    second = best_of((rank, rank) for rank in shuffled)
    assert first is not None and second is not None
    assert first.key == second.key


@given(ranks, ranks)
def test_clearly_faster_wins(first: Rank, second: Rank) -> None:
    """More than a bin of throughput outweighs memory, area and energy."""
    if first.value > 1.0021 * second.value:
        assert first.key < second.key


@given(st.floats(1e-3, 1e9))
def test_a_bin_is_a_thousandth_wide(throughput: float) -> None:
    """Neighbouring bins differ by 0.1 %."""
    index = value_bin(throughput)
    assert value_bin(throughput * 1.0021) in (index + 2, index + 3, index + 1)
    assert 1.001**index <= throughput * 1.000001


def test_smaller_memory_breaks_a_tie() -> None:
    """Among equally fast designs the smaller HBM wins, then the smaller area."""
    fast = 1.001**5000.5
    large = Rank(fast * 1.0001, 80, 100.0, 1.0, (0,))
    small = Rank(fast, 32, 200.0, 1.0, (1,))
    smaller = Rank(fast, 32, 100.0, 1.0, (2,))
    assert best_of([(large, "large"), (small, "small"), (smaller, "smaller")]) == "smaller"


def test_nothing_to_choose_from() -> None:
    """Without designs there is no best one."""
    assert best_of([]) is None


@pytest.mark.parametrize("throughput", [0.0, -1.0, math.nan, math.inf])
def test_infeasible_designs_have_no_rank(throughput: float) -> None:
    """Only a feasible design can be ranked."""
    with pytest.raises(InputError, match="must be feasible"):
        Rank(throughput, 32, 1.0, None, ())


KEYS = ((1.01, 1.0), (32, 80), (100.0, 200.0), (1.0, 2.0), (1.0001, 1.0), ((0,), (1,)))
"""Better and worse: the bin, memory, area, energy, the value within the bin, the design."""


@pytest.mark.parametrize("key", range(len(KEYS)))
def test_every_key_outweighs_those_behind_it(key: int) -> None:
    """Equal in what comes before, and worse in all that comes after, the better one wins."""

    def rank(*places: int) -> Rank:
        own: list[Any] = [pair[place] for pair, place in zip(KEYS, places, strict=True)]
        coarse, hbm_bytes, area_mm2, energy_j, fine, design = own
        return Rank(1.001**5000.5 * coarse * fine, hbm_bytes, area_mm2, energy_j, design)

    before, behind = [0] * key, len(KEYS) - key - 1
    assert rank(*before, 0, *[1] * behind).key < rank(*before, 1, *[0] * behind).key
