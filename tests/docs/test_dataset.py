"""The data files as a dataset: all listed, every column described, source and licence said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from docs.tools.dataset import ROOT, data_files, described, descriptor, field_of, read, resource_of

READ: Mapping[str, Callable[[str], object]] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": {"true": True, "false": False}.__getitem__,
}


def test_every_data_file_is_listed() -> None:
    """Those that are in the checkout, once each, with sources and what is said of the licence."""
    listed = subprocess.run(
        ["git", "ls-files", "phaze_opt/*.csv", "docs/*.csv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    files = [path.relative_to(ROOT).as_posix() for path in data_files()]
    assert set(listed) <= set(files) and len(files) >= 30
    assert len({path.name for path in data_files()}) == len(files)
    package = json.loads(descriptor())
    assert [own["path"] for own in package["resources"]] == [path.name for path in data_files()]
    for own in package["resources"]:
        assert own["sources"] and all(len(each["title"]) > 5 for each in own["sources"])
        assert own["rights"] and (own["licenses"] or "not " in own["rights"]), own["path"]


@pytest.mark.parametrize("path", data_files(), ids=lambda path: path.name)
def test_columns_have_a_meaning_and_their_type(path: Path) -> None:
    """Every value reads as its column says; an empty one is missing."""
    columns, rows = read(path)
    assert rows and all(None not in row for row in rows)
    fields = resource_of(path)["schema"]["fields"]
    assert [own["name"] for own in fields] == columns
    for own in fields:
        assert len(own["description"]) > 5
        for row in rows:
            if row[own["name"]]:
                READ[own["type"]](row[own["name"]])


def test_nothing_is_described_that_is_not_there() -> None:
    """No column, and no file."""
    columns = {column for path in data_files() for column in read(path)[0]}
    assert set(described()["field"]) <= columns
    assert all((ROOT / name).exists() for name in described()["file"])
    with pytest.raises(KeyError):
        field_of("no such column")
