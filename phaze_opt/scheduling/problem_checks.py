"""Refuse a problem that cannot be scheduled, in one sentence that names the operator."""

from __future__ import annotations

import math
import typing

from phaze_opt.errors import InputError, unknown_name
from phaze_opt.scheduling.schedule_problem import (
    CoreType,
    IntraOperatorRule,
    ScheduleOperator,
    ScheduleProblem,
)

CORE_TYPES: tuple[CoreType, ...] = typing.get_args(CoreType)
INTRA_OPERATOR_RULES: tuple[IntraOperatorRule, ...] = typing.get_args(IntraOperatorRule)

_LATENCIES = ("latency_s", "intra_op_latency_s")
_FRACTIONS = (
    "hbm_fraction",
    "glb_fraction",
    "link_fraction",
    "intra_op_hbm_fraction",
    "intra_op_glb_fraction",
)


def validate(problem: ScheduleProblem) -> tuple[int, ...]:
    """Check a whole problem.

    Returns
    -------
    A topological order of the operators' indices.

    Raises
    ------
    InputError
        For an unknown rule or core type, a latency or fraction outside its range, an operator that
        no core can run, latencies without a finite sum, two operators of one id, an edge to an
        unknown operator, or a cycle.
    """
    if problem.intra_operator not in INTRA_OPERATOR_RULES:
        raise unknown_name("intra-operator rule", problem.intra_operator, INTRA_OPERATOR_RULES)
    for name in ("num_tc", "num_vc"):
        if getattr(problem, name) < 0:
            raise InputError(f"{name} is {getattr(problem, name)}, but it must not be negative.")
    seen: set[str] = set()
    total_s = 0.0
    for operator in problem.operators:
        _validate_operator(operator, problem)
        if operator.id in seen:
            raise InputError(f"Two operators have the id {operator.id!r}; ids must be unique.")
        seen.add(operator.id)
        total_s += max(operator.latency_s, operator.intra_op_latency_s)
        if math.isinf(total_s):
            raise InputError(
                f"With {operator.id!r}, the latencies of the operators add up to more seconds "
                "than a floating-point number can hold."
            )
    return topological_order(problem)


def _validate_operator(operator: ScheduleOperator, problem: ScheduleProblem) -> None:
    """Check one operator by itself and against the cores there are."""
    if operator.core not in CORE_TYPES:
        raise unknown_name(f"core type of operator {operator.id!r}:", operator.core, CORE_TYPES)
    for name in _LATENCIES:
        value = getattr(operator, name)
        if not (math.isfinite(value) and value >= 0.0):
            raise InputError(
                f"{name} of operator {operator.id!r} is {value}, "
                "but it must be finite and not negative."
            )
    for name in _FRACTIONS:
        value = getattr(operator, name)
        if not 0.0 <= value <= 1.0:
            raise InputError(
                f"{name} of operator {operator.id!r} is {value}, but it must be from 0 to 1."
            )
    for core, count in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        if core in operator.core and count == 0:
            raise InputError(
                f"No core can run operator {operator.id!r}: it needs a {core}, "
                f"and num_{core.lower()} is 0."
            )


def topological_order(problem: ScheduleProblem) -> tuple[int, ...]:
    """Order the operators so that every edge points forward.

    Raises
    ------
    InputError
        If an edge names an operator that does not exist, or the edges form a cycle.
    """
    count = len(problem.operators)
    waiting = [0] * count
    successors: list[list[int]] = [[] for _ in range(count)]
    for before, after in problem.edges:
        for end, other in ((before, after), (after, before)):
            if not 0 <= end < count:
                known = problem.operators[other].id if 0 <= other < count else "?"
                raise InputError(
                    f"An edge of operator {known!r} ends at operator number {end}, "
                    f"but there are {count} operators, counted from 0."
                )
        successors[before].append(after)
        waiting[after] += 1
    order = [index for index in range(count) if waiting[index] == 0]
    for index in order:
        for after in successors[index]:
            waiting[after] -= 1
            if waiting[after] == 0:
                order.append(after)
    if len(order) < count:
        raise InputError(
            f"The operators form a cycle: {_name_cycle(problem, successors, waiting)}."
        )
    return tuple(order)


def _name_cycle(problem: ScheduleProblem, successors: list[list[int]], waiting: list[int]) -> str:
    """Write one cycle among the operators that a topological sort left over."""
    predecessor = {}
    for index, blocked in enumerate(waiting):
        if blocked:
            for after in successors[index]:
                if waiting[after]:
                    predecessor[after] = index
    # Every operator left over waits for another one left over, so going backwards must repeat.
    position = next(index for index, blocked in enumerate(waiting) if blocked)
    trail: list[int] = []
    while position not in trail:
        trail.append(position)
        position = predecessor[position]
    cycle = [position, *reversed(trail[trail.index(position) :])]
    return " -> ".join(repr(problem.operators[index].id) for index in cycle)
