"""The data files of the project as a dataset: each with its columns, its source and its licence.

What the columns mean is in ``docs/dataset.toml``, or said of the field of
`phaze_opt.training.Training` that has the name; where rows come from is in the TOML file beside
each. The descriptor is a data package (specs.frictionlessdata.io/data-package, version 1).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

from docs.tools.tables import attributes, plain, table
from phaze_opt.codec import read_toml_file
from phaze_opt.training import Training

ROOT = Path(__file__).parents[2]
DESCRIPTOR = "dataset/datapackage.json"
_KNOWN_LICENCES = re.compile(r"Apache-2\.0|BSD-3-Clause|CC BY-SA 4\.0|MIT")
_TYPES = {bool: "boolean", int: "integer", float: "number"}


@cache
def described() -> dict[str, Any]:
    """Return what ``docs/dataset.toml`` says."""
    return read_toml_file(ROOT / "docs" / "dataset.toml", "description of the dataset")


def data_files() -> list[Path]:
    """Return the files of the dataset."""
    return sorted([*ROOT.glob("phaze_opt/**/data/*.csv"), *ROOT.glob("docs/peers/*.csv")])


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a file."""
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        return list(reader.fieldnames or ()), list(reader)


def field_of(column: str) -> dict[str, str]:
    """Describe a column.

    Raises
    ------
    KeyError
        If nothing is known of it.
    """
    known = described()["field"]
    if column in known:
        kind, meaning = known[column]
    else:
        kind = _TYPES.get(get_type_hints(Training)[column], "string")
        meaning = attributes(Training)[column]
    return {"name": column, "type": kind, "description": meaning}


def sources_of(path: Path) -> list[dict[str, str]]:
    """Say where the rows of a file come from, and under which licence, by publication.

    Raises
    ------
    KeyError
        If nothing is known of it.
    """
    name = path.relative_to(ROOT).as_posix()
    if not path.with_suffix(".toml").exists():
        stated = described()["file"][name]
        return [{"title": stated["measured_by"], "licence": stated["licence"]}]
    stated = read_toml_file(path.with_suffix(".toml"), "source of a table")
    tables = [stated] if "measured_by" in stated else [*stated.values()]
    return [
        {"title": own["measured_by"], "licence": own.get("licence", "not stated")}
        for own in tables
        if isinstance(own, Mapping)
    ]


def resource_of(path: Path) -> dict[str, Any]:
    """Describe a file as a resource of the data package."""
    columns, rows = read(path)
    sources = sources_of(path)
    texts = list(dict.fromkeys(each["licence"] for each in sources))
    names = list(dict.fromkeys(name for text in texts for name in _KNOWN_LICENCES.findall(text)))
    return {
        "name": path.stem,
        "path": path.name,
        "profile": "tabular-data-resource",
        "format": "csv",
        "encoding": "utf-8",
        "description": f"{len(rows)} rows of {path.relative_to(ROOT).as_posix()}",
        "schema": {"fields": list(map(field_of, columns)), "missingValues": [""]},
        "sources": [{"title": each["title"]} for each in sources],
        "licenses": [{"name": name.replace(" ", "-")} for name in names],
        "rights": "; ".join(texts),
    }


def descriptor() -> str:
    """Write the data package."""
    package = {
        "name": "phaze-opt-measured",
        "title": "Measured operators and training runs of accelerators, and predictions of others",
        "profile": "tabular-data-package",
        "resources": list(map(resource_of, data_files())),
    }
    return json.dumps(package, indent=1, ensure_ascii=False) + "\n"


def dataset_table() -> str:
    """Write a line for every file: rows, columns, sources, licences."""
    lines = [
        (
            f"[{path.name}](dataset/{path.name})",
            str(len(read(path)[1])),
            str(len(own["schema"]["fields"])),
            plain("; ".join(each["title"] for each in own["sources"])),
            plain(own["rights"]),
        )
        for path in data_files()
        for own in (resource_of(path),)
    ]
    return table(("file", "rows", "columns", "from", "licence, as stated"), lines, "<>><<")


def columns_table() -> str:
    """Write what every column means."""
    found = sorted({column for path in data_files() for column in read(path)[0]})
    lines = [(f"`{own['name']}`", own["type"], own["description"]) for own in map(field_of, found)]
    return table(("column", "type", "meaning"), lines)


DATASET_FILES: Mapping[str, Callable[[], str]] = {
    DESCRIPTOR: descriptor,
    **{f"dataset/{path.name}": partial(path.read_text, "utf-8") for path in data_files()},
}
"""Files by path in the site."""
