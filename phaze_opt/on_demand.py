"""A mapping whose values are found when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class OnDemand(Mapping[K, V]):
    """Values by key, each found once.

    Parameters
    ----------
    keys
        All keys, in order.
    find
        Gives the value of a key.
    """

    def __init__(self, keys: Iterable[K], find: Callable[[K], V]) -> None:
        self._keys = dict.fromkeys(keys)
        self._find = find
        self._found: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        if key not in self._found:
            if key not in self._keys:
                raise KeyError(key)
            self._found[key] = self._find(key)
        return self._found[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
