import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.partitioning.downsets import TooManyDownsetsError, enumerate_downsets


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 7), st.data())
def test_all_and_only_downsets(count: int, data: st.DataObject) -> None:
    """The list holds every set that is closed under predecessors, once."""
    pairs = [p for p in itertools.combinations(range(count), 2) if data.draw(st.booleans())]
    downsets = enumerate_downsets(count, pairs)
    found = [frozenset(downsets.members(0, index)) for index in range(len(downsets))]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(count), size) for size in range(count + 1)
    )
    expected = {
        frozenset(subset)
        for subset in subsets
        if all(source in subset for source, target in pairs if target in subset)
    }
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert [len(members) for members in found] == sorted(len(members) for members in found)


def test_steps_add_one_node() -> None:
    """Every step leads from a downset to the one with its node added."""
    downsets = enumerate_downsets(70, [(node, node + 2) for node in range(68)])
    for index in range(len(downsets)):
        for step in range(downsets.grow_start[index], downsets.grow_start[index + 1]):
            added = downsets.members(index, int(downsets.grow_to[step]))
            assert added == [int(downsets.grow_node[step])]


def test_too_many_are_not_listed() -> None:
    """Twenty free nodes have a million downsets; a small limit stops early."""
    with pytest.raises(TooManyDownsetsError):
        enumerate_downsets(20, [], most=1000)
