"""Other ways to schedule a layer, for an ablation; the product has none of these switches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from phaze_opt.arrays import BoolArray
from phaze_opt.scheduling.problem_columns import ProblemColumns
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.scheduling.solve_schedule import solve_columns

Solved = tuple[Schedule, BoolArray]
Solve = Callable[..., Solved]


def _in_sequence(columns: ProblemColumns, *args: Any, **options: Any) -> Solved:
    """Schedule one operator at a time, each on all cores of its type."""
    return solve_columns(replace(columns, serial=True), *args, **options)


WAYS: dict[str, Solve] = {
    "one operator at a time": _in_sequence,
    "list schedules": partial(solve_columns, effort=1),
    "exact schedules": solve_columns,
    "bandwidth not shared": partial(solve_columns, bandwidth=False),
}
"""What takes the place of the scheduler; the third is the scheduler itself."""


@contextmanager
def scheduled(way: str) -> Iterator[None]:
    """Schedule all layers in another way.

    What bounds a schedule from below no longer does, so that the placement looks at every
    tensor degree.
    """
    with (
        patch("phaze_opt.passes.scheduled.solve_columns", WAYS[way]),
        patch("phaze_opt.point._least_layers", lambda *args: None),
    ):
        yield
