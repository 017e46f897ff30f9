"""A schedule of an instance in time units, and its replay in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Start and mode of every operator of an instance, in time units."""

    start: tuple[int, ...]
    mode: tuple[int, ...]
    makespan: int


def near(makespan: int) -> int:
    """Give the bound from which on a makespan counts as optimal: within 1e-9 of it."""
    return makespan - (makespan >> 30)


def replay(
    start: Sequence[int], end: Sequence[int], duration_s: Sequence[float], origin_s: float
) -> list[float]:
    """Place operators as early as the order of a schedule allows, with other durations.

    Every operator waits for all those that ended before it started. Operators that overlap in the
    result overlapped before; so whatever they shared is still enough, and with durations that
    differ by rounding only the makespan does so too.

    Parameters
    ----------
    start, end
        Of every operator in the schedule to be followed.
    duration_s
        Of every operator in the result.
    origin_s
        Where the result starts.

    Returns
    -------
    Starts in seconds.
    """
    by_start = sorted(range(len(start)), key=lambda index: (start[index], end[index]))
    by_end = sorted(range(len(start)), key=lambda index: (end[index], start[index]))
    start_s = [origin_s] * len(start)
    latest_end_s = origin_s
    passed = 0
    for index in by_start:
        while end[by_end[passed]] <= start[index]:
            before = by_end[passed]
            latest_end_s = max(latest_end_s, start_s[before] + duration_s[before])
            passed += 1
        start_s[index] = latest_end_s
    return start_s
