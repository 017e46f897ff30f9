"""How text is laid out on a terminal: tables without frames, sentences broken at spaces.

Everything that is shown passes through here: a cell, a title or a sentence is plain text, in which
neither markup nor a control character means anything.
"""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from phaze_opt.printing import printable

LINE = 79
"""Longest line of a sentence: 80 columns show it whole."""

COLUMNS = 80
"""Columns where there is no terminal, and nobody names a number."""

_FEWEST_COLUMNS = 40

_SPACES_IN_STYLE, _AFTER = re.compile("( +)</span>"), r"</span>\1"


def print_tables(shown: RenderableType) -> None:
    """Print on stdout, as wide as the terminal."""
    if sys.stdout.isatty():
        Console(highlight=False).print(shown)
    else:
        print(to_text(shown))


def to_text(shown: RenderableType) -> str:
    """Return the printed text without styles and without a line end after the last line."""
    return _without_line_ends(_recorded(shown).export_text())


def to_html(shown: RenderableType) -> str:
    """Return the printed text, its titles in bold, as HTML for a notebook.

    It needs nothing else, and its text is that of `to_text`.
    """
    code = _recorded(shown).export_html(inline_styles=True, code_format="{code}")
    # A style that ends with spaces ends before them.
    return f"<pre>{_without_line_ends(_SPACES_IN_STYLE.sub(_AFTER, code))}</pre>"


def _recorded(shown: RenderableType) -> Console:
    """Print into nothing, and return what remembers it; in a notebook too, which rich prints to."""
    console = Console(
        file=io.StringIO(),
        width=None if sys.stdout.isatty() else columns(),
        color_system=None,
        force_jupyter=False,
        highlight=False,
        record=True,
    )
    console.print(shown)
    return console


def _without_line_ends(text: str) -> str:
    """Remove spaces at the ends of lines, and the ends of the last ones."""
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n"))


def columns() -> int:
    """Return the width of what is no terminal: ``COLUMNS`` of the environment, or 80."""
    stated = os.environ.get("COLUMNS", "")
    return max(int(stated), _FEWEST_COLUMNS) if stated.isdecimal() else COLUMNS


def grid(*columns: str, gap: int = 2) -> Table:
    """Return a table with a header and without frames.

    Parameters
    ----------
    columns
        Names; a name that begins with ``>`` is that of a column of numbers, which end in line.
    gap
        Spaces between columns.
    """
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in columns:
        justify: JustifyMethod = "right" if name.startswith(">") else "left"
        table.add_column(name.removeprefix(">"), justify=justify, overflow="fold")
    return table


def fitted(headers: Sequence[str], rows: Sequence[Sequence[str]], gap: int = 1) -> RenderableType:
    """Return a table as `grid` makes it; one that is too wide as several, one below the other.

    Parameters
    ----------
    headers
        As for `grid`; the first column names the row, and is part of every table.
    rows
        Plain text by column.
    gap
        Spaces between columns.
    """
    widths = [
        max(cell_len(printable(cell)) for cell in (header.removeprefix(">"), *column))
        for header, *column in zip(headers, *rows, strict=True)
    ]
    parts: list[list[int]] = [[0]]
    for place in range(1, len(headers)):
        used = sum(widths[column] + gap for column in parts[-1])
        if used + widths[place] > available() and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(place)
    tables: list[RenderableType] = []
    for part in parts:
        table = grid(*(headers[place] for place in part), gap=gap)
        for row in rows:
            add_row(table, *(row[place] for place in part))
        tables += [Text(), table] if tables else [table]
    return Group(*tables)


def available() -> int:
    """Return the width of what stdout is: a terminal, or what is none."""
    return Console().width if sys.stdout.isatty() else columns()


def pairs() -> Table:
    """Return a table of names and values, without a header."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def add_row(table: Table, *cells: str | Text) -> None:
    """Add a row of plain text; a `Text` is added as it is."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells))


def section(title: str, shown: RenderableType, note: str = "") -> RenderableType:
    """Put a title over a table, below an empty line, and a note under it."""
    parts = [Text(f"\n{printable(title)}", style="bold"), shown]
    return Group(*parts, *([sentence(note)] if note else []))


def sentence(text: str, style: str = "") -> Text:
    """Break a sentence into lines that a narrow terminal shows whole."""
    return broken(text, LINE, style)


def broken(text: str, width: int, style: str = "") -> Text:
    """Break text at spaces into lines of a width; words with hyphens stay whole."""
    return Text("\n".join(textwrap.wrap(printable(text), width, break_on_hyphens=False)), style)


def shortened(name: str, longest: int) -> str:
    """Cut a name that is too long for its column."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
