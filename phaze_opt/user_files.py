"""What files that people write have in common, whatever they describe.

Numbers may stand in convenient units: ``glb_mib`` is a second name, an alias, of ``glb_bytes``.
Options of the command line and what the commands print share these names. Conversion is exact: the
decimal number that is written is scaled as a fraction and rounded once, so a number that was
printed in the convenient unit reads back to the last bit.

A file may also begin with a ``base``, whose numbers it changes.
"""

from __future__ import annotations

import csv
import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from phaze_opt.codec import FILE_SUFFIXES, from_builtins, read_file, toml_value, write_whole
from phaze_opt.errors import ConflictError, InputError, PhazeError
from phaze_opt.limits import is_finite
from phaze_opt.paths import look, path_error, reason

T = TypeVar("T")
_COMMENT_COLUMN = 36


@dataclass(frozen=True)
class Alias:
    """A second name of a field.

    Attributes
    ----------
    field
        The field, in its SI unit.
    factor
        SI units in one of the alias's.
    whole
        Whether the field is a whole number, to which a converted number is rounded.
    """

    field: str
    factor: Fraction
    whole: bool = False

    def to_field(self, value: float) -> float:
        """Convert a finite number in the alias's unit to the field's.

        Raises
        ------
        InputError
            If no number is so large.
        """
        converted = Fraction(repr(value)) * self.factor
        if not is_finite(converted):
            raise InputError(f"{value:g} is too large for {self.field} in its unit.")
        return round(converted) if self.whole else float(converted)

    def from_field(self, value: float) -> float | None:
        """Convert a field's number; ``None`` where it would not read back to the last bit."""
        converted = float(Fraction(repr(value)) / self.factor)
        return converted if self.to_field(converted) == value else None


def without_aliases(
    entry: Mapping[str, object], aliases: Mapping[str, Alias], what: str
) -> dict[str, object]:
    """Replace every alias by the field that it stands for.

    Parameters
    ----------
    entry
        Values by name; names that are no aliases are kept, known or not.
    aliases
        By name.
    what
        What states the values, for the error's sentence (``"accelerator file a.toml"``).

    Raises
    ------
    InputError
        If a field is stated twice, or the value of an alias is not a finite number.
    """
    fields: dict[str, object] = {}
    stated: dict[str, str] = {}
    for name, value in entry.items():
        alias = aliases.get(name)
        field = name if alias is None else alias.field
        if field in stated:
            raise InputError(
                f"{stated[field]} and {name} state the same number in the {what}; give one of them."
            )
        stated[field] = name
        fields[field] = value if alias is None else alias.to_field(finite(name, value, what))
    return fields


