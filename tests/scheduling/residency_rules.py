"""The rules of a valid schedule with residency, checked without any code of the solver."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, permutations, product

from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import Schedule, ScheduleProblem

TOLERANCE = 1e-9
"""Rounding of sums, relative to the makespan or to an operator's bytes."""

OPTIMALITY_TOLERANCE = 1e-6


def broken_joint_rules(problem: ScheduleProblem, schedule: Schedule) -> list[str]:
    """List every rule that a schedule with residency breaks, one sentence each.

    Operators without duration that start together may run in any order, and the schedule does
    not say which: it is valid if one of these orders is.
    """
    if [one.id for one in schedule.operators] != [one.id for one in problem.operators]:
        return ["The schedule has other operators than the problem."]
    fewest: list[str] | None = None
    for order in _orders(schedule):
        broken = _broken_in_order(problem, schedule, order)
        if fewest is None or len(broken) < len(fewest):
            fewest = broken
        if not fewest:
            break
    assert fewest is not None
    return fewest


def _orders(schedule: Schedule) -> Iterator[list[int]]:
    """List the orders of the operators that have the schedule's times."""
    times = [(one.start_s, one.end_s) for one in schedule.operators]
    by_time = sorted(range(len(times)), key=times.__getitem__)
    groups = [permutations(group) for _, group in groupby(by_time, key=times.__getitem__)]
    for parts in product(*groups):
        yield [i for part in parts for i in part]


def _broken_in_order(problem: ScheduleProblem, schedule: Schedule, order: list[int]) -> list[str]:
    """List every rule that the schedule breaks if its operators run in this order."""
    residency, plan = problem.residency, schedule.residency
    assert residency is not None and plan is not None
    slack_s = TOLERANCE * schedule.makespan_s
    broken = []
    now_s = 0.0
    for i in order:
        entry = schedule.operators[i]
        if abs(entry.start_s - now_s) > slack_s:
            broken.append(f"Operator {entry.id!r} starts at {entry.start_s} s, not {now_s} s.")
        now_s = entry.end_s
    if abs(schedule.makespan_s - now_s) > slack_s:
        broken.append(f"The makespan is {schedule.makespan_s} s, but the last end {now_s} s.")
    place = {i: position for position, i in enumerate(order)}
    for before, after in problem.edges:
        if place[before] > place[after]:
            broken.append(f"Operator {after} runs before operator {before}.")
    broken += _check_stays(residency, schedule, place, slack_s)
    broken += _check_operators(residency, schedule, place, slack_s)
    if schedule.bound_s > schedule.makespan_s + slack_s:
        broken.append("The bound is above the makespan.")
    if schedule.status == "optimal" and schedule.gap > OPTIMALITY_TOLERANCE:
        broken.append(f"The schedule calls itself optimal with a gap of {schedule.gap}.")
    return broken


def _check_stays(
    residency: Residency, schedule: Schedule, place: dict[int, int], slack_s: float
) -> list[str]:
    """Check that resident tensors stay from their first to their last operator."""
    assert schedule.residency is not None
    broken = []
    for stay in schedule.residency.tensors:
        tensor = residency.graph.tensors[stay.tensor]
        operators = sorted([*tensor.readers, *_producers(tensor.producer)], key=place.__getitem__)
        start_s = schedule.operators[operators[0]].start_s
        end_s = schedule.operators[operators[-1]].end_s
        if abs(stay.start_s - start_s) > slack_s or abs(stay.end_s - end_s) > slack_s:
            broken.append(
                f"Tensor {stay.tensor} stays from {stay.start_s} to {stay.end_s} s, "
                f"but is needed from {start_s} to {end_s} s."
            )
    if len({stay.tensor for stay in schedule.residency.tensors}) < len(schedule.residency.tensors):
        broken.append("A tensor stays twice.")
    return broken


def _producers(producer: int | None) -> list[int]:
    """List the producer, if there is one."""
    return [] if producer is None else [producer]


def _check_operators(
    residency: Residency, schedule: Schedule, place: dict[int, int], slack_s: float
) -> list[str]:
    """Check room in the buffer, HBM bytes and duration at every operator."""
    assert schedule.residency is not None
    graph = residency.graph
    resident = {stay.tensor for stay in schedule.residency.tensors}
    broken = []
    for i, entry in enumerate(schedule.operators):
        level = schedule.residency.levels[i]
        held, flow = int(residency.working_bytes[i, level]), float(residency.hbm_bytes[i, level])
        row = -1
        for number, tensor in enumerate(graph.tensors):
            operators = [*_producers(tensor.producer), *tensor.readers]
            places = [place[one] for one in operators]
            if number in resident and min(places) <= place[i] <= max(places):
                held += tensor.bytes
            for one in operators:
                row += 1
                if one != i or number not in resident:
                    continue
                if not (one == tensor.producer and tensor.outlives):
                    flow -= float(residency.saved_bytes[row, level])
                if tensor.producer is None and place[one] == min(places):
                    flow += tensor.bytes
        if held > residency.glb_bytes:
            broken.append(f"{held} bytes are in the buffer while {entry.id!r} runs.")
        if abs(flow - schedule.residency.hbm_bytes[i]) > 1e-6 * (
            1.0 + residency.hbm_bytes[i, level]
        ):
            broken.append(f"{entry.id!r} moves {flow} bytes.")
        busy_s = max(float(residency.other_s[i, level]), flow / residency.hbm_bytes_per_s)
        takes_s = busy_s + float(residency.overhead_s[i])
        if abs(entry.end_s - entry.start_s - takes_s) > slack_s:
            broken.append(f"{entry.id!r} takes {takes_s} s.")
    return broken
