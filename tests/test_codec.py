"""JSON in and out: strict when it reads, and equal bytes for equal values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from phaze_opt.codec import from_builtins, from_json, to_json
from phaze_opt.errors import InputError


@dataclass(frozen=True)
class Wheel:
    """A noun with defaults."""

    radius_m: float
    tyre: Literal["summer", "winter"] = "summer"
    spokes: int | None = None


@dataclass(frozen=True)
class Car:
    """A noun that holds others in every way that the rooms use."""

    name: str
    wheels: tuple[Wheel, ...]
    spare: Wheel = field(default_factory=lambda: Wheel(0.25))
    trailer: Wheel | Literal["none"] = "none"
    extras: Mapping[str, Wheel] = field(default_factory=dict)
    lights: Mapping[str, Literal["on", "off"]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.wheels:
            raise ValueError("A car has wheels.")


CAR = Car("van", (Wheel(0.3), Wheel(0.3, "winter")))


@pytest.mark.parametrize(
    "document",
    [
        '{"name": "van", "wheels": [{"radius_m": 0.3}, {"radius_m": 0.3, "tyre": "winter"}]}',
        '{"wheels": [{"radius_m": 0.3}, {"tyre": "winter", "radius_m": 0.3}], "name": "van"}',
        to_json(CAR),
    ],
)
def test_equal_values_have_equal_bytes(document: str | bytes) -> None:
    """Neither the order of the keys nor whether defaults are stated is seen in what is written."""
    car = from_json(document, Car, "car")
    assert car == CAR
    assert to_json(car) == to_json(CAR)


WHEELS = [{"radius_m": 1}]


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"nam": "van"}, "Unknown key in the car: 'nam'. Did you mean 'name'"),  # misspelt
        ({"wheels": [{"radius": 1}]}, "Unknown key in the car: 'radius'"),  # in a list
        ({"spare": {"radius": 1}}, "Did you mean 'radius_m'"),  # in a noun
        ({"trailer": {"radius": 1}}, "Did you mean 'radius_m'"),  # in a choice of types
        ({"extras": {"roof": {"radius": 1}}}, "Did you mean 'radius_m'"),  # under a free key
        ({"spare": {"radius_m": 1, "tyre": "sumer"}}, "Unknown tyre in the car: 'sumer'"),
        ({"trailer": "non"}, "Unknown trailer in the car: 'non'. Did you mean 'none'"),
        ({"lights": {"left": "of"}}, "Unknown lights in the car: 'of'"),  # a word under a free key
        (
            {"name": 3, "wheels": WHEELS},
            r"The car is not valid: Expected `str`, got 3 - at `\$\.name`",  # wrong type
        ),
        (
            {"name": "van", "wheels": [{"radius_m": "x"}]},
            r"got 'x' - at `\$\.wheels\[0\]\.radius_m`",
        ),
        ({"name": "van"}, "missing required field `wheels`"),  # incomplete
        ({"name": "van", "wheels": []}, "The car is not valid: A car has wheels"),  # refused
        ([], "The car is not valid: Expected `object`"),  # no object at all
    ],
)
def test_what_does_not_belong_is_refused_with_its_place(plain: Any, message: str) -> None:
    """Unknown keys and words, wrong types and refused values raise one sentence."""
    with pytest.raises(InputError, match=message):
        from_builtins(plain, Car, "car")


@pytest.mark.parametrize("document", [b"{", b"\xff", b"[" * 100_000, b'{"name": NaN}'])
def test_a_document_that_is_not_json_is_refused(document: bytes) -> None:
    """Broken text, broken letters, bottomless nesting and numbers outside JSON raise a sentence."""
    with pytest.raises(InputError, match="The car is not valid JSON"):
        from_json(document, Car, "car")
