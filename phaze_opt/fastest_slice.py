"""The slice of a network on which a batch takes least time, and the placement there."""

from __future__ import annotations

from phaze_opt.errors import InfeasibleError
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.point import CostedPoint, cost_point, smaller_slices


def place_on_fastest_slice(
    costed: CostedPoint, cache: ScheduleCache | None = None
) -> tuple[CostedPoint, Placement]:
    """Place a point on all of its network, and on the smaller slices that may be faster.

    Mostly none is, as the work of the layers alone takes longer on half of the devices.

    Parameters
    ----------
    costed
        On all of its network.
    cache
        As for `phaze_opt.point.cost_point`.

    Returns
    -------
    costed, placement
        The point as it is costed on the slice that it takes, and its placement there.

    Raises
    ------
    InfeasibleError
        If no placement fits all of the network; on a slice there are no other degrees, and devices
        hold as much.
    """
    degrees, stages = costed.degrees, costed.point.stages
    best, placed = costed, solve_placement(costed.problem, degrees, stages)
    bound_s = placed.bound_s
    for slice_index, cluster in smaller_slices(costed.point.cluster, degrees):
        known_s = placed.time_per_batch_s
        if degrees is None and best.least_work_s(cluster) >= known_s:
            continue
        other = cost_point(costed.point, cache, slice_index)
        try:
            solved = solve_placement(other.problem, degrees, stages)
        except InfeasibleError:
            continue
        if bound_s is not None and solved.bound_s is not None:
            bound_s = min(bound_s, solved.bound_s)
        if solved.time_per_batch_s < known_s:
            best, placed = other, solved
    if bound_s is None or bound_s == placed.bound_s:
        return best, placed
    # No placement is below the least of the bounds of the slices.
    return best, placed.searched(bound_s)
