"""Many points at once: those that differ in their chips are estimated in one table."""

from __future__ import annotations

from collections.abc import Sequence

from phaze_opt.costed_point import Point, cost_points, fusion_of
from phaze_opt.evaluation import Evaluation, place_point
from phaze_opt.garbage import collected_later
from phaze_opt.layer_passes import ScheduleCache

AT_ONCE = 64
"""Points that are estimated together: more take more memory, and hardly less time."""


@collected_later()
def evaluate_many(points: Sequence[Point], cache: ScheduleCache | None = None) -> list[Evaluation]:
    """Evaluate some points; every result equals that of `phaze_opt.evaluation.evaluate`.

    Parameters
    ----------
    points
        Whatever they differ in. Those that have the same workload (the object itself), network,
        training, placement and fusion are estimated together, and tensor-core pools that chips
        share are estimated once.
    cache
        Schedules by content; solved ones are added.

    Raises
    ------
    InputError
        As `phaze_opt.evaluation.evaluate`, for the first group of points that has such a mistake.
    """
    groups: dict[object, list[int]] = {}
    for place, point in enumerate(points):
        shared = (
            id(point.workload),
            point.cluster,
            point.training,
            point.placement,
            fusion_of(point),
        )
        groups.setdefault(shared, []).append(place)
    found: dict[int, Evaluation] = {}
    for places in groups.values():
        for begin in range(0, len(places), AT_ONCE):
            some = places[begin : begin + AT_ONCE]
            costed = cost_points([points[place] for place in some], cache)
            answers = [place_point(one, cache) for one in costed]
            found.update(zip(some, answers, strict=True))
    return [found[place] for place in range(len(points))]
