"""What readers of configurations share: taking options one by one, and what is left of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

from phaze_opt.checked import shown
from phaze_opt.codec import data_table
from phaze_opt.errors import InputError
from phaze_opt.interchange.imported import FrameworkName, ImportedConfig

_Number = TypeVar("_Number", int, float)


class Options:
    """The options of a configuration, taken one by one.

    Parameters
    ----------
    framework
        Whose they are.
    stated
        Values by name.
    """

    def __init__(self, framework: FrameworkName, stated: Mapping[str, object]) -> None:
        self._framework: FrameworkName = framework
        self._stated = stated
        self._taken: set[str] = set()
        self._said: list[str] = []
        self.row: dict[str, str] = {}

    def take(self, name: str) -> object | None:
        """Return the value of an option, ``None`` where it is not stated."""
        self._taken.add(name)
        return self._stated.get(name)

    def whole(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number, or the default where it is not stated.

        Raises
        ------
        InputError
            If it is none.
        """
        number = self._parsed(name, int, "a whole number")
        return default if number is None else number

    def number(self, name: str) -> float | None:
        """Return a number, ``None`` where it is not stated.

        Raises
        ------
        InputError
            If it is none.
        """
        return self._parsed(name, float, "a number")

    def _parsed(self, name: str, parse: Callable[[str], _Number], words: str) -> _Number | None:
        """Return a number, ``None`` where it is not stated; words say what it must be."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError:
            raise InputError(f"{name} is {shown(text)}, but it must be {words}.") from None

    def positive(self, name: str, default: int = 1) -> int:
        """Return a number of things, at least 1.

        Raises
        ------
        InputError
            If it is none.
        """
        number = self.whole(name, default)
        assert number is not None
        if number < 1:
            raise InputError(f"{name} is {number}, but it must be at least 1.")
        return number

    def text(self, name: str) -> str | None:
        """Return a value as text in small letters.

        Raises
        ------
        InputError
            If it is a list or a table.
        """
        value = self.take(name)
        if isinstance(value, list | dict):  # which may be too long to show
            raise InputError(f"{name} has several values, but it must be one.")
        return None if value is None else str(value).strip().lower()

    def is_on(self, name: str) -> bool:
        """Say whether a switch is stated and on."""
        return self.text(name) in ("true", "1", "yes", "on")

    def say(self, words: str) -> None:
        """Note what cannot be expressed."""
        self._said.append(words)

    def state(self, column: str, value: object) -> None:
        """State a column of the row."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self.row[column] = text

    def state_model(self, model: str | None, described: str, sequence: str) -> None:
        """State the model, and the tokens of a sample.

        Parameters
        ----------
        model
            By its name or shape; ``None`` where neither is known.
        described
            What the configuration says of it, in words.
        sequence
            The option that says how many tokens.
        """
        if model is None:
            self.say(f"{described}: name one with --model")
        self.state("model", model or "")
        if (tokens := self.whole(sequence)) is not None:
            self.state("sequence", tokens)

    def imported(self) -> ImportedConfig:
        """Return what was found, with what nobody took."""
        left = [name for name in self._stated if name not in self._taken]
        ignored = [name for name in left if _is_ignored(self._framework, name)]
        unknown = [name for name in left if name not in ignored]
        return ImportedConfig(
            self._framework, dict(self.row), tuple(ignored), (*self._said, *unknown)
        )


def _is_ignored(framework: FrameworkName, name: str) -> bool:
    """Say whether an option is known to change nothing."""
    exact, beginnings = _ignored(framework)
    return name in exact or name.startswith(beginnings)


@functools.cache
def _ignored(framework: FrameworkName) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names that are ignored, and the beginnings of others."""
    names = data_table("interchange", "ignored.toml")[framework]
    exact = frozenset(name for name in names if not name.endswith("*"))
    return exact, tuple(name[:-1] for name in names if name.endswith("*"))


def model_string(family: str, sizes: Mapping[str, object | None]) -> str | None:
    """Return the shape of a model; ``None`` where a size that it needs is not stated."""
    needed = {
        "gpt": ("layers", "hidden", "heads", "sequence", "vocab"),
        "llama": ("layers", "hidden", "heads", "ffn", "sequence", "vocab"),
        "moe": ("layers", "hidden", "heads", "sequence", "vocab", "experts", "top_k", "expert_ffn"),
    }[family]
    if any(sizes.get(name) is None for name in needed):
        return None
    stated = (f"{name}={value}" for name, value in sizes.items() if value is not None)
    return f"{family}:{','.join(stated)}"
