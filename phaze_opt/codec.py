"""The one way in and out of JSON and TOML for the frozen dataclasses between the rooms.

Reading is strict: types must match, unknown keys are refused with the nearest valid one, and a
value that a dataclass refuses in ``__post_init__`` is refused here with its place in the document.
Equal values are written as equal bytes, whatever the order of the keys in the document that they
were read from, and whether or not it stated the defaults. Nothing that is read is ever executed.

The data files that come with the package (constants and measured tables, each with its source) are
read here too: every room keeps its own in its folder ``data``.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import os
import re
import stat
import tomllib
import typing
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from msgspec import inspect

from phaze_opt.checked import refusal, shown
from phaze_opt.errors import InputError, NotFoundError, unknown_name
from phaze_opt.limits import MOST_DATA_BYTES, MOST_FILE_BYTES, is_finite
from phaze_opt.paths import look, reason
from phaze_opt.printing import printable

T = TypeVar("T")
_NAME_LETTERS = 50
_REFUSED = re.compile(
    r"(?P<expected>Expected `.*?|Number out of range)(, got `\w+`)?(?P<at> - at `\$(?P<place>.*)`)?"
)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_RECORDS = (inspect.DataclassType, inspect.StructType)
_LISTS = (inspect.ListType, inspect.VarTupleType)

_described: Callable[[Any], inspect.Type] = functools.cache(inspect.type_info)
"""Describes a type, once."""


def to_json(value: object) -> bytes:
    """Encode a dataclass (or plain data) as strict JSON; equal dataclasses give equal bytes."""
    return msgspec.json.encode(value, enc_hook=_to_plain)


def to_builtins(value: object) -> Any:
    """Turn a dataclass into plain dicts and lists."""
    return msgspec.to_builtins(value, enc_hook=_to_plain)


def from_json(
    data: bytes | str, kind: type[T], what: str, number: Callable[[str], float] | None = None
) -> T:
    """Decode strict JSON into a dataclass.

    Parameters
    ----------
    data
        The document.
    kind
        The dataclass to build.
    what
        What the document is, for the error's sentence (for example ``"workload file a.json"``).
    number
        Reads a number that is written with a point or an exponent, where not a float.

    Raises
    ------
    InputError
        If the text is not JSON, a key is missing or unknown, or a value has the wrong type.
    """
    try:
        plain = msgspec.json.Decoder(float_hook=number).decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"The {what} is not valid JSON: {error}.") from None
    return from_builtins(plain, kind, what)


def from_builtins(plain: object, kind: type[T], what: str) -> T:
    """Build a dataclass from plain data as `from_json` does."""
    try:
        plain = _checked(plain, _described(kind), what, f"value in the {what}:")
        return msgspec.convert(plain, kind, strict=True, dec_hook=_from_plain)
    except (msgspec.ValidationError, RecursionError, UnicodeEncodeError) as error:
        raise InputError(f"The {what} is not valid: {_with_value(str(error), plain)}.") from None


def from_text(text: str, kind: Any, name: str) -> Any:
    """Read a scalar as people write it in a cell: a number, ``true`` or ``false``, or a word.

    Parameters
    ----------
    text
        The cell.
    kind
        Type of the value; a ``Literal`` for words, and perhaps ``None`` beside it.
    name
        What the value is, for the error's sentence.

    Raises
    ------
    InputError
        If it is no such value.
    """
    try:
        return msgspec.convert(text.strip(), kind, strict=False)
    except msgspec.ValidationError:
        raise refusal(name, text, kind) from None


def _with_value(sentence: str, plain: Any) -> str:
    """Add the value to msgspec's sentence, which names only the type or the limit and the place."""
    refused = _REFUSED.fullmatch(sentence)
    if refused is None or "..." in sentence:  # a key that is free in the type, and not named
        return sentence.rstrip(".")
    for key, index in _STEP.findall(refused["place"] or ""):
        plain = plain[key or int(index)]
    if plain and isinstance(plain, Mapping | list):  # would be long; its type is in the sentence
        return sentence
    return f"{refused['expected']}, got {shown(plain)}{refused['at'] or ''}"


def convert_fields(value: Any, what: str) -> None:
    """Check the fields of a dataclass that a program makes, as `from_builtins` checks a document.

    Lists become tuples where the field is a tuple, and paths text. For use at the start of
    ``__post_init__``.

    Parameters
    ----------
    value
        An instance whose fields are set.
    what
        Its name, for the error's sentence (for example ``"study spec"``).

    Raises
    ------
    InputError
        If a field has the wrong type or is none of the allowed words.
    """
    dataclass: Any = type(value)
    for name, kind in _field_types(dataclass).items():
        place = f"{name} of the {what}"
        field = getattr(value, name)
        try:
            plain = msgspec.to_builtins(field, enc_hook=_to_plain, builtin_types=(bytes, bytearray))
        except TypeError:
            raise refusal(place, field, kind) from None
        object.__setattr__(value, name, from_builtins(plain, kind, place))


