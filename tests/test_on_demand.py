import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from phaze_opt.codec import from_json, to_json
from phaze_opt.on_demand import (
    OnDemand,
    cached_property,
    deferrable,
    deferred,
    hashed_once,
    with_fields,
)


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


@dataclass(frozen=True)
class Part:
    """Counts how often it is hashed."""

    name: str
    asked: list[int] = field(default_factory=list, compare=False)

    def __hash__(self) -> int:
        self.asked.append(1)
        return hash(self.name)


@hashed_once
@dataclass(frozen=True)
class Whole:
    """Keeps its hash."""

    part: Part
    number: int = 0


def test_an_object_is_hashed_once() -> None:
    """Equal ones have equal hashes, changed ones their own, and none goes to another process."""
    one, other = Whole(Part("a")), Whole(Part("a"))
    assert hash(one) == hash(one) == hash(other)
    assert one.part.asked == [1]
    assert {one: 1}[other] == 1
    changed = replace(one, number=1)
    assert changed != one
    assert hash(changed) != hash(one)
    again = pickle.loads(pickle.dumps(one))
    assert (again, vars(again).keys()) == (one, {"part", "number"})


def test_equal_objects_are_compared_once() -> None:
    """Also those that are equal to a third one; others, and those of other classes, are not."""
    compared: list[int] = []

    @dataclass(frozen=True)
    class Deep:
        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return True

    @hashed_once
    @dataclass(frozen=True)
    class Holder:
        part: Deep
        number: int = 0

    one, two, three = (Holder(Deep()) for _ in range(3))
    assert one == two and two == three and len(compared) == 2
    assert two == one and three == one and one == three and two == two and len(compared) == 2
    changed = replace(two, number=1)
    assert changed != two and two != changed and changed != one
    stranger: object = Whole(Part("a"))
    assert one != stranger and one.__eq__(stranger) is NotImplemented
    assert vars(pickle.loads(pickle.dumps(Whole(Part("a"))))).keys() == {"part", "number"}


@deferrable("parts")
@dataclass(frozen=True)
class Report:
    """Has a field that may be found later."""

    name: str
    parts: tuple[str, ...]
    count: int = 0


def report(asked: list[str]) -> Report:
    """Return one whose field is found when it is read, and then noted."""

    def find() -> tuple[str, ...]:
        asked.append("found")
        return ("a", "b")

    return Report("r", deferred(find))


@pytest.mark.parametrize(
    "read",
    [
        lambda one: one.parts,
        lambda one: replace(one, count=1).parts,
        lambda one: pickle.loads(pickle.dumps(one)).parts,
        lambda one: copy.deepcopy(one).parts,
        lambda one: from_json(to_json(one), Report, "report").parts,
        lambda one: (one == Report("r", ("a", "b"))) and one.parts,
    ],
)
def test_a_deferred_field_is_found_once_by_whoever_reads_it(read: Callable[[Report], Any]) -> None:
    """Whether it is read, changed, written, copied or compared."""
    asked: list[str] = []
    one = report(asked)
    assert (one.name, one.count, asked) == ("r", 0, [])
    assert read(one) == ("a", "b")
    assert (one.parts, one.parts, asked) == (("a", "b"), ("a", "b"), ["found"])
    assert repr(one) == "Report(name='r', parts=('a', 'b'), count=0)"
    assert [each.name for each in fields(Report)] == ["name", "parts", "count"]


def test_other_values_of_fields_find_nothing_that_is_deferred() -> None:
    """Neither of the object, which stays as it was, nor of the copy."""
    asked: list[str] = []
    one = report(asked)
    other = with_fields(one, count=2)
    assert (one.count, other.count, other.name, asked) == (0, 2, "r", [])
    assert one.parts == other.parts == ("a", "b") and asked == ["found"]


def test_a_deferrable_field_is_a_field_like_others() -> None:
    """It has no default, takes plain values, is frozen, and what fails is tried again."""
    assert not hasattr(Report, "parts")
    plain: Any = Report("r", ("c",))
    assert plain.parts == ("c",)
    with pytest.raises(AttributeError):
        plain.parts = ()
    with pytest.raises(TypeError):
        Report("r")  # type: ignore[call-arg]
    tries: list[int] = []

    def fails_once() -> tuple[str, ...]:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        return ()

    one = Report("r", deferred(fails_once))
    with pytest.raises(ValueError, match="once"):
        _ = one.parts
    assert one.parts == ()
