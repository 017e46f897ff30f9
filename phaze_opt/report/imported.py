"""The configuration of a training framework as lines to copy, and what is to be known of it."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich.console import Group, RenderableType

from phaze_opt.interchange.imported import ImportedConfig
from phaze_opt.report.layout import sentence

_SWITCHES = {"true": True, "false": False}


def imported_to_builtins(found: ImportedConfig) -> dict[str, Any]:
    """Return what ``import-config --json`` prints; cells are numbers where they can be."""
    return {
        "framework": found.framework,
        "command": found.command,
        "row": {name: _value(cell) for name, cell in found.row.items() if cell},
        "missing": list(found.missing),
        "unknown": list(found.unknown),
        "ignored": list(found.ignored),
    }


def _value(cell: str) -> str | int | bool:
    """Return a cell as the value that it is."""
    if cell in _SWITCHES:
        return _SWITCHES[cell]
    return int(cell) if cell.isdecimal() else cell


def row_text(found: ImportedConfig) -> str:
    """Return the row as a CSV file of its own."""
    text = io.StringIO()
    stated = {name: cell for name, cell in found.row.items() if cell}
    csv.writer(text, lineterminator="\n").writerows([list(stated), list(stated.values())])
    return text.getvalue().rstrip()


def notes_view(found: ImportedConfig) -> RenderableType:
    """Show what is missing, unknown and ignored."""
    groups = {
        "Not stated, in capitals in the command": found.missing,
        "Not known, or not expressed": found.unknown,
        "Changes nothing here": found.ignored,
    }
    return Group(
        *(sentence(f"{words}: {', '.join(names)}.") for words, names in groups.items() if names)
    )
