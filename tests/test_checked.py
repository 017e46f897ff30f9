"""Arguments and fields are what their annotations say, or are refused in one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.checked import Named, check_fields, checked, shown
from phaze_opt.errors import InputError
from phaze_opt.on_demand import deferrable, deferred


@checked
def taken(
    count: int = 0,
    /,
    share: float | None = None,
    *,
    words: Sequence[str] = (),
    degrees: Literal["solve"] | tuple[int, int] = "solve",
    name: Named = "",
    table: Mapping[str, int] | None = None,
    call: Callable[[int], int] = abs,
    switch: bool = False,
    **more: Annotated[int, "something small"],
) -> Any:
    """Return what arrives."""
    return locals()


@pytest.mark.parametrize(
    ("argument", "value", "arrives"),
    [
        ("share", 1, 1),
        ("share", np.float32(0.5), 0.5),  # another library's number
        ("share", float("inf"), float("inf")),
        ("words", ["a", "b"], ("a", "b")),
        ("words", {"a"}, ("a",)),
        ("degrees", [1, 2], (1, 2)),
        ("degrees", (np.int64(1), 2.0), (1, 2)),
        ("name", Path("a"), Path("a")),
        ("switch", True, True),
        ("table", {"a": "not looked at"}, {"a": "not looked at"}),
        ("other", 1e6, 1_000_000),  # a whole number, however it is written
    ],
)
def test_values_arrive(argument: str, value: Any, arrives: Any) -> None:
    """What fits arrives as what is annotated."""
    found = taken(**{argument: value})
    found = {**found, **found["more"]}[argument]
    assert found == arrives
    assert type(found) is type(arrives)


@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("share", True, "share is True, but it must be a number or None."),
        ("share", float("nan"), "share is nan, but it must be a number or None."),
        ("share", "1", "share is '1', but it must be a number or None."),
        ("share", 10**400, r"a number or None"),
        ("words", "ab", "words is 'ab', but it must be a list of text."),
        ("words", ["a", 1], r"words is \['a', 1\], but it must be a list of text."),
        ("degrees", [1, 2, 3], "it must be solve or a list of 2: a whole number, a whole number."),
        ("degrees", "solved", "degrees is 'solved', but"),
        ("name", 1, "name is 1, but it must be the name or the path of one."),
        ("table", [1], r"table is \[1\], but it must be a dict or None."),
        ("call", "abs", "call is 'abs', but it must be a function."),
        ("switch", 1, "switch is 1, but it must be True or False."),
        ("other", 0.5, "other is 0.5, but it must be something small."),
        ("count", 0.5, "count is 0.5, but it must be something small."),  # not that of the place
    ],
)
def test_values_are_refused(argument: str, value: Any, sentence: str) -> None:
    """What does not fit is named, shown, and told what would."""
    with pytest.raises(InputError, match=sentence):
        taken(**{argument: value})


def test_a_checked_function_stays_what_it_is() -> None:
    """Its name, its help and its mistakes are its own; arguments may stand in their places."""
    call: Any = taken
    assert (call.__name__, call.__doc__) == ("taken", "Return what arrives.")
    assert call(3, 0.5)["count"] == 3
    with pytest.raises(InputError, match=r"^count is 'x', but it must be a whole number"):
        call("x")
    with pytest.raises(TypeError, match="takes from 0 to 2 positional arguments"):
        call(1, 2, 3)


@deferrable("parts")
@dataclass(frozen=True)
class Record:
    """Something with parts."""

    parts: tuple[int, ...]
    folder: str | os.PathLike[str] = ""

    def __post_init__(self) -> None:
        check_fields(self)


def test_fields_are_checked_as_arguments_are() -> None:
    """Lists become tuples, tuples stay the same object, and what is deferred stays so."""
    parts = (1, 2)
    assert Record(parts).parts is parts
    assert Record([1, np.int64(2)]) == Record(parts)  # type: ignore[arg-type]
    found = iter([parts])
    lazy = Record(deferred(lambda: next(found)))
    assert type(vars(lazy)["parts"]) is not tuple and lazy.parts == parts
    with pytest.raises(InputError, match=r"^parts is \[1, 'x'\], but it must be a list of whole"):
        Record([1, "x"])  # type: ignore[arg-type]


@given(st.recursive(st.text() | st.integers() | st.floats(), st.lists, max_leaves=20))
def test_every_value_is_shown_on_one_short_line(value: Any) -> None:
    """However long or broken it is."""
    for one in (value, [value], {"a": value}):
        assert "\n" not in shown(one) and len(shown(one)) < 600
