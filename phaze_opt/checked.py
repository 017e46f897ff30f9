"""Values of a wrong type are refused at the edge, in one sentence, by what is annotated.

A function of the public interface is decorated with `checked`, a dataclass of it calls
`check_fields` in ``__post_init__``. What their annotations say is read once, when it is first
needed. A value whose type is the annotated one costs a look into a set; nothing inside the program
is checked again.

Numbers of other libraries become Python's, whole numbers that are written as 1e6 too, and lists
become tuples where a tuple is annotated. ``None``, switches and NaN are no numbers. Members of
mappings are not looked at: a cache may be a database.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import operator
import os
import reprlib
import types
import typing
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar

from phaze_opt.errors import InputError
from phaze_opt.on_demand import Deferred

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = ParamSpec("P")
R = TypeVar("R")

Named = Annotated[str | os.PathLike[str], "the name or the path of one"]
"""Stands for an object where one is expected; annotated again where it stands alone."""

_WRONG: Any = object()
_ANY: frozenset[type] = frozenset()


class _Allowed(NamedTuple):
    """What an annotation allows.

    Attributes
    ----------
    words, several
        What it allows, and a list of it: "a number", "numbers".
    types
        Exact types whose values are all allowed, as they are.
    fitted
        Returns any other value as it is used, or `_WRONG`.
    """

    words: str
    several: str
    types: frozenset[type]
    fitted: Callable[[Any], Any]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function refuse arguments that are not of the annotated types.

    A keyword that it does not have, or a missing one, stays Python's `TypeError`.
    """
    signature = inspect.signature(function)
    by_place, by_name, others = [], set(), ""
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_place.append(name)
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_name.add(name)
        if parameter.kind is parameter.VAR_KEYWORD:
            others = name

    @functools.cache
    def kinds() -> dict[str, _Allowed]:
        hints = typing.get_type_hints(function, include_extras=True)
        return {name: _kind(hints.get(name, Any)) for name in signature.parameters}

    @functools.wraps(function)
    def edge(*arguments: P.args, **keywords: P.kwargs) -> R:
        allowed = kinds()
        places = zip(by_place, arguments, strict=False)
        given = [_argument(name, value, allowed[name]) for name, value in places]
        for name, value in keywords.items():
            declared = name if name in by_name else others
            if declared:
                keywords[name] = _argument(name, value, allowed[declared])
        # Python itself says which argument is one too many, or missing.
        taken: Any = (*given, *arguments[len(given) :])
        return function(*taken, **keywords)

    return edge


def check_fields(value: DataclassInstance) -> None:
    """Refuse fields of a dataclass that are not of the annotated types.

    For use at the start of ``__post_init__``. Fields that are found when they are read are left
    alone.

    Raises
    ------
    InputError
        Naming the first field that is wrong.
    """
    fields = value.__dict__
    for name, kind, types_, fitted in _field_kinds(type(value)):
        field = fields[name]
        if type(field) in types_ or fitted(field) is field:
            continue
        if type(field) is not Deferred:
            object.__setattr__(value, name, _argument(name, field, kind))


@functools.cache
def _field_kinds(
    kind: type[DataclassInstance],
) -> list[tuple[str, _Allowed, frozenset[type], Callable[[Any], Any]]]:
    """Return what the fields of a dataclass allow, by name; the parts that decide stand beside."""
    hints = typing.get_type_hints(kind, include_extras=True)
    kinds = {field.name: _kind(hints[field.name]) for field in dataclasses.fields(kind)}
    return [(name, allowed, allowed.types, allowed.fitted) for name, allowed in kinds.items()]


def _argument(name: str, value: Any, kind: _Allowed) -> Any:
    """Return a value as it is used; `InputError` where it is not allowed."""
    if type(value) in kind.types:
        return value
    fitted = kind.fitted(value)
    if fitted is _WRONG:
        raise _refusal(name, value, kind)
    return fitted


def refusal(name: str, value: object, annotation: Any) -> InputError:
    """Build the error for a value of which somebody else found that it is not as annotated."""
    return _refusal(name, value, _kind(annotation))


def _refusal(name: str, value: object, kind: _Allowed) -> InputError:
    """Build the error for a value."""
    return InputError(f"{name} is {shown(value)}, but it must be {kind.words}.")


def shown(value: object) -> str:
    """Write any value on one line that a person reads to the end."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    try:
        text = short.repr(value)
    except Exception:  # as of an integer of a million digits
        text = f"of the type {type(value).__name__}"
    return " ".join(text.split())


@functools.cache
def _kind(annotation: Any) -> _Allowed:
    """Read an annotation."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Annotated:
        words = str(inside[-1])
        return _kind(inside[0])._replace(words=words, several=f"values, each {words}")
    if origin in (typing.Union, types.UnionType):
        return _one_of([_kind(member) for member in inside])
    if origin is Literal:
        return _words(inside)
    if origin is tuple and inside[-1:] != (...,):
        return _fixed([_kind(member) for member in inside])
    if origin in (tuple, list, collections.abc.Sequence):
        return _list(_kind(inside[0]))
    if origin is collections.abc.Callable or getattr(annotation, "_is_protocol", False):
        return _Allowed("a function", "functions", _ANY, lambda v: v if callable(v) else _WRONG)
    return _instance(origin or annotation)