def finite(name: str, value: object, what: str) -> float:
    """Return a number that a file states.

    Raises
    ------
    InputError
        If it is not a finite number; names it and the file.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value):
        raise InputError(f"{name} is {value!r} in the {what}, but it must be a finite number.")
    return value


Find = Callable[[str, tuple[Path, ...]], T]
"""Finds something by its name or path; takes the files that are based on it too."""


def find_base(base: object, path: Path, what: str, find: Find[T], above: tuple[Path, ...]) -> T:
    """Find what a file is based on.

    Parameters
    ----------
    base
        Name of a preset, or path of another file from the folder of this one.
    path
        This file.
    what
        What it is, for the error's sentence.
    find
        Finds the base.
    above
        The files that are based on this one.

    Raises
    ------
    InputError
        If files are based on one another in a circle, and as ``find``.
    """
    name = from_builtins(base, str, f"base in the {what}")
    if Path(name).suffix not in FILE_SUFFIXES:
        return find(name, ())
    based_on_it, base_path = (*above, path.resolve()), path.parent / name
    look(base_path, f"The base of the {what}, {base_path},")
    if base_path.resolve() in based_on_it:
        raise InputError(f"The {what} is based on {name}, which is based on it again.")
    return find(str(base_path), based_on_it)


CsvRow = Mapping[str, str | None]
"""Cells by the name of their column; a short line has ``None`` for its last ones."""


def read_rows(path: Path, columns: Iterable[str], read: Callable[[CsvRow], T]) -> list[T]:
    """Read every row of a CSV file whose first line names the columns.

    Parameters
    ----------
    path
        The file.
    columns
        Names that it must have.
    read
        Makes something of a row; raises `InputError` if the row is not valid.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is no CSV, a column is missing or a row is not valid; names the line.
    """
    text = read_file(path, "CSV file").decode("utf-8-sig", errors="replace")
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    results = []
    try:
        missing = next((name for name in columns if name not in (rows.fieldnames or ())), None)
        if missing is None:
            for row in rows:
                results.append(read(row))
    except csv.Error as error:
        most = csv.field_size_limit()
        raise InputError(
            f"Line {rows.reader.line_num} of {path} is no CSV with cells of at most {most:,} "
            f"letters: {error}."
        ) from None
    except InputError as error:
        raise InputError(f"Line {rows.line_num} of {path}: {error}") from None
    if missing is not None:
        raise InputError(f"The CSV file {path} has no column {missing!r}.")
    return results


def whole_cell(row: CsvRow, column: str, default: str | None = None) -> int:
    """Read one whole number of a row; where it is empty or missing, the default holds.

    Raises
    ------
    InputError
        If it is none.
    """
    text = row.get(column) or default or ""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, but it must be a whole number.") from None


def number_cell(row: CsvRow, column: str) -> float:
    """Read one number of a row.

    Raises
    ------
    InputError
        If it is none.
    """
    text = row.get(column) or ""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, but it must be a number.") from None


def alias_of(field: str, value: object, aliases: Mapping[str, Alias]) -> tuple[str, float] | None:
    """Return the alias of a field, and its value in that unit.

    ``None`` if there is no alias, or none in which the number reads back to the last bit.
    """
    name = next((name for name, alias in aliases.items() if alias.field == field), None)
    if name is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    converted = aliases[name].from_field(value)
    return None if converted is None else (name, converted)


def write_file(path: Path, data: bytes | str) -> None:
    """Write a file whole, in place of one that there may be, which stays if that fails.

    The file is written beside and renamed, so that a link is replaced, and what it points to stays
    as it is. What is no file (a pipe, ``/dev/stdout``) is written into.

    Raises
    ------
    PhazeError
        If it cannot be written.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        if path.exists() and not path.is_file():
            _write_into(path, content)
        else:
            write_whole(path, content)
    except (OSError, ValueError) as error:
        sentence = f"The file {path} cannot be written: {reason(error)}."
        raise path_error(sentence, error) from None


def _write_into(path: Path, content: bytes) -> None:
    """Write into a pipe or a device; opening a pipe that nobody reads fails instead of waiting."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO and path.is_fifo():
            raise OSError(error.errno, "nobody reads the pipe") from None
        raise
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def check_writable(path: Path, *, force: bool = False) -> None:
    """Make sure that a file may be written at a path, before the work whose result it shall hold.

    Parameters
    ----------
    path
        The file.
    force
        Whether it may replace another one. An empty file, as ``mktemp`` makes them, has nothing to
        lose, nor has a pipe or a device.

    Raises
    ------
    ConflictError
        If there is such a file.
    InputError
        If no file can have the name, a folder has it, or its own folder does not exist.
    PhazeError
        If the folder may not be written.
    """
    subject = f"The file {path}"
    there = look(path, subject)
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise InputError(f"{subject} cannot be written: it is a folder.")
    if there is not None and not stat.S_ISREG(there.st_mode):
        return
    if not path.parent.is_dir():
        raise InputError(f"{subject} cannot be written: its folder does not exist.")
    if not os.access(path.parent, os.W_OK):
        raise PhazeError(f"{subject} cannot be written: its folder may not be written.")
    if not force and there is not None and there.st_size:
        raise ConflictError(f"{subject} exists already; --force replaces it.")


def commented_line(name: str, value: object, meaning: str) -> str:
    """Write one number as TOML with what it means; commented out where there is no value."""
    if value is None or value == ():
        return f"{f'# {name} =':<{_COMMENT_COLUMN}}# {meaning}"
    return f"{f'{name} = {toml_value(value)}':<{_COMMENT_COLUMN}}# {meaning}"