def toml_value(value: object) -> str:
    """Write plain data as TOML; a number reads back as it is, to the last bit."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        # What JSON escapes, TOML escapes alike.
        return json.dumps(printable(value), ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that no reader sees a part of it; a failure leaves no file behind."""
    # The longest name that a file can have leaves no room for more.
    part = path.with_name(f"{path.name[:_NAME_LETTERS]}.{uuid4().hex}.part")
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            # Some file systems find out only now that the disk is full.
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_file(path: Path, what: str, most_bytes: int = MOST_DATA_BYTES) -> bytes:
    """Return the content of a regular file; pipes and devices may never end.

    Parameters
    ----------
    path
        The file.
    what
        Its kind, for the error's sentence (for example ``"workload file"``).
    most_bytes
        Largest size that is read.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it cannot be read, is no regular file, or is too large.
    """
    subject = f"The {what} at {path}"
    status = look(path, subject)
    if status is None:
        raise NotFoundError(f"There is no {what} at {path}.")
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise InputError(f"{subject} is {kind}, but it must be a file.")
    if status.st_size > most_bytes:
        raise InputError(
            f"{subject} has {status.st_size:,} bytes, but at most {most_bytes:,} are read."
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{subject} cannot be read: {reason(error)}.") from None


def read_toml_file(path: Path, what: str) -> dict[str, Any]:
    """Return a TOML file that the user wrote as plain data.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(read_file(path, what, MOST_FILE_BYTES).decode("utf-8"))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or an endless number
        raise InputError(f"The {what} {path} is not valid TOML: {error}.") from None


FILE_SUFFIXES = (".toml", ".json")
"""Endings of the files that `read_document` takes."""


def read_document(path: Path, what: str) -> dict[str, Any]:
    """Return a TOML file, or a JSON file with one object, as plain data.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it cannot be read or is neither.
    """
    if path.suffix != ".json":
        return read_toml_file(path, what)
    return from_json(read_file(path, what), dict[str, Any], f"{what} {path}")


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
    """Return the text of a data file of the package."""
    return resources.files(f"phaze_opt.{room}").joinpath("data", name).read_text("utf-8")


def _to_plain(value: Any) -> Any:
    """Write a value that msgspec does not know."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, type) or not hasattr(value, "to_plain"):
        raise TypeError(f"{shown(value)} is no plain data")
    return value.to_plain()


def _from_plain(kind: Any, plain: object) -> Any:
    """Read a value of a type that msgspec does not know by its class method ``from_plain``.

    It takes dicts, lists and scalars, and raises `InputError` where they are not allowed; the
    method ``to_plain`` is its inverse.
    """
    return plain if isinstance(plain, kind) else kind.from_plain(plain)


@functools.cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Return the resolved types of the fields of a dataclass by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _checked(plain: Any, kind: inspect.Type, what: str, place: str) -> Any:
    """Return plain data with unknown keys and words refused, and defaults written out.

    msgspec ignores unknown keys of dataclasses and does not list the words of a ``Literal``. It
    also leaves a default in the class and encodes only what the instance holds, so that a value
    that was read would be written, and hashed, without its defaults.

    Parameters
    ----------
    plain
        Dicts, lists and scalars. Data of the wrong type is returned as it is: msgspec refuses it.
    kind
        Type of the value that will be built.
    what
        What the document is.
    place
        Key under which ``plain`` stands in the document.
    """
    if plain is None or isinstance(plain, float | bool):  # most of what is read; all is checked
        return plain
    if isinstance(kind, inspect.UnionType):
        for member in kind.types:  # at most one of them is a string, and one a dict
            plain = _checked(plain, member, what, place)
    elif isinstance(kind, inspect.LiteralType):
        if isinstance(plain, str) and plain not in kind.values:
            raise unknown_name(place, plain, map(str, kind.values))
    elif isinstance(kind, _RECORDS) and isinstance(plain, Mapping):
        # What allows unknown keys is the file of another program, and msgspec checks all of it.
        free = not getattr(kind, "forbid_unknown_fields", True)
        return plain if free else _checked_fields(plain, kind, what)
    elif isinstance(kind, inspect.DictType) and isinstance(plain, Mapping):
        inner = kind.value_type
        return {key: _checked(value, inner, what, place) for key, value in plain.items()}
    elif isinstance(kind, _LISTS) and isinstance(plain, (list, tuple)):
        return [_checked(value, kind.item_type, what, place) for value in plain]
    elif isinstance(plain, int) and not is_finite(plain):
        raise InputError(f"The {place[:-1]} is an integer with more digits than a number has here.")
    elif isinstance(plain, str):
        plain.encode()  # half of a surrogate pair is no text that can be written
    return plain


def _checked_fields(
    plain: Mapping[Any, Any], kind: inspect.DataclassType | inspect.StructType, what: str
) -> dict[str, Any]:
    """Do the work of `_checked` for a record; the result has the order of its fields."""
    fields = {field.encode_name: field for field in kind.fields}
    for key in plain:
        if key not in fields:
            raise unknown_name(f"key in the {what}:", key, fields)
    return {
        name: _checked(plain[name], field.type, what, f"{name} in the {what}:")
        if name in plain
        else _plain_default(field)
        for name, field in fields.items()
        if name in plain or not _is_left_out(field)
    }


def _is_left_out(field: inspect.Field) -> bool:
    """Say whether a field is required, or is one that is written only where it is set."""
    return field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT


def _plain_default(field: inspect.Field) -> Any:
    """Return the default of a field as plain data."""
    if field.default_factory is msgspec.NODEFAULT:
        return to_builtins(field.default)
    return to_builtins(field.default_factory())
