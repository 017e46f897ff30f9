"""Strict reading of the JSON of published problems; errors name the place in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_SIZE, check_size, is_finite

_NUMBER = (int, float)


class JsonObject:
    """Reads the values of one JSON object; its errors name the place of the object in the file.

    Every method raises `InputError` where the key is missing or holds something else.
    """

    def __init__(self, plain: object, place: str) -> None:
        if not isinstance(plain, dict):
            raise InputError(f"{place} must be an object, but is {_kind(plain)}.")
        self.plain: dict[str, Any] = plain
        self.place = place

    def value(self, key: str) -> Any:
        """Return what a key holds."""
        if key not in self.plain:
            raise InputError(f"{self.place} lacks the key {key!r}.")
        return self.plain[key]

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number that is not negative."""
        if default is not None and key not in self.plain:
            return default
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, _NUMBER):
            raise InputError(f"{self.place}: {key} is {value!r}, but it must be a number.")
        if not is_finite(value) or value < 0:
            raise InputError(f"{self.place}: {key} is {value}, but it must not be negative.")
        return float(value)

    def positive(self, key: str) -> float:
        """Return a positive number."""
        value = self.number(key)
        if value <= 0:
            raise InputError(f"{self.place}: {key} is {value:g}, but it must be positive.")
        return value

    def integer(self, key: str, least: int = -MOST_SIZE, most: int = MOST_SIZE) -> int:
        """Return an integer between two limits, also if written as 4.0."""
        value = self.value(key)
        whole = isinstance(value, _NUMBER) and not isinstance(value, bool)
        if not whole or not is_finite(value) or value != int(value):
            raise InputError(f"{self.place}: {key} is {value!r}, but it must be an integer.")
        check_size(f"{self.place}: {key}", int(value), most, least)
        return int(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean, also if written as 0 or 1."""
        if default is not None and key not in self.plain:
            return default
        value = self.value(key)
        if value not in (0, 1):
            raise InputError(f"{self.place}: {key} is {value!r}, but it must be true or false.")
        return bool(value)

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        return json_list(self.value(key), f"{self.place}: {key}")

    def mapping(self, key: str) -> dict[str, Any]:
        """Return an object."""
        return JsonObject(self.value(key), f"{self.place}: {key}").plain


def decode_json(data: bytes, what: str) -> object:
    """Decode the bytes of a file.

    Parameters
    ----------
    data
        The file's bytes.
    what
        Name of the file in errors.

    Raises
    ------
    InputError
        If they are no JSON.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{what} is not valid JSON: {error}.") from None


def json_list(value: object, place: str) -> list[Any]:
    """Refuse a JSON value that is no list."""
    if not isinstance(value, list):
        raise InputError(f"{place} must be a list, but is {_kind(value)}.")
    return value


def _kind(value: object) -> str:
    """Name the kind of a JSON value."""
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    return names.get(type(value), repr(value))


def edge_ends(reader: JsonObject, ids: Iterable[int]) -> tuple[int, int]:
    """Return the two ids of an edge, which must exist and differ."""
    source, destination = reader.integer("sourceId"), reader.integer("destId")
    for key, end in (("sourceId", source), ("destId", destination)):
        if end not in ids:
            raise InputError(f"{reader.place}: {key} is {end}, but there is no such node.")
    if source == destination:
        raise InputError(f"{reader.place} leads from node {source} to itself.")
    return source, destination


def refuse_duplicates(ids: Sequence[int], place: str) -> None:
    """Refuse an id that is there twice."""
    seen: set[int] = set()
    for index, identifier in enumerate(ids):
        if identifier in seen:
            raise InputError(f"{place}[{index}]: the id {identifier} is there twice.")
        seen.add(identifier)


def check_acyclic(edges: Iterable[tuple[int, int]], ids: Sequence[int], place: str) -> None:
    """Refuse a cycle, naming its nodes."""
    before: dict[int, set[int]] = {index: set() for index in range(len(ids))}
    for source, destination in edges:
        before[destination].add(source)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        path = " → ".join(str(ids[index]) for index in error.args[1])
        raise InputError(f"{place} form a cycle: {path}.") from None
