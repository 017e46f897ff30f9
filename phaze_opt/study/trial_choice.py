"""The choice and order of trials in a list: conditions and a sort key over their cells."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from phaze_opt.errors import InputError, unknown_name
from phaze_opt.study.trials import TrialRecord, trial_to_json_dict

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*([A-Za-z0-9_.]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")


def choose_trials(
    trials: Sequence[TrialRecord],
    *,
    where: Sequence[str] = (),
    sort: str | None = None,
    limit: int | None = None,
) -> list[TrialRecord]:
    """Return the trials that fulfil all conditions, sorted, up to a limit.

    Parameters
    ----------
    trials
        By number.
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
        If a condition cannot be read, or no trial has such a key.
    """
    rows = [(trial, trial_to_json_dict(trial)) for trial in trials]
    keys = dict.fromkeys(key for _, row in rows for key in row)
    for condition in where:
        key, compare, value = _read_condition(condition)
        _require_key(key, keys)
        rows = [(trial, row) for trial, row in rows if _fulfils(row.get(key), compare, value)]
    if sort is not None:
        key = sort.removeprefix("-")
        _require_key(key, keys)
        known = [(trial, row) for trial, row in rows if row.get(key) is not None]
        rest = [(trial, row) for trial, row in rows if row.get(key) is None]
        known.sort(key=lambda pair: _sort_key(pair[1][key]), reverse=sort.startswith("-"))
        rows = known + rest
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}, but it must be at least 1.")
    return [trial for trial, _ in rows[:limit]]


def _require_key(key: str, keys: dict[str, None]) -> None:
    """Refuse a key that no trial has, unless there are no trials yet."""
    if keys and key not in keys:
        raise unknown_name("key of a trial:", key, keys)


def _read_condition(condition: str) -> tuple[str, Callable[[Any, Any], bool], str]:
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