def _one_of(members: Sequence[_Allowed]) -> _Allowed:
    """Allow what one of several kinds allows; the first that does says how the value is used."""
    fits = [member.fitted for member in members]

    def fitted(value: Any) -> Any:
        for fits_member in fits:
            as_used = fits_member(value)
            if as_used is not _WRONG:
                return as_used
        return _WRONG

    words = _joined(dict.fromkeys(member.words for member in members))
    exact = frozenset().union(*(member.types for member in members))
    return _Allowed(words, f"values that each are {words}", exact, fitted)


def _words(allowed: Sequence[Any]) -> _Allowed:
    """Allow some words."""
    words = _joined(map(str, allowed))
    known = frozenset(allowed)

    def fitted(value: Any) -> Any:
        return value if isinstance(value, str) and value in known else _WRONG

    return _Allowed(words, f"words, each {words}", _ANY, fitted)


def _fixed(members: Sequence[_Allowed]) -> _Allowed:
    """Allow a list of so many values."""

    def fitted(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(members):
            return _WRONG
        return _all_or_none(value, [*map(_fit, members, value)])

    words = f"a list of {len(members)}: {', '.join(member.words for member in members)}"
    return _Allowed(words, f"lists, each {words}", _ANY, fitted)


def _list(member: _Allowed) -> _Allowed:
    """Allow a list of any number of values."""

    def fitted(value: Any) -> Any:
        if type(value) is tuple and member.types.issuperset(map(type, value)):
            return value
        if not isinstance(value, Sequence | Set) or isinstance(value, str | bytes | bytearray):
            return _WRONG
        return _all_or_none(value, [_fit(member, entry) for entry in value])

    words = f"a list of {member.several}"
    return _Allowed(words, f"lists, each {words}", _ANY, fitted)


def _fit(member: _Allowed, value: Any) -> Any:
    """Return a member of a list as it is used, or `_WRONG`."""
    return value if type(value) in member.types else member.fitted(value)


def _all_or_none(value: Any, members: list[Any]) -> Any:
    """Return the members of a list as a tuple; a tuple that holds them already stays the same."""
    if any(member is _WRONG for member in members):
        return _WRONG
    same = type(value) is tuple and all(map(operator.is_, value, members))
    return value if same else tuple(members)


def _instance(kind: Any) -> _Allowed:
    """Allow the objects of a class, or what behaves as an abstract one says."""
    is_mapping = issubclass(kind, collections.abc.Mapping)
    name = "dict" if is_mapping else kind.__name__
    article = "an" if name[0] in "AEIOU" else "a"
    exact = {kind, dict} if is_mapping and issubclass(dict, kind) else {kind}

    def fitted(value: Any) -> Any:
        return value if isinstance(value, kind) else _WRONG

    return _Allowed(
        f"{article} {name}", f"objects, each {article} {name}", frozenset(exact), fitted
    )


def _joined(words: typing.Iterable[str]) -> str:
    """Join words by commas, the last two by "or"."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _whole(value: Any) -> Any:
    """Return a whole number, however it is written."""
    if isinstance(value, bool):
        return _WRONG
    if isinstance(value, numbers.Integral):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else _WRONG


def _number(value: Any) -> Any:
    """Return a number that a double can hold; infinity is one."""
    if isinstance(value, float):
        return _WRONG if math.isnan(value) else value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return _WRONG
    try:
        as_double = float(value)
    except OverflowError:
        return _WRONG
    return value if isinstance(value, int) else _number(as_double)


def _none(value: Any) -> Any:
    """Return nothing."""
    return _WRONG if value is not None else None


def _text(value: Any) -> Any:
    """Return text."""
    return value if isinstance(value, str) else _WRONG


_PLAIN: dict[Any, _Allowed] = {
    Any: _Allowed("anything", "values", _ANY, lambda value: value),
    object: _Allowed("anything", "values", _ANY, lambda value: value),
    int: _Allowed("a whole number", "whole numbers", frozenset({int}), _whole),
    float: _Allowed("a number", "numbers", _ANY, _number),
    bool: _Allowed("True or False", "True or False", frozenset({bool}), lambda value: _WRONG),
    str: _Allowed("text", "texts", frozenset({str}), _text),
    type(None): _Allowed("None", "None", frozenset({type(None)}), _none),
}
