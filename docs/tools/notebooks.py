"""Runs the notebooks, and writes what they print into them, or says where that differs.

``python -m docs.tools.notebooks`` compares, ``python -m docs.tools.notebooks --write`` writes. Only
text is kept: what cells print and the last value of a cell, without counts and times.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from docs.tools.links import ROOT

FOLDER = ROOT / "docs" / "notebooks"
LONGEST_S = 300
"""No cell takes longer."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def notebooks() -> list[Path]:
    """List the notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> Any:
    """Read a notebook."""
    return nbformat.reads(path.read_text("utf-8"), 4)


def executed(path: Path) -> Any:
    """Return a notebook with what it prints, run in a folder of its own.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    """
    notebook = read(path)
    paths = (str(Path(sys.executable).parent), os.environ["PATH"])
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT)}
    environment.pop("PHAZE_STORAGE", None)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "studies").symlink_to(ROOT / "studies")
        client = nbclient.NotebookClient(
            notebook, timeout=LONGEST_S, resources={"metadata": {"path": folder}}
        )
        client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = _texts(cell.outputs)
    return notebook


def _texts(outputs: list[Any]) -> list[Any]:
    """Return what a cell printed as one output, and the value of the cell as text."""
    printed = "".join(
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stdout"
    )
    kept = [nbformat.v4.new_output("stream", name="stdout", text=plain(printed))] if printed else []
    for output in outputs:
        if output.output_type == "execute_result":
            value = {"text/plain": plain(output.data["text/plain"])}
            kept.append(nbformat.v4.new_output("execute_result", data=value))
    return kept


def plain(text: str) -> str:
    """Return text without colours, and without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in _COLOUR.sub("", text).split("\n"))


def shown(notebook: Any) -> list[str]:
    """Return the lines that the cells of a notebook print."""
    lines = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            lines += text.splitlines()
    return lines


def write(path: Path) -> None:
    """Run a notebook, and keep what it prints in it."""
    path.write_text(nbformat.writes(executed(path)) + "\n", "utf-8")


def main(arguments: list[str]) -> int:
    """Write the notebooks, or name those that print something else; the exit code."""
    changed = []
    for path in notebooks():
        if "--write" in arguments:
            write(path)
        elif shown(executed(path)) != shown(read(path)):
            changed.append(path.name)
    for name in changed:
        print(f"{name} prints something else; --write keeps it.")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
