import pytest

from phaze_opt.on_demand import OnDemand


def test_every_value_is_found_once_and_when_it_is_asked_for() -> None:
    """Keys are known before."""
    found: list[int] = []

    def double(key: int) -> int:
        found.append(key)
        return 2 * key

    doubled = OnDemand([3, 1], double)
    assert (list(doubled), len(doubled), max(doubled), 1 in doubled) == ([3, 1], 2, 3, True)
    assert not found
    assert [doubled[3], doubled[3], *doubled.values()] == [6, 6, 6, 2]
    assert found == [3, 1]
    with pytest.raises(KeyError):
        doubled[2]
