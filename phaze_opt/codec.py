"""The one way in and out of JSON and TOML for the frozen dataclasses between the rooms.

Reading is strict: types must match, unknown keys are refused with the nearest valid one, and what a
dataclass refuses in ``__post_init__`` is refused here with the place in the document. Nothing read
is ever executed.

The data files that come with the package (constants and measured tables, each with its source) are
read here too: every room keeps its own in its folder ``data``.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import tomllib
import types
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phaze_opt.errors import InputError, NotFoundError, unknown_name

T = TypeVar("T")

_FIELD_TYPES: dict[Any, dict[str, Any]] = {}
"""Resolved once per dataclass, because resolving is slow."""


def to_json(value: object) -> bytes:
    """Encode a dataclass (or plain data) as strict JSON; the same value gives the same bytes."""
    return msgspec.json.encode(value)


def to_builtins(value: object) -> Any:
    """Turn a dataclass into plain dicts and lists."""
    return msgspec.to_builtins(value)


def from_json(data: bytes | str, kind: type[T], what: str) -> T:
    """Decode strict JSON into a dataclass.

    Parameters
    ----------
    data
        The document.
    kind
        The dataclass to build.
    what
        What the document is, for the error's sentence (for example ``"workload file a.json"``).

    Raises
    ------
    InputError
        If the text is not JSON, a key is missing or unknown, or a value has the wrong type.
    """
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"The {what} is not valid JSON: {error}.") from None
    return from_builtins(plain, kind, what)


def from_builtins(plain: object, kind: type[T], what: str) -> T:
    """Build a dataclass from plain data as `from_json` does."""
    try:
        _refuse_unknown_keys(plain, kind, what)
        value = msgspec.convert(plain, kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InputError(f"The {what} is not valid: {str(error).rstrip('.')}.") from None
    _write_defaults(value)
    return value


def read_file(path: Path, what: str) -> bytes:
    """Read a file, or say in one sentence why that cannot be done."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"There is no {what} at {path}.") from None
    except OSError as error:
        raise InputError(f"The {what} at {path} cannot be read: {error.strerror}.") from None


def read_toml_file(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file of the user's as plain data.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(read_file(path, what).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"The {what} {path} is not valid TOML: {error}.") from None


def data_table(room: str, name: str) -> dict[str, Any]:
    """Return a TOML file that comes with the package as plain data.

    Parameters
    ----------
    room
        Package below ``phaze_opt`` (``"hardware"``).
    name
        File in its folder ``data``.
    """
    return tomllib.loads(_data_text(room, name))


def data_rows(room: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file that comes with the package; see `data_table`."""
    return list(csv.DictReader(_data_text(room, name).splitlines()))


def _data_text(room: str, name: str) -> str:
    """Read a data file of the package."""
    return resources.files(f"phaze_opt.{room}").joinpath("data", name).read_text("utf-8")


def _refuse_unknown_keys(plain: object, kind: Any, what: str) -> None:
    """Walk plain data beside its type; msgspec ignores unknown keys of dataclasses."""
    if dataclasses.is_dataclass(kind) and isinstance(plain, Mapping):
        hints = _field_types(kind)
        for key, value in plain.items():
            if key not in hints:
                raise unknown_name(f"key in the {what}:", key, hints)
            _refuse_unknown_words(value, hints[key], f"{key} in the {what}:")
            _refuse_unknown_keys(value, hints[key], what)
        return
    arguments = [a for a in typing.get_args(kind) if a is not Ellipsis]
    if not arguments:
        return
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        for argument in arguments:
            if dataclasses.is_dataclass(argument):
                _refuse_unknown_keys(plain, argument, what)
    elif isinstance(plain, Mapping):
        for value in plain.values():
            _refuse_unknown_keys(value, arguments[-1], what)
    elif isinstance(plain, list) and len(arguments) == 1:
        for value in plain:
            _refuse_unknown_keys(value, arguments[0], what)


def _refuse_unknown_words(plain: object, kind: Any, what: str) -> None:
    """Name what is allowed where one of a few words is expected; msgspec does not."""
    if isinstance(plain, list):
        for argument in typing.get_args(kind):
            for value in plain:
                _refuse_unknown_words(value, argument, what)
    elif isinstance(plain, str):
        words = _words(kind)
        if words and plain not in words:
            raise unknown_name(what, plain, words)


@functools.cache
def _words(kind: Any) -> frozenset[str]:
    """Return the strings that a value of a type can be; none where it can be any or no string."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return frozenset(each for each in arguments if isinstance(each, str))
    if typing.get_origin(kind) in (typing.Union, types.UnionType) and str not in arguments:
        return frozenset().union(*map(_words, arguments))
    return frozenset()


def _write_defaults(value: Any) -> None:
    """Write defaults into the instances, as msgspec leaves them to the class and encodes the rest.

    Without this a value that was read would be written, and hashed, without what it did not state.
    """
    if dataclasses.is_dataclass(value):
        for name in _field_types(type(value)):
            inner = getattr(value, name)
            object.__setattr__(value, name, inner)
            _write_defaults(inner)
    elif isinstance(value, Mapping):
        for inner in value.values():
            _write_defaults(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _write_defaults(inner)


def _field_types(kind: Any) -> dict[str, Any]:
    """Return the resolved type of every field of a dataclass."""
    if kind not in _FIELD_TYPES:
        hints = typing.get_type_hints(kind)
        _FIELD_TYPES[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _FIELD_TYPES[kind]
