"""Tables in Markdown, and what a docstring says of the attributes of its class."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Sequence

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> str:
    """Write a table.

    Parameters
    ----------
    head
        Names of the columns.
    rows
        Cells by row; ``None`` leaves a cell empty.
    align
        For each column ``<`` or ``>``; by default all stand left.
    """
    bars = ["---:" if side == ">" else "---" for side in align.ljust(len(head), "<")]
    lines = [head, bars, *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def attributes(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of each attribute, each in one line.

    Raises
    ------
    ValueError
        If the docstring has no section for attributes.
    """
    parts = _SECTION.split(inspect.getdoc(kind) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if "Attributes" not in sections:
        raise ValueError(f"The docstring of {kind.__name__} says nothing of its attributes.")
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in sections["Attributes"].splitlines():
        if line and not line[0].isspace():
            names = re.split(r",\s*", line.strip())
            found |= {name: [] for name in names}
        else:
            for name in names:
                found[name].append(line.strip())
    return {name: " ".join(lines).strip() for name, lines in found.items()}


def defaults(kind: type) -> dict[str, str]:
    """Return the default of each field of a dataclass as code, empty where there is none."""
    found = {}
    for entry in dataclasses.fields(kind):
        if entry.default is not dataclasses.MISSING:
            found[entry.name] = code(_written(entry.default))
        else:
            found[entry.name] = ""
    return found


def code(text: str) -> str:
    """Write text as code, unless it is empty."""
    return f"`{text}`" if text else ""


def plain(text: str) -> str:
    """Return text in which Markdown sees no links and no tags."""
    return re.sub(r"([\\[<])", r"\\\1", text)


def _written(value: object) -> str:
    """Write a default as a study file or a chip file has it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(value: object) -> str:
    """Write one cell in one line."""
    text = "" if value is None else str(value)
    return " ".join(text.split()).replace("|", "\\|")
