"""Captures that runs of the tests share, for as long as they would be the same.

Tracing a block takes a quarter of a second, and most tests of this room look at what was traced.
What they capture is therefore kept in a folder whose name is the hash of all that decides it: the
modules and data of `phaze_opt.workload` and of every room that it imports, the modules of these
tests, Python and torch. After a change of any of them nothing is found, and all is captured anew,
as it is in a fresh checkout and after ``pytest --cache-clear``. `test_golden`, `test_captures`,
`test_shipped`, `test_capture`, `test_repeated_layers` and laws of random shapes capture in every
run.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import ParamSpec, TypeVar, get_type_hints

import msgspec

import phaze_opt
from phaze_opt.codec import to_json, write_whole
from phaze_opt.workload.cache import cache_folder

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE = Path(phaze_opt.__file__).parent
_IMPORTED = re.compile(r"^\s*(?:from|import) phaze_opt\.(\w+)", re.MULTILINE)


def kept(capture: Callable[P, R]) -> Callable[P, R]:
    """Keep what a function captures: in this process, and in the folder of captured workloads.

    Its arguments decide a capture besides what all of them depend on.
    """
    kind, signature = get_type_hints(capture)["return"], inspect.signature(capture)
    known: dict[Path, R] = {}

    def found(*values: P.args, **named: P.kwargs) -> R:
        given = signature.bind(*values, **named)
        given.apply_defaults()
        key = to_json([capture.__module__, capture.__qualname__, given.arguments])
        path = cache_folder() / "captures" / f"{hashlib.sha256(key).hexdigest()[:40]}.json"
        if path not in known:
            try:
                known[path] = msgspec.json.decode(path.read_bytes(), type=kind)
            except FileNotFoundError:
                known[path] = capture(*values, **named)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, to_json(known[path]))
        return known[path]

    return found


def rooms_of_captures(package: Path = PACKAGE) -> list[str]:
    """Return the rooms and modules of the package that `phaze_opt.workload` imports, and itself."""
    found, left = {"workload"}, ["workload"]
    while left:
        for path in _files(package, left.pop()):
            if path.suffix == ".py":
                imported = set(_IMPORTED.findall(path.read_text("utf-8"))) - found
                found |= imported
                left += imported
    return sorted(found)


def hash_of_captures(package: Path = PACKAGE) -> str:
    """Return the hash of all that decides what is captured."""
    found = hashlib.sha256(f"{platform.python_version()} {version('torch')}".encode())
    files = [path for room in rooms_of_captures(package) for path in _files(package, room)]
    for path in (*files, *sorted(Path(__file__).parent.glob("*.py"))):
        found.update(f"\n{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _files(package: Path, room: str) -> list[Path]:
    """Return the files of a room, or of a module that is none, without what Python compiles."""
    module = package / f"{room}.py"
    inside = (package / room).rglob("*")
    files = [module] if module.exists() else [path for path in inside if path.is_file()]
    return sorted(path for path in files if path.parent.name != "__pycache__")
