"""Mutations: of bytes, of text, and of plain data that is written as JSON or TOML again."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 2**31, 2**63 - 1, 2**63, 10**30, -(2**63), 10**9, 10**7),
    *(0.0, -0.5, 0.3, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")),
    *("", " ", "x" * 5000, "\x1b[31m[bold]", "../../etc", "$(reboot)", "é\u202e", "nan", "-1"),
    *(None, True, False, [], {}, [[]], [None], {"": 0}, [1, "a"]),
)
"""Values that stand where none of them is meant."""

_TOKENS = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"'", b"[", b"]", b"{", b"}", b"=", b",", b"\n"),
    *(b"1" * 5000, b"-", b"1e999", b"NaN", b"null", b"true", b"[" * 3000, b"\xed\xa0\x80", b"#"),
)


def mutated_bytes(random: Random, content: bytes) -> bytes:
    """Flip, cut, double, insert or swap some bytes."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((1, 2, 8, 64, 4096)))
        match random.choice(("flip", "cut", "truncate", "double", "insert", "zero", "swap")):
            case "flip" if at < len(data):
                data[at] ^= 1 << random.randrange(8)
            case "cut":
                del data[at:end]
            case "truncate" if random.random() < 0.3:
                del data[at:]
            case "double":
                data[at:at] = data[at:end]
            case "insert":
                data[at:at] = random.choice(_TOKENS)
            case "zero":
                data[at:end] = bytes(end - at)
            case "swap":
                other = random.randrange(len(data) + 1)
                data[at:end], data[other : other + end - at] = (
                    data[other : other + end - at],
                    data[at:end],
                )
    return bytes(data)


def mutated_plain(random: Random, plain: Any) -> Any:
    """Replace, remove, rename or double some values of plain data."""
    changed = copy.deepcopy(plain)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = _places(changed)
        if not places:
            return random.choice(HOSTILE)
        holder, key = random.choice(places)
        match random.choice(("value", "value", "value", "scale", "remove", "rename", "double")):
            case "value":
                holder[key] = copy.deepcopy(random.choice(HOSTILE))
            case "scale" if isinstance(holder[key], int | float):
                holder[key] = holder[key] * random.choice((-1, 0, 2, 3, 10, 1000, 10**6, 10**12))
            case "remove":
                del holder[key]
            case "rename" if isinstance(holder, dict):
                holder[random.choice(("", "name", "x", f"{key}s"))] = holder.pop(key)
            case "double" if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
    return changed


def to_toml(plain: dict[str, Any]) -> str:
    """Write plain data as TOML, tables within one line each; ``None`` is left out."""
    lines = (f"{_key(key)} = {_toml(value)}" for key, value in plain.items() if value is not None)
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Write one value."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case dict():
            items = (f"{_key(key)} = {_toml(one)}" for key, one in value.items() if one is not None)
            return "{" + ", ".join(items) + "}"
        case list():
            return "[" + ", ".join(_toml(one) for one in value if one is not None) + "]"
        case _:
            return json.dumps(str(value))


def _key(key: Any) -> str:
    """Write a key, quoted."""
    return json.dumps(str(key))


def _places(plain: Any) -> list[tuple[Any, Any]]:
    """Return every holder with every key or index; of long lists the first and last few."""
    found: list[tuple[Any, Any]] = []
    waiting = [plain]
    while waiting:
        holder = waiting.pop()
        keys: list[Any] = []
        if isinstance(holder, dict):
            keys = list(holder)
        elif isinstance(holder, list):
            size = len(holder)
            keys = [index for index in range(size) if index < 8 or index >= size - 2]
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys]
    return found
