"""Documents of a bundle: one JSON value per line, of a known type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from phaze_opt.codec import from_json, to_builtins
from phaze_opt.errors import InputError
from phaze_opt.store.damage import DAMAGES


def line(value: object) -> bytes:
    """Write a document as one line, with sorted keys."""
    text = json.dumps(to_builtins(value), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def lines(data: bytes, kind: type[Any], what: str) -> Iterator[Any]:
    """Read documents of one type, one per line.

    Raises
    ------
    InputError
        If a line is not of this type; ``what`` names the member in the sentence.
    """
    for number, line in enumerate(data.splitlines(), start=1):
        yield from_json(line, kind, f"line {number} of {what}")


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn the errors that a value of a wrong kind causes into one sentence.

    Raises
    ------
    InputError
        In place of every such error; ``what`` is the subject of the sentence.
    """
    try:
        yield
    except InputError:
        raise
    except DAMAGES as error:
        raise InputError(f"{what} is not valid: {error}.") from None
