"""The schedule of a program beside a cache: operators one by one in their order, nothing chosen."""

from __future__ import annotations

import itertools

from phaze_opt.scheduling.canonical import NO_CORE
from phaze_opt.scheduling.problem_columns import ProblemColumns
from phaze_opt.scheduling.schedule_problem import (
    CachedReads,
    ResidencySchedule,
    ResidentTensor,
    Schedule,
    ScheduledOperator,
)


def schedule_with_cache(
    columns: ProblemColumns, cached: CachedReads, without: Schedule
) -> Schedule:
    """Run the operators of a valid problem in their order, with the reads that the cache serves.

    The program is given, so that there is one schedule only, and it is proven.

    Parameters
    ----------
    columns, cached
        The problem, and what the cache saves of it.
    without
        Its schedule without the cache, which this one never exceeds.
    """
    # The same times in another order may add up to more in the last bit.
    ends_s = [
        min(end_s, without.makespan_s)
        for end_s in itertools.accumulate(cached.latency_s, initial=0.0)
    ]
    has_core = (columns.core != NO_CORE).tolist()
    operators = list(map(ScheduledOperator, columns.ids, ends_s, ends_s[1:], has_core))
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
