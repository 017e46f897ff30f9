"""Errors that a person can act on, each with the exit code of the command line.

An error message is one sentence that names the mistake, the value, and the allowed values or the
next step.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class PhazeError(Exception):
    """A failure at run time (a full disk, a lost database); exit code 1."""

    exit_code = 1


class InputError(PhazeError, ValueError):
    """A value, key, name or file that is not allowed; exit code 2."""

    exit_code = 2


class NotFoundError(PhazeError):
    """A study or a file that does not exist; exit code 3."""

    exit_code = 3


class ConflictError(PhazeError):
    """A thing that exists already, or has another version or hash; exit code 4."""

    exit_code = 4


class InfeasibleError(PhazeError):
    """A well-posed problem without a solution; exit code 5.

    Parameters
    ----------
    message
        Names the limit that is exceeded, and by how much.
    violation
        Relative excess over that limit (0.25: a quarter above it).
    """

    exit_code = 5

    def __init__(self, message: str, violation: float = 0.0) -> None:
        super().__init__(message)
        self.violation = violation

    def again(self) -> InfeasibleError:
        """Return an equal error that was not raised before."""
        return InfeasibleError(str(self), self.violation)


def unknown_name(what: str, name: object, allowed: Iterable[str]) -> InputError:
    """Build the error for a name outside a closed set, with the nearest allowed one.

    Parameters
    ----------
    what
        The kind of name, for example ``"preset"``.
    name
        The value that was given.
    allowed
        All names that would have been accepted.
    """
    choices = sorted(allowed)
    near = difflib.get_close_matches(str(name), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"Unknown {what} {str(name)!r}.{hint} Allowed: {', '.join(choices)}.")


def look_up(table: Mapping[str, T], name: str, what: str) -> T:
    """Return the entry of a table.

    Parameters
    ----------
    table
        Entries by name.
    name
        Name of the entry.
    what
        Noun of the entries, for example ``"preset"``.

    Raises
    ------
    InputError
        If there is no such entry.
    """
    if name not in table:
        raise unknown_name(what, name, table)
    return table[name]
