"""The choice and order of trials in a list: conditions and a sort key over their cells."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from phaze_opt.errors import InputError, unknown_name
from phaze_opt.limits import MOST_TRIALS, check_size
from phaze_opt.study.trials import TrialRecord, trial_to_json_dict

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
Condition = tuple[str, Callable[[Any, Any], bool], str]
"""Key, comparison and value."""

_CONDITION = re.compile(r"\s*([A-Za-z0-9_.]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")


def choose_trials(
    read: Callable[[Sequence[int] | None], Iterable[TrialRecord]],
    *,
    where: Sequence[str] = (),
    sort: str | None = None,
    limit: int | None = None,
) -> Iterator[TrialRecord]:
    """Yield the trials that fulfil all conditions, sorted, up to a limit, as they are read.

    Trials are read a second time if they are sorted and not limited.

    Parameters
    ----------
    read
        Reads trials: all of them by number, or those of some numbers in their order.
    where
        Conditions such as ``"num_tc>=8"`` or ``"state=feasible"`` over the keys of a row. A trial
        without the value fulfils no condition on it.
    sort
        Sort key, smallest first; with a leading ``-`` largest first. Trials without the value come
        last.
    limit
        Largest number of trials.

    Raises
    ------
    InputError
        If the limit is below 1 or above `MOST_TRIALS`, a condition cannot be read, or no trial has
        such a key; then no trial is yielded.
    """
    if limit is not None:
        check_size("limit", limit, MOST_TRIALS)
    conditions = [_read_condition(condition) for condition in where]
    if not conditions and sort is None:
        return islice(iter(read(None)), limit)
    chosen = _fulfilling(read(None), conditions, sort)
    if sort is None:
        return islice((trial for trial, _ in chosen), limit)
    return _sorted(read, chosen, sort.startswith("-"), limit)


def _fulfilling(
    trials: Iterable[TrialRecord], conditions: Sequence[Condition], sort: str | None
) -> Iterator[tuple[TrialRecord, Any]]:
    """Yield the trials that fulfil all conditions, each with its cell of the sort key."""
    key = None if sort is None else sort.removeprefix("-")
    # A trial that fulfils a condition has its key: an unknown key is found out at the end, and
    # nothing was yielded.
    keys: dict[str, None] = {}
    for trial in trials:
        row = trial_to_json_dict(trial)
        keys |= dict.fromkeys(row)
        if all(_fulfils(row.get(name), compare, value) for name, compare, value in conditions):
            yield trial, row.get(key) if key is not None else None
    for name in (*(name for name, _, _ in conditions), *([] if key is None else [key])):
        _require_key(name, keys)


def _sorted(
    read: Callable[[Sequence[int] | None], Iterable[TrialRecord]],
    chosen: Iterable[tuple[TrialRecord, Any]],
    descending: bool,
    limit: int | None,
) -> Iterator[TrialRecord]:
    """Yield trials by their cells; those without a cell come last, by number."""
    known: list[tuple[tuple[int, Any], int]] = []
    unknown: list[int] = []
    for trial, cell in chosen:
        if cell is not None:
            known.append((_sort_key(cell), trial.number))
        else:
            unknown.append(trial.number)
    known.sort(key=itemgetter(0), reverse=descending)
    return iter(read([*(number for _, number in known), *unknown][:limit]))


def _require_key(key: str, keys: dict[str, None]) -> None:
    """Refuse a key that no trial has, unless there are no trials yet."""
    if keys and key not in keys:
        raise unknown_name("key of a trial:", key, keys)


def _read_condition(condition: str) -> Condition:
    """Split a condition into key, comparison and value."""
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise InputError(
            f"The condition {condition!r} cannot be read; it must be as num_tc>=8 or "
            "state=feasible."
        )
    key, sign, value = match.groups()
    return key, _OPERATORS[sign], value


def _fulfils(cell: Any, compare: Callable[[Any, Any], bool], value: str) -> bool:
    """Whether a cell fulfils a comparison with a value; numbers are compared as numbers."""
    if cell is None:
        return False
    try:
        return compare(float(cell), float(value))
    except (TypeError, ValueError):
        shown = str(cell).lower() if isinstance(cell, bool) else str(cell)
        return compare(shown, value)


def _sort_key(cell: Any) -> tuple[int, Any]:
    """Order cells of one column, numbers before words."""
    return (0, float(cell)) if isinstance(cell, bool | int | float) else (1, str(cell))
