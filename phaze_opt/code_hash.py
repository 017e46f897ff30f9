"""The hash of the code that decides numbers: two builds may call themselves one cost model."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

_PACKAGE = Path(__file__).parent
_SHOWING = ("calibration", "cli", "explanation", "report", "validation")
"""Rooms that only show numbers, or make files that a study holds itself."""

_KINDS = (".py", ".toml", ".csv", ".zip")
_LETTERS = 12


@functools.cache
def code_hash() -> str:
    """Return the hash of the package's modules and data files that can change a number.

    It is found once per process, of the files as they are then, in some milliseconds.
    """
    return hash_of(_PACKAGE)


def hash_of(package: Path) -> str:
    """Hash the files of a package by their names and content, whatever else lies there."""
    found = hashlib.sha256()
    for folder, below, names in os.walk(package):
        room = os.path.relpath(folder, package)
        below[:] = sorted(name for name in below if name not in (*_SHOWING, "__pycache__"))
        for name in sorted(names):
            if name.endswith(_KINDS):
                content = Path(folder, name).read_bytes()
                found.update(f"{room} {name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return found.hexdigest()[:_LETTERS]
