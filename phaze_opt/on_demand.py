"""Values that are found when they are first asked for: of mappings, objects, fields; hashes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")
Class = TypeVar("Class", bound=type[Any])

_HASH = "_hash"
_EQUAL = "_equal_to"

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """That of Python 3.12 and later: without its lock, which takes longer than many values.

        Two threads may both find a value, the same for both.
        """

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = self.func(instance)
            instance.__dict__[self.attrname] = value
            return value


def hashed_once(cls: Class) -> Class:
    """Let the objects of a frozen dataclass keep their hash, which takes as long as they are deep.

    An object that was found equal to another one knows that too, so that two of them are compared
    once, and not whenever a cache is asked for what it has of the other. Neither is written with an
    object: hashes of text differ between processes.
    """
    kind: Any = cls
    find: Callable[[Any], int] = kind.__hash__
    compare: Callable[[Any, object], bool] = kind.__eq__

    def kept(self: Any) -> int:
        known: int | None = self.__dict__.get(_HASH)
        if known is None:
            known = self.__dict__[_HASH] = find(self)
        return known

    def equal(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return compare(self, other)
        first = self.__dict__.get(_EQUAL, self)
        if other.__dict__.get(_EQUAL, other) is first:
            return True
        found = compare(self, other)
        if found:
            other.__dict__[_EQUAL] = first
        return found

    def state(self: Any) -> dict[str, Any]:
        return {name: own for name, own in self.__dict__.items() if name not in (_HASH, _EQUAL)}

    kind.__hash__, kind.__eq__, kind.__getstate__ = kept, equal, state
    return cls


class Deferred(Generic[V]):
    """Stands for the value of a field until somebody reads it; see `deferrable`."""

    def __init__(self, find: Callable[[], V]) -> None:
        self._find: Callable[[], V] | None = find

    def value(self) -> V:
        """Return the value, which is found once; where that fails, it is tried again."""
        if self._find is not None:
            self._value = self._find()
            # What finding it took is no longer held.
            self._find = None
        return self._value

    to_plain = value
    """For `phaze_opt.codec`, which reads the fields of an object past their descriptions."""


def deferred(find: Callable[[], V]) -> V:
    """Return what stands for a value where a `deferrable` field is given."""
    return cast(V, Deferred(find))


class _DeferrableField:
    """Describes a field whose value may be `Deferred`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            # As of any other field without a default.
            raise AttributeError(self._name)
        value = instance.__dict__[self._name]
        if isinstance(value, Deferred):
            value = instance.__dict__[self._name] = value.value()
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = value


def deferrable(*names: str) -> Callable[[Class], Class]:
    """Let fields of a frozen dataclass be given as `deferred`: who reads one gets the value.

    So does whoever compares, copies, pickles, writes or replaces the object.
    """

    def state(self: Any) -> dict[str, Any]:
        return {**self.__dict__, **{name: getattr(self, name) for name in names}}

    def decorate(cls: Class) -> Class:
        kind: Any = cls
        for name in names:
            setattr(kind, name, _DeferrableField(name))
        kind.__getstate__ = state
        return cls

    return decorate


def with_fields(instance: V, **values: object) -> V:
    """Return a copy of a frozen dataclass with other values of some fields.

    In contrast to `dataclasses.replace` it finds nothing that is deferred, and checks nothing.
    """
    changed = object.__new__(type(instance))
    changed.__dict__.update(instance.__dict__, **values)
    return changed


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
