"""The files of a study and its trials, named by their content instead of a row of a database.

In a database every file has a unique name, which an attribute of its study or trial holds, so that
deleting a file never deletes that of another study. A snapshot names a file by the hash of its
content, name and type: equal studies have equal snapshots, and no file can replace another.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from phaze_opt.codec import from_json
from phaze_opt.errors import InputError
from phaze_opt.spec.frozen import content_hash
from phaze_opt.store.artifacts import ARTIFACT_KEY

_OLD_KEY = "dashboard:artifacts:"
"""Prefix of the attributes in which an older dashboard kept removed files, by row."""

_LONGEST_WORD = 255


@dataclass(frozen=True)
class FileFacts:
    """The description of a file in an attribute; the field names are Optuna's."""

    artifact_id: str
    filename: str
    mimetype: str
    encoding: str | None = None

    def __post_init__(self) -> None:
        for word in (self.artifact_id, self.filename, self.mimetype, self.encoding or ""):
            if len(word) > _LONGEST_WORD or not word.isprintable():
                raise InputError(f"{word[:_LONGEST_WORD]!r} is too long, or not one line.")

    @property
    def key(self) -> str:
        """Key of the attribute."""
        return f"{ARTIFACT_KEY}{self.artifact_id}"

    def named(self, name: str) -> FileFacts:
        """Return the file under another name."""
        return replace(self, artifact_id=name)

    def content_name(self, content: bytes) -> str:
        """Return the hash of a file's content, name and type."""
        digest = hashlib.sha256(content).hexdigest()
        return content_hash([self.filename, self.mimetype, self.encoding, digest])


def files_of(attributes: Mapping[str, Any]) -> list[FileFacts]:
    """List the files that attributes name, without removed and unreadable ones."""
    files = []
    for key, value in attributes.items():
        if key.startswith(ARTIFACT_KEY):
            with suppress(InputError):
                facts = read_facts(value)
                files += [facts] if facts.key == key else []
    return files


def read_facts(value: object) -> FileFacts:
    """Read the description of a file from the value of an attribute.

    Raises
    ------
    InputError
        If it does not describe a file.
    """
    if not isinstance(value, str):
        raise InputError(f"The attribute of a file is {value!r}, but it must be a text.")
    return from_json(value, FileFacts, "attribute of a file")


def file_attributes(files: Iterable[FileFacts]) -> dict[str, str]:
    """Return the attributes that name files."""
    return {facts.key: json.dumps(asdict(facts)) for facts in files}


def without_files(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that name no files."""
    return {
        key: value
        for key, value in attributes.items()
        if not key.startswith((ARTIFACT_KEY, _OLD_KEY))
    }


def named_by_content(
    attributes: Mapping[str, Any], contents: Mapping[str, bytes]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Name the files of a study or trial by their content.

    Parameters
    ----------
    attributes
        System attributes; those of files without content are dropped.
    contents
        Content of files by their names in the database.

    Returns
    -------
    attributes, contents
        System attributes with the new names, and the content of files by their new names.
    """
    named = {}
    files = []
    for facts in files_of(attributes):
        content = contents.get(facts.artifact_id)
        if content is not None:
            name = facts.content_name(content)
            files.append(facts.named(name))
            named[name] = content
    return without_files(attributes) | file_attributes(files), named


def named_anew(
    attributes: Mapping[str, Any], contents: Mapping[str, bytes]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Name the files by new unique names: the reverse of `named_by_content`."""
    files = [facts for facts in files_of(attributes) if facts.artifact_id in contents]
    names = [str(uuid.uuid4()) for _ in files]
    renamed = [facts.named(name) for facts, name in zip(files, names, strict=True)]
    stored = {name: contents[facts.artifact_id] for facts, name in zip(files, names, strict=True)}
    return without_files(attributes) | file_attributes(renamed), stored


def check_files(attributes: Mapping[str, Any], contents: Mapping[str, bytes]) -> set[str]:
    """Check that each file that attributes name is there, and return the names.

    Raises
    ------
    InputError
        If a file is missing, or its name is not that of its content.
    """
    names = set()
    for key, value in attributes.items():
        if not key.startswith(ARTIFACT_KEY):
            continue
        facts = read_facts(value)
        content = contents.get(facts.artifact_id)
        if facts.key != key or content is None or facts.content_name(content) != facts.artifact_id:
            raise InputError(f"The file {facts.filename!r} is not there, or is another one.")
        names.add(facts.artifact_id)
    return names
