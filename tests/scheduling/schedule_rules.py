"""The rules of a valid schedule, checked without any code of the solver."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import linprog

from phaze_opt.scheduling.schedule_problem import (
    Schedule,
    ScheduledOperator,
    ScheduleOperator,
    ScheduleProblem,
)

TIME_TOLERANCE = 1e-9
"""Rounding of sums of latencies, relative to the makespan."""

FRACTION_TOLERANCE = 1e-6
"""Rounding of sums of bandwidth shares."""

OPTIMALITY_TOLERANCE = 1e-6
"""Largest gap of a schedule with the status ``optimal``."""


def broken_rules(
    problem: ScheduleProblem, schedule: Schedule, *, bandwidth: bool = True
) -> list[str]:
    """List every rule that a schedule breaks, one sentence each.

    Parameters
    ----------
    problem, schedule
        The schedule to check, and its problem.
    bandwidth
        Whether HBM, global buffer and link bandwidth must suffice at every instant.

    Returns
    -------
    Empty for a valid schedule.
    """
    wanted = [operator.id for operator in problem.operators]
    given = [entry.id for entry in schedule.operators]
    if wanted != given:
        return [f"The schedule has the operators {given}, but the problem has {wanted}."]
    slack_s = TIME_TOLERANCE * schedule.makespan_s
    return [
        *_check_times(problem, schedule, slack_s),
        *_check_precedences(problem, schedule, slack_s),
        *_check_instants(problem, schedule, slack_s, bandwidth),
        *_check_claims(schedule, slack_s),
        *(_check_elastic_shares(problem, schedule) if problem.elastic and bandwidth else []),
    ]


def _check_times(problem: ScheduleProblem, schedule: Schedule, slack_s: float) -> list[str]:
    """Check that operators start at 0 or later and take the latency of their mode."""
    broken = []
    for operator, entry in zip(problem.operators, schedule.operators, strict=True):
        if not (math.isfinite(entry.start_s) and entry.start_s >= 0.0):
            broken.append(f"Operator {entry.id!r} starts at {entry.start_s} s.")
        if entry.intra_operator and operator.core == "none":
            broken.append(f"Operator {entry.id!r} needs no core but runs on all of them.")
        latency_s = operator.intra_op_latency_s if entry.intra_operator else operator.latency_s
        longer_s = entry.end_s - entry.start_s - latency_s
        if longer_s < -slack_s or (longer_s > slack_s and not problem.elastic):
            broken.append(
                f"Operator {entry.id!r} runs from {entry.start_s} to {entry.end_s} s, "
                f"but takes {latency_s} s."
            )
    return broken


def _check_precedences(problem: ScheduleProblem, schedule: Schedule, slack_s: float) -> list[str]:
    """Check that no operator starts before its predecessors have ended."""
    broken = []
    for before, after in problem.edges:
        first, second = schedule.operators[before], schedule.operators[after]
        if second.start_s < first.end_s - slack_s:
            broken.append(
                f"Operator {second.id!r} starts at {second.start_s} s, before operator "
                f"{first.id!r} ends at {first.end_s} s."
            )
    return broken


def _check_instants(
    problem: ScheduleProblem, schedule: Schedule, slack_s: float, bandwidth: bool
) -> list[str]:
    """Check cores, bandwidths and exclusivity at every instant.

    The use of resources grows only when an operator starts, so these instants are enough.
    """
    broken = []
    pairs = list(zip(problem.operators, schedule.operators, strict=True))
    for _, starting in pairs:
        now_s = starting.start_s + slack_s
        running = [pair for pair in pairs if pair[1].start_s <= now_s < pair[1].end_s - slack_s]
        for fault in _faults(problem, running, bandwidth):
            broken.append(f"At {starting.start_s} s, {fault}.")
    return list(dict.fromkeys(broken))


def _faults(
    problem: ScheduleProblem,
    running: list[tuple[ScheduleOperator, ScheduledOperator]],
    bandwidth: bool,
) -> list[str]:
    """List the rules that operators break by running at the same time."""
    faults = []
    names = ", ".join(repr(entry.id) for _, entry in running)
    for core, count in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        taken = sum(
            count if entry.intra_operator else 1
            for operator, entry in running
            if core in operator.core.split("+")
        )
        if taken > count:
            faults.append(f"{names} take {taken} of {count} {core}")
    alone = problem.serial or (
        problem.intra_operator == "exclusive" and any(entry.intra_operator for _, entry in running)
    )
    if alone and len(running) > 1:
        faults.append(f"{names} run together, but one of them must run alone")
    if bandwidth and not problem.serial and not problem.elastic:
        shares = [_shares(operator, entry) for operator, entry in running]
        for resource, values in zip(
            ("HBM", "global buffer", "link"), zip(*shares, strict=True), strict=False
        ):
            if sum(values) > 1.0 + FRACTION_TOLERANCE:
                faults.append(f"{names} take {sum(values)} of the {resource} bandwidth")
    return faults


def _check_elastic_shares(problem: ScheduleProblem, schedule: Schedule) -> list[str]:
    """Check that speeds exist with which every operator is done in its time.

    Between two ends or starts the speeds may be constant: a linear program looks for the part of
    each operator that is done in each of these intervals.
    """
    pairs = list(zip(problem.operators, schedule.operators, strict=True))
    instants_s = sorted({each for _, entry in pairs for each in (entry.start_s, entry.end_s)})
    slack_s = TIME_TOLERANCE * schedule.makespan_s
    intervals = [(a, b) for a, b in itertools.pairwise(instants_s) if b - a > slack_s]
    parts: list[tuple[int, int]] = []
    for index, (_, entry) in enumerate(pairs):
        if entry.end_s - entry.start_s > slack_s:
            parts += [
                (index, place)
                for place, (begin_s, end_s) in enumerate(intervals)
                if entry.start_s <= begin_s + slack_s and end_s <= entry.end_s + slack_s
            ]
    if not parts:
        return []
    latencies_s = [
        operator.intra_op_latency_s if entry.intra_operator else operator.latency_s
        for operator, entry in pairs
    ]
    use = np.zeros((3 * len(intervals), len(parts)))
    done = np.zeros((len(pairs), len(parts)))
    most = []
    for column, (index, place) in enumerate(parts):
        length_s = intervals[place][1] - intervals[place][0]
        done[index, column] = 1.0
        most.append((0.0, (length_s + slack_s) / max(latencies_s[index], slack_s)))
        for resource, share in enumerate(_shares(*pairs[index])):
            use[3 * place + resource, column] = share * latencies_s[index] / length_s
    wanted = np.flatnonzero(done.any(axis=1))
    found = linprog(
        np.zeros(len(parts)),
        A_ub=np.vstack([use, -done[wanted]]),
        b_ub=[1.0 + FRACTION_TOLERANCE] * len(use) + [-1.0 + FRACTION_TOLERANCE] * len(wanted),
        bounds=most,
    )
    return [] if found.status == 0 else ["No speeds leave every operator enough bandwidth."]


def _shares(operator: ScheduleOperator, entry: ScheduledOperator) -> tuple[float, float, float]:
    """Give the shares of HBM, global buffer and link that an operator takes in its mode."""
    if entry.intra_operator:
        hbm, glb = operator.intra_op_hbm_fraction, operator.intra_op_glb_fraction
    else:
        hbm, glb = operator.hbm_fraction, operator.glb_fraction
    return hbm, glb, operator.link_fraction


def _check_claims(schedule: Schedule, slack_s: float) -> list[str]:
    """Check makespan, bound and status against the operators' ends and against one another."""
    broken = []
    last_s = max((entry.end_s for entry in schedule.operators), default=0.0)
    if abs(schedule.makespan_s - last_s) > slack_s:
        broken.append(f"The makespan is {schedule.makespan_s} s, but the last end {last_s} s.")
    if schedule.bound_s > schedule.makespan_s + slack_s:
        broken.append(
            f"The bound {schedule.bound_s} s is above the makespan {schedule.makespan_s} s."
        )
    if schedule.status == "optimal" and schedule.gap > OPTIMALITY_TOLERANCE:
        broken.append(f"The schedule calls itself optimal with a gap of {schedule.gap}.")
    return broken
