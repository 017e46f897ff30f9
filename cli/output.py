"""What every command shares: options, JSON on stdout, notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.errors import InputError, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="SQLite or PostgreSQL URL (MySQL: a best effort, untested); else PHAZE_STORAGE, "
        "else sqlite:///phaze.db.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def print_json(value: object) -> None:
    """Print strict JSON: NaN and Infinity are refused, and what a terminal obeys is escaped."""
    text = json.dumps(value, allow_nan=False, indent=2, ensure_ascii=False)
    lines = ("".join(map(_json_letter, line)) for line in text.split("\n"))
    print("\n".join(lines))


def print_table(table: RenderableType) -> None:
    """Print a table on stdout; wide enough for whole lines where it is not a terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)


def say(sentence: str) -> None:
    """Print a note on stderr."""
    print(printable(sentence), file=sys.stderr)


def _json_letter(letter: str) -> str:
    """Write a letter of a JSON document, as an escape where a terminal might obey it."""
    return letter if letter.isprintable() else json.dumps(letter)[1:-1]


def read_assignments(pairs: Sequence[str]) -> dict[str, str]:
    """Read ``key=value`` options.

    Raises
    ------
    InputError
        If a pair has no ``=``.
    """
    result = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"--set is {pair!r}, but it must be key=value.")
        result[key.strip()] = value.strip()
    return result
