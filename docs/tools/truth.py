"""The rows of README's table of truth, as ``phaze-opt validate`` has them now.

``python -m docs.tools.truth`` says which rows differ, ``python -m docs.tools.truth --write`` writes
them. Which rows stand there, and in what words, is the README's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from docs.tools.links import ROOT
from docs.tools.measured import accuracy_rows

README = ROOT / "README.md"
_ROW = re.compile(r"^\| ([^|]*\(`([^`]+)`\)) \| ([\w-]+) \|.*\|$", re.MULTILINE)


def with_rows(text: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a text with the figures of the rows that it names.

    Parameters
    ----------
    text
        Holds rows whose first cell ends with the name of a measured table as code, and whose
        second is what was measured.
    rows
        See `accuracy_rows`.

    Raises
    ------
    KeyError
        If no table is of such a name.
    """
    figures = {(name, on): others for name, on, *others in rows}

    def row(match: re.Match[str]) -> str:
        cells = (match[1], match[3], *figures[match[2], match[3]])
        return "| " + " | ".join(cells) + " |"

    return _ROW.sub(row, text)


def main(arguments: list[str]) -> int:
    """Write the rows, or show those that differ; the exit code."""
    text = README.read_text("utf-8")
    now = with_rows(text, accuracy_rows(every=True))
    if "--write" in arguments:
        README.write_text(now, "utf-8")
        return 0
    changed = [line for line in now.splitlines() if line not in text.splitlines()]
    print("\n".join(changed) or "Every row is as measured.")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
