"""Cells of CSV that no spreadsheet takes for a formula, and obeys: names come from strangers."""

from __future__ import annotations

import re

from phaze_opt.printing import printable

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE
)
_WRITTEN_CELL = re.compile(r'"(?:[^"]|"")*"|[^",\r\n]+')


def harmless_cell(cell: object) -> object:
    """Put an apostrophe before text that a spreadsheet would take for a formula.

    Control characters are replaced, as on a terminal: some programs begin a new row, and so a new
    cell, at a carriage return.
    """
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text


def harmless_csv(text: str) -> str:
    """Return what another program wrote as CSV with cells that are harmless; numbers are kept."""
    return _WRITTEN_CELL.sub(_rewritten, text)


def _rewritten(match: re.Match[str]) -> str:
    """Write one cell, in quotes if it was."""
    written = match[0]
    if not written.startswith('"'):
        return written if _NUMBER.fullmatch(written) else str(harmless_cell(written))
    content = str(harmless_cell(written[1:-1].replace('""', '"')))
    return '"' + content.replace('"', '""') + '"'
