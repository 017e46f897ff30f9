"""The indexes in the package docstrings name what there is."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import phaze_opt

ENTRY = re.compile(r"`{1,2}((?:phaze_opt\.)?[a-z_]+(?:\.[A-Za-z_]+)+)`{1,2}")
FILE_ENDINGS = ("toml", "csv", "json", "py")


def packages() -> list[str]:
    """Name every package of the project below the root."""
    found = pkgutil.walk_packages(phaze_opt.__path__, "phaze_opt.")
    return sorted(module.name for module in found if module.ispkg and ".cli" not in module.name)


def entries(package: str) -> Iterator[str]:
    """Yield what a package's docstring names by module and name."""
    text = importlib.import_module(package).__doc__ or ""
    for name in ENTRY.findall(text):
        if name.rpartition(".")[2] not in FILE_ENDINGS:
            yield name


def exists(package: str, name: str) -> bool:
    """Whether the longest part of a name that is a module holds the rest of it."""
    parts = (name if name.startswith("phaze_opt.") else f"{package}.{name}").split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            fields = getattr(value, "__annotations__", {})
            if not hasattr(value, attribute) and attribute not in fields:
                return False
            value = getattr(value, attribute, None)
        return True
    return False


@pytest.mark.parametrize("package", packages())
def test_every_entry_of_an_index_exists(package: str) -> None:
    """What the docstring of a room points to can be found there."""
    missing = [name for name in entries(package) if not exists(package, name)]
    assert missing == []
