"""Lines of a table that are as good as the one before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.ties import ties
from phaze_opt.spec.ordering import value_bin

VALUES = st.lists(st.none() | st.tuples(st.sampled_from([1.0, 1.0001, 1.02, 5.0])))


@given(VALUES)
def test_groups_are_runs_of_equal_values(values: list[tuple[float] | None]) -> None:
    """Each begins with the line that stands for it, and counts the others."""
    found = ties(values)
    assert len(found) == len(values)
    for place, tie in enumerate(found):
        before = values[place - 1] if place else None
        own = values[place]
        joined = (
            own is not None and before is not None and value_bin(own[0]) == value_bin(before[0])
        )
        assert tie.is_first != joined
        assert (place > 0 and tie.group == found[place - 1].group) == joined
        members = sum(other.group == tie.group for other in found)
        assert tie.others == (members - 1 if tie.is_first else 0)


def test_what_has_no_value_stands_alone() -> None:
    """Two trials that failed are not as good as each other."""
    assert [tie.others for tie in ties([(3.0, 1.0), (3.0, 1.0), None, None])] == [1, 0, 0, 0]
