import pytest

from phaze_opt.on_demand import OnDemand, cached_property


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


class Asked:
    """Counts how often its value is found."""

    def __init__(self) -> None:
        self.found = 0

    @cached_property
    def value(self) -> int:
        """Say how often it was found."""
        self.found += 1
        return self.found


def test_a_property_is_found_once_for_each_object() -> None:
    """It stays with the object, can be taken away, and the class has the description."""
    one, other = Asked(), Asked()
    assert (one.value, one.value, other.value) == (1, 1, 1)
    del one.__dict__["value"]
    assert one.value == 2
    assert vars(Asked)["value"].__doc__ == "Say how often it was found."
    assert Asked.value is vars(Asked)["value"]


def test_a_property_that_fails_is_asked_again() -> None:
    """An error is no value."""

    class Fails:
        tries = 0

        @cached_property
        def value(self) -> int:
            """Fail once."""
            self.tries += 1
            if self.tries == 1:
                raise ValueError("once")
            return self.tries

    one = Fails()
    with pytest.raises(ValueError, match="once"):
        _ = one.value
    assert one.value == 2
