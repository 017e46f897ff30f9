"""Printing: text without control characters, and results that print as tables and draw plots.

``print(result)`` shows the tables that the command line shows, and so does a notebook. The room
that draws them stands to the right of the results and imports them, so a result imports nothing
from there: `PrintsAsTables` and `DrawsPlots` are handed the functions that do so when the package
is imported.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LONGEST_WORD = 500
_LONGEST_LINE = 3000
# The last @ of a word ends a password: one that is not written as %40 may be part of it.
_PASSWORD = re.compile(r"(:/+[^\s:/@]*:)\S+(?=@)")
_PASSWORD_OPTION = re.compile(r"(?i)([?&][^\s=&]*(?:pass|secret)[^\s=&]*=)[^\s&'\"),]+")


def printable(text: str) -> str:
    """Replace control characters: a terminal obeys them, and text may come from a database."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def printable_json(document: str) -> str:
    """Write control characters of a JSON document, its line ends aside, as JSON escapes."""
    if document.replace("\n", "").isprintable():
        return document
    return "".join(
        letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1]
        for letter in document
    )


def _shortened(word: str) -> str:
    """Cut a word that nobody would read: a name of a thousand letters may come from a file."""
    return word if len(word) <= _LONGEST_WORD else f"{word[:_LONGEST_WORD]}…"


def without_passwords(text: str) -> str:
    """Replace the passwords of URLs, which a person may have written in any place."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1***", text))


def print_error(sentence: str) -> None:
    """Print an error as one line on stderr, without the passwords of URLs."""
    line = " ".join(_shortened(word) for word in without_passwords(sentence).split())
    if len(line) > _LONGEST_LINE:
        line = f"{line[:_LONGEST_LINE]}…"
    print(f"Error: {printable(line)}", file=sys.stderr)


class PrintsAsTables:
    """A result whose ``str`` is its tables, in a notebook too; its ``repr`` stays one line."""

    write_as: ClassVar[Callable[[object, Literal["text", "html"]], str]]
    """Writes a result as its tables; the package sets it, which knows the room that draws them."""

    def __str__(self) -> str:
        return PrintsAsTables.write_as(self, "text")

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return PrintsAsTables.write_as(self, "html")


class DrawsPlots:
    """A result that a notebook can draw; its class has a method ``plot`` that names the kinds."""

    draw_plot: ClassVar[Callable[[object, str], Any]]
    """Draws a kind of plot of a result; the package sets it, which knows the room that draws."""

    def _drawn(self, kind: str) -> Any:
        """Return a figure of plotly, which a notebook shows."""
        return DrawsPlots.draw_plot(self, kind)


def short_repr(value: DataclassInstance, left_out: Container[str] = ()) -> str:
    """Write a dataclass on one line, as the call that makes it: fields with their default left out.

    Parameters
    ----------
    value
        An instance of a dataclass.
    left_out
        Further fields that are left out.
    """
    stated = []
    for field in dataclasses.fields(value):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        own = getattr(value, field.name)
        if own != default and field.name not in left_out:
            stated.append(f"{field.name}={own!r}")
    return f"{type(value).__name__}({', '.join(stated)})"
