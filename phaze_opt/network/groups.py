"""Which levels of a network a group of ranks uses, and how many of its members are on each.

A group is ``group`` ranks, ``stride`` apart.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import NamedTuple

from phaze_opt.network.cluster import Cluster, NetworkLevel, outermost_level, units_and_extents
from phaze_opt.network.torus import is_grid

Axes = tuple[tuple[int, float], ...]
"""Members along each axis of a level, and the links that a ring through them has for itself.

A closed ring has two, a line one; where the members are some places apart, so many groups share
the links between them.
"""


def members_per_level(group: int, cluster: Cluster, stride: int = 1) -> tuple[Axes, ...] | None:
    """Split a group over the levels: members along each axis of each level, innermost first.

    Returns ``None`` where the group does not split evenly (12 ranks over nodes of 8), or is not a
    grid of a torus (3 of 8 in a row).
    """
    levels = cluster.levels[: outermost_level(group, cluster, stride) + 1]
    if not all(is_grid(_cuts(cluster, index), group, stride) for index in range(len(levels))):
        return None
    reach, inside = 1, 1
    axes_by_level: list[Axes] = []
    for level in levels:
        along: list[tuple[int, float]] = []
        for size in level.axes or (level.group_size,):
            spacing = max(1, stride // reach)
            extent = cluster.devices // reach if size is None else size
            reach = group * stride if size is None else reach * size
            members = min(group, max(1, reach // stride))
            if members % inside or group % members:
                return None
            count = members // inside
            links = 2.0 if count * spacing >= extent else 1.0
            along.append((count, links / spacing))
            inside = members
        axes_by_level.append(tuple(along))
    return tuple(axes_by_level)


class WholeUnits(NamedTuple):
    """Groups that reach beyond the units of the level below the outermost one.

    Attributes
    ----------
    joined
        Members that one unit joins, at least 1.
    multiple
        Of such groups, those of a multiple of so many members split evenly over the levels, if any
        do.
    """

    joined: int
    multiple: int


def whole_units(cluster: Cluster, stride: int) -> WholeUnits:
    """Return which groups that reach the outermost level `members_per_level` can split."""
    reach, joined, multiple = 1, 1, 1
    for index, level in enumerate(levels_with_units(cluster)[:-1]):
        for size in level.axes or (level.group_size or 1,):
            reach *= size
            joined = max(1, reach // stride)
            multiple = math.lcm(multiple, joined)
        # Beyond the lines of a ring or torus, a group that is a grid ends where they end.
        for cut in _cuts(cluster, index):
            multiple = math.lcm(multiple, cut // math.gcd(cut, stride))
    return WholeUnits(joined, multiple)


def levels_with_units(cluster: Cluster) -> tuple[NetworkLevel, ...]:
    """Return the levels up to the first one that joins any number of units."""
    sized = [level.group_size is not None for level in cluster.levels]
    return cluster.levels[: sized.index(False) + 1] if False in sized else cluster.levels


def _cuts(cluster: Cluster, index: int) -> list[int]:
    """Return the ranks at which lines along the axes of a ring or torus level begin and end."""
    if not cluster.levels[index].is_direct:
        return []
    below, extents = units_and_extents(cluster, index)
    # No group reaches beyond the end of the outermost level.
    last = -1 if index == len(cluster.levels) - 1 else None
    return list(itertools.accumulate((below, *extents), operator.mul))[:last]


def members_joined(group: int, cluster: Cluster, stride: int) -> list[int]:
    """Return how many members of the group one unit of each level joins."""
    joined, reach = [], 1
    for level in cluster.levels[: outermost_level(group, cluster, stride)]:
        reach *= level.group_size or 1
        joined.append(min(group, max(1, reach // stride)))
    return [*joined, group]


def crossed_levels(group: int, cluster: Cluster, stride: int = 1) -> list[int]:
    """Return the indices of the levels that join more than one rank of the group."""
    levels = cluster.levels[: outermost_level(group, cluster, stride) + 1]
    reach = itertools.accumulate((level.group_size or math.inf for level in levels), operator.mul)
    return [index for index, joined in enumerate(reach) if joined > stride]
