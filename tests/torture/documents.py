"""Files that a person or a program wrote, changed at random, and the commands that read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tests.torture.answering import ask, file_hashes, in_folder, why_wrong
from tests.torture.case import Outcome, Setting
from tests.torture.mutation import mutated_bytes, mutated_plain, to_toml


@dataclass(frozen=True)
class Document:
    """A sound file.

    Attributes
    ----------
    name
        Of the file.
    content
        What it holds; JSON and TOML are also changed as data.
    commands
        What reads it, with ``{}`` for the file.
    """

    name: str
    content: bytes
    commands: tuple[tuple[str, ...], ...]


def plain_json(content: bytes) -> Callable[[Random], bytes]:
    """Return what changes a JSON document as data."""
    plain = json.loads(content)
    return lambda random: json.dumps(mutated_plain(random, plain)).encode()


def plain_toml(content: bytes) -> Callable[[Random], bytes]:
    """Return what changes a TOML document as data."""
    import tomllib

    plain = tomllib.loads(content.decode())

    def change(random: Random) -> bytes:
        changed = mutated_plain(random, plain)
        return to_toml(changed).encode() if isinstance(changed, dict) else b""

    return change


def answer_documents(
    setting: Setting,
    documents: Sequence[Document],
    change: Callable[[Document], Callable[[Random], bytes]] | None = None,
) -> Iterator[Outcome]:
    """Change a document, and ask one of its commands.

    Parameters
    ----------
    documents
        Of which one is drawn for each try.
    change
        Gives what changes a document otherwise than byte by byte; by its name where there is none.
    """
    changes = {one.name: _changes(one) if change is None else change(one) for one in documents}
    with in_folder(setting.folder):
        for number in setting.numbers():
            random = setting.random(number)
            document = random.choice(documents)
            as_data = random.random() < 0.7
            make = changes[document.name] if as_data else _bytes_of(document)
            path = setting.folder / document.name
            path.write_bytes(make(random))
            command = [part.format(document.name) for part in random.choice(document.commands)]
            before = file_hashes(setting.folder)
            outcome = why_wrong(ask(command), before, file_hashes(setting.folder))
            yield None if outcome is None else f"{' '.join(command)}: {outcome}"


def _changes(document: Document) -> Callable[[Random], bytes]:
    """Return what changes a document as data, by the end of its name."""
    if document.name.endswith(".json"):
        return plain_json(document.content)
    return plain_toml(document.content)


def _bytes_of(document: Document) -> Callable[[Random], bytes]:
    """Return what changes the bytes of a document."""
    return lambda random: mutated_bytes(random, document.content)
