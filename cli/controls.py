"""The options of a point as controls of a page, and what a page states as options.

Everything follows from the annotations of `PointOptions`: a new option is a new control.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from typer.models import OptionInfo

from phaze_opt.errors import InputError, unknown_name

from .point_options import PointOptions

ControlKind = Literal["choice", "switch", "whole", "number", "text", "list"]

_LONGEST_TEXT = 2_000
_MOST_IN_LIST = 64


@dataclass(frozen=True)
class Control:
    """One option of a point.

    Attributes
    ----------
    name
        Field of `PointOptions`.
    kind
        ``choice`` of words, ``switch``, ``whole`` or other ``number``, ``text``, or a ``list`` of
        texts.
    help
        One sentence.
    flag, off
        The option of the command line, and the one that turns a switch off.
    choices
        Of a choice.
    default
        As text; ``None`` where the option must be stated.
    """

    name: str
    kind: ControlKind
    help: str
    flag: str
    off: str
    choices: tuple[str, ...]
    default: str | None

    @property
    def label(self) -> str:
        """The name as people write it."""
        return "changed numbers" if self.name == "changes" else self.name.replace("_", " ")

    def read(self, texts: Sequence[str]) -> Any:
        """Read what a page states, as the type of the option.

        Raises
        ------
        InputError
            If it is not allowed.
        """
        if self.kind == "list":
            return list(texts) or None
        if len(texts) > 1:
            raise InputError(f"{self.name} is stated {len(texts)} times; state it once.")
        text = texts[0]
        if self.kind == "text":
            return text
        if self.kind == "choice":
            if text not in self.choices:
                raise unknown_name(self.label, text, self.choices)
            return text
        if self.kind == "switch":
            if text not in ("true", "false"):
                raise InputError(f"{self.name} is {text!r}, but it must be true or false.")
            return text == "true"
        return _number(self.name, text, whole=self.kind == "whole")


@functools.cache
def controls() -> tuple[Control, ...]:
    """Return a control for every option of a point, in their order."""
    hints = typing.get_type_hints(PointOptions, include_extras=True)
    return tuple(_control(field, hints[field.name]) for field in dataclasses.fields(PointOptions))


def stated_options(stated: Mapping[str, Sequence[str]]) -> PointOptions:
    """Read the options of a point as a page states them.

    Parameters
    ----------
    stated
        Texts by the names of the options; what is empty is not stated.

    Raises
    ------
    InputError
        If an option is unknown or missing, or its value is not allowed.
    """
    known = {control.name: control for control in controls()}
    values: dict[str, Any] = {}
    for name, texts in stated.items():
        if name not in known:
            raise unknown_name("option", name[:100], known)
        if len(texts) > _MOST_IN_LIST or max(map(len, texts), default=0) > _LONGEST_TEXT:
            raise InputError(f"{name} is longer than anything that it could mean.")
        given = [text for text in texts if text]
        if given:
            values[name] = known[name].read(given)
    for control in known.values():
        if control.default is None and control.name not in values:
            raise InputError(f"{control.name} is missing.")
    return PointOptions(**values)


def _control(field: dataclasses.Field[Any], hint: Any) -> Control:
    """Describe the option of a field by its annotation."""
    declared, option = get_args(hint)
    assert isinstance(option, OptionInfo)
    optional = get_origin(declared) in (typing.Union, types.UnionType)
    parts = [part for part in get_args(declared) if part is not type(None)] if optional else []
    plain = parts[0] if parts else declared
    required = field.default is dataclasses.MISSING
    # Of an annotation, typer takes the first name for the default.
    names = (option.default, *(option.param_decls or ()))
    flags = [name for name in names if isinstance(name, str) and name.startswith("--")]
    flag, _, off = (flags[0] if flags else f"--{field.name.replace('_', '-')}").partition("/")
    return Control(
        name=field.name,
        kind=_kind(plain),
        help=str(option.help or ""),
        flag=flag,
        off=off,
        choices=tuple(map(str, get_args(plain))) if get_origin(plain) is Literal else (),
        default=None if required else _text(field.default),
    )


def _kind(plain: Any) -> ControlKind:
    """Return the kind of control that a type has."""
    if get_origin(plain) is Literal:
        return "choice"
    kinds: dict[Any, ControlKind] = {
        bool: "switch",
        int: "whole",
        float: "number",
        str: "text",
        list[str]: "list",
    }
    return kinds[plain]


def _text(value: object) -> str:
    """Write a default as a page states it; nothing where the option is not stated."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(name: str, text: str, *, whole: bool) -> int | float:
    """Read a number."""
    kind = "a whole number" if whole else "a number"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (whole and not number.is_integer()) or abs(number) > 1e15:
        raise InputError(f"{name} is {text[:40]!r}, but it must be {kind}.")
    return int(number) if whole else number
