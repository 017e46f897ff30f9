"""The schedule of a program beside a cache: operators one by one in their order, nothing chosen."""

from __future__ import annotations

import itertools

from phaze_opt.scheduling.schedule_problem import (
    CachedReads,
    ResidencySchedule,
    ResidentTensor,
    Schedule,
    ScheduledOperator,
    ScheduleProblem,
)


def schedule_with_cache(
    problem: ScheduleProblem, cached: CachedReads, without: Schedule
) -> Schedule:
    """Run the operators of a valid problem in their order, with the reads that the cache serves.

    The program is given, so that there is one schedule only, and it is proven.

    Parameters
    ----------
    problem, cached
        The problem, and what the cache saves of it.
    without
        Its schedule without the cache, which this one never exceeds.
    """
    # The same times in another order may add up to more in the last bit.
    ends_s = [
        min(end_s, without.makespan_s)
        for end_s in itertools.accumulate(cached.latency_s, initial=0.0)
    ]
    operators = [
        ScheduledOperator(operator.id, start_s, end_s, operator.core != "none")
        for operator, (start_s, end_s) in zip(
            problem.operators, itertools.pairwise(ends_s), strict=True
        )
    ]
    stays = [
        ResidentTensor(tensor, operators[first].start_s, operators[last].end_s)
        for tensor, first, last in _joined(cached.served)
    ]
    return Schedule(
        operators=tuple(operators),
        makespan_s=ends_s[-1],
        status="optimal",
        bound_s=ends_s[-1],
        method="bound",
        solve_s=without.solve_s,
        residency=ResidencySchedule((0,) * len(operators), cached.hbm_bytes, tuple(stays)),
    )


def _joined(served: tuple[tuple[int, int, int], ...]) -> list[tuple[int, int, int]]:
    """Join the reads of a tensor that follow one another to one stay."""
    stays: list[tuple[int, int, int]] = []
    for tensor, source, reader in sorted(served):
        if stays and stays[-1][0] == tensor and source <= stays[-1][2]:
            stays[-1] = (tensor, stays[-1][1], max(reader, stays[-1][2]))
        else:
            stays.append((tensor, source, reader))
    return stays
